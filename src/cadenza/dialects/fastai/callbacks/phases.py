"""Schedules made of phases, set after each training batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from cadenza.dialects.fastai.callback import Annealing, Scheduler, annealing_cos, annealing_exp, annealing_linear
from cadenza.dialects.fastai.learner_callback import LearnerCallback
from cadenza.foundation.arguments import among, check

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["FlatCosAnnealScheduler", "GeneralScheduler", "OneCycleScheduler", "TrainingPhase"]


class TrainingPhase:
    """So many batches, in which hyper-parameters go from one value to another."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.scheds: dict[str, list[Scheduler]] = {}

    def schedule_hp(self, name: str, vals: Any, anneal: Annealing | None = None) -> Self:
        """``vals`` is one value, a pair, or a list of pairs for the parameter groups."""
        check(name in ("lr", "mom", "beta", "wd"), "fastai: a phase schedules lr, mom, beta or wd", name)
        each = vals if isinstance(vals, list) else [vals]
        self.scheds[name] = [Scheduler(one, self.length, anneal) for one in each]
        return self


class GeneralScheduler(LearnerCallback):
    """Plays ``phases`` one after the other; when they are used up, the training stops."""

    def __init__(self, learn: Learner, phases: Sequence[TrainingPhase], start_epoch: int | None = None) -> None:
        super().__init__(learn)
        self.phases, self.start_epoch = list(phases), start_epoch

    def on_train_begin(self, epoch: int, **kwargs: Any) -> Any:
        start = epoch if self.start_epoch is None else self.start_epoch
        for phase in self.phases:
            for scheduler in chain.from_iterable(phase.scheds.values()):
                scheduler.restart()
        self.idx_s = 0
        self._set(first=True)
        for _ in range(start * len(self.learn.data.train_dl)):
            self.on_batch_end(True)
        return {"epoch": start}

    def on_batch_end(self, train: bool, **kwargs: Any) -> Any:
        if not train:
            return None
        if self.idx_s >= len(self.phases):
            return {"stop_training": True, "stop_epoch": True}
        self._set()
        phase = self.phases[self.idx_s]
        if all(one.is_done for one in chain.from_iterable(phase.scheds.values())):
            self.idx_s += 1
        return None

    def _set(self, first: bool = False) -> None:
        optimizer = self.learn.opt
        for name, schedulers in self.phases[self.idx_s].scheds.items():
            values = [one.start if first else one.step() for one in schedulers]
            setattr(optimizer, name, values if len(values) > 1 else values[0])


class OneCycleScheduler(GeneralScheduler):
    """Up to ``lr_max`` in the first ``pct_start`` of all batches and down again, along cosines; the momentum the other
    way."""

    def __init__(
        self, learn: Learner, lr_max: Any, moms: tuple[float, float] = (0.95, 0.85), div_factor: float = 25.0,
        pct_start: float = 0.3, final_div: float | None = None, tot_epochs: int | None = None,
        start_epoch: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(learn, [], start_epoch)
        self.lr_max = lr_max if isinstance(lr_max, list | tuple) else [lr_max]
        self.moms, self.div_factor, self.pct_start, self.tot_epochs = moms, div_factor, pct_start, tot_epochs
        self.final_div = div_factor * 1e4 if final_div is None else final_div

    def on_train_begin(self, n_epochs: int, epoch: int, **kwargs: Any) -> Any:  # type: ignore[override]
        total = len(self.learn.data.train_dl) * (self.tot_epochs or n_epochs)
        up = int(total * self.pct_start)
        rising = [(lr / self.div_factor, lr) for lr in self.lr_max]
        falling = [(lr, lr / self.final_div) for lr in self.lr_max]
        self.phases = [
            TrainingPhase(length).schedule_hp("lr", lrs, annealing_cos).schedule_hp("mom", moms, annealing_cos)
            for length, lrs, moms in ((up, rising, tuple(self.moms)), (total - up, falling, tuple(self.moms[::-1])))
        ]
        return super().on_train_begin(epoch=epoch, **kwargs)


class FlatCosAnnealScheduler(GeneralScheduler):
    """Flat for ``start_pct`` of all batches, then down to nothing along a cosine, a line or an exponential."""

    def __init__(
        self, learn: Learner, lr: float = 4e-3, tot_epochs: int = 1, moms: tuple[float, float] = (0.95, 0.999),
        start_pct: float = 0.72, curve: str = "cosine",
    ) -> None:  # fmt: skip
        curves = {"cosine": annealing_cos, "linear": annealing_linear, "exponential": annealing_exp}
        among("fastai: curve", curve, curves)
        total = len(learn.data.train_dl) * tot_epochs
        flat, end = int(total * start_pct), lr / 1e3 if curve == "exponential" else 0.0
        first = TrainingPhase(flat).schedule_hp("lr", lr).schedule_hp("mom", moms[0])
        second = TrainingPhase(total - flat).schedule_hp("lr", (lr, end), curves[curve]).schedule_hp("mom", moms[1])
        super().__init__(learn, [first, second])
