"""One step for several batches, as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.callbacks.training.clip import trained_parameters
from cadenza.data import length_of
from cadenza.foundation.arguments import check, flags, is_whole
from cadenza.foundation.torch_private import foreach_mul_
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run

Count: TypeAlias = float | Tensor


class Accumulate(Callback):
    """Steps once for every ``n`` batches, with the gradient of the mean over all that is in them.

    Each batch is weighted by what it holds: ``weight="samples"`` (the default) or ``"tokens"``, as counted by
    ``MainCallback.count``, or a function of the run that returns a number (or a tensor, which stays on its device). So
    the gradient of a window is that of one big batch, also when batches differ in size; the loss must be a mean over
    what is counted. A window is ``n`` batches that gave gradients: a batch that was skipped, or whose weight is 0, adds
    nothing and does not count. ``skip_step`` drops the whole window. The last window of an epoch is stepped with what
    it has, or dropped with ``drop_last=True``; with ``carry=True`` it stays open over epochs until it is full,
    and is dropped at the end of the run. Clipping, averages, schedules and ``clock.steps`` see real steps only.
    The state is the open window with its gradients. With ``n=1`` nothing changes, to the last bit.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[Accumulate(2)], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=1)
    >>> trainer.clock.batches, trainer.clock.steps
    (3, 2)
    """

    order = Order.TRANSFORM
    owns = frozenset({"accumulation"})
    asks = frozenset({"hold_step", "skip_step", "skip_backward"})
    agree = "same"
    same_on_ranks = ("n", "weight", "drop_last", "carry")

    def __init__(
        self, n: int, weight: str | Callable[[Run], Count] = "samples", *, drop_last: bool = False, carry: bool = False
    ) -> None:
        check(is_whole(n, 1), "n is the number of batches for one step, a whole number of at least 1", n)
        if weight not in ("samples", "tokens") and not callable(weight):
            raise ValueError(f'weight is "samples", "tokens" or a function of the run, not {weight!r}')
        flags(drop_last=drop_last, carry=carry)
        if carry and drop_last:
            raise ValueError("carry keeps the last window of an epoch and drop_last drops it: give one of them")
        self.n, self.weight, self.drop_last, self.carry = n, weight, drop_last, carry
        self.capturable = isinstance(weight, str)  # what a function returns may differ from batch to batch
        self.window = Window(n)
        self._mean: Count = 0
        self._loaded = self._told = False

    @classmethod
    def example(cls) -> Self:
        return cls(2)

    def explain(self) -> str:
        by = self.weight if isinstance(self.weight, str) else getattr(self.weight, "__name__", "a function")
        end = "carried into the next epoch" if self.carry else "dropped" if self.drop_last else "stepped"
        return f"{self.n} batches a step, weighted by {by}; a ragged last window is {end}"

    adapted = False
    """Whether ``n`` was changed, so that a step sees as many samples with another number of processes."""

    def adapt(self, n: int, *, scale: float) -> None:
        """From here on a step takes ``n`` batches. What is open was counted by ``scale`` times as many processes."""
        window = self.window
        batches, rest = divmod(window.batches * n, self.n)
        if rest:
            raise ValueError(
                f"the run was saved after {window.batches} of {self.n} batches of a step, and now {n} make a step: go "
                "on from a checkpoint that was saved after a step, or with as many processes as before"
            )
        window.batches, window.total, window.reference = batches, window.total * scale, window.reference * scale
        self.adapted = self.adapted or n != self.n
        self.n = window.n = n

    def steps_in(self, batches: int) -> int:
        """How many steps an epoch of ``batches`` makes, if none is skipped; schedules ask for it."""
        return batches // self.n if self.drop_last else -(-batches // self.n)

    # The window -----------------------------------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        self._told = not run.is_main
        run.carries_gradients = self.carry
        if run.mode == "fit" and not self._loaded:
            self.window.clear()  # the gradients of a window that a stop or an error left open are cleared, too

    def before_train_epoch(self, run: Run) -> None:
        if self.drop_last and not self._told:
            self._tell_if_all_is_dropped(length_of(run.loader))
        # Known before the forward, gradients are put together over processes once in a window, not for each batch.
        run.processes.hold_while(lambda: self.window.batches + 1 < self.n)
        if self._loaded:
            self._loaded = False
            for name in ("total", "reference"):
                value = getattr(self.window, name)
                if isinstance(value, Tensor):
                    setattr(self.window, name, value.to(run.device))

    def _tell_if_all_is_dropped(self, batches: int | None) -> None:
        if batches is not None and self.steps_in(batches) == 0:
            self._told = True
            warn(f"{self.name} makes no step: one takes {self.n} batches, an epoch has {batches}, and drop_last is set")

    def before_backward(self, run: Run) -> None:
        count = self._mean = self._counted(run)
        self._mean = run.processes.mean_count(run, count, samples=self.weight == "samples")
        if not run.processes.many and not isinstance(count, Tensor) and count == 0:
            run.skip_backward()  # other processes may have a batch even if this one has none that counts
            return
        run.loss_weight = run.loss_weight * self.window.weigh(count, self._mean)

    def after_backward(self, run: Run) -> None:
        self.window.add(self._mean)
        if self.window.batches < self.n:
            run.hold_step()

    def before_step(self, run: Run) -> None:
        if self.drop_last and self.window.batches < self.n:
            run.skip_step()
        else:
            self.window.settle(trained_parameters(run.optimizers))
        self.window.clear()

    def after_zero_grad(self, run: Run) -> None:
        self.window.clear()  # without a step if skip_step was asked for

    def recorded_as(self, run: Run) -> Hashable:
        window = self.window
        return self.n, window.batches, window.total, window.reference, self._counted(run)

    def played_again(self, run: Run) -> None:
        """A recorded step did to the gradients what belongs to its place in the window."""
        if "backward" not in run.skipped:
            self.window.add(self._counted(run))
        if not run.holds_gradients:
            self.window.clear()

    def _counted(self, run: Run) -> Count:
        if run.processes.empty:
            return 0
        if self.weight == "samples":
            return run.main.count(run)[0]
        if self.weight == "tokens":
            tokens = run.main.count(run)[1]
            if tokens:
                return tokens
            raise ValueError(
                "Accumulate weighs by tokens, but none are counted in this batch: its first tensor is not a table of "
                "token ids. Override count() of the MainCallback, or give weight a function of the run"
            )
        count = self.weight(run)  # type: ignore[operator]
        if not isinstance(count, Tensor) and not 0 <= count < float("inf"):
            raise ValueError(f"the weight of a batch must be a finite number of at least 0, not {count!r}")
        return _exact(count, run.device)

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        window = self.window
        if not window.batches:
            return {}
        return {"batches": window.batches, "total": window.total, "reference": window.reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.window.clear()
        self._loaded = bool(state)
        if state:
            self.window.batches = state["batches"]
            self.window.total, self.window.reference = state["total"], state["reference"]


class Window:
    """Several batches that become one gradient. For a loop of your own:

    >>> weight, window = torch.zeros(1, requires_grad=True), Window()
    >>> for batch in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0])):
    ...     loss = (weight * batch).mean()
    ...     (loss * window.weigh(len(batch))).backward()
    ...     window.add(len(batch))
    >>> window.settle([weight])
    >>> weight.grad  # the mean of 1, 2, 3 and 6
    tensor([3.])

    ``n`` is how many batches it will have, if all goes well: then losses are weighed so that ``settle`` has nothing to
    do for batches of one size.
    """

    def __init__(self, n: int = 1) -> None:
        self.n = n
        self.clear()

    def clear(self) -> None:
        self.batches = 0
        self.total: Count = 0
        self.reference: Count = 0

    def weigh(self, count: Count, mean: Count | None = None) -> Count:
        """What to multiply the loss of a batch with. The first batch gets the share of one batch in ``n``. Where the
        mean over several processes is taken, ``mean`` is what they have on average, and what is to be added."""
        return count / (self.reference if self.batches else self._reference(count if mean is None else mean))

    def add(self, count: Count) -> None:
        """The batch of this count has been back-propagated."""
        if self.batches == 0:
            self.reference = self._reference(count)
        self.batches += 1
        self.total = self.total + count

    def _reference(self, count: Count) -> Count:
        """What the window will count if all of its batches are like this one."""
        return self.n * (torch.where(count > 0, count, 1.0) if isinstance(count, Tensor) else count or 1)

    def settle(self, parameters: Iterable[Tensor]) -> None:
        """Makes the weighted sum in the gradients of ``parameters`` the mean over all that was counted."""
        factor: Count
        if isinstance(self.total, Tensor):
            factor = torch.where(self.total > 0, self.reference / self.total, 0.0)
        elif self.total in (0, self.reference):
            return
        else:
            factor = self.reference / self.total
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            foreach_mul_(gradients, factor)


def _exact(count: Count, device: torch.device) -> Count:
    """A tensor on ``device`` without dimension, in the type in which whole numbers and their quotients are exact
    enough; one that is on the host is read, which waits for nothing."""
    if not isinstance(count, Tensor):
        return count
    if count.device != device and count.device.type == "cpu":
        return count.item()
    return count.detach().reshape(()).to(torch.float32 if device.type == "mps" else torch.float64)
