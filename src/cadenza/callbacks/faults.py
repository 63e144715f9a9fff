"""What callbacks that write or show something share: where files go, and that a fault there does not end a training."""

from __future__ import annotations

import errno
import functools
import logging
import os
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cadenza.foundation.arguments import one_of
from cadenza.foundation.warn import warn
from cadenza.foundation.whole_files import filled

if TYPE_CHECKING:
    from cadenza.run import Run


log = logging.getLogger("cadenza")
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)
"""A disk that is full, a quota that is used up, a limit on the size of files; a disk that was made read-only because it
fails, one that fails, a network file system that is gone."""
Player = TypeVar("Player", bound="Callable[[Any, Run], None]")


class Faults:
    """Part of a callback with an argument ``on_error``: "raise" ends the run, "warn" switches the callback off. A disk
    that is full or fails does neither: there is one warning, and the callback tries again when it is next called."""

    name: str
    on_error: str = "raise"
    _off: weakref.ref[Run] | None = None
    _in_trouble: weakref.ref[Run] | None = None

    def _check_on_error(self, on_error: str) -> None:
        one_of(f"{self.name}: on_error", on_error, ("raise", "warn"))
        self.on_error = on_error

    def _note_disk(self, run: Run, error: OSError) -> None:
        if self._in_trouble is None or self._in_trouble() is not run:
            self._in_trouble = weakref.ref(run)
            warn(f"{self.name} could not write to its disk, the run goes on: {error}")

    def _is_off(self, run: Run) -> bool:
        return self._off is not None and self._off() is run


def tolerant(play: Player) -> Player:
    """Lets a player of a point fail as its callback's ``on_error`` says; once it failed, it and the other such players
    of the callback rest until the next run."""

    @functools.wraps(play)
    def play_or_rest(self: Any, run: Run) -> None:
        if self._is_off(run):
            return
        try:
            play(self, run)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK_TROUBLE:
                self._note_disk(run, error)
                return
            self._off = weakref.ref(run)
            if self.on_error == "raise":
                raise
            warn(f"{self.name} is switched off, the run goes on: {type(error).__name__}: {error}")

    return cast(Player, play_or_rest)


def epochs_of_others(stages: Collection[str] | None) -> list[str]:
    """The points around epochs of validations and tests that are not among ``stages``.

    >>> epochs_of_others({"val"})
    ['before_test_epoch', 'after_test_epoch']
    """
    others = [stage for stage in ("val", "test") if stage not in (stages or ())]
    return [f"{kind}_{stage}_epoch" for stage in others for kind in ("before", "after")]


DEFAULT = "runs"
"""The folder for the files of a run that has no experiment."""


def place_for(run: Run, path: str | os.PathLike[str] | None, name: str, *, plot: bool = False) -> Path:
    """The file to write: ``path`` if it was chosen, else ``name`` in the folder of the experiment, else in ``runs``.

    ``{epoch}``, ``{step}``, ``{stage}`` and ``{loader}`` in it are filled in. A pass over a loader that has a name adds
    that name to the file's, so that several loaders do not overwrite each other.
    """
    experiment = run.experiment
    folder = getattr(experiment, "folder", None)
    if path is not None:
        chosen = Path(path)
    elif isinstance(folder, str | os.PathLike):
        plots = getattr(experiment, "plots", None)
        own = plots if isinstance(plots, str | os.PathLike) else Path(folder) / "plots"
        chosen = Path(own if plot else folder) / name
    else:
        chosen = Path(DEFAULT) / name
    return filled(chosen, run.epoch, run.clock.steps, run.stage, run.loader_name)
