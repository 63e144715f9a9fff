"""The history that callbacks read and write: ``train_loop_obj.train_history``."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

from cadenza.history import unknown_metric

__all__ = ["TrainingHistory"]


class TrainingHistory(UserDict[str, Any]):
    """Lists of values under names, to which values are added and from which none is taken.

    >>> history = TrainingHistory(has_validation=True)
    >>> history["val_accuracy"] = 0.5
    >>> history += {"val_accuracy": 0.75}
    >>> history["val_accuracy"], list(history.keys())
    ([0.5, 0.75], ['loss', 'accumulated_loss', 'val_loss', 'val_accuracy'])
    """

    def __init__(self, has_validation: bool = True) -> None:
        names = ("loss", "accumulated_loss", *(("val_loss",) if has_validation else ()))
        self.data: dict[str, list[Any]] = {name: [] for name in names}

    def insert_single_result_into_history(self, metric_name: str, metric_result: Any) -> None:
        """Adds one value to the end of the list under ``metric_name``."""
        self.data.setdefault(metric_name, []).append(metric_result)

    def wrap_pre_prepared_history(self, history: Mapping[str, list[Any]]) -> TrainingHistory:
        """This history with lists that were made elsewhere in the place of its own."""
        self.data = dict(history)
        return self

    def get_train_history(self) -> dict[str, list[Any]]:
        """The lists themselves, by name."""
        return self.data

    get_train_history_dict = get_train_history

    train_history = property(get_train_history, wrap_pre_prepared_history)  # type: ignore[arg-type]

    def __missing__(self, name: str) -> list[Any]:
        raise KeyError(f"the training history has {unknown_metric(name, self.data)}")

    def __setitem__(self, name: str, value: Any) -> None:
        self.insert_single_result_into_history(name, value)

    def __iadd__(self, results: Mapping[str, Any]) -> TrainingHistory:
        self.update(results)
        return self

    __add__ = __iadd__
