"""How much memory a training takes, on the host and on the device."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch

from cadenza.callback import Callback, Order, without
from cadenza.clock import Cadence, Duration
from cadenza.foundation.arguments import flags

if TYPE_CHECKING:
    from cadenza.run import Run

MIB = 1024 * 1024


class MemoryMonitor(Callback):
    """Logs the memory of this process and of its CUDA device, in MiB.

    ``memory/rss_mib`` is what the process holds in main memory at that moment, data loader workers not counted. It is
    read from psutil if that is installed, else from the system (/proc); where neither is to be had,
    ``memory/rss_peak_mib`` is the most that it ever held. On a CUDA device ``memory/allocated_mib`` is the most that
    tensors took since the last report, and ``memory/reserved_mib`` the most that torch held for them.

    ``every="1 epoch"`` reports at the end of the epoch, validation included; "100 steps" (or batches, samples, seconds)
    in the rows of iterations. Torch keeps one peak for the whole process: with ``reset=True`` it is begun anew at the
    beginning of each epoch and after each report; with ``reset=False`` it is left alone, and the peaks are those since
    somebody began them anew. It plays outside the step and never waits for the device.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[MemoryMonitor()], device="cpu")
    >>> history = trainer.fit(tiny_loader(), epochs=2)
    >>> any(name.startswith("memory/rss") for name in history.names())
    True
    """

    order = Order.MEASURE

    def __init__(self, every: str | Duration = "1 epoch", *, reset: bool = True) -> None:
        flags(reset=reset)
        self.every, self.reset = Duration.interval(every, "every"), reset
        self._cadence: Cadence | None = None

    @classmethod
    def example(cls) -> Self:
        return cls(every="2 batches")

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        return ["memory/*"]

    def explain(self) -> str:
        return f"every {self.every}"

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """At the end of iterations only if something is logged there."""
        unneeded = ("after_train_iter",) if self.every.unit == "epochs" else ()
        return without(super().plays(), MemoryMonitor, *unneeded)

    def after_register(self, run: Run) -> None:
        self._cadence = None

    def before_epoch(self, run: Run) -> None:
        if self._cadence is None:
            self._cadence = Cadence(self.every, run.clock)
        self._begin_anew(run)

    def after_train_iter(self, run: Run) -> None:
        if self.every.unit != "epochs" and self._cadence is not None and self._cadence.due():
            self._log(run)

    def after_epoch(self, run: Run) -> None:
        if self.every.unit == "epochs" and (run.epoch + 1) % self.every.amount == 0:
            self._log(run)

    def _log(self, run: Run) -> None:
        run.log({f"memory/{name}": mib for name, mib in memory(run.device).items()}, over="max")
        self._begin_anew(run)

    def _begin_anew(self, run: Run) -> None:
        if self.reset and run.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(run.device)


def memory(device: torch.device | None = None) -> dict[str, float]:
    """What ``MemoryMonitor`` logs, as it is now.

    >>> all(mib > 0 for mib in memory().values())
    True
    """
    found = host_memory()
    if device is not None and device.type == "cuda":
        found["allocated_mib"] = torch.cuda.max_memory_allocated(device) / MIB
        found["reserved_mib"] = torch.cuda.max_memory_reserved(device) / MIB
    return found


def host_memory() -> dict[str, float]:
    """The main memory of this process; nothing where the system does not say."""
    held = _by_psutil()
    if held is None:
        held = _by_proc()
    if held is not None:
        return {"rss_mib": held / MIB}
    peak = _by_resource()
    return {} if peak is None else {"rss_peak_mib": peak / MIB}


def _by_psutil() -> int | None:
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def _by_proc() -> int | None:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def _by_resource() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
