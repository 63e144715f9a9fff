"""A stretch of training that can be played again: where it began, and the batches and random numbers since.

Everything is kept on the host, in tensors and plain containers only, so that the file can be read without running code.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from cadenza.callback import Callback, Order
from cadenza.data import length_of
from cadenza.frames import Pass
from cadenza.history import read
from cadenza.lending import Lending, Loan, is_plain, lasting
from cadenza.rng import rng_state, set_rng_state

if TYPE_CHECKING:
    from cadenza.run import Run

FORMAT = "cadenza replay 1"
_PROVEN = 16
"""So many batches into a tape it is judged whether batches can be kept without a copy."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class CannotKeep(TypeError):
    """Something on the way is neither a tensor nor a plain value."""


# Copies on the host -------------------------------------------------------------------------------------------------


def to_host(value: Any, what: str = "this", into: Any = None) -> Any:
    """A copy of ``value`` on the host. A copy from a device is only queued: wait for the device before reading it.

    ``into`` is an earlier copy that is no longer needed; tensors of the same form are written into its memory, which
    costs a fraction of new memory.

    >>> to_host({"x": [torch.ones(2), 3]})
    {'x': [tensor([1., 1.]), 3]}
    """
    if isinstance(value, Tensor):
        value = value.detach()
        if isinstance(into, Tensor) and into.shape == value.shape and into.dtype == value.dtype:
            return into.copy_(value, non_blocking=True)
        return value.clone() if value.device.type == "cpu" else value.to("cpu", non_blocking=True)
    if isinstance(value, Counter):  # the milestones of a scheduler
        return Counter(value)
    if isinstance(value, Mapping):
        old = into if isinstance(into, Mapping) else {}
        return {to_host(k, what): to_host(inner, f"{what}[{k!r}]", old.get(k)) for k, inner in value.items()}
    if type(value) in (list, tuple):
        olds = into if type(into) is type(value) and len(into) == len(value) else [None] * len(value)
        parts = enumerate(zip(value, olds, strict=True))
        return type(value)(to_host(inner, f"{what}[{index}]", old) for index, (inner, old) in parts)
    if isinstance(value, _PLAIN):
        return value
    raise CannotKeep(f"{what} is a {type(value).__name__}, and only tensors and plain values can be kept")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from tensors_in(inner)


def _same_draws(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether torch has drawn nothing between two moments."""
    return all(name in one and torch.equal(one[name], other[name]) for name in ("torch", "cuda") if name in other)


def _plain_rng(state: dict[str, Any] | None) -> dict[str, Any] | None:
    if state is None or "numpy" not in state:
        return state
    name, keys, *rest = state["numpy"]
    return {**state, "numpy": (name, keys.tolist(), *rest)}


def restore_rng(state: dict[str, Any], device: torch.device) -> None:
    """Sets all generators as a tape keeps them."""
    if "numpy" in state:
        import numpy

        name, keys, *rest = state["numpy"]
        state = {**state, "numpy": (name, numpy.array(keys, dtype=numpy.uint32), *rest)}
    set_rng_state(state, device)


# A moment -----------------------------------------------------------------------------------------------------------


def capture(run: Run, into: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that shapes what a training does from here on. ``into`` is an earlier moment that is let go of."""
    module, before = run.module, into.get
    return {
        "rng": rng_state(run.device),
        "tensors": to_host(dict(_tensors(module)), "the model", before("tensors")),
        "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "training": {name: inner.training for name, inner in module.named_modules()},
        "gradients": to_host(
            {name: p.grad for name, p in module.named_parameters() if p.grad is not None},
            "a gradient",
            before("gradients"),
        ),
        "optimizers": to_host(
            [optimizer.state_dict() for optimizer in run.optimizers], "an optimizer", before("optimizers")
        ),
        "schedulers": [to_host(scheduler.state_dict(), "a scheduler") for scheduler in run.schedulers],
        # The state of a scaler cannot be had without waiting for the device.
        "scaler": None if run.scaler is None else to_host(run.scaler.state_dict(), "the scaler"),
        "callbacks": {
            c.name: to_host(c.state_dict(), c.name, before("callbacks", {}).get(c.name))
            for c in run.callbacks
            if plays_again(c)
        },
        "clock": run.clock.state_dict(),
        "num_epochs": run.num_epochs,
        "last_step": run._last_step,
        "length": length_of(run._pass.loader) if isinstance(run._pass, Pass) else None,
    }


def restore(run: Run, moment: dict[str, Any], callbacks: tuple[Callback, ...] = ()) -> None:
    """Puts a training back to ``moment``."""
    module = run.module
    with torch.no_grad():
        here = dict(_tensors(module))
        if here.keys() != moment["tensors"].keys():
            odd = sorted(here.keys() ^ moment["tensors"].keys())
            raise ValueError(f"this is not the model of the replay file: they differ in {', '.join(odd[:5])}")
        for name, tensor in here.items():
            tensor.copy_(moment["tensors"][name])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in moment["frozen"])
        gradient = moment["gradients"].get(name)
        parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
    for name, inner in module.named_modules():
        inner.training = moment["training"].get(name, inner.training)
    for part, saved in ((run.optimizers, moment["optimizers"]), (run.schedulers, moment["schedulers"])):
        for one, state in zip(part, saved, strict=True):
            one.load_state_dict(to_host(state))  # a copy: what is loaded is changed in place later
    if moment["scaler"] is not None and run.scaler is not None:
        run.scaler.load_state_dict(moment["scaler"])
    for callback in callbacks:
        if callback.name in moment["callbacks"]:
            callback.load_state_dict(to_host(moment["callbacks"][callback.name]))
    run.clock.load_state_dict(moment["clock"])


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and all buffers by name, those too that a state dict leaves out."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def plays_again(callback: Callback) -> bool:
    """Whether a callback takes part when a stretch is played again: those who measure, report and save do not, unless
    they set a learning rate by what they measure."""
    inner = getattr(callback, "callback", callback)  # what a When limits
    shapes = callback.order < Order.MEASURE or any(owned.startswith("lr") for owned in callback.owns)
    return shapes and getattr(inner, "replayed", True) and not hasattr(callback, "save")


# The tape -----------------------------------------------------------------------------------------------------------


def draws_on_the_host(loader: Any) -> bool:
    """Whether reading ``loader`` may draw from the generators of Python and NumPy in this process. Where it cannot,
    they are as the moment and what is played since leave them, and need not be kept with every batch, which is dear."""
    if isinstance(loader, DataLoader):
        return loader.num_workers == 0 and type(loader.dataset) is not TensorDataset
    return not isinstance(loader, list | tuple)


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
        self._draws = self._host_draws or before is None or not _same_draws(before, self.moment["rng"])
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
        self._bytes += sum(tensor.nbytes for tensor in tensors_in(kept))
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
            {**one, "rng": _plain_rng(one["rng"]), "loss": None if one["loss"] is None else loss}
            for one, loss in zip(kept, losses, strict=True)
        ]
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # for the copies that were only queued
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        moment = {**self.moment, "rng": _plain_rng(self.moment["rng"])}
        torch.save({"format": FORMAT, "hit": hit, "moment": moment, "batches": batches}, partial)
        os.replace(partial, path)


def folder_for(run: Run, chosen: Path | None) -> Path:
    """Where the files of a run go: the chosen folder, else ``nan`` in that of its experiment, else a temporary one."""
    experiment = getattr(run.experiment, "folder", run.experiment)
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
