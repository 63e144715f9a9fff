"""A sweep over learning rates, to see which are too small and which are too large."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch

from cadenza.callback import Callback, Order
from cadenza.callbacks.rates.param_groups import set_lr
from cadenza.callbacks.rates.side_trainer import main_callback, trainer_beside
from cadenza.foundation.arguments import below_one, is_number, whole
from cadenza.foundation.kept_state import KeptState
from cadenza.foundation.warn import warn
from cadenza.registration.checks import CallbackError

if TYPE_CHECKING:
    from cadenza.run import Run
    from cadenza.trainer import Trainer


@dataclass(frozen=True)
class Sweep:
    """What a sweep found: ``losses[i]`` was measured just before the step with ``lrs[i]``, ``smoothed[i]`` is the mean
    of the losses up to there in which each earlier one weighs ``smoothing`` times as much as the next."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]

    @cached_property
    def suggestion(self) -> float | None:
        """The learning rate at which the losses fall fastest, per factor of the learning rate; None if they do nowhere.

        How fast they fall at ``lrs[i]`` is the slope of the line of least squares through the stretch around it, a
        third of the sweep, so that the noise of single batches does not decide. What comes after the stretch with the
        least mean does not count: there the training is torn apart, and losses fall from where they were thrown.

        >>> Sweep((0.01, 0.1, 1.0, 10.0), (2.0, 1.9, 1.2, 1.0), (2.0, 2.0, 1.9, 1.8)).suggestion
        1.0
        """
        reach = max(len(self.losses) // 6, 1)
        stretches = [self.losses[i - reach : i + reach + 1] for i in range(reach, len(self.losses) - reach)]
        sums = [sum(stretch) for stretch in stretches]
        falling = stretches[: sums.index(min(sums)) + 1] if sums else []
        slopes = [sum(x * loss for x, loss in enumerate(stretch, -reach)) for stretch in falling]
        steepest = min(slopes, default=0.0)
        return self.lrs[slopes.index(steepest) + reach] if steepest < 0 else None

    def __repr__(self) -> str:
        """In a few words: the numbers themselves would fill the screen."""
        ends = f" from {self.lrs[0]:.3g} to {self.lrs[-1]:.3g}" if self.lrs else ""
        found = "no suggestion" if self.suggestion is None else f"suggestion {self.suggestion:.3g}"
        return f"<Sweep of {len(self.lrs)} learning rates{ends}: {found}>"

    def plot(self, path: Any = None) -> Any:
        """A matplotlib figure of the losses over the learning rates; written to ``path`` if there is one."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.lrs, self.losses, alpha=0.3, label="loss")
        axes.plot(self.lrs, self.smoothed, label="smoothed loss")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, linestyle="--", color="gray", label=f"suggestion {self.suggestion:.3g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        seen = [loss for loss in self.smoothed if math.isfinite(loss)]
        if seen:  # a last loss that flies away would press all the others onto one line
            room = 0.1 * (max(seen) - min(seen)) or 1.0
            axes.set_ylim(min(*self.losses, *seen) - room, max(seen) + room)
        axes.legend()
        if path is not None:
            figure.savefig(path)
        return figure


class LRFinder(Callback):
    """Turns a fit into a sweep over learning rates, and then puts everything back.

    ![The loss over the learning rate, with a mark where it falls fastest](images/lr_finder.png)

    Step i of ``steps`` is made with the learning rate ``start * (end / start) ** (i / (steps - 1))``; if groups have
    different rates, this is that of the first one and the others keep their ratio to it. The sweep stops early when the
    smoothed loss is more than ``stop_factor`` times its best so far (None: never for that), or the loss is not finite.
    ``smoothing`` from 0 to below 1 says how much of the past is in the smoothed loss. Then the fit is stopped, and
    weights, buffers, optimizers, random numbers and the generators of the loader are exactly as before. There is no
    validation. The result is in ``run.store["lr_finder"]``, which is ``trainer.store`` afterwards: ``lrs``, ``losses``,
    ``smoothed``, ``plot()`` and ``suggestion``, the rate in the middle of the third of the sweep in which the losses,
    before their lowest, fall most steeply; None if they fall nowhere. A fit that is too short for all steps is warned
    of.

    Only the clock and the history still tell of the sweep, and other callbacks saw it; ``find_lr(trainer, loader)``
    does the same beside the trainer and leaves no trace at all. Each step reads the loss, and so waits for the device.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[LRFinder(1e-3, 10, steps=20)], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), steps=20)
    >>> 1e-3 < trainer.store["lr_finder"].suggestion < 10, sgd.param_groups[0]["lr"]
    (True, 0.1)
    """

    order = Order.MEASURE + 50
    owns = frozenset({"lr"})
    asks = frozenset({"skip_validation"})
    same_on_ranks = ("start", "end", "steps")

    def __init__(
        self,
        start: float = 1e-7,
        end: float = 10.0,
        steps: int = 100,
        *,
        stop_factor: float | None = 4.0,
        smoothing: float = 0.9,
    ) -> None:
        if not is_number(start) or not is_number(end) or not 0 < start < end:
            raise ValueError(f"start and end are numbers above 0, start the lower one, not {start!r} and {end!r}")
        whole("steps", steps, 3)
        if stop_factor is not None and (not is_number(stop_factor) or stop_factor <= 1):
            raise ValueError(f"stop_factor must be a number above 1 or None, not {stop_factor!r}")
        below_one("smoothing", smoothing)
        self.start, self.end, self.steps = start, end, steps
        self.stop_factor, self.smoothing = stop_factor, smoothing
        self._kept: KeptState | None = None
        self._steps_before = 0
        """The steps of the training before; those of earlier sweeps, which were put back, do not count."""
        self._begin()

    def _begin(self) -> None:
        self._ratios: list[list[float]] = []
        self._first_step = self._made = 0
        self._window: list[float] = []
        self._lrs: list[float] = []
        self._losses: list[float] = []
        self._smoothed: list[float] = []
        self._average = self._weight = 0.0

    @classmethod
    def example(cls) -> Self:
        return cls(1e-4, 1.0, steps=3)

    def explain(self) -> str:
        return f"{self.steps} steps from {self.start:g} to {self.end:g}, then everything is put back"

    def around_run(self, run: Run) -> Iterator[None]:
        """What is taken when the sweep begins is put back here, however it ended."""
        self._kept = None
        self._begin()
        self._tell_if_trained(run)
        try:
            yield
            self._tell_if_short(run)
        finally:
            if self._kept is not None:
                self._kept.restore()
                self._kept = None
                self._steps_before -= run.clock.steps - self._first_step
                run.store["lr_finder"] = Sweep(tuple(self._lrs), tuple(self._losses), tuple(self._smoothed))

    def after_load(self, run: Run) -> None:
        raise CallbackError(f"{self.name}: a sweep that was interrupted begins anew; resume without {self.name}")

    def before_epoch(self, run: Run) -> None:
        run.skip_validation()
        self._keep(run)  # before the loader draws the order of its first pass

    def _keep(self, run: Run) -> None:
        if self._kept is None:
            self._kept = KeptState(torch.device("cpu"))
            self._kept.keep_training(run.module, run.optimizers, run.device)
            self._kept.keep_generators(_generators(run.train_loader))
            self._kept.keep_stateful([run.train_loader, run.scaler])
            self._first_step = run.clock.steps
            lrs = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in run.optimizers]
            self._ratios = [[lr / lrs[0][0] if lrs[0][0] else 1.0 for lr in row] for row in lrs]

    def before_train_iter(self, run: Run) -> None:
        self._keep(run)
        value = self._lr(run.clock.steps - self._first_step)
        for optimizer, ratios in zip(run.optimizers, self._ratios, strict=True):
            for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
                set_lr(group, value * ratio)

    def after_train_iter(self, run: Run) -> None:
        if "loss" in run.skipped:
            return
        loss = float(run.loss.detach())  # waits for the device: whether to go on depends on it
        if not math.isfinite(loss):
            run.stop(f"{self.name}: the loss is {loss}")
            return
        self._window.append(loss)
        made = run.clock.steps - self._first_step
        if made > self._made:
            self._made = made
            self._record(self._lr(made - 1))
        if made >= self.steps:
            run.stop(f"{self.name}: all {self.steps} steps are made")
        elif self._diverges():
            run.stop(f"{self.name}: the loss is more than {self.stop_factor:g} times its best")

    def _tell_if_short(self, run: Run) -> None:
        if self._kept is not None and run.stop_reason is None:
            reached = (
                f"made {self._made} of its {self.steps} steps, up to a rate of {self._lr(max(self._made - 1, 0)):g}"
            )
            warn(f"{self.name} {reached}: the fit was too short; fit(steps={self.steps}) is enough")

    def _tell_if_trained(self, run: Run) -> None:
        steps = self._steps_before + run.clock.steps
        if run.mode == "fit" and run.is_main and (steps or any(optimizer.state for optimizer in run.optimizers)):
            far = f"has been trained for {steps} steps" if steps else "or its optimizer has been trained"
            warn(
                f"the model {far}, so the sweep finds a rate to continue with from here, and not one to begin with. "
                "For that, sweep with a new model and optimizer, before the first fit"
            )

    def _lr(self, index: int) -> float:
        return float(self.start * (self.end / self.start) ** (min(index, self.steps - 1) / (self.steps - 1)))

    def _record(self, lr: float) -> None:
        """One step: with accumulation, its loss is the mean over the batches of its window."""
        loss = sum(self._window) / len(self._window)
        self._window.clear()
        self._average = self.smoothing * self._average + (1 - self.smoothing) * loss
        self._weight = self.smoothing * self._weight + (1 - self.smoothing)
        self._lrs.append(lr)
        self._losses.append(loss)
        self._smoothed.append(self._average / self._weight)

    def _diverges(self) -> bool:
        best = min(self._smoothed, default=0.0)  # of a loss that can be negative, no multiple means anything
        return self.stop_factor is not None and best > 0 and self._smoothed[-1] > self.stop_factor * best


def find_lr(
    trainer: Trainer,
    loader: Iterable[Any],
    *,
    start: float = 1e-7,
    end: float = 10.0,
    steps: int = 100,
    stop_factor: float | None = 4.0,
    smoothing: float = 0.9,
    callbacks: Sequence[Callback] = (),
) -> Sweep:
    """Sweeps over learning rates as ``LRFinder`` does, beside the trainer: its clock, its history and its callbacks do
    not notice, and the next fit is bit-equal to one without the sweep.

    A copy of the trainer's main callback takes part; of the others none, unless given as ``callbacks``. A model that
    has been trained already is warned of: its rate to continue is not the one to begin with.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, device="cpu")
    >>> sweep = find_lr(trainer, tiny_loader(), start=1e-3, steps=20)
    >>> len(sweep.lrs) <= 20, trainer.clock.steps
    (True, 0)
    """
    finder = LRFinder(start, end, steps, stop_factor=stop_factor, smoothing=smoothing)
    swept = trainer.store.get("lr_finder")
    finder._steps_before = trainer.clock.steps - (len(swept.lrs) if isinstance(swept, Sweep) else 0)
    beside = trainer_beside(trainer._training, main_callback(trainer), [*callbacks, finder])
    beside.fit(loader, steps=steps)
    sweep: Sweep = beside.store["lr_finder"]
    return sweep


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators from which a loader draws its order, other than the global one."""
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found = [getattr(one, "generator", None) for one in (loader, sampler, inner)]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())
