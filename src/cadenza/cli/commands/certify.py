"""``certify``: the proof that a killed and resumed training equals an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.commands.options import Allow, Imports, Overrides, RecipeName


def certify(
    recipe: RecipeName,
    overrides: Overrides = None,
    kills: Annotated[int, typer.Option("--kills", min=1, help="How often the training is killed.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Of the random moments at which it is.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="The file for the certificate.")] = Path("certificate.json"),
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Prove that a killed training resumes to the same bits.

    Kills it again and again, resumes it, and compares it with an uninterrupted one.
    """
    from cadenza.cli.certification import RecipeTraining
    from cadenza.recipes import load
    from cadenza.testing import certify as prove

    words = tuple(overrides or ()), tuple(imports or ()), tuple(allow or ())
    load(recipe, words[0], imports=words[1], allow=words[2])  # what is wrong with it is said before anything runs
    certificate = prove(RecipeTraining(recipe, *words), kills=kills, seed=seed)
    certificate.write(out)
    typer.echo(str(certificate))
    typer.echo(str(out))
    if not certificate.equal:
        raise typer.Exit(1)
