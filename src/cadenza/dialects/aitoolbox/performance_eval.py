"""Callbacks that measure a model and show how its training goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cadenza.callbacks.history_plot import plot_history
from cadenza.callbacks.tables import FORMATS, Table
from cadenza.dialects.aitoolbox.abstract import AbstractCallback, AbstractExperimentCallback
from cadenza.dialects.aitoolbox.folders import folder_of
from cadenza.dialects.aitoolbox.results import AbstractResultPackage

__all__ = [
    "MetricHistoryRename",
    "ModelPerformanceEvaluation",
    "ModelPerformancePrintReport",
    "ModelTrainHistoryFileWriter",
    "ModelTrainHistoryPlot",
    "TrainHistoryFormatter",
]


class ModelPerformanceEvaluation(AbstractCallback):
    """Computes a result package over the validation or training set and writes ``val_<name>`` and ``train_<name>``
    into the history, at the end of each epoch or every ``eval_frequency`` batches; at the end of training as
    ``train_end_val_<name>``."""

    def __init__(
        self,
        result_package: AbstractResultPackage,
        args: Mapping[str, Any] | None = None,
        on_each_epoch: bool = True,
        on_train_data: bool = False,
        on_val_data: bool = True,
        eval_frequency: int | None = None,
        if_available_output_to_project_dir: bool = True,
    ) -> None:
        super().__init__("Model performance evaluation")
        if not on_train_data and not on_val_data:
            raise ValueError("ModelPerformanceEvaluation: one of on_train_data and on_val_data must be True")
        self.result_package, self.args = result_package, args
        self.on_each_epoch, self.eval_frequency = on_each_epoch, eval_frequency
        self.sets = [name for name, wanted in (("train", on_train_data), ("val", on_val_data)) if wanted]
        self.if_available_output_to_project_dir = if_available_output_to_project_dir

    def evaluate(self, prefix: str = "") -> None:
        loop = self.train_loop_obj
        for name in self.sets:
            predict = loop.predict_on_train_set if name == "train" else loop.predict_on_validation_set
            predictions, targets, metadata = predict()
            history = loop.train_history
            self.result_package.prepare_result_package(
                targets, predictions, self.args, training_history=history, **metadata
            )
            for metric, value in self.result_package.get_results().items():
                loop.insert_metric_result_into_history(f"{prefix}{name}_{metric}", value)

    def on_batch_end(self) -> None:
        if self.eval_frequency and (self.train_loop_obj.total_iteration_idx + 1) % self.eval_frequency == 0:
            self.evaluate()

    def on_epoch_end(self) -> None:
        if self.on_each_epoch:
            self.evaluate()

    def on_train_end(self) -> None:
        self.evaluate("train_end_")


class ModelPerformancePrintReport(AbstractCallback):
    """Prints chosen metrics of the history. A metric that is not there is refused, unless ``strict`` is off."""

    def __init__(
        self,
        metrics: Sequence[str],
        on_each_epoch: bool = True,
        report_frequency: int | None = None,
        strict_metric_reporting: bool = True,
        list_tracked_metrics: bool = False,
    ) -> None:
        super().__init__("Model performance report", execution_order=97)
        if not metrics:
            raise ValueError("ModelPerformancePrintReport: name at least one metric")
        self.metrics, self.on_each_epoch, self.report_frequency = list(metrics), on_each_epoch, report_frequency
        self.strict_metric_reporting, self.list_tracked_metrics = strict_metric_reporting, list_tracked_metrics

    def report(self, title: str) -> None:
        history = self.train_loop_obj.train_history
        if self.list_tracked_metrics:
            print(f"metrics: {', '.join(history.keys())}")
        for name in self.metrics:
            if history.get(name):
                print(f"{title}: {name}: {history[name][-1]}")
            elif self.strict_metric_reporting:
                history[name]  # raises, and names the nearest
                raise ValueError(f"the metric {name!r} has no value yet; strict_metric_reporting=False lets it pass")

    def on_batch_end(self) -> None:
        if self.report_frequency and (self.train_loop_obj.total_iteration_idx + 1) % self.report_frequency == 0:
            self.report(f"batch {self.train_loop_obj.total_iteration_idx}")

    def on_epoch_end(self) -> None:
        if self.on_each_epoch:
            self.report(f"epoch {self.train_loop_obj.epoch}")

    def on_train_end(self) -> None:
        self.report("end of training")


class TrainHistoryFormatter(AbstractCallback):
    """Derives a metric: ``input_metric_getter(history)`` gives what ``output_metric_setter(value, history)`` returns
    as ``(name, value)`` or a dict, to be added to the history; at the end of epochs or of the training."""

    def __init__(
        self,
        input_metric_getter: Callable[[Any], Any],
        output_metric_setter: Callable[[Any, Any], Any],
        epoch_end: bool = True,
        train_end: bool = False,
        strict_metric_extract: bool = True,
    ) -> None:
        super().__init__("Training history formatter")
        if epoch_end == train_end:
            raise ValueError(f"{type(self).__name__}: exactly one of epoch_end and train_end is True")
        self.input_metric_getter, self.output_metric_setter = input_metric_getter, output_metric_setter
        self.epoch_end, self.train_end, self.strict_metric_extract = epoch_end, train_end, strict_metric_extract

    def derive(self) -> None:
        loop = self.train_loop_obj
        try:
            found = self.input_metric_getter(loop.train_history)
        except (KeyError, IndexError):
            if self.strict_metric_extract:
                raise
            return
        made = self.output_metric_setter(found, loop.train_history)
        for name, value in dict([made] if isinstance(made, tuple) else made or {}).items():
            loop.insert_metric_result_into_history(name, value)

    def on_epoch_end(self) -> None:
        if self.epoch_end:
            self.derive()

    def on_train_end(self) -> None:
        if self.train_end:
            self.derive()


class MetricHistoryRename(TrainHistoryFormatter):
    """Writes the last value of one metric under another name, too."""

    def __init__(
        self,
        input_metric_path: str,
        new_metric_name: str,
        epoch_end: bool = True,
        train_end: bool = False,
        strict_metric_extract: bool = True,
    ) -> None:
        super().__init__(
            lambda history: history[input_metric_path][-1],
            lambda value, history: (new_metric_name, value),
            epoch_end,
            train_end,
            strict_metric_extract,
        )


class HistoryInFolder(AbstractExperimentCallback):
    """Writes the history into the folder of the experiment, at the end of epochs or of the training."""

    formats: tuple[str, ...] = ()

    def __init__(self, callback_name: str, epoch_end: bool, train_end: bool, file_format: str, **details: Any) -> None:
        super().__init__(callback_name, **details, execution_order=97, device_idx_execution=0)
        if epoch_end == train_end:
            raise ValueError(f"{type(self).__name__}: exactly one of epoch_end and train_end is True")
        if file_format not in self.formats:
            raise ValueError(f"{type(self).__name__}: file_format is one of {', '.join(self.formats)}")
        self.epoch_end, self.train_end, self.file_format = epoch_end, train_end, file_format

    def write(self, moment: str) -> None:
        raise NotImplementedError

    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details()

    def on_epoch_end(self) -> None:
        if self.epoch_end:
            self.write(f"epoch_{self.train_loop_obj.epoch}")

    def on_train_end(self) -> None:
        if self.train_end:
            self.write("train_end")


class ModelTrainHistoryPlot(HistoryInFolder):
    """Draws the history into ``results/plots``, and posts the paths of the pictures as a message."""

    formats = ("png", "pdf")

    def __init__(
        self, epoch_end: bool = True, train_end: bool = False, file_format: str = "png", **details: Any
    ) -> None:
        super().__init__("Model train history plot", epoch_end, train_end, file_format, **details)

    def write(self, moment: str) -> None:
        path = folder_of(self) / "results" / "plots" / f"train_history_{moment}.{self.file_format}"
        if plot_history(self.train_loop_obj.run.history, path) is not None:
            self.message_service.write_message("ModelTrainHistoryPlot_results_local_paths", str(path))


class ModelTrainHistoryFileWriter(HistoryInFolder):
    """Writes the history into ``results/train_history``, one row each time."""

    formats = tuple(name for name in FORMATS if name != "jsonl")

    def __init__(
        self, epoch_end: bool = True, train_end: bool = False, file_format: str = "txt", **details: Any
    ) -> None:
        super().__init__("Model train history file writer", epoch_end, train_end, file_format, **details)
        self.table: Table | None = None

    def write(self, moment: str) -> None:
        loop = self.train_loop_obj
        if self.table is None:
            self.table = Table(folder_of(self) / "results" / f"train_history.{self.file_format}", self.file_format)
        latest = {name: values[-1] for name, values in loop.train_history.items() if values}
        self.table.append([{"epoch": loop.epoch, **latest}])
