"""``train``: a recipe, from a file to a trained model in a folder of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from cadenza.cli.commands.options import Allow, Imports, Overrides, RecipeName


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and build everything, train nothing.")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the whole recipe, and stop.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest run of this recipe, or with the run named.")
    ] = False,
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Train a recipe. RECIPE may be the folder of a run, whose recipe is then used again."""
    from cadenza.cli.fitting import fitted, terminal_width
    from cadenza.cli.training import Job

    job = Job.of(recipe, overrides or [], imports=imports or [], allow=allow or [])
    if print_config:
        typer.echo(job.recipe.text, nl=False)
    elif dry_run:
        typer.echo(fitted(job.rehearse(), terminal_width()))
    elif said := job.train(resume=resume):
        typer.echo(said)
