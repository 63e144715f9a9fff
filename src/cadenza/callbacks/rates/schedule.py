"""The learning rate as a function of real steps or epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

from cadenza.callback import Callback, Order, in_turn
from cadenza.callbacks.rates.curves import PROGRESS, Curve, Function
from cadenza.callbacks.rates.drive_curve import CurveDriver
from cadenza.callbacks.rates.drive_torch import Factory, TorchDriver
from cadenza.callbacks.rates.param_groups import Target
from cadenza.callbacks.rates.timetable import Course, Placing
from cadenza.foundation.arguments import check, text
from cadenza.registration.checks import CallbackError

if TYPE_CHECKING:
    from cadenza.run import Run


class Driver(Protocol):
    """What moves the learning rate: a curve, or torch's schedulers."""

    def plays(self) -> dict[str, Callable[[Run], Any]]: ...
    def begin(self, run: Run) -> None: ...
    def loaded(self, run: Run) -> None: ...
    def words(self) -> str: ...
    def carries_over(self) -> bool: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Schedule(Callback):
    """Sets the learning rate by a function of your own, or lets one of torch's schedulers set it.

    It goes by real steps: batches that are accumulated, skipped or withheld do not move it. The rate is set before an
    iteration begins, outside the step, so that the step stays closed; all steps of one iteration have the same rate.

    ``function`` takes one number and returns what each group's initial learning rate is multiplied with. With
    ``of="progress"`` that number goes from 0 at the first step of the fit towards 1 after its last; with ``of="count"``
    it is the number of steps or epochs that came before, as ``cadence`` ("step" or "epoch") says. Or ``torch`` is a
    function that makes a scheduler for an optimizer; it is made before the first step and then stepped after every real
    step or every whole epoch, as ``cadence`` says, or for a ``ReduceLROnPlateau`` at the end of each epoch in which the
    metric ``monitor`` was measured. So it ends at the value that torch alone gives.

    The rest is shared by all schedules that are not torch's. With n steps (or epochs) before, W of warm-up, C of
    cool-down and T in all, the rate is ``initial * curve(x) * ramp``, where:

    - ``ramp`` is ``(n + 1) / (W + 1)`` while n < W, and 1 from then on. With ``warmup_from=f`` it is
      ``f + (1 - f) * n / W``. ``warmup`` is a duration such as "500 steps" or "2 epochs". It moves with every step,
      unless cadence and warm-up are both in epochs.
    - ``x`` is ``(n - W) / (T - W - C)``, not below 0 and not above 1, for curves of the progress; for those of a count
      it is n, not above T - C.
    - In the ``cooldown``, the last C steps or epochs, the curve stays where it ended. With ``cooldown_to=c`` the factor
      goes on from there to c in a straight line that would end at n = T.

    The length T is that of the fit, and each fit is a schedule of its own from the initial rate on, unless
    ``length="1000 steps"`` says otherwise: then it goes on over all fits and stays at its end. Schedules without an end
    go on, too. Epochs are turned into steps by the length of the training loader (and what a callback that accumulates
    says); where that is not known, the schedule refuses to start. A resumed fit goes on where it was, or begins anew if
    it was at its end.

    ``optimizer`` is the number of one optimizer, None for all; ``groups`` lists names (the key "name" of a parameter
    group) or numbers of its groups. The initial rate is kept in each group as "initial_lr", as torch does it. Two
    owners of one learning rate are refused.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.8)
    >>> halving = Schedule(lambda epoch: 0.5**epoch, of="count", cadence="epoch")
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[halving], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=3)
    >>> sgd.param_groups[0]["lr"]
    0.2
    """

    order = Order.MEASURE + 50
    """After those who measure, since a plateau goes by what they measured, and before those who save."""

    def __init__(
        self,
        function: Curve | Callable[[float], float] | None = None,
        *,
        torch: Factory | None = None,
        of: str = PROGRESS,
        monitor: str | None = None,
        **placing: Unpack[Placing],
    ) -> None:
        if (function is None) == (torch is None):
            both = f"function={function!r} and torch={torch!r}"
            raise TypeError(
                f"{self.name} takes either a function of a number or torch=, a scheduler's maker, not {both}"
            )
        for name in placing.keys() - Placing.__annotations__.keys():
            known = ", ".join(sorted(Placing.__annotations__))
            raise TypeError(f"{type(self).__name__} has no argument {name!r}; the shared ones are {known}")
        self.target = Target(placing.get("optimizer"), placing.get("groups"))
        self.name = type(self).__name__ + self.target.suffix()
        self.owns = self.target.owned("lr")
        self.monitor = monitor
        self._driver: Driver
        if torch is not None:
            self._driver = self._torch_driver(torch, placing)
        elif function is not None:
            curve = function if isinstance(function, Curve) else Function(function, of)
            self._driver = self._curve_driver(curve, placing)

    def _curve_driver(self, curve: Curve, placing: Placing) -> CurveDriver:
        if self.monitor is not None and not curve.checks_metric:
            what = "use PlateauSchedule to follow a metric"
            raise ValueError(f"monitor is for torch's ReduceLROnPlateau, not {self.monitor!r} for a function; {what}")
        if curve.momentum(0.0) is not None:
            self.owns |= self.target.owned("momentum")
        return CurveDriver(curve, Course.read(curve.of, placing), self.target, self.monitor, self.name)

    def _torch_driver(self, factory: Factory, placing: Placing) -> TorchDriver:
        refused = [name for name in placing if name not in ("cadence", "optimizer") and placing.get(name) is not None]
        if refused:
            raise ValueError(
                f"{', '.join(refused)} cannot be combined with torch=: use torch.optim.lr_scheduler.SequentialLR for "
                "a warm-up, and the schedules of this library for single groups"
            )
        cadence = placing.get("cadence")
        check(callable(factory), "torch is a function from an optimizer to its scheduler", factory, TypeError)
        if self.monitor is not None:
            text("monitor", self.monitor, 'the name of a metric, such as "val/loss"')
        if (self.monitor is None) == (cadence is None) or cadence not in ("step", "epoch", None):
            raise ValueError(
                f'torch= needs cadence="step" or cadence="epoch", or for a ReduceLROnPlateau the metric monitor=, '
                f"one of the two; cadence is {cadence!r}, monitor is {self.monitor!r}"
            )
        return TorchDriver(factory, self.target, cadence, self.monitor, self.name)

    @classmethod
    def example(cls) -> Self:
        return cls(lambda progress: 1 - progress / 2)

    def explain(self) -> str:
        return self._driver.words()

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """Where the driver plays; what a subclass does at the same point comes after it."""
        played = super().plays()
        return {**played, **{point: in_turn(play, played.get(point)) for point, play in self._driver.plays().items()}}

    def after_register(self, run: Run) -> None:
        if run.mode == "fit":
            self._refuse_shared_groups(run)
            self._driver.begin(run)

    def after_load(self, run: Run) -> None:
        self._driver.loaded(run)

    def _refuse_shared_groups(self, run: Run) -> None:
        """The same group can be named in two ways, which only the optimizers can tell."""
        mine = self._groups(run)
        for callback in run.callbacks:
            other = getattr(callback, "callback", callback)
            if isinstance(other, Schedule) and other is not self:
                for optimizer, group in sorted(mine & other._groups(run)):
                    raise CallbackError(
                        f"{other.name} and {self.name} both own the learning rate of parameter group {group} of "
                        f"optimizer {optimizer}; only one of them can set it"
                    )

    def _groups(self, run: Run) -> set[tuple[int, int]]:
        numbers = {id(optimizer): number for number, optimizer in enumerate(run.optimizers)}
        chosen = self.target.chosen(run.optimizers)
        return {(numbers[id(optimizer)], group) for optimizer, groups in chosen for group in groups}

    def _carries_over(self) -> bool:
        return self._driver.carries_over()

    def state_dict(self) -> dict[str, Any]:
        return self._driver.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._driver.load_state_dict(state)
