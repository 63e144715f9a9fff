"""Parts of a loop: the handler of its callbacks, its predictions and how they are joined, and its history."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.data import gather, to_device
from cadenza.dialects.adapter import overridden
from cadenza.dialects.aitoolbox.table import HOOKS
from cadenza.history import unknown_metric

if TYPE_CHECKING:
    from cadenza.dialects.aitoolbox.loop_object import LoopObject

__all__ = [
    "CallbacksHandler", "Collected", "PredictionStore", "TrainingHistory", "append_predictions", "torch_cat_transf",
]  # fmt: skip


class CallbacksHandler:
    """Counts, finds, lists and adds the callbacks of a loop."""

    def __init__(self, loop: LoopObject) -> None:
        self.loop = loop

    @property
    def registered_cbs(self) -> list[Any]:
        return list(self.loop.callbacks)

    def register_callbacks(self, callbacks: Iterable[Any] | None, cache_callbacks: bool = False) -> None:
        """Adds callbacks; those that are there already are left as they are. In a running fit they play from the next
        iteration on. Registration always waits for the fit, so ``cache_callbacks`` changes nothing."""
        register = getattr(self.loop, "_register", None)
        if register is None:
            raise TypeError(
                "aitoolbox: this loop belongs to a cadenza.Trainer; add callbacks with trainer.add(callback)"
            )
        register(list(callbacks or ()))

    def __iadd__(self, callbacks: Iterable[Any]) -> CallbacksHandler:
        self.register_callbacks(callbacks)
        return self

    __add__ = __iadd__

    def __len__(self) -> int:
        return len(self.registered_cbs)

    def __contains__(self, wanted: object) -> bool:
        """Whether a callback of this name, of this class, or this very one is registered."""
        return any(wanted in (one, type(one), one.callback_name) for one in self.registered_cbs)

    def __str__(self) -> str:
        lines = []
        for row in HOOKS:
            names = [one.callback_name for one in self.registered_cbs if overridden(one, row.name)]
            if names:
                lines.append(f"{row.name}: {', '.join(names)}")
        return "\n".join(lines) or "no callbacks"

    def print_registered_callback_names(self) -> None:
        """Prints for each hook who plays there, in order."""
        print(self)


class PredictionStore:
    """Keeps what was computed for a data set until the training goes on by one iteration.

    >>> store = PredictionStore()
    >>> store.insert("validation_loss", 0.5, iteration=3)
    >>> store.has("validation_loss", iteration=3), store.has("validation_loss", iteration=4)
    (True, False)
    """

    def __init__(self) -> None:
        self.iteration: int | None = None
        self.kept: dict[str, Any] = {}

    def auto_purge(self, iteration: int) -> None:
        """Lets go of everything that was computed in another iteration than this."""
        if iteration != self.iteration:
            self.iteration = iteration
            self.kept.clear()

    def has(self, what: str, iteration: int) -> bool:
        self.auto_purge(iteration)
        return what in self.kept

    def get(self, what: str, iteration: int) -> Any:
        if not self.has(what, iteration):
            raise ValueError(f"nothing was computed for {what!r} in iteration {iteration}; ask the loop to predict")
        return self.kept[what]

    def insert(self, what: str, value: Any, iteration: int, force_prediction: bool = False) -> None:
        if self.has(what, iteration) and not force_prediction:
            raise ValueError(
                f"{what!r} was already computed in iteration {iteration}; force_prediction=True replaces it"
            )
        self.kept[what] = value


def append_predictions(y_batch: Any, predictions: list[Any]) -> list[Any]:
    """Adds what one batch gave to a list of what all gave."""
    predictions.append(y_batch)
    return predictions


def torch_cat_transf(predictions: list[Any]) -> Any:
    """Makes one tensor of the list; what cannot be joined stays a list."""
    return gather(predictions)


class Collected:
    """Predictions, targets and further data of the batches so far."""

    def __init__(self, collate: Callable[[Any, list[Any]], list[Any]], transform: Callable[[list[Any]], Any]) -> None:
        self.collate, self.transform = collate, transform
        self.predictions: list[Any] = []
        self.targets: list[Any] = []
        self.metadata: dict[str, list[Any]] = {}

    def add(self, predictions: Any, targets: Any, metadata: Mapping[str, Any] | None) -> None:
        self.predictions = self.collate(_on_cpu(predictions), self.predictions)
        self.targets = self.collate(_on_cpu(targets), self.targets)
        for name, values in (metadata or {}).items():
            self.metadata.setdefault(name, []).extend(values)

    def whole(self) -> tuple[Any, Any, dict[str, Any]]:
        return self.transform(self.predictions), self.transform(self.targets), self.metadata


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return to_device(value, torch.device("cpu")) if isinstance(value, list | tuple | dict) else value


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
