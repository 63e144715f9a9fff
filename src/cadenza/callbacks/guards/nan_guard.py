"""Noticing the first NaN, and keeping what is needed to find where it came from."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.utils import get_total_norm

from cadenza.callback import Callback, Order, without
from cadenza.callbacks.training.clip import trained_parameters
from cadenza.foundation.arguments import one_of, path, whole
from cadenza.foundation.warn import warn
from cadenza.history import read
from cadenza.replay.snapshot import CannotKeep
from cadenza.replay.tape import Place, Tape, folder_for

if TYPE_CHECKING:
    from cadenza.run import Run

log = logging.getLogger("cadenza")


def largest(tensors: Iterable[Tensor]) -> Tensor:
    """The largest absolute value in ``tensors``: NaN or infinite if one of them is anywhere. The device is not waited
    for; read it when you must know.

    >>> import torch
    >>> largest([torch.tensor([1.0, -3.0])]), largest([torch.ones(2), torch.tensor([float("nan")])])
    (tensor(3.), tensor(nan))
    """
    dense = (tensor._values() if tensor.is_sparse else tensor for tensor in tensors)
    return get_total_norm([tensor for tensor in dense if tensor.numel()], math.inf)


class NonFinite(ArithmeticError):
    """The loss or a gradient is NaN or infinite."""


class NaNGuard(Callback):
    """Notices the first loss, or gradient, that is NaN or infinite, says where it happened, and keeps what is needed to
    play it again: ``trainer.replay(file)`` then names the module that it came from.

    ``action="stop"`` and ``"raise"`` look at every batch without waiting for the device: the values stay there and are
    read together every ``check_every`` batches, before validation and before a checkpoint is written. So the run ends
    at most ``check_every - 1`` batches after the hit, and yet the hit names the very step, epoch and batch.
    ``action="skip"`` has to know at once and waits for the device in each batch: a batch whose loss is not finite is
    not back-propagated, with ``watch="gradients"`` a step on such gradients is not made, and buffers that the batch
    made non-finite are put back. After ``max_in_row`` such batches in a row the run is stopped. Nothing is hidden:
    a stop and the first skip are warned of, and the loss of a hit counts in the mean, so ``train/loss`` of that epoch
    is NaN.

    ``watch`` is "loss", "gradients" or "both". Gradients are looked at as the step uses them; where an fp16 scaler
    withholds a step, it is no hit. Watching gradients opens a fused step, watching the loss does not.

    Every ``snapshot_every`` batches and at the beginning of each epoch the state of the training is copied to the host,
    and after that every batch, with its random numbers if some are drawn; when those batches exceed ``batch_memory``
    bytes, the next snapshot comes sooner. Batches of plain tensors on the host that nobody changes are not copied but
    held. ``snapshot_every=None`` keeps nothing and writes no file. The first hit of a fit is written to ``folder``,
    else to the folder ``nan`` of the run's experiment, else to a temporary one; the message says where.

    >>> import cadenza, torch, warnings
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[NaNGuard(check_every=2)], device="cpu")
    >>> batches = [(x / 0 if index == 1 else x, y) for index, (x, y) in enumerate(tiny_loader())]
    >>> with warnings.catch_warnings(record=True, action="always") as told:
    ...     _ = trainer.fit(batches, epochs=3)
    >>> trainer.clock.batches, str(told[0].message)[:24]
    (2, 'NaNGuard: the loss is na')
    """

    order = Order.PREPARE - 1
    """Before all others, so that a batch is kept as it was fetched."""
    stages = frozenset({"train"})
    replayed = False
    same_on_ranks = ("action", "watch")

    def __init__(
        self,
        action: str = "stop",
        *,
        watch: str = "loss",
        check_every: int = 10,
        snapshot_every: int | None = 50,
        batch_memory: int = 1 << 30,
        max_in_row: int = 10,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        one_of("action", action, ("stop", "skip", "raise"))
        one_of("watch", watch, ("loss", "gradients", "both"))
        counts = {"check_every": check_every, "batch_memory": batch_memory, "max_in_row": max_in_row}
        if snapshot_every is not None:
            counts["snapshot_every"] = snapshot_every
        for name, count in counts.items():
            whole(name, count, 1)
        path("folder", folder, "the name of a folder or None")
        self.action, self.watch, self.check_every, self.max_in_row = action, watch, check_every, max_in_row
        self.snapshot_every, self.batch_memory = snapshot_every, batch_memory
        self.folder = None if folder is None else Path(folder)
        self.passive = action != "skip"
        asked = {"loss": "skip_backward", "gradients": "skip_step"}
        self.asks = frozenset(asked[what] for what in self._watched()) if action == "skip" else frozenset()
        self.hits = 0
        self.file: Path | None = None
        self._reset()

    def _watched(self) -> tuple[str, ...]:
        return ("loss", "gradients") if self.watch == "both" else (self.watch,)

    def _reset(self) -> None:
        self._tape = None if self.snapshot_every is None else Tape(self.snapshot_every, self.batch_memory)
        self._no_tape = "" if self._tape is not None else "snapshot_every is None"
        self._pending: list[tuple[str, Place, Tensor]] = []
        self._unread = self._in_row = 0
        self._place: Place | None = None
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._hit_now = self._over = self._warned = False

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """Only where this choice of arguments needs it: whoever plays inside the step opens it."""
        inside = ("before_backward", "before_step", "after_step")
        return without(super().plays(), NaNGuard, *(point for point in inside if not self._looks_at(point)))

    def _looks_at(self, point: str) -> bool:
        skips = self.action == "skip"
        if point == "before_backward":
            return skips and self.watch != "gradients"
        return skips == (point == "before_step") and self.watch != "loss"

    def explain(self) -> str:
        what = "loss and gradients" if self.watch == "both" else f"the {self.watch}"
        when = "each batch waits for it" if self.action == "skip" else f"read every {self.check_every} batches"
        kept = f"a copy on the host every {self.snapshot_every} batches" if self._tape else "keeps no copy"
        return f"watches {what}, {when}, then: {self.action}; {kept}"

    def state_dict(self) -> dict[str, Any]:
        return {"hits": self.hits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hits = int(state["hits"])

    def close(self) -> None:
        self._reset()  # lets go of the copies

    # Keeping --------------------------------------------------------------------------------------------------------

    def after_register(self, run: Run) -> None:
        self._reset()
        self.file = None

    def _end_tape(self, run: Run) -> None:
        if self._tape is not None:
            self._tape.end()

    before_train_epoch = after_val_epoch = _end_tape

    def after_fetch(self, run: Run) -> None:
        if self._over or not hasattr(run, "batch"):
            return
        taped = self._keep(run)
        self._place, self._hit_now = Place(run.epoch, run.batch_idx, run.clock.steps, taped), False
        if self.action == "skip":
            buffers = (buffer for buffer in run.module.buffers() if buffer.is_floating_point())
            self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]

    def _keep(self, run: Run) -> int | None:
        """The number of this batch on the tape, or None if it is not kept."""
        if self._tape is None:
            return None
        try:
            if self._tape.due and not run.holds_gradients:  # which belong to batches before the moment
                self._tape.begin(run)
            return self._tape.record(run)
        except CannotKeep as error:
            self._tape, self._no_tape = None, str(error)
            warn(f"{self.name} keeps nothing for a replay: {error}")
            return None

    # Looking --------------------------------------------------------------------------------------------------------

    def before_backward(self, run: Run) -> None:
        if run.is_recomputing or self._place is None or not self._looks_at("before_backward"):
            return  # a second forward of this batch inside its step cannot be asked away any more
        value = float(run.loss.detach())  # waits for the device: whether to back-propagate must be known now
        if not math.isfinite(value):
            for buffer, kept in self._buffers:
                if not bool(buffer.isfinite().all()):
                    buffer.copy_(kept)
            run.skip_backward()
            self._note_loss(run)
            self._hit(run, "loss", self._place, value)

    def before_step(self, run: Run) -> None:
        if run.scaler is not None or self._place is None or not self._looks_at("before_step"):
            return  # the scaler looks itself, and withholds such a step
        value = float(self._gradients(run))  # waits for the device: whether to step must be known now
        if not math.isfinite(value):
            run.skip_step()
            self._hit(run, "gradients", self._place, value)

    def after_step(self, run: Run) -> None:
        if self._place is not None and not self._over and self._looks_at("after_step"):
            self._pending.append(("gradients", self._place, self._gradients(run)))

    def _gradients(self, run: Run) -> Tensor:
        return largest(p.grad for p in trained_parameters(run.optimizers) if p.grad is not None)

    def after_train_iter(self, run: Run) -> None:
        if self._over or self._place is None:
            return
        self._in_row = self._in_row if self._hit_now else 0
        loss = self._note_loss(run)
        if self.action == "skip":
            return
        if loss is not None and self.watch != "gradients" and "backward" not in run.skipped:
            self._pending.append(("loss", self._place, loss))
        self._unread += 1
        if self._unread >= self.check_every or (self._tape is not None and self._tape.due):
            self._read(run)

    def _note_loss(self, run: Run) -> Tensor | None:
        """The loss of this batch, kept where it is; None if it was skipped."""
        played: Tensor | None = getattr(run, "loss", None)
        if self._place is None or played is None:
            return None
        loss = played.detach().reshape(()) if played.dim() else played.detach()
        if self._tape is not None and self._place.taped is not None:
            self._tape.batches[self._place.taped]["loss"] = loss
        return loss

    def _read(self, run: Run) -> None:
        """Waits for the device, once for all values since the last time."""
        pending, self._pending, self._unread = self._pending, [], 0
        values = read(value for _, _, value in pending)
        bad = [(*hit[:2], value) for hit, value in zip(pending, values, strict=True) if not math.isfinite(value)]
        if bad:
            of_batch = {kind: (kind, place, value) for kind, place, value in bad if place == bad[0][1]}
            self._hit(run, *of_batch.get("loss", bad[0]))  # the gradients of such a loss tell nothing more

    after_train_epoch = before_val_epoch = before_save = _read

    def after_error(self, run: Run) -> None:
        """A NaN is often what made somebody else raise: says so, unless the device cannot be asked any more."""
        try:
            self._read(run)
        except NonFinite as error:
            warn(f"{error}. This was before the run failed")
        except Exception as error:
            log.debug("%s could not read the last values: %r", self.name, error)

    # Acting ---------------------------------------------------------------------------------------------------------

    def _hit(self, run: Run, kind: str, place: Place, value: float) -> None:
        self.hits += 1
        self._in_row += 0 if self._hit_now else 1
        self._hit_now = True
        what = f"the loss is {value}" if kind == "loss" else f"the largest gradient is {value}"
        said = f"{self.name}: {what} at {place}{self._write(run, kind, place, value)}"
        if self.action == "skip" and self._in_row < self.max_in_row:
            self._end_tape(run)  # a batch that was skipped by this guard is not skipped in a replay
            log.warning("%s", said)
            if not self._warned:
                self._warned = True
                warn(f"{said}. It was skipped; further ones are only logged")
            return
        self._over = True
        if self.action == "raise":
            raise NonFinite(said)
        said = f"{said}, {self._in_row} batches in a row" if self.action == "skip" else said
        warn(f"{said}. The run is stopped")
        run.stop(said)

    def _write(self, run: Run, kind: str, place: Place, value: float) -> str:
        if self.file is not None:
            return ""  # the first one is kept
        if self._tape is None or place.taped is None:
            return f"; nothing was kept for a replay{f': {self._no_tape}' if self._no_tape else ''}"
        path = folder_for(run, self.folder) / f"epoch{place.epoch}-batch{place.batch_idx}-step{place.step}.pt"
        hit = {"kind": kind, "value": value, "step": place.step, "epoch": place.epoch, "batch_idx": place.batch_idx}
        try:
            self._tape.write(path, place.taped, hit)
        except CannotKeep as error:
            return f"; nothing was kept for a replay: {error}"
        except (OSError, RuntimeError) as error:  # torch raises the latter when a disk is full
            return f"; the replay file could not be written: {error}"
        self.file = path
        return f"; trainer.replay({str(path)!r}) finds out where it came from"
