"""``replay``: the step again at which a value was not finite any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.commands.arguments import Allow, Imports
from cadenza.cli.commands.train import RECIPE, Job
from cadenza.cli.terminal import CommandError, UsageError

if TYPE_CHECKING:
    from cadenza.trainer import Trainer


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file that NaNGuard wrote.")],
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="The recipe or run; else the run in whose folder FILE is.")
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            "--trainer", metavar="file.py:function", help="A function without arguments that makes the trainer."
        ),
    ] = None,
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Play the step of a NaN again, and say whose it is. NaNGuard wrote it down when it found the NaN."""
    if trainer is not None:
        typer.echo(replay_file(file, trainer))
    else:
        typer.echo(replay_recipe(file, recipe, imports=imports or [], allow=allow or []))


def load_maker(place: str) -> Callable[[], Trainer]:
    """The function at ``file.py:function`` or ``module:function``."""
    from cadenza.recipes.user_modules import import_module

    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"--trainer is file.py:function or module:function, not {place!r}")
    maker: Callable[[], Trainer] | None = getattr(import_module(where), name, None)
    if not callable(maker):
        raise CommandError(f"{where} has no function {name!r} that makes a trainer")
    return maker


def replay_file(file: Path, place: str) -> str:
    """What the replay found, in words."""
    from cadenza.trainer import Trainer

    _refuse_missing(file)
    trainer = load_maker(place)()
    if not isinstance(trainer, Trainer):
        raise CommandError(f"{place} returned a {type(trainer).__name__}, not a Trainer")
    return _played(trainer, file)


def replay_recipe(file: Path, recipe: str | None, *, imports: Sequence[str], allow: Sequence[str]) -> str:
    """The same with the trainer of a recipe or a run; without one, of the run in whose folder the file lies."""
    _refuse_missing(file)
    if recipe is None:
        recipe = next((str(folder) for folder in file.resolve().parents if (folder / RECIPE).is_file()), None)
    if recipe is None:
        raise UsageError(f"{file} lies in no run's folder; say the recipe: cadenza replay FILE RECIPE, or --trainer")
    job = Job.of(recipe, [], imports=imports, allow=allow)
    return _played(job.recipe.build().trainer, file)


def _played(trainer: Trainer, file: Path) -> str:
    try:
        return str(trainer.replay(file))
    except ValueError as error:
        raise CommandError(str(error)) from error


def _refuse_missing(file: Path) -> None:
    if not file.is_file():
        raise CommandError(f"there is no file {file}")
