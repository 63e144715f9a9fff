"""The document on AIToolbox's callbacks, row by row."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import cadenza
from cadenza.dialects import aitoolbox, installed
from cadenza.dialects.aitoolbox import AbstractCallback, AbstractExperimentCallback
from cadenza.experiment import Experiment
from cadenza.testing import tiny_classifier, tiny_loader

from ..aitoolbox_names import NAMES
from ..documents import under_directives
from .rows import Checklist

ROWS = Checklist("003", "AIToolbox's document on callbacks")
SEED = "aitoolbox-callbacks.txt"
BASIC, CUSTOM, FIRST_GPU = under_directives(SEED)


def loop_of(*callbacks: Any, epochs: int = 2, kind: Any = aitoolbox.TrainLoop, fit: bool = True, **options: Any) -> Any:
    torch.manual_seed(0)
    model = tiny_classifier()
    loaders = [tiny_loader(24, batch_size=8) for _ in range(3)]
    loop = kind(model, *loaders, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), **options)
    if fit:
        with contextlib.redirect_stdout(io.StringIO()):
            loop.fit(num_epochs=epochs, callbacks=list(callbacks))
    return loop


def fitted(*callbacks: Any, epochs: int = 2, **options: Any) -> cadenza.Trainer:
    torch.manual_seed(0)
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu", **options)
    trainer.fit(tiny_loader(24, batch_size=8), tiny_loader(24, batch_size=8), epochs=epochs)
    return trainer


class Hooks(AbstractCallback):
    """Calls a function with the loop at the hooks that it is given."""

    def __init__(self, **acts: Callable[[Any], Any]) -> None:
        super().__init__("hooks")
        for name, act in acts.items():
            setattr(self, name, partial(self._act, act))

    def _act(self, act: Callable[[Any], Any], *_: Any) -> None:
        act(self.train_loop_obj)


class Native(cadenza.Callback):
    """Calls functions with the run at the points that it is given."""

    def __init__(self, **acts: Callable[[Any], Any]) -> None:
        self.acts = acts

    def plays(self) -> Any:
        return self.acts


# The modules ----------------------------------------------------------------------------------------------------------

MODULES = {
    "basic": ("general training augmentation", "EarlyStopping", "EarlyStopping"),
    "performance_eval": ("model performance evaluation", "ModelPerformanceEvaluation", "Evaluate"),
    "model_save": ("local / cloud based model saving", "ModelCheckpoint", "Checkpoint"),
    "train_schedule": ("learning rate schedulers", "StepLRScheduler", "StepSchedule"),
    "gradient": ("model gradient reporting", "GradientStatsPrint", "GradientStats"),
    "model_load": ("existing model loading at train start", "ModelLoadContinueTraining", "Load"),
    "tensorboard": ("tensorboard training tracking", "TensorboardFullTracking", "ProgressBar"),
}


def has(module: str, name: str) -> None:
    with installed("aitoolbox"):
        assert issubclass(
            getattr(importlib.import_module(f"aitoolbox.torchtrain.callbacks.{module}"), name), AbstractCallback
        )


for module, (what, name, native) in MODULES.items():
    ROWS.dialect(f"module callbacks.{module}: {what}")(partial(has, module, name))
    if module == "tensorboard":
        ROWS.says(f"module callbacks.{module}: {what}", native="An experiment writes to TensorBoard; no callback does.")
    else:
        ROWS.native(f"module callbacks.{module}: {what}")(partial(getattr, cadenza.callbacks, native))


# The hooks ------------------------------------------------------------------------------------------------------------

HOOKS = {
    "on_train_loop_registration": (1, "after_register"),
    "on_train_begin": (1, "before_run"),
    "on_epoch_begin": (2, "before_epoch"),
    "on_batch_begin": (6, "before_train_iter"),
    "on_after_gradient_update": (6, "after_backward"),
    "on_after_optimizer_step": (6, "after_step"),
    "on_batch_end": (6, "after_train_iter"),
    "on_epoch_end": (2, "after_epoch"),
    "on_train_end": (1, "after_run"),
}


def hook_is_called(hook: str, count: int) -> None:
    calls: list[int] = []
    loop_of(Hooks(**{hook: lambda loop: calls.append(loop.epoch)}))
    assert len(calls) == count


def point_is_played(point: str, count: int) -> None:
    calls: list[int] = []
    fitted(Native(**{point: lambda run: calls.append(run.epoch)}))
    assert len(calls) == count


for hook, (count, point) in HOOKS.items():
    ROWS.dialect(f"hook {hook}")(partial(hook_is_called, hook, count))
    ROWS.native(f"hook {hook}")(partial(point_is_played, point, count))

ROWS.says(
    "hook on_multiprocess_start",
    native="Played at after_launch where there are several processes; tests/dialects/test_processes.py starts them.",
    dialect="Called where there are several processes; tests/dialects/test_processes.py starts them.",
)


@ROWS.dialect("a hook that is left unimplemented has no effect")
def unimplemented() -> None:
    plain, with_one = loop_of(), loop_of(AbstractCallback("nothing"))
    assert all(map(torch.equal, plain.model.parameters(), with_one.model.parameters()))


@ROWS.native("a hook that is left unimplemented has no effect")
def unimplemented_natively() -> None:
    assert all(map(torch.equal, fitted().model.parameters(), fitted(cadenza.Callback()).model.parameters()))


@ROWS.dialect("callbacks are a parameter list of fit")
def given_to_fit() -> None:
    one = Hooks(on_epoch_end=lambda loop: None)
    assert loop_of(one).callbacks == [one]


@ROWS.native("callbacks are a parameter list of fit")
def given_to_trainer() -> None:
    one = Native(after_epoch=lambda run: None)
    assert one in fitted(one).callbacks


# The callbacks of the examples ----------------------------------------------------------------------------------------


@ROWS.dialect("EarlyStopping(patience=3) stops after more than three bad epochs")
def early_stopping() -> None:
    worse = Hooks(on_epoch_end=lambda loop: loop.insert_metric_result_into_history("my_loss", float(loop.epoch)))
    assert loop_of(worse, aitoolbox.EarlyStopping("my_loss", patience=3), epochs=9).epoch == 4


@ROWS.native("EarlyStopping(patience=3) stops after more than three bad epochs")
def early_stopping_natively() -> None:
    worse = Native(after_epoch=lambda run: run.log("my_loss", float(run.epoch)))
    stop = cadenza.callbacks.EarlyStopping("my_loss", patience=4, mode="min")
    assert fitted(worse, stop, epochs=9).clock.epochs == 5


@ROWS.dialect("TerminateOnNaN")
def terminate() -> None:
    nan = Hooks(on_epoch_end=lambda loop: loop.insert_metric_result_into_history("mine", float("nan")))
    assert loop_of(nan, aitoolbox.TerminateOnNaN("mine"), epochs=5).epoch == 0


@ROWS.native("TerminateOnNaN")
def terminate_natively() -> None:
    broken = Native(before_train_iter=lambda run: run.module[0].weight.data.fill_(float("nan")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fitted(broken, cadenza.callbacks.NaNGuard("stop"), epochs=5).clock.epochs <= 1


def zeroed(model: nn.Module) -> None:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)


@ROWS.dialect("AllPredictionsSame(value=0.)")
def same_predictions() -> None:
    stop = aitoolbox.AllPredictionsSame(value=0.0, stop_training=True)
    assert loop_of(Hooks(on_batch_end=lambda loop: zeroed(loop.model)), stop, epochs=4).epoch == 0


@ROWS.native("AllPredictionsSame(value=0.)")
def same_predictions_natively() -> None:
    zeros = Native(after_train_iter=lambda run: zeroed(run.module))
    stop = cadenza.callbacks.AllPredictionsSame("stop")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fitted(zeros, stop, epochs=4).clock.epochs == 1


# The loop -------------------------------------------------------------------------------------------------------------


@ROWS.dialect("train_loop_obj is assigned at the start of the training")
def assigned() -> None:
    one = Hooks(on_train_begin=lambda loop: None)
    before = one.train_loop_obj
    assert before is None
    assert loop_of(one) is one.train_loop_obj


@ROWS.native("train_loop_obj is assigned at the start of the training")
def handed() -> None:
    runs: list[Any] = []
    trainer = fitted(Native(before_run=runs.append))
    assert runs[0].module is trainer.model


@ROWS.dialect("register_train_loop_object is called under the hood")
def registered() -> None:
    class Registered(AbstractCallback):
        def register_train_loop_object(self, train_loop_obj: Any) -> AbstractCallback:
            self.was_given = train_loop_obj
            return super().register_train_loop_object(train_loop_obj)

    one = Registered("one")
    assert loop_of(one) is one.was_given


ROWS.says(
    "register_train_loop_object is called under the hood", native="Every point is given the run; nothing is registered."
)


def sets(name: str, value: Any, hook: str = "on_train_begin") -> Any:
    made = value() if callable(value) and not isinstance(value, nn.Module) else value
    loop = loop_of(Hooks(**{hook: lambda loop: setattr(loop, name, made)}), epochs=3)
    return loop, made


def controls(name: str, value: Any, holds: Callable[[Any, Any], bool], hook: str = "on_train_begin") -> None:
    assert holds(*sets(name, value, hook))


def small() -> Any:
    return tiny_loader(16, batch_size=8)


CONTROLS: dict[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    "train_loader": (small, lambda loop, made: loop.train_loader is made and loop.total_iteration_idx == 5),
    "validation_loader": (small, lambda loop, made: loop.validation_loader is made),
    "test_loader": (small, lambda loop, made: loop.test_loader is made),
    "criterion": (
        nn.MultiMarginLoss(),
        lambda loop, made: loop.criterion is made and loop.train_history["loss"][0] < 0.9,
    ),
    "epoch": (1, lambda loop, made: loop.epoch == 2 and len(loop.train_history["loss"]) == 2),
    "num_epochs": (7, lambda loop, made: loop.num_epochs == 7 and loop.get_num_training_steps() == 21),
    "num_iterations": (9, lambda loop, made: loop.get_num_training_steps() == 9),
    "grad_accumulation": (3, lambda loop, made: loop._trainer.clock.steps == 3),
    "total_iteration_idx": (9, lambda loop, made: loop.total_iteration_idx == 18),
    "end_auto_eval": (False, lambda loop, made: loop.train_history["loss"] == []),
    "early_stop": (True, lambda loop, made: loop.epoch == 0),
}
for name, (value, holds) in CONTROLS.items():
    ROWS.dialect(f"control of every aspect: train_loop_obj.{name} is set")(partial(controls, name, value, holds))

ROWS.says(
    "control of every aspect: train_loop_obj.total_iteration_idx is set",
    native="The clock counts what was trained; a callback that counts otherwise keeps a number of its own.",
)
ROWS.says(
    "control of every aspect: train_loop_obj.epoch is set",
    native="The clock counts what was trained; a training continues in another epoch by a checkpoint.",
)
for name in ("num_epochs", "num_iterations"):
    ROWS.says(
        f"control of every aspect: train_loop_obj.{name} is set",
        native="How long a fit is stands in its call; run.stop() ends it earlier.",
    )


@ROWS.native(
    "control of every aspect: train_loop_obj.train_loader is set",
    "control of every aspect: train_loop_obj.validation_loader is set",
)
def loaders_natively() -> None:
    def change(run: Any) -> None:
        run.train_loader = run.val_loader = small()

    assert fitted(Native(before_run=change)).clock.batches == 4


ROWS.says(
    "control of every aspect: train_loop_obj.test_loader is set",
    native="Test loaders are given to the pass that tests.",
)


@ROWS.native("control of every aspect: train_loop_obj.criterion is set")
def criterion_natively() -> None:
    trainer = fitted(Native(before_run=lambda run: setattr(run, "criterion", nn.MultiMarginLoss())))
    assert trainer.history["train/loss"][0] < 0.9


@ROWS.native("control of every aspect: train_loop_obj.grad_accumulation is set")
def accumulation_natively() -> None:
    assert fitted(cadenza.callbacks.Accumulate(3)).clock.steps == 2


@ROWS.native("control of every aspect: train_loop_obj.end_auto_eval is set")
def evaluation_natively() -> None:
    trainer = fitted(Native(before_epoch=lambda run: run.skip_validation()))
    assert "val/loss" not in trainer.history.rows[-1]


@ROWS.native("control of every aspect: train_loop_obj.early_stop is set")
def stop_natively() -> None:
    assert fitted(Native(after_epoch=lambda run: run.stop("enough"))).clock.epochs == 1


def reads(name: str, holds: Callable[[Any], bool]) -> None:
    seen: list[bool] = []
    loop_of(Hooks(on_epoch_end=lambda loop: seen.append(holds(getattr(loop, name)))))
    assert seen == [True, True]


READS: dict[str, Callable[[Any], bool]] = {
    "experiment_timestamp": lambda value: len(value) == len("2024-01-31_12-00-00"),
    "epoch": lambda value: value in (0, 1),
    "predict_on_validation_set": lambda predict: predict()[0].shape == (24, 3),
    "predict_on_test_set": lambda predict: predict()[1].shape == (24,),
    "predict_on_train_set": lambda predict: predict()[0].shape == (24, 3),
    "evaluate_loss_on_validation_set": lambda evaluate: 0 < float(evaluate()) < 3,
    "model": lambda value: isinstance(value, nn.Module),
    "optimizer": lambda value: isinstance(value, torch.optim.SGD),
    "train_history": lambda value: "val_loss" in value,
    "message_service": lambda value: value.read_messages("nothing") is None,
}
for name, holds in READS.items():
    ROWS.dialect(f"access: train_loop_obj.{name}")(partial(reads, name, holds))

NATIVE_READS: dict[str, Callable[[Any], bool]] = {
    "experiment_timestamp": lambda run: run.experiment is None,
    "epoch": lambda run: run.epoch in (0, 1),
    "predict_on_validation_set": lambda run: run.predict(run.val_loader).shape == (24, 3),
    "predict_on_test_set": lambda run: run.predict(small()).shape == (16, 3),
    "predict_on_train_set": lambda run: run.predict(run.train_loader).shape == (24, 3),
    "evaluate_loss_on_validation_set": lambda run: 0 < run.evaluate(run.val_loader)["loss"] < 3,
    "model": lambda run: isinstance(run.module, nn.Module),
    "optimizer": lambda run: isinstance(run.optimizers[0], torch.optim.SGD),
    "train_history": lambda run: "val/loss" in run.metrics,
    "message_service": lambda run: run.store.get("nothing") is None,
}


def reads_natively(holds: Callable[[Any], bool]) -> None:
    seen: list[bool] = []
    fitted(Native(after_epoch=lambda run: seen.append(holds(run))))
    assert seen == [True, True]


for name, holds in NATIVE_READS.items():
    ROWS.native(f"access: train_loop_obj.{name}")(partial(reads_natively, holds))


# The examples ---------------------------------------------------------------------------------------------------------


def executed(code: str) -> dict[str, Any]:
    torch.manual_seed(0)
    names = {**NAMES, "__name__": "example"}
    with installed("aitoolbox"), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, SEED, "exec"), names)
    return {**names, "printed": printed.getvalue()}


@ROWS.dialect("example: several basic callbacks")
def basic_example() -> None:
    loop = executed(BASIC)["tl"]
    assert len(loop.train_history["val_loss"]) == loop.epoch + 1 <= 10


@ROWS.dialect("example: a callback of one's own")
def custom_example() -> None:
    printed = executed(CUSTOM)["printed"]
    assert "Starting the training! Experiment started at: " in printed
    assert "Starting new epoch num 0" in printed
    assert "End of training! Stopped at epoch" in printed


@ROWS.dialect("example: a callback on the first device alone")
def first_device_example() -> None:
    callback = executed(FIRST_GPU.replace("..... Some logic .....", "pass"))["DemoFirstGPUCallback"]()
    assert callback.device_idx_execution == 0
    assert [one.ranks for one in loop_of(callback)._trainer.callbacks if getattr(one, "foreign", None)] == [{0}]


for name in ("several basic callbacks", "a callback of one's own", "a callback on the first device alone"):
    ROWS.says(f"example: {name}", native="It is written in AIToolbox's names; docs/migrate/aitoolbox.md has its like.")


# Experiments and processes --------------------------------------------------------------------------------------------


@ROWS.dialect("AbstractExperimentCallback has all the properties of AbstractCallback")
def experiment_callback() -> None:
    assert issubclass(AbstractExperimentCallback, AbstractCallback)
    one = AbstractExperimentCallback("one", "digits", "cnn", "results", execution_order=5)
    assert (one.project_name, one.experiment_name, one.execution_order) == ("digits", "cnn", 5)


@ROWS.dialect("try_infer_experiment_details takes the details from the running loop")
def inferred() -> None:
    class Details(AbstractExperimentCallback):
        def on_train_loop_registration(self) -> None:
            self.try_infer_experiment_details(infer_cloud_details=False)

    one = Details("details")
    with TemporaryDirectory() as folder:
        named = {"project_name": "digits", "experiment_name": "cnn", "local_model_result_folder_path": folder}
        kind = aitoolbox.TrainLoopCheckpoint
        loop_of(one, epochs=1, kind=kind, hyperparams={}, cloud_save_mode="local", **named)
    assert (one.project_name, one.experiment_name) == ("digits", "cnn")


@ROWS.native(
    "AbstractExperimentCallback has all the properties of AbstractCallback",
    "try_infer_experiment_details takes the details from the running loop",
)
def experiment_natively() -> None:
    seen: list[Any] = []
    with TemporaryDirectory() as folder:
        made = Experiment("digits", "cnn", Path(folder), report=False)
        fitted(Native(before_run=lambda run: seen.append(run.experiment)), experiment=made, epochs=1)
    assert (seen[0].project, seen[0].name) == ("digits", "cnn")


@ROWS.dialect("device_idx_execution=None: in every process; k: in that of device k")
def on_devices() -> None:
    places = [AbstractCallback("one", device_idx_execution=place) for place in (None, 0, 1)]
    calls: list[int] = []
    elsewhere = Hooks(on_epoch_end=lambda loop: calls.append(1))
    elsewhere.device_idx_execution = 1
    loop_of(elsewhere, epochs=1)
    assert [one.device_idx_execution for one in places] == [None, 0, 1]
    assert calls == []


@ROWS.native("device_idx_execution=None: in every process; k: in that of device k")
def on_ranks() -> None:
    calls: list[int] = []
    elsewhere = Native(after_epoch=lambda run: calls.append(1))
    elsewhere.ranks = frozenset({1})
    fitted(elsewhere, epochs=1)
    assert calls == []
