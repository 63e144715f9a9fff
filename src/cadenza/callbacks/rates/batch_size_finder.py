"""The largest batch that fits into memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import DataLoader, IterableDataset

from cadenza.callback import Callback, Order
from cadenza.callbacks.rates.side_trainer import main_callback, trainer_beside
from cadenza.data import length_of
from cadenza.data.loader import loader_like
from cadenza.foundation.arguments import flags, whole
from cadenza.foundation.kept_state import KeptState
from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.engine.trainer_state import Training
    from cadenza.run import Run
    from cadenza.trainer import Trainer

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class BatchSizeFinder(Callback):
    """Finds the largest batch size that fits into memory, and trains with it.

    Before the first epoch of a fit it tries ``steps`` steps with batches of ``start`` samples, doubles that until
    memory does not suffice or ``limit`` (by default all samples) is reached, and then bisects to the largest size that
    fits; with ``refine=False`` it stays at the last doubling. (It starts with 2, since batch normalisation cannot train
    on one.) Weights, buffers, optimizers and random numbers are then exactly as before. ``run.train_loader``, which
    must be a ``DataLoader``, is replaced by one with this batch size and otherwise the same; the learning rate is not
    touched. The size is in ``run.store["batch_size"]`` and in the state, so that further fits and resumed ones use it
    without a search.

    The trials are made beside the run: with a copy of the main callback, but of the other callbacks only with those
    given as ``callbacks`` (instances of their own), such as one that sets the precision. Samples should be of one size,
    or the first ones the largest, since the trials read the data set from its beginning.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[BatchSizeFinder(limit=12)], device="cpu")
    >>> _ = trainer.fit(tiny_loader(samples=24, batch_size=1), epochs=1)
    >>> trainer.store["batch_size"], trainer.clock.steps
    (12, 2)
    """

    order = Order.PREPARE
    same_on_ranks = ("start", "limit", "steps", "refine")

    def __init__(
        self,
        start: int = 2,
        limit: int | None = None,
        *,
        steps: int = 2,
        refine: bool = True,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        check_search(start, limit, steps)
        flags(refine=refine)
        if not isinstance(callbacks, Sequence) or not all(isinstance(one, Callback) for one in callbacks):
            raise TypeError(f"callbacks is a list of those that play in the trials, not {callbacks!r}")
        self.start, self.limit, self.steps, self.refine = start, limit, steps, refine
        self.callbacks = tuple(callbacks)
        self.batch_size: int | None = None

    @classmethod
    def example(cls) -> Self:
        return cls(2, 4, steps=1)

    def explain(self) -> str:
        if self.batch_size is not None:
            return f"batches of {self.batch_size}, as found before"
        return f"searches from {self.start} to {'all samples' if self.limit is None else self.limit}"

    def before_epoch(self, run: Run) -> None:
        loader = run.train_loader
        if not isinstance(loader, DataLoader):
            raise TypeError(
                f"{self.name} replaces run.train_loader by one with another batch size, which needs a DataLoader, not "
                f"{type(loader).__name__}; find_batch_size() only says what the size would be"
            )
        _refuse_own_batches(loader)
        if self.batch_size is None:
            fits = _trial(run.training_state, run.main, self.callbacks, self.steps, loader)
            self.batch_size = largest(fits, self.start, _most(loader, self.limit), refine=self.refine)
        run.store["batch_size"] = self.batch_size
        if loader.batch_size != self.batch_size:
            run.train_loader = with_batch_size(loader, self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batch_size = state["batch_size"]


def find_batch_size(
    trainer: Trainer,
    data: Any,
    *,
    start: int = 2,
    limit: int | None = None,
    steps: int = 2,
    refine: bool = True,
    callbacks: Sequence[Callback] = (),
) -> int:
    """The largest batch size with which ``trainer`` can make a step on ``data``, a data set or a ``DataLoader``.

    The arguments are those of ``BatchSizeFinder``. The trainer, its model and its optimizers are as before afterwards.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_data
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, device="cpu")
    >>> find_batch_size(trainer, tiny_data(samples=24))
    24
    """
    check_search(start, limit, steps)
    fits = _trial(trainer._training, main_callback(trainer), callbacks, steps, data)
    return largest(fits, start, _most(data, limit), refine=refine)


def check_search(start: int, limit: int | None, steps: int) -> None:
    whole("start", start, 1)
    whole("steps", steps, 1)
    if limit is not None:
        whole("limit", limit, start)


def largest(fits: Callable[[int], bool], start: int, limit: int, *, refine: bool = True) -> int:
    """The largest size up to ``limit`` that fits, by doubling from ``start`` and then bisecting.

    >>> tried = []
    >>> largest(lambda size: tried.append(size) or size <= 11, 1, 100), tried
    (11, [1, 2, 4, 8, 16, 12, 10, 11])
    """
    good, bad = 0, limit + 1
    size = min(start, limit)
    while good < limit and fits(size):
        good, size = size, min(size * 2, limit)
    if good == 0:
        raise RuntimeError(f"not even a batch of {size} fits into memory")
    if good < limit:
        bad = size
    while refine and bad - good > 1:
        size = (good + bad) // 2
        if fits(size):
            good = size
        else:
            bad = size
    return good


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory did not suffice."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def with_batch_size(loader: DataLoader[Any], size: int) -> DataLoader[Any]:
    """A loader like ``loader``, in the same order, with batches of ``size``."""
    _refuse_own_batches(loader)
    order = {} if isinstance(loader.dataset, IterableDataset) else {"sampler": loader.sampler}
    return loader_like(loader, batch_size=size, **order)


def _refuse_own_batches(loader: DataLoader[Any]) -> None:
    if loader.batch_size is None:
        raise ValueError("the batches of this loader are made by a batch sampler of its own, so their size is not ours")


def _most(data: Any, limit: int | None) -> int:
    """No batch can be larger than the data set."""
    samples = length_of(getattr(data, "dataset", data))
    if samples == 0:
        raise ValueError("the data set has no samples")
    if samples is None and limit is None:
        raise ValueError("this data set does not know its length: say how far to search, limit=1024")
    return min(one for one in (samples, limit) if one is not None)


def _trial(
    training: Training, main: MainCallback | None, callbacks: Sequence[Callback], steps: int, data: Any
) -> Callable[[int], bool]:
    """Tells for a size whether a few steps can be made with batches of it, and leaves everything as it was."""
    dataset, collate = getattr(data, "dataset", data), getattr(data, "collate_fn", None)

    def fits(size: int) -> bool:
        loader = DataLoader(dataset, batch_size=size, collate_fn=collate, drop_last=True)
        try:
            with KeptState(torch.device("cpu")) as kept:
                kept.keep_training(training.module, training.optimizers, training.device)
                trainer_beside(training, main, callbacks).fit(loader, steps=steps)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            return True
        _free(training.device)  # only here is the error forgotten, and with it all that its frames hold
        return False

    return fits


def _free(device: torch.device) -> None:
    """Lets go of the tensors that a failed step left behind in circles of references."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
