"""What the engine asks of a resume; ``FreshStart`` answers for a run that begins from the beginning.

``cadenza.resume.restore.Resume`` is the other one: a saved state on its way into a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.stack import Pass
    from cadenza.run import Run


class FreshStart:
    """Nothing is restored: no epoch was open, no pass was done.

    >>> FRESH_START.is_resuming, FRESH_START.position
    (False, None)
    """

    is_resuming = False
    """Whether a saved state is on its way into the run; no longer once the run is where it was saved."""
    position: dict[str, Any] | None = None
    """Where in the epoch the run was saved; None between two epochs."""

    def is_finished(self, run: Run) -> bool:
        """Whether nothing is left to train."""
        return False

    def load(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """Restores everything but the place in the epoch, before ``before_run``."""

    def load_ended(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """Restores a run that had ended, without opening it."""

    def reopen_epoch(self, run: Run) -> None:
        """The epoch that was open continues."""

    def skips(self, run: Run, stage: str, name: str | None) -> bool:
        """Whether this pass was done before the run was interrupted."""
        return False

    def reopen_pass(self, run: Run, this: Pass) -> None:
        """The training pass continues after the batches that were consumed."""

    def set_rng(self, run: Run) -> None:
        """Restores the random number generators."""

    def arrive(self, run: Run) -> None:
        """The run is where it was saved: undoes what callbacks did on the way, and ends the resuming."""

    def leave(self, run: Run) -> None:
        """The run ends without opening the epoch in which it was saved."""

    def release(self) -> None:
        """The run is open, or will not be."""


FRESH_START = FreshStart()
