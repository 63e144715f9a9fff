"""The runner that Orca callbacks are handed."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from cadenza.data.loader import loader_like
from cadenza.dialects.facade import Facade
from cadenza.dialects.orca.checkpoints import load_file, remove_file, save_file, state_of, take_state
from cadenza.dialects.orca.table import DIALECT

log = logging.getLogger("cadenza.dialects.orca")


class Timers(dict[str, list[float]]):
    """Seconds by name.

    >>> timers = Timers()
    >>> with timers.record("forward"): pass
    >>> list(timers.stats())
    ['mean_forward_s']
    """

    @contextlib.contextmanager
    def record(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.setdefault(name, []).append(time.perf_counter() - start)

    def stats(self) -> dict[str, float]:
        return {f"mean_{name}_s": sum(each) / len(each) for name, each in self.items()}


def settable(name: str) -> Any:
    """A field of the run that callbacks may set, too; an array becomes a tensor."""

    def put(runner: Runner, value: Any) -> None:
        setattr(runner.run, name, torch.from_numpy(value) if type(value).__module__ == "numpy" else value)

    return property(attrgetter(f"run.{name}"), put)


class Runner(Facade, dialect=DIALECT):
    """Orca's runner over a run. It lasts as long as its trainer, and so does what callbacks put there."""

    _kept_names = frozenset({"epoch_stats"})

    def __init__(self) -> None:
        self.backend = "local"
        self.config: dict[str, Any] = {}
        self.metrics: list[Any] = []
        self.sync_stats = True
        self.logger = log
        self.timers = Timers()
        self._stopping = False
        self.epoch = 0
        self._first_epoch = 0
        self._kept: dict[str, Any] = {}

    @property
    def num_epochs(self) -> int | None:
        total = self.run.num_epochs
        return None if total is None else total - self._first_epoch

    @num_epochs.setter
    def num_epochs(self, value: int) -> None:
        if self.run.stage is not None or self.run.mode != "fit":
            raise AttributeError("orca: num_epochs may be set in before_run")
        self.run.limit(epochs=value)

    @property
    def stop(self) -> bool:
        return self._stopping

    @stop.setter
    def stop(self, value: bool) -> None:
        self._stopping, run = bool(value), self.run
        if value and (run.mode != "fit" or run.clock.epochs > run.epoch):
            run.stop("runner.stop")
        elif value and run.stage == "train":
            run.end_epoch()

    @property
    def model(self) -> Any:
        return self.run.model if self.run.stage in (None, "train") else self.run.module

    models = property(lambda self: [self.run.module])
    training_models = property(lambda self: [self.run.model])

    batch, output, loss = map(settable, ("batch", "output", "loss"))
    outputs = output

    @property
    def metrics_stats(self) -> dict[str, Any]:
        if self.run.stage != "train" or self.run.clock.batches == self._counted:
            raise AttributeError("orca: metrics_stats exists at after_train_iter alone")
        loss = self.run.loss.item()  # who asks for a number waits for the device
        return {"train_loss": loss, "num_samples": self.run.main.count(self.run)[0]}

    @property
    def _mode(self) -> str:
        return {"val": "val", "test": "val", "pred": "predict"}.get(self.run.stage or "", "train")

    def put(self, k: str, v: Any) -> None:
        if k in self._kept:
            log.warning("put(%r) replaces a value; update() says so", k)
        self._kept[k] = v

    def update(self, k: str, v: Any) -> None:
        if k not in self._kept:
            log.warning("update(%r) makes a new value; put() says so", k)
        self._kept[k] = v

    def get(self, k: str) -> Any:
        if k not in self._kept:
            raise KeyError(f"orca: nothing was put under {k!r}; there are {sorted(self._kept)}")
        return self._kept[k]

    def remove(self, k: str) -> None:
        self.get(k)
        del self._kept[k]

    def get_state_dict(self) -> dict[str, Any]:
        return state_of(self.run.training_state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        take_state(self.run.training_state, state)

    def save_checkpoint(self, filepath: str, save_weights_only: bool = False) -> None:
        if self.run.is_main:
            save_file(filepath, state_of(self.run.training_state, weights_only=save_weights_only))

    def load_checkpoint(self, filepath: str) -> None:
        self.load_state_dict(load_file(filepath))

    def remove_checkpoint(self, filepath: str) -> None:
        if self.run.is_main:
            remove_file(filepath)

    def with_sampler(self, loader: DataLoader[Any], shuffle: bool = True) -> Any:
        return with_sampler(loader, self.rank, self.size, shuffle)

    def call_hook(self, fn_name: str) -> None:
        """Calls a hook of all Orca callbacks in their order."""
        if DIALECT.hook(fn_name) is None:
            raise AttributeError(DIALECT.not_carried(fn_name, "hook"))
        for member in self._section.members:
            if hasattr(member.foreign, fn_name):
                getattr(member.foreign, fn_name)(self)


def with_sampler(
    loader: Any, rank: int, size: int, shuffle: bool = True, kind: type[DistributedSampler[Any]] = DistributedSampler
) -> Any:
    """A loader over this rank's share of the data, in the order of ``DistributedSampler``. Data that is iterated stays
    as it is, and so do batches of a batch sampler."""
    dataset: Any = getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset) or getattr(loader, "batch_size", None) is None:
        return loader
    return loader_like(loader, sampler=kind(dataset, num_replicas=size, rank=rank, shuffle=shuffle))


class SameOrder(DistributedSampler[Any]):
    """For validation, whose order is that of the first epoch in all of them."""

    def set_epoch(self, epoch: int) -> None: ...
