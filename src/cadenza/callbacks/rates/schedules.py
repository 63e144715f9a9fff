"""Ready schedules. ``Schedule`` says what their shared arguments mean, and gives the formula around each curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self, Unpack

from cadenza.callback import infer_mode
from cadenza.callbacks.rates.curves import (
    PROGRESS,
    Constant,
    Cosine,
    Exponential,
    FlatCosine,
    Function,
    MultiStep,
    OneCycle,
    Polynomial,
    Step,
)
from cadenza.callbacks.rates.plateau import Plateau, mode_in_words
from cadenza.callbacks.rates.schedule import Schedule
from cadenza.callbacks.rates.timetable import Placing
from cadenza.foundation.arguments import metric


class ConstantSchedule(Schedule):
    """Keeps the learning rate, for a warm-up or a cool-down alone: curve(x) = 1.

    The arguments are those that all schedules share, see ``Schedule``.

    >>> ConstantSchedule(warmup="500 steps", cooldown="1 epoch", cooldown_to=0.0).explain()
    'constant, every step, warm-up of 500 steps, cool-down of 1 epoch to 0, over each fit'
    """

    def __init__(self, **placing: Unpack[Placing]) -> None:
        super().__init__(Constant(), **_by("step", placing))

    @classmethod
    def example(cls) -> Self:
        return cls(warmup="2 steps")


class StepSchedule(Schedule):
    """Multiplies the learning rate by ``gamma`` after each ``size`` epochs: curve(n) = gamma ** (n // size).

    With ``cadence="step"`` it counts steps. The count begins with the schedule, warm-up included. The other arguments
    are those that all schedules share, see ``Schedule``.

    >>> StepSchedule(30, gamma=0.1, warmup="500 steps").explain()
    'times 0.1 after each 30, every epoch, warm-up of 500 steps'
    """

    def __init__(self, size: int, gamma: float = 0.1, **placing: Unpack[Placing]) -> None:
        super().__init__(Step(size, gamma), **_by("epoch", placing))

    @classmethod
    def example(cls) -> Self:
        return cls(1, gamma=0.5)


class MultiStepSchedule(Schedule):
    """Multiplies the learning rate by ``gamma`` at each of the ``milestones``, which are epochs counted from 0.

    curve(n) = gamma ** (number of milestones that are not above n). With ``cadence="step"`` they are steps. The count
    begins with the schedule, warm-up included. The other arguments are those that all schedules share, see
    ``Schedule``.

    >>> MultiStepSchedule([30, 60, 80]).explain()
    'times 0.1 at 30, 60, 80, every epoch'
    """

    def __init__(self, milestones: Sequence[int], gamma: float = 0.1, **placing: Unpack[Placing]) -> None:
        super().__init__(MultiStep(milestones, gamma), **_by("epoch", placing))

    @classmethod
    def example(cls) -> Self:
        return cls([1])


class ExponentialSchedule(Schedule):
    """Multiplies the learning rate by ``gamma`` after every epoch: curve(n) = gamma ** n.

    With ``cadence="step"`` after every step. The count begins with the schedule, warm-up included. The other arguments
    are those that all schedules share, see ``Schedule``.

    >>> ExponentialSchedule(0.95).explain()
    'times 0.95 each time, every epoch'
    """

    def __init__(self, gamma: float, **placing: Unpack[Placing]) -> None:
        super().__init__(Exponential(gamma), **_by("epoch", placing))

    @classmethod
    def example(cls) -> Self:
        return cls(0.9)


class PolynomialSchedule(Schedule):
    """Lowers the learning rate to ``final_ratio`` of itself: in a straight line, or bent by ``power``.

    curve(x) = final_ratio + (1 - final_ratio) * (1 - x) ** power. The other arguments are those that all schedules
    share, see ``Schedule``.

    >>> PolynomialSchedule(power=0.9, warmup="1 epoch").explain()
    'polynomial of power 0.9 to 0, every step, warm-up of 1 epoch, over each fit'
    """

    def __init__(self, power: float = 1.0, final_ratio: float = 0.0, **placing: Unpack[Placing]) -> None:
        super().__init__(Polynomial(power, final_ratio), **placing)

    @classmethod
    def example(cls) -> Self:
        return cls()


class CosineSchedule(Schedule):
    """Lowers the learning rate to ``final_ratio`` of itself along half a cosine wave.

    curve(x) = final_ratio + (1 - final_ratio) * (1 + cos(pi * x)) / 2. The other arguments are those that all schedules
    share, see ``Schedule``.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> cosine = CosineSchedule(final_ratio=0.01, warmup="2 steps", cooldown="1 epoch")
    >>> _ = cadenza.Trainer(model, sgd, loss, callbacks=[cosine], device="cpu").fit(tiny_loader(), epochs=4)
    >>> round(sgd.param_groups[0]["lr"], 6)
    0.001
    """

    def __init__(self, final_ratio: float = 0.0, **placing: Unpack[Placing]) -> None:
        super().__init__(Cosine(final_ratio), **placing)

    @classmethod
    def example(cls) -> Self:
        return cls()


class FunctionSchedule(Schedule):
    """Multiplies the initial learning rate with what ``function`` returns: curve(x) = function(x).

    With ``of="progress"`` it is a function of the progress from 0 to 1; with ``of="count"`` of the number of steps or
    epochs before, as ``cadence`` says. The other arguments are those that all schedules share, see ``Schedule``.

    >>> FunctionSchedule(lambda progress: 1 - progress**2, warmup="10 steps").explain()
    '<lambda> of the progress, every step, warm-up of 10 steps, over each fit'
    """

    def __init__(self, function: Callable[[float], float], of: str = PROGRESS, **placing: Unpack[Placing]) -> None:
        super().__init__(Function(function, of), **placing)


class OneCycleSchedule(Schedule):
    """Raises the learning rate to its peak and lowers it again, and moves the momentum the other way.

    The peak is each group's own learning rate. curve(x) is half a cosine wave from 1 / div_factor to 1 until x is
    ``pct_start``, and from there on one from 1 to 1 / (div_factor * final_div_factor). ``momentum`` is its value at
    both ends and its value at the peak, with the same waves in between; for optimizers with betas it is the first beta;
    None leaves it alone. The other arguments are those that all schedules share, see ``Schedule``.

    >>> OneCycleSchedule(pct_start=0.25).explain()
    'one cycle with its top at 0.25 of it, momentum from 0.95 to 0.85 and back, every step, over each fit'
    """

    def __init__(
        self,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        momentum: tuple[float, float] | None = (0.95, 0.85),
        **placing: Unpack[Placing],
    ) -> None:
        super().__init__(OneCycle(pct_start, div_factor, final_div_factor, momentum), **placing)

    @classmethod
    def example(cls) -> Self:
        return cls()


class FlatCosineSchedule(Schedule):
    """Keeps the learning rate until ``start`` of the way, then lowers it to ``final_ratio`` along half a cosine wave.

    curve(x) = 1 while x < start; then final_ratio + (1 - final_ratio) * (1 + cos(pi * y)) / 2 with
    y = (x - start) / (1 - start). The other arguments are those that all schedules share, see ``Schedule``.

    >>> FlatCosineSchedule().explain()
    'flat until 0.72 of it, then cosine to 0, every step, over each fit'
    """

    def __init__(self, start: float = 0.72, final_ratio: float = 0.0, **placing: Unpack[Placing]) -> None:
        super().__init__(FlatCosine(start, final_ratio), **placing)

    @classmethod
    def example(cls) -> Self:
        return cls()


class PlateauSchedule(Schedule):
    """Multiplies the learning rate by ``factor`` when a metric no longer improves.

    It checks ``monitor`` at the end of each epoch in which it was measured. ``patience=p`` lowers the rate at the p-th
    check in a row that is not better than the best so far by more than ``min_delta``; equal is not better, and NaN
    never is. After that the next ``rest`` checks are not counted. ``mode`` is "min" or "max"; if it is None, the name
    of the metric decides. No group goes below ``min_lr``. The other arguments are those that all schedules share, see
    ``Schedule``.

    >>> PlateauSchedule("val/f1", patience=3).explain()
    'times 0.1 after 3 checks in a row without improvement; follows val/f1, higher is better (inferred from its name)'
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        factor: float = 0.1,
        patience: int = 10,
        *,
        mode: str | None = None,
        min_delta: float = 0.0,
        rest: int = 0,
        min_lr: float = 0.0,
        **placing: Unpack[Placing],
    ) -> None:
        metric("monitor", monitor)
        chosen = infer_mode(monitor) if mode is None else mode
        plateau = Plateau(factor, patience, mode=chosen, min_delta=min_delta, rest=rest, min_lr=min_lr)
        super().__init__(plateau, monitor=monitor, **_by("step", placing))
        self.mode = mode

    @classmethod
    def example(cls) -> Self:
        return cls("val/loss", patience=1)

    def explain(self) -> str:
        return f"{super().explain()}; follows {mode_in_words(str(self.monitor), self.mode)}"


def _by(cadence: str, placing: Placing) -> Placing:
    """``placing`` with ``cadence`` where the user did not say one."""
    return placing if placing.get("cadence") is not None else {**placing, "cadence": cadence}
