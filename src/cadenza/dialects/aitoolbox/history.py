"""The history that callbacks read and write: ``train_loop_obj.train_history``."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping
from typing import Any

from cadenza.history import unknown_metric


class TrainingHistory:
    """Lists of values under names, to which values are added and from which none is taken.

    >>> history = TrainingHistory(has_validation=True)
    >>> history["val_accuracy"] = 0.5
    >>> history += {"val_accuracy": 0.75}
    >>> history["val_accuracy"], list(history.keys())
    ([0.5, 0.75], ['loss', 'accumulated_loss', 'val_loss', 'val_accuracy'])
    """

    def __init__(self, has_validation: bool = True) -> None:
        names = ("loss", "accumulated_loss", *(("val_loss",) if has_validation else ()))
        self.train_history: dict[str, list[Any]] = {name: [] for name in names}

    def insert_single_result_into_history(self, metric_name: str, metric_result: Any) -> None:
        """Adds one value to the end of the list under ``metric_name``."""
        self.train_history.setdefault(metric_name, []).append(metric_result)

    def get_train_history(self) -> dict[str, list[Any]]:
        """The lists themselves, by name."""
        return self.train_history

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self.train_history:
            raise KeyError(f"the training history has {unknown_metric(name, self.train_history)}")
        return self.train_history[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.insert_single_result_into_history(name, value)

    def __iadd__(self, results: Mapping[str, Any]) -> TrainingHistory:
        for name, value in results.items():
            self.insert_single_result_into_history(name, value)
        return self

    def __contains__(self, name: object) -> bool:
        return name in self.train_history

    def __iter__(self) -> Iterator[str]:
        return iter(self.train_history)

    def __len__(self) -> int:
        return len(self.train_history)

    def keys(self) -> KeysView[str]:
        return self.train_history.keys()

    def get(self, name: str, default: Any = None) -> Any:
        return self.train_history.get(name, default)

    def items(self) -> ItemsView[str, list[Any]]:
        return self.train_history.items()

    def __str__(self) -> str:
        return str(self.train_history)
