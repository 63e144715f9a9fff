"""Training parameters that compile, that log, and phases around the averaged model."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from cadenza.dialects import installed
from cadenza.dialects.supergradients import (
    DIALECT,
    ModelConversionCheckCallback,
    Phase,
    PhaseCallback,
    PhaseContext,
    Trainer,
)
from cadenza.dialects.supergradients.environment import synchronised
from cadenza.testing import tiny_classifier, tiny_loader

from .test_supergradients_trainer import PARAMS

PLAIN = {"backend": "eager", "mode": None}
"""Traced, and played as it is: what a compiler of C++ would make of it is not asked here."""


def trained(root: Path, **params: Any) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model = tiny_classifier()
    results = Trainer("mine", str(root)).train(model, {**PARAMS, **params}, tiny_loader(), tiny_loader())
    return model, results


class Looks(PhaseCallback):
    def __init__(self, phase: Phase | str) -> None:
        super().__init__(phase)
        self.seen: list[Any] = []

    def __call__(self, context: PhaseContext) -> None:
        self.seen.append((context.epoch, context.net._compiled_call_impl is not None))


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("spelt", [lambda phase: phase, lambda phase: phase.name], ids=["enum", "name"])
def test_every_phase_is_called(tmp_path: Path, averages: bool, spelt: Any) -> None:
    callbacks = [Looks(spelt(phase)) for phase in Phase if not phase.name.startswith("TEST")]
    trained(tmp_path, phase_callbacks=callbacks, average_best_models=averages)
    counts = {callback.phase: len(callback.seen) for callback in callbacks}
    assert all(counts.values()), counts
    assert counts[Phase.AVERAGE_BEST_MODELS_VALIDATION_START] == counts[Phase.POST_TRAINING] == 1
    assert counts[Phase.AVERAGE_BEST_MODELS_VALIDATION_END] == 1


def test_a_compiled_training_is_the_same_training(tmp_path: Path) -> None:
    plain, _ = trained(tmp_path)
    look = Looks(Phase.TRAIN_EPOCH_END)
    model, results = trained(
        tmp_path, torch_compile=True, torch_compile_loss=True, torch_compile_options=PLAIN, phase_callbacks=[look]
    )
    assert look.seen == [(0, True), (1, True)]
    assert model._compiled_call_impl is None  # afterwards it is itself again
    assert model.state_dict().keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    assert results["valid"]["loss"] > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch itself looks, when it traces the loss
def test_a_loss_that_is_a_function_is_compiled_too(tmp_path: Path) -> None:
    def halved(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target) / 2

    _, results = trained(tmp_path, loss=halved, torch_compile_loss=True, torch_compile_options=PLAIN)
    assert results["valid"]["loss"] > 0


def test_sync_bn_takes_hold_where_there_are_several_processes_with_gpus() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert synchronised(model, world_size=1, device="cpu") is model
    assert isinstance(model[1], nn.BatchNorm1d)
    with pytest.raises(ValueError, match=r"^supergradients: sync_bn needs GPUs"):
        synchronised(model, world_size=2, device="cpu")
    assert isinstance(synchronised(model, world_size=2, device="cuda")[1], nn.SyncBatchNorm)  # type: ignore[index]


def test_sync_bn_changes_nothing_in_one_process(tmp_path: Path) -> None:
    model, _ = trained(tmp_path, sync_bn=True)
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"torch_compile_options": {"backnd": "eager"}},
            "has no 'backnd'; did you mean 'backend'",
        ),
        ({"sg_logger_params": {"save_logs_remotely": False}}, "sg_logger_params has no 'save_logs_remotely'"),
        ({"sg_logger_params": {"save_logs_remote": True}}, "save_logs_remote=True is not carried"),
    ],
)
def test_options_that_would_change_nothing_are_refused(tmp_path: Path, params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^supergradients: .*{message}"):
        trained(tmp_path, **params)


def test_a_logger_of_a_vendor_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="wandb_sg_logger is not carried: use the W&B tracker"):
        trained(tmp_path, sg_logger="wandb_sg_logger")


def test_callbacks_of_a_test_may_be_said_by_name(tmp_path: Path) -> None:
    found = Trainer("mine", str(tmp_path)).test(
        tiny_classifier(), tiny_loader(), test_metrics_list=["Accuracy"], test_phase_callbacks=["TimerCallback"]
    )
    assert set(found) == {"Accuracy"}


@pytest.mark.parametrize(
    ("path", "name", "why"),
    [
        ("super_gradients.training", "SgModel", "called Trainer since release 3"),
        ("super_gradients", "train_from_recipe", "recipes of the zoo"),
        ("super_gradients.training.metrics", "DetectionMetrics_050", "models of the zoo"),
        ("super_gradients.training.metrics", "BinaryIOU", "any metric of torchmetrics"),
        ("super_gradients.training.metrics.segmentation_metrics", "IoU", "any metric of torchmetrics"),
        ("super_gradients.training.transforms.transforms", "ResizeSeg", "data sets of the zoo"),
        ("super_gradients.training.utils.detection_utils", "DetectionVisualization", "models of the zoo"),
        ("super_gradients.common.object_names", "Dataloaders", "give the loaders to Trainer.train"),
        ("super_gradients.common.factories.base_factory", "BaseFactory", "found by the registries"),
        ("super_gradients.common.decorators.factory_decorator", "resolve_param", "found by the registries"),
        ("super_gradients.training.datasets.datasets_utils", "RandomErase", "data sets of the zoo"),
    ],
)
def test_what_scripts_import_of_the_zoo_says_why_it_is_not_there(path: str, name: str, why: str) -> None:
    with installed("supergradients"), pytest.raises(ImportError, match=why):
        exec(f"from {path} import {name}")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("super_gradients", "is_distributed"),
        ("super_gradients.training", "MultiGPUMode"),
        ("super_gradients.training.utils", "EarlyStop"),
        ("super_gradients.training.utils.callbacks.callbacks", "get_param, multi_process_safe, register_callback"),
        ("super_gradients.training.utils.early_stopping", "Phase, PhaseCallback, PhaseContext"),
        ("super_gradients.common.sg_loggers.base_sg_logger", "get_logger, get_param, multi_process_safe"),
    ],
)
def test_names_are_also_in_the_modules_that_used_them(path: str, names: str) -> None:
    """Scripts import them from wherever the original's modules had imported them."""
    with installed("supergradients"):
        found: dict[str, Any] = {}
        exec(f"from {path} import {names}", found)
    assert all(callable(found[name]) for name in names.split(", "))


def test_a_trainer_has_the_parts_of_its_training(tmp_path: Path) -> None:
    trainer = Trainer("mine", str(tmp_path))
    assert trainer.net is trainer.optimizer is trainer.ema_model is None
    model, loss = tiny_classifier(), nn.CrossEntropyLoss()
    params = {"max_epochs": 1, "initial_lr": 0.5, "optimizer": "SGD", "loss": loss, "silent_mode": True}
    metrics = {"train_metrics_list": ["Accuracy"], "valid_metrics_list": ["Accuracy"]}
    trainer.train(model, params | metrics | {"lr_scheduler_step_type": "epoch"}, tiny_loader(8), tiny_loader(8))
    assert trainer.net is model
    assert trainer.criterion is loss
    assert type(trainer.optimizer) is torch.optim.SGD
    assert trainer.training_params.initial_lr == 0.5
    assert list(trainer.train_metrics) == list(trainer.valid_metrics) == ["Accuracy"]
    assert trainer.ema_model is None
    trainer.sg_logger.add_scalar("mine", 1.0, 0)
    with pytest.raises(AttributeError, match="there is no attribute of Trainer 'optimzer' here"):
        _ = trainer.optimzer


def test_a_metric_gets_the_attributes_of_the_context_alone(tmp_path: Path) -> None:
    class Mine(Metric):
        def update(self, preds: Tensor, target: Tensor, **further: Any) -> None:
            seen.append(further)

        def compute(self) -> int:
            return 1

    seen: list[dict[str, Any]] = []
    params = {"max_epochs": 1, "initial_lr": 0.1, "loss": "CrossEntropyLoss", "silent_mode": True}
    metrics = {"train_metrics_list": [Mine()], "valid_metrics_list": [Mine()], "metric_to_watch": "Mine"}
    Trainer("mine", str(tmp_path)).train(tiny_classifier(), params | metrics, tiny_loader(8), tiny_loader(8))
    named = {row.name for row in DIALECT.attributes} - {"preds", "target", "update_context", "checkpoints_dir_path"}
    assert {frozenset(further) for further in seen} == {frozenset(named)}
    assert {further["stop_training"] for further in seen} == {False}


def test_a_loss_of_the_zoo_says_why_it_is_not_there(tmp_path: Path) -> None:
    params = {"max_epochs": 1, "initial_lr": 0.1, "loss": "yolox_loss", "silent_mode": True}
    with pytest.raises(KeyError, match="yolox_loss is not carried: models of the zoo, their losses"):
        Trainer("mine", str(tmp_path)).train(tiny_classifier(), params, tiny_loader())


def test_a_conversion_check_takes_what_describes_the_model() -> None:
    class Described:
        name, input_dimensions, primary_batch_size = "mine", (4,), 2

    check = ModelConversionCheckCallback(model_meta_data=Described())
    assert (check.model_name, check.input_dimensions, check.primary_batch_size) == ("mine", (4,), 2)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_resume_goes_on_in_a_window_that_is_open(epochs: int, tmp_path: Path) -> None:
    def trained(name: str, epochs: int, **more: Any) -> list[Any]:
        torch.manual_seed(0)
        model = tiny_classifier()
        params = {"max_epochs": epochs, "initial_lr": 0.1, "lr_mode": None, "loss": "cross_entropy", **more}
        params |= {"batch_accumulate": 4, "metric_to_watch": "CrossEntropyLoss", "silent_mode": True}
        params |= {"average_best_models": False, "greater_metric_to_watch_is_better": False}
        Trainer(name, str(tmp_path)).train(model, params, tiny_loader(24, batch_size=8), tiny_loader())
        return list(model.parameters())

    whole = trained("whole", 3)
    trained("parts", epochs)
    resumed = trained("parts", 3, resume=True)
    assert all(torch.equal(one, other) for one, other in zip(whole, resumed, strict=True))


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("Models", "RESNET18", "resnet18"),
        ("Models", "PP_YOLOE_S", "ppyoloe_s"),
        ("Models", "REGNETY200", "regnetY200"),
        ("Metrics", "TOP5", "Top5"),
        ("Metrics", "DETECTION_METRICS_050", "DetectionMetrics_050"),
        ("Losses", "CROSS_ENTROPY", "CrossEntropyLoss"),
        ("Losses", "MSE", "MSE"),
        ("Losses", "YOLOX_LOSS", "YoloXDetectionLoss"),
        ("LRSchedulers", "EXP", "ExponentialLRScheduler"),
        ("LRWarmups", "LINEAR_STEP", "LinearEpochLRWarmup"),
        ("Optimizers", "RMS_PROP", "RMSprop"),
        ("Callbacks", "EARLY_STOP", "EarlyStop"),
        ("Callbacks", "LR_CALLBACK_BASE", "LRCallbackBase"),
        ("Callbacks", "PPYOLOE_TRAINING_STAGE_SWITCH", "PPYoloETrainingStageSwitchCallback"),
    ],
)
def test_constants_are_the_texts_under_which_things_are_registered(kind: str, name: str, text: str) -> None:
    with installed("supergradients"):
        assert getattr(getattr(import_module("super_gradients.common.object_names"), kind), name) == text
