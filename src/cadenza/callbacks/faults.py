"""What happens when a callback that only measures or shows something fails."""

from __future__ import annotations

import errno
import functools
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cadenza.foundation.arguments import one_of
from cadenza.foundation.warn import warn

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
