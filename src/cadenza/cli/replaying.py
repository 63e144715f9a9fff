"""``cadenza replay``: plays a file of ``NaNGuard`` again, with the trainer of a recipe, a run or a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cadenza.cli.errors import CommandError, UsageError
from cadenza.cli.training import RECIPE, Job
from cadenza.recipes.user_modules import import_module
from cadenza.trainer import Trainer


def load_maker(place: str) -> Callable[[], Trainer]:
    """The function at ``file.py:function`` or ``module:function``."""
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"--trainer is file.py:function or module:function, not {place!r}")
    maker: Callable[[], Trainer] | None = getattr(import_module(where), name, None)
    if not callable(maker):
        raise CommandError(f"{where} has no function {name!r} that makes a trainer")
    return maker


def replay_file(file: Path, place: str) -> str:
    """What the replay found, in words."""
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
