"""``certify``: the proof that a killed and resumed training equals an uninterrupted one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.commands.arguments import Allow, Imports, Overrides, complete_recipe

if TYPE_CHECKING:
    from cadenza.callback import Callback

PLACE = re.compile(r"\.py:\w+$")
"""How the place of a function ends."""


def certify(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A ready recipe, a YAML file, or a function (folder, callbacks) as file.py:function.",
            autocompletion=complete_recipe,
        ),
    ],
    overrides: Overrides = None,
    kills: Annotated[int, typer.Option("--kills", min=1, help="How often SIGKILL ends the training.")] = 10,
    storm: Annotated[
        int | None, typer.Option("--storm", min=1, help="So many SIGKILL, SIGTERM and SIGINT instead of --kills.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the random moments; the same seed repeats them.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="The file for the certificate.")] = Path("certificate.json"),
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Prove that a killed training resumes to the same bits.

    Kills it again and again, resumes it, and compares it with an uninterrupted one.
    """
    from cadenza.recipes import load
    from cadenza.testing import Storm
    from cadenza.testing import certify as prove

    words = tuple(overrides or ()), tuple(imports or ()), tuple(allow or ())
    train: Any = recipe
    if not PLACE.search(recipe):
        load(recipe, words[0], imports=words[1], allow=words[2])  # reports what is wrong before anything runs
        train = RecipeTraining(recipe, *words)
    elif any(words):
        raise typer.BadParameter("overrides, --import and --allow change a recipe; a function takes none")
    certificate = prove(train, kills=kills if storm is None else Storm(storm), seed=seed)
    certificate.write(out)
    typer.echo(str(certificate))
    typer.echo(str(out))
    if not certificate.equal:
        raise typer.Exit(1)


@dataclass(frozen=True)
class RecipeTraining:
    """Trains a recipe with its checkpoints in ``folder``, and goes on from them if there are any."""

    recipe: str
    overrides: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    def __call__(self, folder: Path, callbacks: list[Callback]) -> None:
        from cadenza.callbacks import Checkpoint, Progress
        from cadenza.recipes import load

        found = load(self.recipe, self.overrides, imports=self.imports, allow=self.allow)
        built = found.build(experiment=None)
        trainer = built.trainer
        savers = [callback for callback in trainer.callbacks if isinstance(callback, Checkpoint)]
        for saver in savers:
            saver.to = folder
        for callback in trainer.callbacks:
            if isinstance(callback, Progress):
                trainer.remove(callback)
        for callback in [*([] if savers else [Checkpoint(to=folder)]), *callbacks]:
            trainer.add(callback)
        built.fit(resume="auto")
