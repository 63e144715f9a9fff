"""Callbacks that augment a training: stopping, watching, trying out, and sending something away."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cadenza.callbacks.guards.early_stopping import Patience
from cadenza.callbacks.guards.same_predictions import all_same
from cadenza.callbacks.showing.notify_channels import Mail, Message
from cadenza.dialects.aitoolbox.abstract import AbstractCallback, AbstractExperimentCallback
from cadenza.dialects.aitoolbox.evaluations import LOADERS
from cadenza.dialects.aitoolbox.folders import CLOUDS, folder_of, upload
from cadenza.dialects.aitoolbox.performance_eval import ModelTrainHistoryPlot

__all__ = [
    "AllPredictionsSame", "DataSubsetTestRun", "EarlyStopping", "EmailNotification", "FunctionOnTrainLoop",
    "ListRegisteredCallbacks", "LogUpload", "TerminateOnNaN", "ThresholdEarlyStopping",
]  # fmt: skip

SECONDS = 30.0


def better_is(metric: str) -> str:
    """Lower is better for what is called a loss or an error."""
    return "min" if "loss" in metric or "error" in metric else "max"


class Watching(AbstractCallback):
    """Judges each new value of one metric of the history; one that was there at the last look is not new."""

    def __init__(self, callback_name: str, execution_order: int, monitor: str) -> None:
        super().__init__(callback_name, execution_order)
        self.monitor, self.seen = monitor, 0

    def on_epoch_end(self) -> None:
        values = self.train_loop_obj.train_history[self.monitor]
        if len(values) > self.seen:
            self.seen = len(values)
            self.judge(float(values[-1]))

    def judge(self, value: float) -> None:
        raise NotImplementedError

    def stop(self, why: str) -> None:
        self.train_loop_obj.early_stop = True
        print(why)


class ListRegisteredCallbacks(AbstractCallback):
    """Prints at the beginning which callback plays at which hook."""

    def __init__(self) -> None:
        super().__init__("Print the list of registered callbacks")

    def on_train_begin(self) -> None:
        self.train_loop_obj.callbacks_handler.print_registered_callback_names()


class EarlyStopping(Watching):
    """Stops when ``monitor`` did not improve in more than ``patience`` epochs in a row; equal is not better.

    >>> EarlyStopping(patience=2).counter.patience
    3
    """

    def __init__(self, monitor: str = "val_loss", min_delta: float = 0.0, patience: int = 0) -> None:
        super().__init__("EarlyStopping", 99, monitor)
        self.min_delta, self.patience = min_delta, patience
        self.counter = Patience(patience + 1, mode=better_is(monitor), min_delta=min_delta)

    def judge(self, value: float) -> None:
        if self.counter.spent(value):
            self.stop(f"Early stopping: {self.monitor} did not improve in {self.counter.bad} epochs")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.counter.best, "bad": self.counter.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counter.best, self.counter.bad = state["best"], int(state["bad"])


class ThresholdEarlyStopping(Watching):
    """Stops when ``monitor`` was on the wrong side of ``threshold`` in more than ``patience`` epochs in a row."""

    def __init__(self, monitor: str, threshold: float, patience: int = 0) -> None:
        super().__init__("ThresholdEarlyStopping", 99, monitor)
        self.threshold, self.patience = threshold, patience
        self.lower_is_better = better_is(monitor) == "min"
        self.bad = 0

    def judge(self, value: float) -> None:
        good = value <= self.threshold if self.lower_is_better else value >= self.threshold
        self.bad = 0 if good else self.bad + 1
        if self.bad > self.patience:
            self.stop(f"Early stopping: {self.monitor} is {value:g}, beyond {self.threshold:g}")

    def state_dict(self) -> dict[str, Any]:
        return {"bad": self.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bad = int(state["bad"])


class TerminateOnNaN(Watching):
    """Stops at the end of an epoch in which ``monitor`` was not a finite number."""

    def __init__(self, monitor: str = "loss") -> None:
        super().__init__("TerminateOnNaN", 98, monitor)

    def judge(self, value: float) -> None:
        if not math.isfinite(value):
            self.stop(f"Terminating: {self.monitor} is {value}")


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
        self.counts = dict(zip(LOADERS.values(), (num_train_batches, num_val_batches, num_test_batches), strict=True))

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
        self, fn_to_execute: Callable[[Any], Any], tl_registration: bool = False, epoch_begin: bool = False,
        epoch_end: bool = False, train_begin: bool = False, train_end: bool = False, batch_begin: bool = False,
        batch_end: bool = False, after_gradient_update: bool = False, after_optimizer_step: bool = False,
        execution_order: int = 0, device_idx_execution: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__("Execute a function on the train loop", execution_order, device_idx_execution)
        self.fn_to_execute = fn_to_execute
        chosen = {
            "on_train_loop_registration": tl_registration, "on_epoch_begin": epoch_begin, "on_epoch_end": epoch_end,
            "on_train_begin": train_begin, "on_train_end": train_end, "on_batch_begin": batch_begin,
            "on_batch_end": batch_end, "on_after_gradient_update": after_gradient_update,
            "on_after_optimizer_step": after_optimizer_step,
        }  # fmt: skip
        for hook, wanted in chosen.items():
            if wanted:
                setattr(self, hook, self._execute_with_index if "gradient" in hook else self._execute)

    def _execute(self) -> None:
        self.fn_to_execute(self.train_loop_obj)

    def _execute_with_index(self, optimizer_idx: int) -> None:
        self.fn_to_execute(self.train_loop_obj)


class SimpleEmailService(Mail):
    """A mail over Amazon's service, with the account that boto3 finds."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        if find_spec("boto3") is None:
            raise ModuleNotFoundError(
                "aitoolbox: mails over Amazon SES need boto3: pip install 'cadenza[ses]'", name="boto3"
            )
        super().__init__(*args, **settings)

    def send(self, message: Message, timeout: float) -> None:
        import boto3  # type: ignore[import-untyped]

        raw = {"Data": self._mail(message).as_bytes()}
        client = boto3.client("ses", region_name=self.host)
        client.send_raw_email(Source=self.sender, Destinations=self.to, RawMessage=raw)


class EmailNotification(AbstractCallback):
    """Mails the last values of the history at the end of each epoch and of the training, with the plots of the epoch.
    The mail goes through Amazon SES, or through ``channel``, such as ``cadenza.callbacks.Mail``."""

    def __init__(
        self, sender_name: str, sender_email: str, recipient_email: str, project_name: str | None = None,
        experiment_name: str | None = None, aws_region: str = "eu-west-1", *, channel: Any = None,
    ) -> None:  # fmt: skip
        super().__init__("Send an e-mail", execution_order=98, device_idx_execution=0)
        self.project_name, self.experiment_name = project_name, experiment_name
        sender = f"{sender_name} <{sender_email}>"
        self.channel = channel or SimpleEmailService(aws_region, sender, recipient_email)

    def on_train_loop_registration(self) -> None:
        self.project_name = self.project_name or self.train_loop_obj.project_name
        self.experiment_name = self.experiment_name or self.train_loop_obj.experiment_name

    def tell(self, event: str, title: str) -> None:
        history = self.train_loop_obj.train_history.items()
        text = "\n".join(f"{name}: {values[-1]}" for name, values in history if values)
        posted = self.message_service.read_messages(f"{ModelTrainHistoryPlot.__name__}_results_file_local_paths")
        files = tuple((Path(path).name, Path(path).read_bytes()) for paths in posted or () for path in paths)
        subject = f"{title}: {self.project_name}: {self.experiment_name}"
        self.channel.send(Message(event, subject, text, files=files), SECONDS)

    def on_epoch_end(self) -> None:
        self.tell("epoch", f"End of epoch {self.train_loop_obj.epoch} report")

    def on_train_end(self) -> None:
        self.tell("end", "End of training")


class LogUpload(AbstractExperimentCallback):
    """Uploads a log file into the folder of the experiment at the end of each epoch and of the training."""

    def __init__(
        self, log_file_path: str = "~/project/training.log", fail_if_cloud_missing: bool = True, *details: Any,
        **named: Any,
    ) -> None:  # fmt: skip
        super().__init__("Upload the log", *details, **named)
        self.execution_order = 1500
        self.log_file_path, self.fail_if_cloud_missing = Path(log_file_path).expanduser(), fail_if_cloud_missing

    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details(infer_cloud_details=True)
        if self.fail_if_cloud_missing and self.cloud_save_mode not in CLOUDS:
            raise ValueError("LogUpload: cloud_save_mode names no cloud; fail_if_cloud_missing=False lets it pass")

    def on_epoch_end(self) -> None:
        upload(self, self.log_file_path, into=folder_of(self))

    on_train_end = on_epoch_end
