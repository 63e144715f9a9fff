"""Callbacks that measure a model and show how its training goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cadenza.dialects.aitoolbox.abstract import AbstractCallback, AbstractExperimentCallback
from cadenza.dialects.aitoolbox.folders import draw_history, folder_of, upload
from cadenza.dialects.aitoolbox.results import AbstractResultPackage
from cadenza.foundation.row_files import Table
from cadenza.history import unknown_metric

__all__ = [
    "MetricHistoryRename", "ModelPerformanceEvaluation", "ModelPerformancePrintReport", "ModelTrainHistoryBaseCB",
    "ModelTrainHistoryFileWriter", "ModelTrainHistoryPlot", "TrainHistoryFormatter",
]  # fmt: skip


class ModelPerformanceEvaluation(AbstractCallback):
    """Computes a result package over the validation or training set and writes ``val_<name>`` and ``train_<name>``
    into the history, at the end of each epoch, or of every ``eval_frequency``-th; at the end of training as
    ``train_end_val_<name>``."""

    def __init__(
        self, result_package: AbstractResultPackage, args: Mapping[str, Any] | None = None, on_each_epoch: bool = True,
        on_train_data: bool = False, on_val_data: bool = True, eval_frequency: int | None = None,
        if_available_output_to_project_dir: bool = True,
    ) -> None:  # fmt: skip
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
            self.result_package.prepare_from(predict(), self.args, loop.train_history)
            for metric, value in (self.result_package.get_results() or {}).items():
                loop.insert_metric_result_into_history(f"{prefix}{name}_{metric}", value)

    def on_epoch_end(self) -> None:
        if self.on_each_epoch and self.train_loop_obj.epoch % (self.eval_frequency or 1) == 0:
            self.evaluate()

    def on_train_end(self) -> None:
        self.evaluate("train_end_")


class ModelPerformancePrintReport(AbstractCallback):
    """Prints chosen metrics of the history. A metric that is not there is refused, unless ``strict`` is off."""

    def __init__(
        self, metrics: Sequence[str], on_each_epoch: bool = True, report_frequency: int | None = None,
        strict_metric_reporting: bool = True, list_tracked_metrics: bool = False,
    ) -> None:  # fmt: skip
        super().__init__("Model performance report", execution_order=97, device_idx_execution=0)
        if not metrics:
            raise ValueError("ModelPerformancePrintReport: name at least one metric")
        self.metrics, self.on_each_epoch, self.report_frequency = list(metrics), on_each_epoch, report_frequency
        self.strict_metric_reporting, self.list_tracked_metrics = strict_metric_reporting, list_tracked_metrics

    def print_performance_report(self, prefix: str = "") -> None:
        """Prints the last values of the metrics whose names begin with ``prefix``."""
        history = self.train_loop_obj.train_history
        if self.list_tracked_metrics:
            print(f"metrics: {', '.join(history.keys())}")
        for name in (f"{prefix}{metric}" for metric in self.metrics):
            if history.get(name):
                print(f"epoch {self.train_loop_obj.epoch}: {name}: {history[name][-1]}")
            elif self.strict_metric_reporting:
                raise ValueError(
                    f"there is {unknown_metric(name, history)}; strict_metric_reporting=False lets it pass"
                )

    def on_epoch_end(self) -> None:
        if self.on_each_epoch and self.train_loop_obj.epoch % (self.report_frequency or 1) == 0:
            self.print_performance_report()

    def on_train_end(self) -> None:
        self.print_performance_report("train_end_")


class AtOneEnd(AbstractCallback):
    """Does something at the end of each epoch, or else of the training."""

    def choose(self, epoch_end: bool, train_end: bool) -> None:
        if epoch_end == train_end:
            raise ValueError(f"{type(self).__name__}: exactly one of epoch_end and train_end is True")
        self.epoch_end, self.train_end = epoch_end, train_end

    def on_epoch_end(self) -> None:
        if self.epoch_end:
            self.write("")

    def on_train_end(self) -> None:
        if self.train_end:
            self.write("train_end_")

    def write(self, prefix: str) -> None:
        raise NotImplementedError


class TrainHistoryFormatter(AtOneEnd):
    """Derives a metric: ``input_metric_getter(history)`` gives the list of a metric's values, of which
    ``output_metric_setter(values)`` makes the name of a new metric and its value; at the end of each epoch, or of the
    training. Unless ``strict_metric_extract`` is off, the list must have a new value."""

    def __init__(
        self, input_metric_getter: Callable[[Any], Any], output_metric_setter: Callable[[Any], tuple[str, Any]],
        epoch_end: bool = True, train_end: bool = False, strict_metric_extract: bool = True,
    ) -> None:  # fmt: skip
        super().__init__("Training history formatter")
        self.choose(epoch_end, train_end)
        self.input_metric_getter, self.output_metric_setter = input_metric_getter, output_metric_setter
        self.strict_metric_extract = strict_metric_extract

    def write(self, prefix: str) -> None:
        loop = self.train_loop_obj
        expected = 1 if self.train_end else loop.epoch + 1
        values = self.input_metric_getter(loop.train_history)
        if len(values) == expected:
            name, value = self.output_metric_setter(values)
            loop.insert_metric_result_into_history(name, value)
        elif self.strict_metric_extract:
            raise ValueError(
                f"the metric that is derived from has {len(values)} values and should have {expected}, one for each "
                f"{'epoch' if self.epoch_end else 'training'}; strict_metric_extract=False lets it pass"
            )


class MetricHistoryRename(TrainHistoryFormatter):
    """Writes the last value of one metric, given by its name or a function of the history, under another name, too."""

    def __init__(
        self, input_metric_path: str | Callable[[Any], Any], new_metric_name: str, epoch_end: bool = True,
        train_end: bool = False, strict_metric_extract: bool = True,
    ) -> None:  # fmt: skip
        getter = input_metric_path if callable(input_metric_path) else lambda history: history[input_metric_path]
        ends = (epoch_end, train_end, strict_metric_extract)
        super().__init__(getter, lambda values: (new_metric_name, values[-1]), *ends)


class ModelTrainHistoryBaseCB(AtOneEnd, AbstractExperimentCallback):
    """Writes the history into the folder of the experiment, at the end of epochs or of the training."""

    formats: tuple[str, ...] = ()

    def __init__(
        self, callback_name: str, execution_order: int = 0, epoch_end: bool = True, train_end: bool = False,
        file_format: str = "", *details: Any, **named: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            callback_name, *details, **{"execution_order": execution_order, "device_idx_execution": 0} | named
        )
        self.choose(epoch_end, train_end)
        if file_format not in (self.formats or (file_format,)):
            raise ValueError(f"{type(self).__name__}: file_format is one of {', '.join(self.formats)}")
        self.file_format = file_format

    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details(infer_cloud_details=True)


class ModelTrainHistoryPlot(ModelTrainHistoryBaseCB):
    """Draws the metrics into a folder for each epoch, or as pdf into a file, and posts the paths as a message."""

    formats = ("png", "pdf")

    def __init__(
        self, epoch_end: bool = True, train_end: bool = False, file_format: str = "png", *details: Any, **named: Any
    ) -> None:
        super().__init__("Model train history plot", 97, epoch_end, train_end, file_format, *details, **named)

    def write(self, prefix: str) -> None:
        loop = self.train_loop_obj
        place = folder_of(self) / "results" / f"{prefix}plots_epoch_{loop.epoch}"
        paths = draw_history(loop.train_history, place, self.file_format)
        upload(self, *paths)
        self.message_service.write_message(f"{type(self).__name__}_results_file_local_paths", list(map(str, paths)))


class ModelTrainHistoryFileWriter(ModelTrainHistoryBaseCB):
    """Writes the last values of the history into a file in ``results``, one row each time."""

    formats = ("txt", "tsv", "csv")

    def __init__(
        self, epoch_end: bool = True, train_end: bool = False, file_format: str = "txt", *details: Any, **named: Any
    ) -> None:
        super().__init__("Model train history file writer", 97, epoch_end, train_end, file_format, *details, **named)
        self.table: Table | None = None

    def write(self, prefix: str) -> None:
        loop = self.train_loop_obj
        path = folder_of(self) / "results" / f"{prefix}results.{self.file_format}"
        self.table = self.table or Table(path, self.file_format)
        latest = {name: values[-1] for name, values in loop.train_history.items() if values}
        if self.file_format != "txt":
            self.table.append([{"Epoch": loop.epoch, **latest}])
        else:
            rule, values = "=" * 28, "".join(f"{name}:\t{value}\n" for name, value in latest.items())
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{rule}\nEpoch: {loop.epoch}\n{rule}\n{values}\n\n")
        upload(self, path)
