"""AIToolbox's own callbacks: each does here what it did there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import cadenza
from cadenza.dialects import aitoolbox, install, installed, uninstall
from cadenza.dialects.aitoolbox import (
    AbstractCallback,
    AbstractResultPackage,
    AllPredictionsSame,
    BinaryClassificationResultPackage,
    ClassificationResultPackage,
    DataSubsetTestRun,
    EarlyStopping,
    FunctionOnTrainLoop,
    GradientStatsPrint,
    GradNormClip,
    GradValueClip,
    ListRegisteredCallbacks,
    MetricHistoryRename,
    ModelPerformanceEvaluation,
    ModelPerformancePrintReport,
    PreCalculatedResultPackage,
    RegressionResultPackage,
    TensorboardFullTracking,
    TerminateOnNaN,
    ThresholdEarlyStopping,
    TrainHistoryFormatter,
    TrainLoop,
)
from cadenza.dialects.imports import public_names
from cadenza.testing import tiny_classifier, tiny_loader


def new_loop(lr: float = 0.1, **options: Any) -> TrainLoop:
    torch.manual_seed(0)
    model = tiny_classifier()
    loaders = [tiny_loader(24, batch_size=8) for _ in range(3)]
    return TrainLoop(model, *loaders, torch.optim.SGD(model.parameters(), lr=lr), nn.CrossEntropyLoss(), **options)


class Says(AbstractCallback):
    """Writes a given series of values under a name, one an epoch."""

    def __init__(self, name: str, values: list[float]) -> None:
        super().__init__("says", execution_order=-1)
        self.metric, self.values = name, values

    def on_epoch_end(self) -> None:
        loop = self.train_loop_obj
        loop.insert_metric_result_into_history(self.metric, self.values[loop.epoch])


def epochs_with(metric: str, values: list[float], callback: AbstractCallback) -> int:
    loop = new_loop()
    loop.fit(num_epochs=len(values), callbacks=[Says(metric, values), callback])
    return int(loop.epoch) + 1


@pytest.mark.parametrize(
    ("arguments", "metric", "values", "epochs"),
    [
        ({"patience": 0}, "my_loss", [3.0, 2.0, 2.0, 1.0], 3),
        ({"patience": 1}, "my_loss", [3.0, 2.0, 2.0, 2.5, 1.0], 4),
        ({"patience": 1}, "my_loss", [3.0, 3.5, 2.0, 2.5, 1.0], 5),
        ({"patience": 0}, "accuracy", [0.1, 0.2, 0.2, 0.9], 3),
        ({"patience": 0, "min_delta": 0.5}, "error", [3.0, 2.6, 1.0], 2),
    ],
)
def test_early_stopping_after_more_bad_epochs_than_patience(
    arguments: dict[str, Any], metric: str, values: list[float], epochs: int, capsys: Any
) -> None:
    assert epochs_with(metric, values, EarlyStopping(metric, **arguments)) == epochs
    assert ("Early stopping" in capsys.readouterr().out) == (epochs < len(values))


def test_early_stopping_goes_by_new_values_only(capsys: Any) -> None:
    loop = new_loop(lr=0.0, end_auto_eval=2)
    loop.fit(num_epochs=8, callbacks=[EarlyStopping(patience=1)])
    assert loop.epoch + 1 == 5  # evaluated at the epochs 0, 2 and 4
    with pytest.raises(KeyError, match="no metric 'val_los'; did you mean 'val_loss'"):
        new_loop().fit(num_epochs=1, callbacks=[EarlyStopping("val_los")])


@pytest.mark.parametrize(
    ("metric", "values", "epochs"), [("my_loss", [2.0, 0.5, 2.0, 2.0, 0.1], 4), ("score", [0.5, 2.0, 0.5, 0.5, 3.0], 4)]
)
def test_a_threshold_and_the_wrong_side_of_it(metric: str, values: list[float], epochs: int, capsys: Any) -> None:
    assert epochs_with(metric, values, ThresholdEarlyStopping(metric, 1.0, patience=1)) == epochs


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_terminate_when_it_is_no_number(value: float, capsys: Any) -> None:
    assert epochs_with("my_loss", [1.0, value, 1.0], TerminateOnNaN("my_loss")) == 2


def test_all_predictions_the_same(capsys: Any) -> None:
    model = nn.Linear(4, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    data = [(torch.randn(4, 4), torch.zeros(4, 1))] * 2
    loop = TrainLoop(model, data, data, None, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    loop.fit(num_epochs=3, callbacks=[AllPredictionsSame(value=0.0, stop_training=True)])
    assert loop.epoch == 0
    assert "All 8 predictions for the validation set are 0" in capsys.readouterr().out


def test_a_run_on_a_subset() -> None:
    loop = new_loop()
    loop.fit(num_epochs=2, callbacks=[DataSubsetTestRun(num_train_batches=2, num_val_batches=1)])
    assert loop.total_iteration_idx == 3
    assert len(loop.validation_loader) == 1
    loop = new_loop()
    loop.test_loader = None
    with pytest.raises(ValueError, match="takes 1 batches of test_loader, but the loop has none"):
        loop.fit(num_epochs=1, callbacks=[DataSubsetTestRun(num_test_batches=1)])


def test_a_function_at_chosen_hooks() -> None:
    called: list[int] = []
    callback = FunctionOnTrainLoop(lambda loop: called.append(loop.epoch), epoch_end=True, after_gradient_update=True)
    new_loop().fit(num_epochs=2, callbacks=[callback])
    assert called == [0] * 4 + [1] * 4


def test_the_list_of_callbacks_is_printed(capsys: Any) -> None:
    new_loop().fit(num_epochs=1, callbacks=[ListRegisteredCallbacks()])
    assert "on_train_begin: Print the list of registered callbacks" in capsys.readouterr().out


def test_results_go_into_the_history(capsys: Any) -> None:
    class Share(AbstractResultPackage):
        def prepare_results_dict(self) -> dict[str, float]:
            return {"share": float((self.y_predicted.argmax(1) == self.y_true).mean())}

    loop = new_loop()
    callbacks = [
        ModelPerformanceEvaluation(ClassificationResultPackage(), {}, on_train_data=True),
        ModelPerformanceEvaluation(Share(), {}),
        ModelPerformancePrintReport(["val_Accuracy"]),
        MetricHistoryRename("val_Accuracy", "accuracy"),
        TrainHistoryFormatter(lambda history: history["loss"], lambda values: ("double", 2 * values[-1])),
    ]
    loop.fit(num_epochs=3, callbacks=callbacks)
    history = loop.train_history
    assert history["val_Accuracy"] == history["train_Accuracy"] == history["val_share"] == history["accuracy"]
    assert history["train_end_val_Accuracy"] == history["val_Accuracy"][-1:]
    assert history["double"] == [2 * value for value in history["loss"]]
    assert f"epoch 2: val_Accuracy: {history['val_Accuracy'][-1]}" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no metric 'nothing'"):
        new_loop().fit(num_epochs=1, callbacks=[ModelPerformancePrintReport(["nothing"])])


def test_result_packages_compute_what_they_are_named_after() -> None:
    binary = BinaryClassificationResultPackage()
    binary.prepare_result_package(torch.tensor([0, 1, 1]), torch.tensor([0.1, 0.9, 0.4]))
    assert binary.get_results()["F1_score"] == pytest.approx(2 / 3)
    regression = RegressionResultPackage()
    regression.prepare_result_package(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
    regression += {"extra": 1}  # type: ignore[misc]
    assert regression.get_results() == {"Mean_squared_error": 0.5, "Mean_absolute_error": 0.5, "extra": 1}
    with pytest.raises(ValueError, match="the result 'extra' is computed by two packages"):
        regression += PreCalculatedResultPackage({"extra": 2})  # type: ignore[misc]


# Gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "native"),
    [
        (lambda: GradNormClip(0.01), lambda: cadenza.callbacks.GradientClip(norm=0.01)),
        (lambda: GradValueClip(0.001), lambda: cadenza.callbacks.GradientClip(value=0.001)),
    ],
)
def test_clipping_is_the_native_one(ours: Any, native: Any) -> None:
    loop = new_loop()
    loop.fit(num_epochs=2, callbacks=[ours()])
    torch.manual_seed(0)
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[native()], device="cpu").fit(
        tiny_loader(24, batch_size=8), epochs=2
    )
    for mine, theirs in zip(loop.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    loop._trainer.remove(next(one for one in loop.callbacks))  # the native one goes with it
    assert not any(isinstance(one, cadenza.callbacks.GradientClip) for one in loop._trainer.callbacks)


def test_statistics_of_gradients_are_printed(capsys: Any) -> None:
    new_loop().fit(num_epochs=1, callbacks=[GradientStatsPrint(lambda model: [model[0], model[2]])])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["0", "2"]
    assert "mean" in lines[0]
    assert "zeros" in lines[0]


def test_tensorboard_gets_losses_and_metrics(tmp_path: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = TensorboardFullTracking(log_dir=str(tmp_path), is_project=False)
    loop = new_loop()
    loop.fit(num_epochs=2, callbacks=[callback])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert len(events.Scalars("train_loss/last_batch_loss")) == 6
    written = [event.value for event in events.Scalars("loss/val_loss")]
    assert written == pytest.approx(loop.train_history["val_loss"])


# What is not carried --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("aitoolbox.torchtrain.model", "MultiGPUModelWrap"),
    ],
)
def test_what_is_not_carried_is_refused_by_name(path: str, name: str) -> None:
    install("aitoolbox")
    try:
        with pytest.raises(ImportError, match=f"aitoolbox: {name} is not carried: "):
            exec(f"from {path} import {name}")
        with pytest.raises(ImportError, match="the nearest is 'EarlyStopping'"):
            exec("from aitoolbox.torchtrain.callbacks.basic import EarlyStoping")
    finally:
        uninstall("aitoolbox")


def test_modules_that_are_not_carried_are_refused_by_name() -> None:
    with (
        installed("aitoolbox"),
        pytest.raises(ImportError, match=r"callbacks.wandb is not carried: use the W&B tracker"),
    ):
        exec("from aitoolbox.torchtrain.callbacks.wandb import WandBTracking")


def test_all_names_are_offered_by_the_package() -> None:
    for name in public_names(aitoolbox):
        assert hasattr(aitoolbox, name)
