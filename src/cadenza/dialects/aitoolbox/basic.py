"""Callbacks that augment a training: stopping, watching, trying out."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from cadenza.callbacks.early_stopping import Patience
from cadenza.callbacks.same_predictions import all_same
from cadenza.dialects.aitoolbox.abstract import AbstractCallback

__all__ = [
    "AllPredictionsSame",
    "DataSubsetTestRun",
    "EarlyStopping",
    "FunctionOnTrainLoop",
    "ListRegisteredCallbacks",
    "TerminateOnNaN",
    "ThresholdEarlyStopping",
]


def better_is(metric: str) -> str:
    """Lower is better for what is called a loss or an error."""
    return "min" if "loss" in metric or "error" in metric else "max"


class Monitor:
    """New values of one metric of the history; a value that was there at the last look is not new."""

    def __init__(self, name: str) -> None:
        self.name, self.seen = name, 0

    def new_value(self, loop: Any) -> float | None:
        values = loop.train_history[self.name]
        if len(values) <= self.seen:
            return None
        self.seen = len(values)
        return float(values[-1])


class ListRegisteredCallbacks(AbstractCallback):
    """Prints at the beginning which callback plays at which hook."""

    def __init__(self) -> None:
        super().__init__("Print the list of registered callbacks")

    def on_train_begin(self) -> None:
        self.train_loop_obj.callbacks_handler.print_registered_callback_names()


class EarlyStopping(AbstractCallback):
    """Stops when ``monitor`` did not improve in more than ``patience`` epochs in a row; equal is not better.

    >>> EarlyStopping(patience=2).counter.patience
    3
    """

    def __init__(self, monitor: str = "val_loss", min_delta: float = 0.0, patience: int = 0) -> None:
        super().__init__("EarlyStopping", execution_order=99)
        self.monitor, self.min_delta, self.patience = monitor, min_delta, patience
        self.counter = Patience(patience + 1, mode=better_is(monitor), min_delta=min_delta)
        self.values = Monitor(monitor)

    def on_epoch_end(self) -> None:
        value = self.values.new_value(self.train_loop_obj)
        if value is not None and self.counter.spent(value):
            self.train_loop_obj.early_stop = True
            print(f"Early stopping: {self.monitor} did not improve in {self.counter.bad} epochs")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.counter.best, "bad": self.counter.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counter.best, self.counter.bad = state["best"], int(state["bad"])


class ThresholdEarlyStopping(AbstractCallback):
    """Stops when ``monitor`` was on the wrong side of ``threshold`` in more than ``patience`` epochs in a row."""

    def __init__(self, monitor: str, threshold: float, patience: int = 0) -> None:
        super().__init__("ThresholdEarlyStopping", execution_order=99)
        self.monitor, self.threshold, self.patience = monitor, threshold, patience
        self.lower_is_better = better_is(monitor) == "min"
        self.values = Monitor(monitor)
        self.bad = 0

    def on_epoch_end(self) -> None:
        value = self.values.new_value(self.train_loop_obj)
        if value is None:
            return
        good = value <= self.threshold if self.lower_is_better else value >= self.threshold
        self.bad = 0 if good else self.bad + 1
        if self.bad > self.patience:
            self.train_loop_obj.early_stop = True
            print(f"Early stopping: {self.monitor} is {value:g}, beyond {self.threshold:g}")

    def state_dict(self) -> dict[str, Any]:
        return {"bad": self.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bad = int(state["bad"])


class TerminateOnNaN(AbstractCallback):
    """Stops at the end of an epoch in which ``monitor`` was not a finite number."""

    def __init__(self, monitor: str = "loss") -> None:
        super().__init__("TerminateOnNaN", execution_order=98)
        self.monitor = monitor
        self.values = Monitor(monitor)

    def on_epoch_end(self) -> None:
        value = self.values.new_value(self.train_loop_obj)
        if value is not None and not math.isfinite(value):
            self.train_loop_obj.early_stop = True
            print(f"Terminating: {self.monitor} is {value}")


class AllPredictionsSame(AbstractCallback):
    """Says so, or stops, if at the end of an epoch every prediction for the validation set is ``value``."""

    def __init__(self, value: float = 0.0, stop_training: bool = False, verbose: bool = True) -> None:
        super().__init__("All predicted values are the same")
        self.value, self.stop_training, self.verbose = value, stop_training, verbose

    def on_epoch_end(self) -> None:
        predictions = torch.as_tensor(self.train_loop_obj.predict_on_validation_set()[0])
        if not bool(all_same(predictions, torch.tensor(self.value, dtype=predictions.dtype))):
            return
        if self.verbose:
            print(f"All {len(predictions)} predictions for the validation set are {self.value:g}")
        if self.stop_training:
            self.train_loop_obj.early_stop = True


class DataSubsetTestRun(AbstractCallback):
    """Trains on the first batches only, to see that everything works. A number of 0 leaves that loader as it is."""

    def __init__(self, num_train_batches: int = 1, num_val_batches: int = 0, num_test_batches: int = 0) -> None:
        super().__init__("Use only a subset of the data", execution_order=-1000)
        self.counts = {
            "train_loader": num_train_batches,
            "validation_loader": num_val_batches,
            "test_loader": num_test_batches,
        }

    def on_train_loop_registration(self) -> None:
        for name, count in self.counts.items():
            if count and getattr(self.train_loop_obj, name) is None:
                raise ValueError(f"DataSubsetTestRun takes {count} batches of {name}, but the loop has none")

    def on_train_begin(self) -> None:
        for name, count in self.counts.items():
            if count:
                setattr(self.train_loop_obj, name, list(islice(getattr(self.train_loop_obj, name), count)))


class FunctionOnTrainLoop(AbstractCallback):
    """Calls ``fn_to_execute(train_loop)`` at the chosen hooks."""

    def __init__(
        self,
        fn_to_execute: Callable[[Any], Any],
        tl_registration: bool = False,
        epoch_begin: bool = False,
        epoch_end: bool = False,
        train_begin: bool = False,
        train_end: bool = False,
        batch_begin: bool = False,
        batch_end: bool = False,
        after_gradient_update: bool = False,
        after_optimizer_step: bool = False,
        execution_order: int = 0,
        device_idx_execution: int | None = None,
    ) -> None:
        super().__init__("Execute a function on the train loop", execution_order, device_idx_execution)
        self.fn_to_execute = fn_to_execute
        chosen = {
            "on_train_loop_registration": tl_registration,
            "on_epoch_begin": epoch_begin,
            "on_epoch_end": epoch_end,
            "on_train_begin": train_begin,
            "on_train_end": train_end,
            "on_batch_begin": batch_begin,
            "on_batch_end": batch_end,
            "on_after_gradient_update": after_gradient_update,
            "on_after_optimizer_step": after_optimizer_step,
        }
        for hook, wanted in chosen.items():
            if wanted:
                setattr(self, hook, self._execute_with_index if "gradient" in hook else self._execute)

    def _execute(self) -> None:
        self.fn_to_execute(self.train_loop_obj)

    def _execute_with_index(self, optimizer_idx: int) -> None:
        self.fn_to_execute(self.train_loop_obj)
