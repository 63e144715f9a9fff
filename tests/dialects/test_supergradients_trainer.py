"""SuperGradients' trainer: its parameters, its files, its recipes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.callbacks import EMA, Accumulate, GradientClip, Precision
from cadenza.dialects.supergradients import (
    Callback,
    EarlyStop,
    PhaseContext,
    Trainer,
    TrainingParams,
)
from cadenza.dialects.supergradients.carried import check_models_have_same_weights
from cadenza.dialects.supergradients.object_names import (
    Callbacks,
    Losses,
    LRSchedulers,
    LRWarmups,
    Metrics,
    Optimizers,
)
from cadenza.testing import tiny_classifier, tiny_loader

PARAMS: dict[str, Any] = {
    "max_epochs": 2,
    "initial_lr": 0.1,
    "lr_mode": "cosine",
    "loss": "cross_entropy",
    "valid_metrics_list": ["Accuracy"],
    "metric_to_watch": "Accuracy",
    "silent_mode": True,
}


def loader() -> Any:
    return tiny_loader(24, batch_size=8)


def trained(root: Path, **params: Any) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer("mine", str(root))
    trainer.train(tiny_classifier(), {**PARAMS, **params}, loader(), loader())
    return trainer


def named(trainer: Trainer, kind: type[Any]) -> Any:
    assert trainer.session is not None
    return next((one for one in trainer.session.trainer.callbacks if isinstance(one, kind)), None)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    assert trainer.net is not None
    return list(trainer.net.parameters())


# Parameters -----------------------------------------------------------------------------------------------------------


def test_a_training_by_parameters_is_a_training_by_hand(tmp_path: Path) -> None:
    trainer = trained(tmp_path, lr_mode=None, optimizer="SGD", average_best_models=False)
    torch.manual_seed(0)
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(2):
        for inputs, targets in loader():
            sgd.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            sgd.step()
    for mine, theirs in zip(weights(trainer), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_what_becomes_of_parameters(tmp_path: Path) -> None:
    trainer = trained(
        tmp_path,
        ema=True,
        ema_params={"decay": 0.5, "decay_type": "threshold"},
        batch_accumulate=2,
        clip_grad_norm=0.5,
        mixed_precision=True,
        max_train_batches=2,
        zero_weight_decay_on_bias_and_bn=True,
    )
    assert named(trainer, EMA).decay == 0.5
    assert named(trainer, Accumulate).n == 2
    assert named(trainer, GradientClip).norm == 0.5
    assert named(trainer, Precision).precision == "bf16"
    assert trainer.session is not None
    assert trainer.session.trainer.clock.batches == 4
    decays = {group["weight_decay"] for group in trainer.session.optimizer.param_groups}
    assert decays == {0.0, 1e-4}


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"max_epoch": 3}, "no training parameter 'max_epoch'; did you mean 'max_epochs'"),
        ({"enable_qat": True}, "enable_qat=True is not carried: quantisation is not carried"),
        ({"save_tensorboard_to_s3": True}, "is not carried: files stay on this machine"),
        ({"launch_tensorboard": True}, "is not carried: start it yourself"),
        ({"max_epochs": None}, "training_params must hold max_epochs"),
        ({"metric_to_watch": "Acuracy"}, "metric_to_watch is 'Acuracy'; did you mean 'Accuracy'"),
    ],
)
def test_parameters_that_are_refused(params: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        trained(tmp_path, **params)


@pytest.mark.parametrize("name", ["launch_tensorboard", "enable_qat", "dataset_statistics"])
def test_parameters_that_are_refused_may_be_off(name: str) -> None:
    assert getattr(TrainingParams(max_epochs=1, **{name: False}), name) is False


def test_the_parameter_as_the_document_spells_it() -> None:
    assert TrainingParams(phase_calbacks_list=[1]).phase_callbacks == [1]


def test_a_loss_in_parts_is_measured_in_parts(tmp_path: Path) -> None:
    class Parts(nn.Module):
        component_names = ("one", "two")

        def forward(self, preds: Any, target: Any) -> Any:
            loss = nn.functional.cross_entropy(preds, target)
            return loss * 3, torch.stack([loss, loss * 2]).detach()

    seen: list[dict[str, float]] = []

    class Look(Callback):
        def on_validation_loader_end(self, context: PhaseContext) -> None:
            seen.append(dict(context.metrics_dict))

    trained(
        tmp_path,
        loss=Parts(),
        metric_to_watch="Parts/two",
        greater_metric_to_watch_is_better=False,
        phase_callbacks=[Look()],
    )
    assert set(seen[0]) == {"Parts/one", "Parts/two", "Accuracy"}
    assert seen[0]["Parts/two"] == pytest.approx(2 * seen[0]["Parts/one"])


def test_metrics_of_torchmetrics(tmp_path: Path) -> None:
    from torchmetrics.classification import MulticlassAccuracy

    metric = MulticlassAccuracy(3, average="micro")
    trainer = Trainer("mine", str(tmp_path))
    given = {**PARAMS, "valid_metrics_list": [metric], "metric_to_watch": "MulticlassAccuracy"}
    results = trainer.train(tiny_classifier(), given, loader(), loader())
    assert 0 <= results["valid"]["MulticlassAccuracy"] <= 1


# Files ----------------------------------------------------------------------------------------------------------------


def test_files_of_a_run(tmp_path: Path) -> None:
    trainer = trained(tmp_path, save_ckpt_epoch_list=[0], average_best_models=True)
    (folder,) = (tmp_path / "mine").glob("RUN_*")
    assert str(folder) == trainer.checkpoints_dir_path
    found = sorted(path.name for path in folder.iterdir() if path.suffix == ".pth")
    assert found == ["average_model.pth", "ckpt_best.pth", "ckpt_epoch_0.pth", "ckpt_latest.pth"]
    state = torch.load(folder / "ckpt_latest.pth", weights_only=True)
    assert {"net", "acc", "epoch", "metrics", "_best_ckpt_metrics", "optimizer_state_dict"} <= set(state)
    assert state["epoch"] == 2
    for name, value in trainer.net.state_dict().items():  # type: ignore[union-attr]
        assert torch.equal(state["net"][name], value)


def test_nothing_is_saved_if_that_is_wanted(tmp_path: Path) -> None:
    best: list[int] = []

    class Best(Callback):
        def on_validation_end_best_epoch(self, context: PhaseContext) -> None:
            best.append(context.epoch)

    trained(tmp_path, save_model=False, average_best_models=False, phase_callbacks=[Best()])
    assert not list(tmp_path.rglob("*.pth"))
    assert best[0] == 0


class Interrupts(Callback):
    def on_train_loader_start(self, context: PhaseContext) -> None:
        if context.epoch == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["resume", "run_id", "resume_path"])
def test_a_run_is_resumed_as_if_it_had_not_ended(how: str, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"max_epochs": 4, "ema": True, "average_best_models": False, "lr_warmup_epochs": 1}
    whole = trained(tmp_path / "whole", **shared)
    first = trained(tmp_path / "parts", **shared, phase_callbacks=[Interrupts()])
    folder = Path(str(first.checkpoints_dir_path))
    chosen = {"resume": True, "run_id": folder.name, "resume_path": str(folder / "ckpt_latest.pth")}
    seen: list[int] = []

    class Epochs(Callback):
        def on_train_loader_start(self, context: PhaseContext) -> None:
            seen.append(context.epoch)

    again = trained(tmp_path / "parts", **shared, phase_callbacks=[Epochs()], **{how: chosen[how]})
    assert seen == [2, 3]
    for mine, theirs in zip(weights(again), weights(whole), strict=True):
        assert torch.equal(mine, theirs)
    for name, value in named(whole, EMA).average.items():
        assert torch.equal(named(again, EMA).average[name], value)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no run to resume"):
        trained(tmp_path, resume=True)


def test_the_patience_of_a_callback_is_kept(tmp_path: Path) -> None:
    def stop() -> EarlyStop:
        return EarlyStop("VALIDATION_EPOCH_END", "CrossEntropyLoss", min_delta=100.0, patience=4)

    trained(tmp_path, max_epochs=6, phase_callbacks=[stop(), Interrupts()])
    patience = stop()
    trained(tmp_path, max_epochs=8, phase_callbacks=[patience], resume=True)
    assert patience.patience.bad == 4
    state = torch.load(next(tmp_path.rglob("ckpt_latest.pth")), weights_only=True)
    assert state["epoch"] == 5


# Tests and EMA --------------------------------------------------------------------------------------------------------


def test_a_test_uses_the_average_of_the_weights(tmp_path: Path) -> None:
    trainer = trained(tmp_path, ema=True, ema_params={"decay": 0.9, "decay_type": "constant"})
    averaged = trainer.test(test_loader=loader())
    raw = trainer.test(test_loader=loader(), use_ema_net=False)
    name = "CrossEntropyLoss"
    assert averaged[name] != raw[name]
    with named(trainer, EMA).swap(trainer.net):
        assert trainer.test(test_loader=loader(), use_ema_net=False)[name] == pytest.approx(averaged[name])


def test_a_test_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Trainer.test needs a model, or a training before"):
        Trainer("mine", str(tmp_path)).test(test_loader=loader())


def test_what_the_trainer_does_not_have(tmp_path: Path) -> None:
    trainer = Trainer("mine", str(tmp_path))
    with pytest.raises(AttributeError, match="supergradients: ptq is not carried: quantisation"):
        trainer.ptq()
    with pytest.raises(AttributeError, match=r"there is no attribute of Trainer 'tests' here; the nearest is 'test'"):
        trainer.tests()


def test_constants_name_what_a_training_is_made_of(tmp_path: Path) -> None:
    metrics = {"train_metrics_list": [Metrics.TOP5], "valid_metrics_list": [Metrics.ACCURACY]}
    rates = {"lr_mode": LRSchedulers.POLY, "warmup_mode": LRWarmups.LINEAR_BATCH_STEP, "lr_warmup_steps": 1}
    found = {"loss": Losses.CROSS_ENTROPY, "optimizer": Optimizers.RMS_PROP, "phase_callbacks": [Callbacks.TIMER]}
    session = trained(tmp_path, **metrics, **rates, **found).session
    assert session is not None
    assert set(session.results["train"]) == {"loss", "Top5"}
    assert type(session.optimizer) is torch.optim.RMSprop


def test_the_average_is_there_as_a_model(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(Callback):
        def on_training_start(self, context: PhaseContext) -> None:
            seen.append(copy.deepcopy(context.ema_model).ema)

    assert Trainer("mine", str(tmp_path)).ema_model is None
    first = trained(tmp_path, ema=True, phase_callbacks=[Look()])
    averaged = first.ema_model.ema
    assert check_models_have_same_weights(seen[0], averaged) is False
    assert first.net is not None
    assert check_models_have_same_weights(first.net, averaged) is False
    trained(tmp_path, ema=True, max_epochs=3, resume=True, phase_callbacks=[Look()])
    assert check_models_have_same_weights(seen[1], averaged)


def test_a_parameter_that_means_something_else_is_not_suggested() -> None:
    with pytest.raises(ValueError, match=r"no training parameter 'validation_forward_wrapper'$"):
        TrainingParams(validation_forward_wrapper=None)
