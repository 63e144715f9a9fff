"""A run over a few batches, to see that everything works or that the model can learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from cadenza.callback import Callback, Order
from cadenza.data import length_of
from cadenza.foundation.arguments import flags, is_whole

if TYPE_CHECKING:
    from cadenza.run import Run


class FirstBatches:
    """A loader that gives the first ``count`` batches of another and asks it for no more.

    >>> list(FirstBatches([1, 2, 3], 2)), len(FirstBatches([1], 2))
    ([1, 2], 1)
    """

    def __init__(self, loader: Any, count: int) -> None:
        self.loader = loader
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self.count)

    def __len__(self) -> int:
        length = length_of(self.loader)
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} does not know its length")
        return min(self.count, length)


class SameBatches(FirstBatches):
    """A loader that reads its batches once and gives the same ones in every epoch."""

    def __init__(self, loader: Any, count: int) -> None:
        super().__init__(loader, count)
        self.batches: list[Any] = []

    def read(self) -> None:
        self.batches = list(super().__iter__())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class SubsetRun(Callback):
    """Runs over the first batches of each loader only: ``train``, ``val`` and ``test`` say how many, None all of them.

    Two batches of everything show in seconds that nothing fails on the way. With ``repeat=True`` the same training
    batches come again in every epoch, whatever the loader would give then: a model that cannot learn these by heart has
    a fault. They are kept in memory as the loader gave them.

    In a fit the loaders of the run are replaced for the duration of each epoch, so that their length is the short one,
    and no batch more than needed is read. Passes over other loaders (in ``trainer.validate`` and ``trainer.test``, or
    in a loop of your own that names its loaders) are ended after so many batches. A resumed run repeats the same
    batches if all that is random in the loader comes from torch's global generator or the loader's own, whose states
    a checkpoint keeps.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> criterion = torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, criterion, callbacks=[SubsetRun(train=2)], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), tiny_loader(), epochs=3)
    >>> trainer.clock.batches
    6
    """

    order = Order.PREPARE + 50  # a loader that another callback builds is cut after that
    asks = frozenset({"end_epoch"})
    agree = "same"
    same_on_ranks = ("counts", "repeat")

    def __init__(
        self, train: int | None = 2, val: int | None = 1, test: int | None = 1, *, repeat: bool = False
    ) -> None:
        for name, count in (("train", train), ("val", val), ("test", test)):
            if count is not None and not is_whole(count, 1):
                raise ValueError(f"{name} must be None or a whole number of batches of at least 1, not {count!r}")
        flags(repeat=repeat)
        if repeat and train is None:
            raise ValueError("repeat=True repeats the first batches of training: say how many, train=2")
        self.counts = {"train": train, "val": val, "test": test}
        self.repeat = repeat
        self._same: SameBatches | None = None
        self._generators: dict[str, torch.Tensor] = {}

    def explain(self) -> str:
        counts = ", ".join(f"{stage} {'all' if count is None else count}" for stage, count in self.counts.items())
        return f"batches: {counts}{'; the same training batches again and again' if self.repeat else ''}"

    def around_epoch(self, run: Run) -> Iterator[None]:
        own = run.train_loader, run.val_loader, run.test_loaders
        run.train_loader = self._repeated(own[0]) if self.repeat else self._first(own[0], "train")
        run.val_loader = self._first(own[1], "val")
        run.test_loaders = self._first(own[2], "test")
        try:
            yield
        finally:
            run.train_loader, run.val_loader, run.test_loaders = own

    def _end_in_time(self, run: Run) -> None:
        """Ends a pass over a loader that was not replaced."""
        if run.batches_seen == self.counts[str(run.stage)] and not isinstance(run.loader, FirstBatches):
            run.end_epoch()

    before_train_iter = before_val_iter = before_test_iter = _end_in_time

    def _first(self, loaders: Any, stage: str) -> Any:
        count = self.counts[stage]
        if loaders is None or count is None:
            return loaders
        if isinstance(loaders, Mapping):
            return {name: FirstBatches(loader, count) for name, loader in loaders.items()}
        return FirstBatches(loaders, count)

    def _repeated(self, loader: Any) -> Any:
        if loader is None:
            raise ValueError(
                f"{self.name}(repeat=True) repeats batches of run.train_loader, and there is none. In a loop of your "
                "own set it and write run.train() without a loader"
            )
        if self._same is None or self._same.loader is not loader:
            self._same = SameBatches(loader, int(self.counts["train"] or 0))
            self._read(self._same)
        return self._same

    def _read(self, same: SameBatches) -> None:
        """Reads the batches; in a resumed run, as the generators stood when they were read first."""
        own: torch.Generator | None = getattr(same.loader, "generator", None)
        now = _states(own)
        if not self._generators:
            self._generators = now
            same.read()
            return
        _set_states(own, self._generators)
        try:
            same.read()
        finally:
            _set_states(own, now)

    def state_dict(self) -> dict[str, Any]:
        return {"generators": dict(self._generators)} if self.repeat else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generators = dict(state.get("generators", {}))

    def close(self) -> None:
        self._same = None


def _states(own: torch.Generator | None) -> dict[str, torch.Tensor]:
    states = {"torch": torch.get_rng_state()}
    return states if own is None else {**states, "loader": own.get_state()}


def _set_states(own: torch.Generator | None, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    if own is not None and "loader" in states:
        own.set_state(states["loader"])
