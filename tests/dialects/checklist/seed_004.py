"""Seed 004: SuperGradients' page on phase callbacks."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable as Function
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import yaml
from torch import nn

import cadenza
from cadenza.callbacks import (
    CosineSchedule,
    ExponentialSchedule,
    ExportCheck,
    FunctionSchedule,
    MultiStepSchedule,
    PolynomialSchedule,
    StageSwitch,
    StepSchedule,
    Visualize,
)
from cadenza.dialects import installed
from cadenza.dialects import supergradients as sg
from cadenza.dialects.supergradients import Callback, Phase, PhaseCallback, PhaseContext, Trainer
from cadenza.testing import tiny_classifier, tiny_loader

from ..documents import Repair, fenced, repaired
from ..supergradients_names import TinyNet, image_loader, modules
from .rows import Checklist

SEED = "supergradients-callbacks.txt"
FOLDER = Repair(
    "        outputs_path = os.path.join",
    "        self.outputs_path = outputs_path = os.path.join",
    "the folder is kept in a local variable, and self.outputs_path stays None",
)
DOTS = (Repair("...\n", "", "dots for the other parameters"),)
ROWS = Checklist("004", "SuperGradients' page on phase callbacks")
PARAMS: dict[str, Any] = {
    "max_epochs": 4,
    "initial_lr": 0.1,
    "lr_mode": None,
    "loss": "cross_entropy",
    "valid_metrics_list": ["Accuracy"],
    "metric_to_watch": "Accuracy",
    "average_best_models": False,
    "silent_mode": True,
}


def loader() -> Any:
    return tiny_loader(24, batch_size=8)


def trained(*callbacks: Any, model: Any = None, data: Any = None, test: bool = False, **params: Any) -> Path:
    folder = Path(tempfile.mkdtemp())
    torch.manual_seed(0)
    given = {**PARAMS, "phase_callbacks": list(callbacks), **params}
    tests = {"near": loader()} if test else None
    Trainer("mine", str(folder)).train(
        model or tiny_classifier(), given, data or loader(), data or loader(), tests, checkpoint_params={"a": 1}
    )
    return folder


def fitted(*callbacks: Any, epochs: int = 4, model: Any = None, data: Any = None, loss: Any = None) -> Any:
    torch.manual_seed(0)
    model = model or tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = cadenza.Trainer(model, sgd, loss or nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")
    trainer.fit(data or loader(), data or loader(), epochs=epochs)
    return trainer


def noting(read: Function[[Any], Any], hook: str) -> tuple[type[Any], list[Any]]:
    """A class whose one method keeps what ``read`` returns."""
    found: list[Any] = []

    def note(self: Any, handed: Any) -> None:
        found.append(read(handed))

    return type("Note", (), {hook: note}), found


def theirs(read: Function[[PhaseContext], Any], hook: str, *callbacks: Any, **params: Any) -> list[Any]:
    kind, found = noting(read, hook)
    trained(type("Note", (kind, Callback), {})(), *callbacks, **params)
    return found


def ours(read: Function[[Any], Any], point: str, *callbacks: Any, **options: Any) -> list[Any]:
    kind, found = noting(read, point)
    fitted(type("Note", (kind, cadenza.Callback), {})(), *callbacks, **options)
    return found


def rate_of(context: Any) -> float:
    return round(float(context.optimizer.param_groups[0]["lr"]), 9)


def follows(rates: list[float], curve: Function[[int], float]) -> None:
    """The rate of each batch is ``0.1 * curve(number of the batch)``."""
    assert rates == [round(0.1 * curve(number), 9) for number in range(len(rates))]


# Callbacks in a training ----------------------------------------------------------------------------------------------


@ROWS.dialect("a list of callables, `phase_calbacks_list`, in `training_params`")
def a_list() -> None:
    found: list[str] = []

    class Say(PhaseCallback):
        def __call__(self, context: PhaseContext) -> None:
            found.append(self.phase.name)

    trained(phase_callbacks=None, phase_calbacks_list=[Say(Phase.PRE_TRAINING), Say(Phase.POST_TRAINING)])
    assert found == ["PRE_TRAINING", "POST_TRAINING"]


@ROWS.native("a list of callables, `phase_calbacks_list`, in `training_params`")
def a_native_list() -> None:
    assert ours(lambda run: run.epoch, "after_epoch", epochs=2) == [0, 1]


# Classes --------------------------------------------------------------------------------------------------------------


@ROWS.dialect("class `ModelConversionCheckCallback`")
def conversion() -> None:
    check = sg.ModelConversionCheckCallback("mine", input_dimensions=(4,), primary_batch_size=2)
    trained(check, max_epochs=1)
    assert check.result is not None


@ROWS.native("class `ModelConversionCheckCallback`")
def native_conversion() -> None:
    assert len(fitted(ExportCheck(), epochs=1).history["train/loss"]) == 1


class Halving(sg.LRCallbackBase):
    def __init__(self, **given: Any) -> None:
        super().__init__(Phase.TRAIN_EPOCH_START, initial_lr=0.1, **given)

    def is_lr_scheduling_enabled(self, context: PhaseContext) -> bool:
        return True

    def perform_scheduling(self, context: PhaseContext) -> None:
        self.scale(0.5**context.epoch)
        self.update_lr(context.optimizer, context.epoch)


@ROWS.dialect("class `LRCallbackBase`")
def own_schedule() -> None:
    follows(theirs(rate_of, "on_train_batch_start", Halving()), lambda step: 0.5 ** (step // 3))


@ROWS.native("class `LRCallbackBase`")
def native_own_schedule() -> None:
    schedule = FunctionSchedule(lambda epoch: 0.5**epoch, of="count", cadence="epoch")
    follows(ours(rate_of, "after_train_iter", schedule), lambda step: 0.5 ** (step // 3))


@ROWS.dialect("class `EpochStepWarmupLRCallback`")
def warm_epochs() -> None:
    assert sg.EpochStepWarmupLRCallback is sg.LinearEpochLRWarmup
    rates = theirs(rate_of, "on_train_batch_start", lr_warmup_epochs=2, warmup_initial_lr=0.02)
    follows(rates, lambda step: (0.2, 0.6, 1.0, 1.0)[step // 3])


@ROWS.native("class `EpochStepWarmupLRCallback`")
def native_warm_epochs() -> None:
    schedule = FunctionSchedule(lambda epoch: (0.2, 0.6, 1.0, 1.0)[int(epoch)], of="count", cadence="epoch")
    follows(ours(rate_of, "after_train_iter", schedule), lambda step: (0.2, 0.6, 1.0, 1.0)[step // 3])


@ROWS.dialect("class `BatchStepLinearWarmupLRCallback`")
def warm_batches() -> None:
    assert sg.BatchStepLinearWarmupLRCallback is sg.LinearBatchLRWarmup
    given = {"lr_warmup_steps": 3, "warmup_mode": "linear_batch_step", "warmup_initial_lr": 0.02}
    rates = theirs(rate_of, "on_train_batch_end", **given)
    follows(rates, lambda step: (0.2, 0.6, 1.0)[min(step, 2)])


@ROWS.native("class `BatchStepLinearWarmupLRCallback`")
def native_warm_batches() -> None:
    schedule = FunctionSchedule(lambda step: (0.2, 0.6, 1.0)[min(int(step), 2)], of="count", cadence="step")
    follows(ours(rate_of, "after_train_iter", schedule), lambda step: (0.2, 0.6, 1.0)[min(step, 2)])


@ROWS.dialect("class `StepLRCallback`")
def steps() -> None:
    assert sg.StepLRCallback is sg.StepLRScheduler
    rates = theirs(rate_of, "on_train_batch_start", lr_mode="step", lr_updates=[1], lr_decay_factor=0.5)
    assert rates == [0.1] * 6 + [0.05] * 6  # at the end of epoch 1


@ROWS.native("class `StepLRCallback`")
def native_steps() -> None:
    assert (
        ours(rate_of, "after_train_iter", MultiStepSchedule([2], gamma=0.5, cadence="epoch")) == [0.1] * 6 + [0.05] * 6
    )


@ROWS.dialect("class `ExponentialLRCallback`")
def exponential() -> None:
    assert sg.ExponentialLRCallback is sg.ExponentialLRScheduler
    follows(theirs(rate_of, "on_train_batch_end", lr_mode="exp", lr_decay_factor=0.5), lambda step: 0.5 ** (step / 3))


@ROWS.native("class `ExponentialLRCallback`")
def native_exponential() -> None:
    follows(ours(rate_of, "after_train_iter", ExponentialSchedule(0.5, cadence="step")), lambda step: 0.5**step)


@ROWS.dialect("class `PolyLRCallback`")
def poly() -> None:
    assert sg.PolyLRCallback is sg.PolyLRScheduler
    follows(theirs(rate_of, "on_train_batch_end", lr_mode="poly"), lambda step: (1 - step / 12) ** 0.9)


@ROWS.native("class `PolyLRCallback`")
def native_poly() -> None:
    follows(ours(rate_of, "after_train_iter", PolynomialSchedule(0.9)), lambda step: (1 - step / 12) ** 0.9)


@ROWS.dialect("class `CosineLRCallback`")
def cosine() -> None:
    assert sg.CosineLRCallback is sg.CosineLRScheduler
    rates = theirs(rate_of, "on_train_batch_end", lr_mode="cosine", cosine_final_lr_ratio=0.0)
    follows(rates, lambda step: 0.5 * (1 + math.cos(math.pi * step / 13)))


@ROWS.native("class `CosineLRCallback`")
def native_cosine() -> None:
    rates = ours(rate_of, "after_train_iter", CosineSchedule())
    follows(rates, lambda step: 0.5 * (1 + math.cos(math.pi * step / 12)))


@ROWS.dialect("class `FunctionLRCallback`")
def function() -> None:
    assert sg.FunctionLRCallback is sg.FunctionLRScheduler

    def curve(initial_lr: float, epoch: int, iter: int, max_epoch: int, iters_per_epoch: int) -> float:
        return initial_lr * (1 - (epoch * iters_per_epoch + iter) / (max_epoch * iters_per_epoch))

    rates = theirs(rate_of, "on_train_batch_end", lr_mode="function", lr_schedule_function=curve)
    follows(rates, lambda step: 1 - step / 12)


@ROWS.native("class `FunctionLRCallback`")
def native_function() -> None:
    follows(
        ours(rate_of, "after_train_iter", FunctionSchedule(lambda progress: 1 - progress)), lambda step: 1 - step / 12
    )


@ROWS.dialect("class `LRSchedulerCallback`")
def torch_scheduler() -> None:
    rates = theirs(rate_of, "on_train_batch_start", lr_mode={"StepLR": {"step_size": 1, "gamma": 0.5}})
    follows(rates, lambda step: 0.5 ** (step // 3))


@ROWS.native("class `LRSchedulerCallback`")
def native_torch_scheduler() -> None:
    follows(ours(rate_of, "after_train_iter", StepSchedule(1, 0.5)), lambda step: 0.5 ** (step // 3))


class Shown:
    """A logger that keeps images."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def add_images(self, tag: str, images: Any, data_format: str = "NCHW", global_step: int = 0) -> None:
        self.found[tag] = images


@ROWS.dialect("class `DetectionVisualizationCallback`")
def boxes() -> None:
    logger = Shown()
    rows = [torch.tensor([[1.0, 1.0, 5.0, 5.0, 0.9, 0.0]])]
    draw = sg.DetectionVisualizationCallback(Phase.VALIDATION_BATCH_END, 1, lambda preds: rows, ["cat"])
    draw(PhaseContext(epoch=0, batch_idx=0, inputs=torch.rand(1, 3, 8, 8), target=torch.zeros(0, 6), sg_logger=logger))
    assert logger.found["batch_0_images"][0, 1, 3].tolist() == [1.0, 0.0, 0.0]


class Found(nn.Module):
    """Says for each image the same box."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images: Any) -> Any:
        row = torch.tensor([[1.0, 1.0, 5.0, 5.0, 0.9, 0.0]])
        return torch.stack([row * self.weight for _ in images])


def drawn(task: str, model: nn.Module, data: Any, loss: Any) -> list[str]:
    folder = Path(tempfile.mkdtemp())
    look = Visualize(task, 1, path=folder / "drawn.png")
    trainer = cadenza.Trainer(model, None, loss, callbacks=[look], device="cpu")
    trainer.validate(data)
    return [path.name for path in folder.iterdir()]


@ROWS.native("class `DetectionVisualizationCallback`")
def native_boxes() -> None:
    data = [(torch.rand(1, 3, 8, 8), [{"boxes": torch.tensor([[1.0, 1.0, 5.0, 5.0]]), "labels": torch.tensor([0])}])]
    assert drawn("detection", Found(), data, lambda output, target: output.sum())


@ROWS.dialect(
    "class `BinarySegmentationVisualizationCallback`", "example: predictions of a segmentation shown in training"
)
def masks() -> None:
    logger = Shown()
    draw = sg.BinarySegmentationVisualizationCallback(Phase.VALIDATION_BATCH_END, 1)
    preds, target = torch.full((1, 1, 4, 4), -1.0), torch.zeros(1, 1, 4, 4)
    preds[0, 0, 1, 1] = 1.0
    inputs = torch.linspace(0, 1, 48).reshape(1, 3, 4, 4)
    draw(PhaseContext(epoch=0, batch_idx=0, inputs=inputs, preds=preds, target=target, sg_logger=logger))
    changed = logger.found["batch_0_images"][0] - inputs[0].permute(1, 2, 0).numpy()
    assert abs(changed[1, 1, 0]) > 0.1
    assert abs(changed).sum() < 1


@ROWS.native(
    "class `BinarySegmentationVisualizationCallback`", "example: predictions of a segmentation shown in training"
)
def native_masks() -> None:
    data = [(torch.rand(1, 3, 8, 8), torch.zeros(1, 1, 8, 8))]
    assert drawn("segmentation", nn.Conv2d(3, 1, 1), data, nn.BCEWithLogitsLoss())


@ROWS.dialect("class `TrainingStageSwitchCallbackBase`")
def stages() -> None:
    found: list[int] = []

    class Switch(sg.TrainingStageSwitchCallbackBase):
        def apply_stage_change(self, context: PhaseContext) -> None:
            found.append(context.epoch)

    trained(Switch(next_stage_start_epoch=2))
    assert found == [2]


@ROWS.native("class `TrainingStageSwitchCallbackBase`")
def native_stages() -> None:
    found: list[int] = []
    fitted(StageSwitch("2 epochs", lambda run: found.append(run.epoch)))
    assert found == [2]


class L1(nn.CrossEntropyLoss):
    use_l1 = False


@ROWS.dialect(
    "class `YoloXTrainingStageSwitchCallback`", "example: a stage switch in YAML, with `next_stage_start_epoch`"
)
def yolox() -> None:
    said = yaml.safe_load(repaired(fenced(SEED, "yaml")[0], *DOTS))["phase_callbacks"]
    assert said == [{"YoloXTrainingStageSwitchCallback": {"next_stage_start_epoch": 285}}]
    said[0]["YoloXTrainingStageSwitchCallback"]["next_stage_start_epoch"] = 1
    found = theirs(lambda context: context.criterion.use_l1, "on_train_loader_end", *said, loss=L1())
    assert found == [False, True, True, True]


@ROWS.native(
    "class `YoloXTrainingStageSwitchCallback`", "example: a stage switch in YAML, with `next_stage_start_epoch`"
)
def native_yolox() -> None:
    loss = L1()
    switch = StageSwitch("1 epochs", lambda run: setattr(run.criterion, "use_l1", True))
    assert ours(lambda run: run.criterion.use_l1, "after_train_epoch", switch, loss=loss) == [False, True, True, True]


ROWS.says(
    "example: `loss: yolox_loss`",
    native="the losses of the original's models are not carried; any callable is a loss",
    dialect="the losses of the original's models are not carried; register one of your own with register_loss",
)

# Methods --------------------------------------------------------------------------------------------------------------

POINTS = {
    "on_training_start": ("before_run", 1),
    "on_train_loader_start": ("before_train_epoch", 2),
    "on_train_batch_start": ("before_train_iter", 6),
    "on_train_batch_loss_end": ("after_loss", 6),
    "on_train_batch_backward_end": ("after_backward", 6),
    "on_train_batch_gradient_step_start": ("before_step", 6),
    "on_train_batch_gradient_step_end": ("after_zero_grad", 6),
    "on_train_batch_end": ("after_train_iter", 6),
    "on_train_loader_end": ("after_train_epoch", 2),
    "on_validation_loader_start": ("before_val_epoch", 2),
    "on_validation_batch_start": ("before_val_iter", 6),
    "on_validation_batch_end": ("after_val_iter", 6),
    "on_validation_loader_end": ("after_val_epoch", 2),
    "on_validation_end_best_epoch": ("after_best", None),
    "on_test_loader_start": ("before_test_epoch", 2),
    "on_test_batch_start": ("before_test_iter", 6),
    "on_test_batch_end": ("after_test_iter", 6),
    "on_test_loader_end": ("after_test_epoch", 2),
    "on_training_end": ("after_run", 1),
    "on_test_start": ("before_test_epoch", 2),
    "on_test_end": ("after_test_epoch", 2),
}
"""The point of each method, and how often it comes in two epochs of three batches; the best epoch once or twice."""


def try_method(hook: str, point: str, count: int | None) -> None:
    def called() -> None:
        found = theirs(lambda context: type(context), hook, test=True, max_epochs=2)
        assert set(found) == {PhaseContext}
        assert len(found) == count if count is not None else found

    def played() -> None:
        kind, found = noting(lambda run: run.mode, point)
        note = type("Note", (kind, cadenza.Callback), {})()
        if "test" in point:
            cadenza.Trainer(tiny_classifier(), None, nn.CrossEntropyLoss(), callbacks=[note], device="cpu").test(
                loader()
            )
            assert len(found) == (count or 0) / 2
            return
        watch = [cadenza.Watch("val/loss", "min")] if point == "after_best" else []
        fitted(note, *watch, epochs=2)
        assert (len(found) - (point == "after_loss") * 6 == count) if count is not None else found

    ROWS.dialect(f"method `{hook}`")(called)
    ROWS.native(f"method `{hook}`")(played)


for _hook, (_point, _count) in POINTS.items():
    try_method(_hook, _point, _count)


@ROWS.dialect("the order of the events")
def order() -> None:
    found: list[str] = []
    listed = [line.split("(")[0].strip() for line in fenced(SEED, "python")[1].splitlines() if "(context)" in line]
    listed = [name for name in listed if name not in ("on_test_start", "on_test_end")]

    def noted(name: str) -> Function[..., None]:
        return lambda self, context: found.append(name)

    note = type("Note", (Callback,), {name: noted(name) for name in listed})
    trained(note(), max_epochs=1, data=tiny_loader(8, batch_size=8), test=True)
    tests = [name for name in found if "test" in name]
    best = found.pop(found.index("on_validation_end_best_epoch"))  # it comes after the tests of its epoch
    without = [name for name in found if name not in tests]
    assert without == [name for name in listed if name != best and "test" not in name]
    assert found.index(tests[0]) > found.index("on_validation_loader_end")


@ROWS.native("the order of the events")
def native_order() -> None:
    found: list[str] = []
    points = list(dict.fromkeys(point for point, _ in list(POINTS.values())[:13]))
    wanted = [*points, "after_run"]
    # a pass of validation plays the loss, too, so it is left out
    wanted.remove("after_loss")

    def noted(name: str) -> Function[..., None]:
        return lambda self, run: found.append(name)

    note = type("Note", (cadenza.Callback,), {name: noted(name) for name in wanted})
    fitted(note(), epochs=1, data=tiny_loader(8, batch_size=8))
    assert found == wanted


# The context ----------------------------------------------------------------------------------------------------------

FIELDS = {
    "optimizer": lambda run: run.optimizer,
    "net": lambda run: run.module,
    "criterion": lambda run: run.criterion,
    "train_loader": lambda run: run.train_loader,
    "valid_loader": lambda run: run.val_loader,
    "device": lambda run: run.device,
}
ELSEWHERE = {
    "checkpoints_dir_path": "the folder belongs to the experiment: run.experiment.checkpoints",
    "sg_logger": "callbacks that log have writers of their own; run.log writes into the history",
    "training_params": "there are none: what a training is made of are arguments and callbacks",
    "checkpoint_params": "there are none: what a training is made of are arguments and callbacks",
    "architecture": "there is none: the model is built by the user",
    "arch_params": "there are none: the model is built by the user",
    "ema_model": "the callback EMA holds the average",
}


def try_field(name: str, read: Function[[Any], Any] | None) -> None:
    def there() -> None:
        found = theirs(lambda context: getattr(context, name), "on_training_start", max_epochs=1, ema=True)
        assert (found[0] is None) == (name == "architecture")  # None in the original, too

    ROWS.dialect(f"attribute `{name}` in `on_training_start`")(there)
    if read is None:
        ROWS.says(f"attribute `{name}` in `on_training_start`", native=ELSEWHERE[name])
    else:
        ROWS.native(f"attribute `{name}` in `on_training_start`")(lambda: _known(read))


def _known(read: Function[[Any], Any]) -> None:
    assert ours(read, "before_run", epochs=1)[0] is not None


for _name, _read in {**FIELDS, **dict.fromkeys(ELSEWHERE)}.items():
    try_field(_name, _read)


@ROWS.dialect("attribute `metric_to_watch` in `on_training_start`")
def watched() -> None:
    assert theirs(lambda context: context.metric_to_watch, "on_training_start") == ["Accuracy"]


@ROWS.native("attribute `metric_to_watch` in `on_training_start`")
def native_watched() -> None:
    watch = cadenza.Watch("val/loss", "min")
    assert ours(lambda run: run.watch.name, "before_run", watch, epochs=1) == ["val/loss"]


# The worked example ---------------------------------------------------------------------------------------------------

CODE = fenced(SEED, "python")
PICTURES = ["first_train_batch_epoch_0.png", "first_train_batch_epoch_1.png", "first_validation_batch_epoch_0.png"]


@contextmanager
def original_paths(**more: ModuleType) -> Iterator[None]:
    with patch.dict(sys.modules, {**modules(), **more}), installed("supergradients"):
        yield


def executed(code: str) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, SEED, "exec"), found)
    return found


@ROWS.dialect("example: `SaveFirstBatchCallback` in code", "decorator `@multi_process_safe`")
def first_batches() -> None:
    with original_paths():
        kind = executed(repaired(CODE[3], FOLDER))["SaveFirstBatchCallback"]
        folder = trained(kind(), model=TinyNet(), data=image_loader(), max_epochs=2)
    assert sorted(path.name for path in folder.rglob("batch_images/*.png")) == PICTURES


@ROWS.native("example: `SaveFirstBatchCallback` in code", "decorator `@multi_process_safe`")
def native_first_batches() -> None:
    save = modules()["torchvision.utils"].save_image
    folder = Path(tempfile.mkdtemp())

    class SaveFirstBatch(cadenza.Callback):
        ranks = "main"

        def before_train_iter(self, run: Any) -> None:
            if run.batch_idx == 0:
                save(run.inputs, str(folder / f"first_train_batch_epoch_{run.epoch}.png"))

        def before_val_iter(self, run: Any) -> None:
            if run.batch_idx == 0 and run.epoch == 0:
                save(run.inputs, str(folder / f"first_validation_batch_epoch_{run.epoch}.png"))

    fitted(SaveFirstBatch(), model=TinyNet(), data=image_loader(), epochs=2)
    assert sorted(path.name for path in folder.iterdir()) == PICTURES


@ROWS.dialect("example: `register_callback`, and the name in YAML")
def registered() -> None:
    with original_paths(), patch.dict(sg.registry.REGISTRIES["callback"]._entries):
        executed(repaired(CODE[5], FOLDER))
        said = yaml.safe_load(repaired(fenced(SEED, "yaml")[1], *DOTS))
        assert said["phase_callbacks"] == ["SaveFirstBatchCallback"]
        folder = trained(*said["phase_callbacks"], model=TinyNet(), data=image_loader(), max_epochs=2)
    assert sorted(path.name for path in folder.rglob("batch_images/*.png")) == PICTURES


ROWS.says(
    "example: `register_callback`, and the name in YAML",
    native="recipes of Cadenza name classes of packages by entry points; tests/recipes tries them",
)


@ROWS.dialect("example: `my_train_from_recipe_script.py`", "function `init_trainer`")
def script() -> None:
    mine = ModuleType("my_callbacks")
    mine.SaveFirstBatchCallback = object  # type: ignore[attr-defined]
    with original_paths(my_callbacks=mine):
        names = executed(CODE[6])
        assert names["init_trainer"]() is None
        folder = Path(names["pkg_resources"].resource_filename("super_gradients.recipes", ""))
    assert (folder / "training_hyperparams" / "default_train_params.yaml").is_file()
    assert names["Trainer"].train_from_config.__name__ == "train_from_config"


ROWS.says(
    "example: `my_train_from_recipe_script.py`",
    native="`cadenza train recipe.yaml` needs no script; tests/cli tries it",
)
ROWS.says("function `init_trainer`", native="nothing is to be initialised: `cadenza launch` starts processes")
