"""The statistics of BatchNorm, computed anew before they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cadenza.callback import Callback, Order
from cadenza.data import to_device
from cadenza.foundation.arguments import loader as loader_or_none
from cadenza.foundation.arguments import whole
from cadenza.foundation.module_modes import set_flags
from cadenza.foundation.rng import rng_kept
from cadenza.foundation.torch_private import BatchNorm

if TYPE_CHECKING:
    from cadenza.run import Run


class PreciseBatchNorm(Callback):
    """Recomputes the running statistics of BatchNorm over training batches before each validation in a fit.

    The statistics of training are a moving average over weights that have changed since. Here ``batches`` batches of
    the training loader (or of ``loader``) go through the model as it is validated, in training mode and without
    gradients, and mean and variance over all of them take their place. Weights, momentum, counters, random numbers and
    the generators of the loader are as before; layers that are frozen in eval mode are left alone. Together with
    ``EMA`` the statistics are those of the averaged weights. The loader is read from its beginning, so one that can be
    read only once is refused.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loader = torch.nn.Sequential(torch.nn.BatchNorm1d(4), tiny_classifier()), tiny_loader(24, 8)
    >>> sgd, precise = torch.optim.SGD(model.parameters(), lr=0.1), PreciseBatchNorm(batches=3)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[precise], device="cpu")
    >>> _ = trainer.fit(loader, tiny_loader(8), epochs=1)
    >>> torch.allclose(model[0].running_mean, torch.cat([inputs for inputs, _ in loader]).mean(0))
    True
    """

    order = Order.MEASURE  # inside of what EMA swaps in
    same_on_ranks = ("batches",)

    def __init__(self, batches: int = 100, *, loader: Iterable[Any] | None = None) -> None:
        whole("batches", batches, 1)
        loader_or_none("loader", loader)
        self.batches = batches
        self.loader = loader

    def explain(self) -> str:
        return f"over {self.batches} batches"

    def around_val_epoch(self, run: Run) -> None:
        if run.mode == "fit":
            with _training_flags(run):
                recompute_statistics(run, self.batches, self.loader, self.name)


def recompute_batchnorm(module: nn.Module, batches: Iterable[Any], forward: Callable[[Any], object]) -> int:
    """Sets the running statistics of each BatchNorm in ``module`` that is in training mode to the mean and variance
    over all that passes through it while ``forward`` is called with each batch. Returns the number of layers.

    >>> norm = nn.BatchNorm1d(1)
    >>> recompute_batchnorm(norm, [torch.tensor([[1.0], [2.0]]), torch.tensor([[6.0], [7.0]])], norm)
    1
    >>> norm.running_mean, norm.running_var
    (tensor([4.]), tensor([8.6667]))
    """
    layers = [_Layer(part) for part in module.modules() if has_statistics(part) and part.training]
    if not layers:
        return 0
    try:
        with rng_kept(_device(module)), torch.no_grad():
            for layer in layers:
                layer.watch()
            for batch in batches:
                forward(batch)
    except BaseException:
        for layer in layers:
            layer.leave(layer.old)
        raise
    for layer in layers:
        layer.leave(layer.pooled())
    return len(layers)


def has_statistics(part: nn.Module) -> bool:
    return isinstance(part, BatchNorm) and part.running_mean is not None


class _Layer:
    """One BatchNorm while its statistics are gathered: with a momentum of 1 it shows those of each batch."""

    def __init__(self, norm: Any) -> None:
        self.norm = norm
        self.momentum = norm.momentum
        self.tracked = norm.num_batches_tracked.clone()
        self.old = norm.running_mean.clone(), norm.running_var.clone()
        self.count = 0
        self.sums: tuple[Tensor, Tensor] | None = None
        self.handle: Any = None

    def watch(self) -> None:
        self.handle = self.norm.register_forward_hook(self._see)
        self.norm.momentum = 1.0

    def _see(self, norm: Any, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        count = inputs[0].numel() // inputs[0].size(1)
        exact = torch.float32 if norm.running_mean.device.type == "mps" else torch.float64
        mean, variance = norm.running_mean.to(exact), norm.running_var.to(exact)
        sums = count * mean, (count - 1) * variance + count * mean**2
        self.sums = sums if self.sums is None else (self.sums[0] + sums[0], self.sums[1] + sums[1])
        self.count += count

    def pooled(self) -> tuple[Tensor, Tensor]:
        """Mean and unbiased variance over everything that was seen."""
        if self.sums is None:
            return self.old
        mean = self.sums[0] / self.count
        return mean, (self.sums[1] - self.count * mean**2) / (self.count - 1)

    def leave(self, statistics: tuple[Tensor, Tensor]) -> None:
        if self.handle is not None:
            self.handle.remove()
        self.norm.momentum = self.momentum
        with torch.no_grad():
            self.norm.running_mean.copy_(statistics[0])
            self.norm.running_var.copy_(statistics[1])
            self.norm.num_batches_tracked.copy_(self.tracked)


# In a run -----------------------------------------------------------------------------------------------------------


def recompute_statistics(run: Run, batches: int | None, loader: Iterable[Any] | None, owner: str) -> None:
    """``recompute_batchnorm`` with the forward of ``run``, between two iterations."""
    if not any(has_statistics(part) and part.training for part in run.module.modules()):
        return
    loader = rereadable(run, loader, owner)
    stage, run.stage = run.stage, "train"
    try:
        with rng_kept(run.device), _generators_kept(loader):
            recompute_batchnorm(run.module, islice(loader, batches), lambda batch: _forward(run, batch))
    finally:
        run.stage = stage
        del run.batch, run.output, run.loss


def _forward(run: Run, batch: Any) -> None:
    del run.loss
    run.batch = to_device(batch, run.device)
    with run.autocast():
        run.main.on_train_forward(run)


def rereadable(run: Run, loader: Iterable[Any] | None, owner: str) -> Iterable[Any]:
    """The loader to read training batches from, besides the pass that may be going over it."""
    loader = run.train_loader if loader is None else loader
    if loader is None:
        raise ValueError(f"{owner} needs training batches, but the run has no train_loader; give it loader=…")
    if isinstance(loader, Iterator):
        raise ValueError(f"{owner} would use up the training loader, which can be read only once; give it loader=…")
    if getattr(loader, "persistent_workers", False) and "train" in run.open_stages:
        raise ValueError(
            f"{owner} cannot read a loader with persistent workers in the middle of its pass: they serve one reader. "
            "Give it loader=… or validate after the epoch"
        )
    return loader


@contextmanager
def _generators_kept(loader: Any) -> Iterator[None]:
    """The generators that a DataLoader and its samplers draw from are as before afterwards."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    states = [(g, g.get_state()) for g in found if isinstance(g, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


@contextmanager
def _training_flags(run: Run) -> Iterator[None]:
    """Inside a validation: each module has the train or eval flag that it has in training."""
    set_flags(list(run.training_modes))
    try:
        yield
    finally:
        run.module.eval()


def _device(module: nn.Module) -> torch.device | None:
    return next((p.device for p in module.parameters()), None)
