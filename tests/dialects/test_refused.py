"""What is not carried is refused by its name: attributes that cannot be set, arguments, modules, classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch

from cadenza import CallbackError, When
from cadenza.dialects import aitoolbox, fastai, installed, orca, supergradients
from cadenza.dialects.aitoolbox.performance_eval import ModelTrainHistoryPlot
from cadenza.testing import tiny_loader

from .rooms import trainer_with


def set_in(base: type[Any], hook: str, name: str, *given: Any) -> Any:
    """A callback that sets ``name`` on what its hook is handed, or on its loop."""

    def act(self: Any, *handed: Any) -> None:
        setattr(handed[0] if handed else self.train_loop_obj, name, 1)

    kind = type("Sets", (base,), {"__init__": lambda self: base.__init__(self, *given), hook: act})
    return kind()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: set_in(orca.Callback, "before_run", "model"), r"^orca: runner\.model is read alone"),
        (lambda: set_in(orca.Callback, "before_run", "epoch_stats"), r"^orca: runner\.epoch_stats is kept by the loop"),
        (lambda: set_in(orca.Callback, "before_run", "put"), r"^orca: runner\.put is a method; it is called, not set"),
        (
            lambda: set_in(aitoolbox.AbstractCallback, "on_epoch_begin", "num_optimizers", "sets"),
            r"^aitoolbox: train_loop_obj\.num_optimizers is read alone",
        ),
        (
            lambda: set_in(aitoolbox.AbstractCallback, "on_epoch_begin", "is_main_process", "sets"),
            r"^aitoolbox: train_loop_obj\.is_main_process is a method",
        ),
        (
            lambda: set_in(supergradients.Callback, "on_training_start", "update_context"),
            r"^supergradients: context\.update_context is a method",
        ),
    ],
)
def test_setting_what_is_read_alone_names_the_dialect(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        trainer_with(make()).fit(tiny_loader(), epochs=1)


@pytest.mark.parametrize("name", ["message_service", "prediction_store", "callbacks_handler", "gpu_mode"])
def test_what_the_loop_keeps_by_itself_is_not_replaced(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^aitoolbox: train_loop_obj\.{name} is kept by the loop"):
        trainer_with(set_in(aitoolbox.AbstractCallback, "on_epoch_begin", name, "sets")).fit(tiny_loader(), epochs=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: aitoolbox.BinaryClassificationResultPackage(positive_class_tresh=0.3),
        lambda: aitoolbox.ClassificationResultPackage(zzz=1),
        lambda: aitoolbox.RegressionResultPackage(zzz=1),
        lambda: aitoolbox.GeneralResultPackage([], zzz=1),
        lambda: ModelTrainHistoryPlot(zzz=1),
        lambda: supergradients.LinearBatchLRWarmup(zzz=1),
        lambda: supergradients.LinearEpochLRWarmup(initial_lr=0.1, zzz=1),
        lambda: supergradients.StepLRScheduler(initial_lr=0.1, lr_updates=[1], lr_decay_factor=0.1, zzz=1),
        lambda: supergradients.CosineLRScheduler(initial_lr=0.1, max_epochs=1, cosine_final_lr_ratio=0.1, zzz=1),
        lambda: supergradients.PolyLRScheduler(initial_lr=0.1, max_epochs=1, zzz=1),
        lambda: supergradients.ExponentialLRScheduler(initial_lr=0.1, lr_decay_factor=0.1, zzz=1),
    ],
)
def test_an_unknown_argument_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"zzz|positive_class_tresh"):
        make()


def test_an_unknown_argument_of_a_torch_schedule_is_refused_when_it_is_built() -> None:
    with pytest.raises(TypeError, match="zzz"):
        trainer_with(aitoolbox.ReduceLROnPlateauScheduler(zzz=1)).fit(tiny_loader(), epochs=1)


def test_a_callback_without_its_name_is_told_to_call_its_base() -> None:
    class Bare(aitoolbox.AbstractCallback):
        def __init__(self) -> None:
            pass

    with pytest.raises(CallbackError, match=r"Bare has no callback_name: call super\(\).__init__"):
        trainer_with(Bare())


def test_native_wrappers_say_what_to_do_with_a_foreign_callback() -> None:
    with pytest.raises(TypeError, match=r"^When limits a cadenza\.Callback.*Callback is of another system"):
        When(orca.Callback(), every="2 steps")


@pytest.mark.parametrize(
    ("dialect", "path", "message"),
    [
        ("aitoolbox", "aitoolbox.experiment.result_package.torch_metrics_packages", "TorchMetrics|compute"),
        ("aitoolbox", "aitoolbox.nlp", "not carried"),
        ("supergradients", "super_gradients.training.utils.callbacks:MetricsUpdateCallback", "not carried: metrics"),
        ("supergradients", "super_gradients.training.utils.callbacks:TestLRCallback", "not carried"),
        ("supergradients", "super_gradients.training:dataloaders", "not carried"),
        ("fastai", "fastai.callback:CallbackHandler", "not carried"),
    ],
)
def test_names_that_the_originals_have_are_refused_by_name(dialect: str, path: str, message: str) -> None:
    module, _, name = path.partition(":")
    with installed(dialect), pytest.raises((ImportError, AttributeError), match=f"^{dialect}: .*{message}"):
        getattr(import_module(module), name)


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (supergradients.Trainer, "evaluate_from_config", "is not carried: build the model and call Trainer.test"),
        (supergradients.Trainer, "resume_experiment", "is not carried: resume=True"),
        (supergradients.Trainer, "train_from_confg", "nearest is 'train_from_config'"),
        (orca.Estimator, "from_torhc", "nearest is 'from_torch'"),
        (orca.Estimator, "from_keras", "there is no attribute of Estimator"),
    ],
)
def test_what_a_front_door_does_not_have_names_the_dialect(owner: Any, name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=rf"^(supergradients|orca): .*{message}"):
        getattr(owner, name)


def test_a_misspelt_part_of_a_recipe_is_refused() -> None:
    recipe = {"experiment_name": "mine", "architectur": "net", "num_classes": 3}
    with pytest.raises(ValueError, match="the recipe says 'architectur'; did you mean 'architecture'"):
        supergradients.Trainer.train_from_config(recipe)


@pytest.mark.parametrize("name", ["predict", "destroy", "summary"])
def test_methods_of_a_learner_that_are_not_carried_say_what_to_do(name: str) -> None:
    learner = fastai.Learner(fastai.DataBunch(tiny_loader(), tiny_loader()), torch.nn.Linear(4, 3))
    with pytest.raises(AttributeError, match=f"^fastai: {name} is not carried: "):
        getattr(learner, name)


@pytest.mark.parametrize(
    "path",
    [
        "aitoolbox.torchtrain.schedulers.basic:StepLRScheduler",
        "aitoolbox.torchtrain.schedulers.warmup:LinearWithWarmup",
        "aitoolbox.torchtrain.train_loop.components.callback_handler:CallbacksHandler",
        "aitoolbox.torchtrain.train_loop.components.model_prediction_store:PredictionStore",
        "aitoolbox.torchtrain.train_loop.train_loop_tracking:TrainLoopCheckpoint",
    ],
)
def test_further_paths_of_aitoolbox(path: str) -> None:
    module, _, name = path.partition(":")
    with installed("aitoolbox"):
        assert getattr(import_module(module), name).__module__.startswith("cadenza.dialects.aitoolbox")


@pytest.mark.parametrize(
    "base", [fastai.Callback, orca.Callback, supergradients.Callback, partial(aitoolbox.AbstractCallback, "own")]
)
def test_a_callback_may_have_methods_of_names_that_are_refused_elsewhere(base: Any) -> None:
    """What a Learner or a Trainer does not carry says nothing about methods of a callback."""
    kind = base.func if isinstance(base, partial) else base
    methods = {one for one in kind.dialect.refused if one.isidentifier() and not kind.dialect.looks_like_a_hook(one)}
    own = type("Own", (kind,), {one: lambda self: None for one in methods})
    trainer_with(own(*getattr(base, "args", ())))
