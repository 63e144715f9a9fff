"""How many samples a step sees, kept when a run goes on with another number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cadenza.data import accumulation_for
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


def step_of(run: Run) -> dict[str, Any]:
    """What a checkpoint notes: the samples that a step sees over all processes, None if they are not known."""
    training = run.training_state
    if run.train_loader is None and training.step is not None:  # a custom loop that was resumed only to end
        return training.step
    size, owner = batch_size_of(run.train_loader), accumulating(run.callbacks)
    batches = 1 if owner is None else owner.n
    samples = None if size is None else size * run.world_size * batches
    training.step = {"samples": samples, "adapted": owner is not None and owner.adapted}
    return training.step


def batch_size_of(loader: Any) -> int | None:
    """The batch size of one process, if the loader says it."""
    size = getattr(getattr(loader, "loader", loader), "batch_size", None)
    return size if isinstance(size, int) else None


def accumulating(callbacks: Sequence[Callback]) -> Any:
    """The callback that makes one step of several batches; None if each batch is a step."""
    return next((callback for callback in callbacks if "accumulation" in callback.owns), None)


def keep_step(run: Run, callbacks: Sequence[Callback], saved: dict[str, Any], before: int) -> None:
    """A run that was saved with ``before`` processes goes on: a step sees as many samples as before. The accumulation
    is adapted; what cannot be is refused, with the numbers."""
    size, samples, owner = batch_size_of(run.train_loader), saved["samples"], accumulating(callbacks)
    if size is None or samples is None:
        if before != run.world_size:
            said = "how many samples a step sees is not known from the loader: see to it that it stays the same"
            warn(f"saved with {before} processes, going on with {run.world_size}: {said}")
        return
    batches = accumulation_for(samples, size, run.world_size)
    if owner is not None:
        owner.adapt(batches, scale=before / run.world_size)
    elif batches != 1:
        raise ValueError(
            f"a step of the saved run sees {samples} samples, {run.world_size} process(es) with batch size {size} see "
            f"{size * run.world_size}: use batch size {samples // run.world_size}, or add Accumulate(1) to the "
            f"callbacks, which then takes {batches} batches for a step"
        )
