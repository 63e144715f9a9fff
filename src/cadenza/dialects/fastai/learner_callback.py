"""Callbacks that belong to a Learner."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from cadenza.dialects.fastai.callback import Callback
from cadenza.dialects.fastai.core import camel2snake
from cadenza.dialects.fastai.torch_core import to_cpu

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["LearnerCallback", "RecordOnCPU"]


class LearnerCallback(Callback):
    """A callback that knows its Learner as ``self.learn``. What it does not have itself it takes from there, and the
    Learner has it under its name: ``learn.early_stopping_callback``."""

    __dialect_base__ = True

    def __init__(self, learn: Learner) -> None:
        vars(self)["_learn"] = weakref.ref(learn)
        self.exclude: list[str] = ["_learn", "_section", "exclude", "not_min"]  # type: ignore[misc]
        self.not_min: list[str] = []  # type: ignore[misc]
        vars(learn)[self.cb_name] = self

    @property
    def learn(self) -> Any:
        found: Learner | None = vars(self)["_learn"]()
        if found is None:
            raise ReferenceError(f"fastai: the Learner of {type(self).__name__} is gone")
        return found

    @learn.setter
    def learn(self, value: Any) -> None:
        vars(self)["_learn"] = weakref.ref(value)

    @property
    def cb_name(self) -> str:
        return camel2snake(type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_learn" not in vars(self) or name in ("model", "optimizer", "_section"):
            raise AttributeError(f"fastai: {type(self).__name__} has no attribute {name!r}", name=name)
        return getattr(self.learn, name)


class RecordOnCPU(Callback):
    """Keeps the last input and target in main memory, as ``input`` and ``target``."""

    def on_batch_begin(self, last_input: Any, last_target: Any, **kwargs: Any) -> None:
        self.input, self.target = to_cpu(last_input), to_cpu(last_target)
