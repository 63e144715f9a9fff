"""A stretch of training that can be played again: where it began, and the batches and random numbers since."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset

from cadenza.foundation.rng import plain_rng, rng_state, same_rng
from cadenza.foundation.tree import tensors_of
from cadenza.history import read
from cadenza.replay.borrowed_batches import Lending, Loan, is_plain, lasting
from cadenza.replay.snapshot import CannotKeep, capture, to_host

if TYPE_CHECKING:
    from cadenza.run import Run

FORMAT = "cadenza replay 1"
_PROVEN = 16
"""So many batches into a tape it is judged whether batches can be kept without a copy."""


def draws_on_the_host(loader: Any) -> bool:
    """Whether reading ``loader`` may draw from the generators of Python and NumPy in this process. Where it cannot,
    they are as the moment and what is played since leave them, and need not be kept with every batch, which is dear."""
    if isinstance(loader, DataLoader):
        return loader.num_workers == 0 and type(loader.dataset) is not TensorDataset
    return not isinstance(loader, list | tuple)


def in_words(epoch: int, batch_idx: int, step: int) -> str:
    """A place in a training for people, who count epochs and batches from 1; a step says how many came before.

    >>> in_words(0, 4, 3)
    'step 3 (epoch 1, batch 5)'
    """
    return f"step {step} (epoch {epoch + 1}, batch {batch_idx + 1})"


class Place(NamedTuple):
    """Where a batch stands in the training, counted from 0, and its number on the tape if it is kept there."""

    epoch: int
    batch_idx: int
    step: int
    taped: int | None

    def __str__(self) -> str:
        return in_words(self.epoch, self.batch_idx, self.step)


class Tape:
    """Keeps one moment and what came since. ``due`` says that a new moment should be captured."""

    def __init__(self, every: int, memory: int) -> None:
        self.every, self.memory = every, memory
        self.moment: dict[str, Any] = {}
        self.batches: list[dict[str, Any]] = []
        self._loans: list[Loan | None] = []
        self._lending = Lending()
        self._spare: list[Any] = []
        self._host_draws = self._draws = True
        self._bytes = 0
        self._next = -1
        self._ended = True

    @property
    def due(self) -> bool:
        return self._ended or len(self.batches) >= self.every or self._bytes >= self.memory

    def end(self) -> None:
        """Something happens that a tape does not hold, such as a new epoch: nothing more is recorded on this one."""
        self._ended = True

    def begin(self, run: Run) -> None:
        """Captures the moment; the tape is empty after it."""
        if not all(lasting(part) for loan in self._loans if loan is not None for part in loan.batch):
            self._lending.distrust()
        copied = zip(self.batches, self._loans, strict=True)
        self._spare = [kept["batch"] if loan is None else None for kept, loan in copied]  # what is lent is not ours
        self.batches.clear()
        self._loans.clear()
        before = self.moment.get("rng")
        self.moment = capture(run, self.moment)
        self._host_draws = draws_on_the_host(run.loader)
        self._draws = self._host_draws or before is None or not same_rng(before, self.moment["rng"], ("torch", "cuda"))
        self._bytes, self._next, self._ended = 0, run.clock.batches, False

    def record(self, run: Run) -> int | None:
        """Keeps the batch that was just fetched and the random numbers that its iteration begins with; those not if
        nobody drew any since the moment before this one, since then they follow from this one.

        Returns its number on the tape, or None if the tape has ended.
        """
        clock, loans = run.clock, self._loans
        if loans and loans[-1] is not None and not loans[-1].is_intact():
            self._lending.distrust()
            self._ended = True
        if self._ended or self._next != clock.batches:  # else batches are missing in between
            self._ended = True
            return None
        self._next = clock.batches + 1
        self.batches.append(
            {
                "batch": self._keep(run.batch),
                "rng": rng_state(run.device, host=self._host_draws) if self._draws else None,
                "loss": None,
                "batch_idx": run.batch_idx,
                "epoch": run.epoch,
                "step": clock.steps,
            }
        )
        return len(self.batches) - 1

    def _keep(self, batch: Any) -> Any:
        """A copy of ``batch``, or the batch itself once it is known that nobody changes batches."""
        lending, number = self._lending, len(self.batches)
        if lending.trusted and is_plain(batch):
            loan = Loan(batch)
            self._loans.append(loan)
            for part in batch:
                self._bytes += part.nbytes
            return loan.batch
        kept = to_host(batch, "the batch", self._spare[number] if number < len(self._spare) else None)
        self._loans.append(None)
        self._bytes += sum(tensor.nbytes for tensor in tensors_of(kept))
        if lending.trusted is None:
            lending.watch(batch, kept)
            if number >= _PROVEN:
                lending.judge()
        return kept

    def write(self, path: Path, last: int, hit: dict[str, Any]) -> None:
        """Writes the file, up to and with batch ``last``. It is there as a whole or not at all."""
        if not all(loan is None or loan.is_intact() for loan in self._loans[: last + 1]):
            raise CannotKeep("a batch was changed in place, which the first ones of this fit were not")
        kept = [{**one, "batch": to_host(one["batch"])} for one in self.batches[: last + 1]]  # one may be a view
        losses = read(float("nan") if kind["loss"] is None else kind["loss"] for kind in kept)  # waits for the device
        batches = [
            {**one, "rng": one["rng"] and plain_rng(one["rng"]), "loss": None if one["loss"] is None else loss}
            for one, loss in zip(kept, losses, strict=True)
        ]
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # for the copies that were only queued
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        moment = {**self.moment, "rng": plain_rng(self.moment["rng"])}
        torch.save({"format": FORMAT, "hit": hit, "moment": moment, "batches": batches}, partial)
        os.replace(partial, path)


def folder_for(run: Run, chosen: Path | None) -> Path:
    """Where the files of a run go: the chosen folder, else ``nan`` in that of its experiment, else a temporary one."""
    experiment = getattr(run.experiment, "folder", None)
    if chosen is not None:
        folder = chosen
    elif isinstance(experiment, str | os.PathLike):
        folder = Path(experiment) / "nan"
    else:
        folder = Path(tempfile.mkdtemp(prefix="cadenza-")) / "nan"
    return folder / f"rank{run.rank}" if run.world_size > 1 else folder


def read_tape(file: str | os.PathLike[str]) -> dict[str, Any]:
    """What ``Tape.write`` wrote; no code in the file is run."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{os.fspath(file)} is not a replay file of this version ({FORMAT})")
    if "numpy" not in sys.modules and any("numpy" in (one["rng"] or ()) for one in content["batches"]):
        import numpy  # noqa: F401  its generator was in use
    return content
