"""The callbacks of fastai's package."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.dialects.fastai import Callback, LearnerCallback
from cadenza.dialects.fastai import callbacks as package
from cadenza.dialects.fastai import metrics as measures
from cadenza.dialects.fastai.callback import annealing_cos, annealing_linear, annealing_poly
from cadenza.dialects.fastai.callbacks import (
    CSVLogger,
    EarlyStoppingCallback,
    FlatCosAnnealScheduler,
    GeneralScheduler,
    LossMetrics,
    MixedPrecision,
    MixUpCallback,
    MixUpLoss,
    ReduceLROnPlateauCallback,
    RNNTrainer,
    SaveModelCallback,
    StopAfterNBatches,
    TerminateOnNaNCallback,
    TrackEpochCallback,
    TrainingPhase,
)
from cadenza.testing import tiny_loader

from .rooms import same, weights
from .test_fastai_learner import learner, sgd


class ValidLosses(LearnerCallback):
    """Replaces the losses of validation by chosen ones, before trackers look at them."""

    _order = -5

    def __init__(self, learn: Any, values: list[float]) -> None:
        super().__init__(learn)
        self.values = values

    def on_epoch_end(self, epoch: int, **kwargs: Any) -> None:
        self.learn.recorder.val_losses[-1] = self.values[epoch]


def fit_with(values: list[float], tracker: Any, **options: Any) -> Any:
    learn = learner(callback_fns=[partial(ValidLosses, values=values), tracker], opt_func=sgd, **options)
    learn.fit(len(values), 0.5)
    return learn


@pytest.mark.parametrize(("patience", "epochs"), [(0, 3), (1, 4), (2, 6)])
def test_early_stopping_waits_for_more_than_patience(patience: int, epochs: int) -> None:
    losses = [3.0, 2.0, 2.0, 2.5, 1.0, 1.1]
    learn = fit_with(losses, partial(EarlyStoppingCallback, patience=patience))
    assert len(learn.recorder.nb_batches) == epochs


def test_early_stopping_with_a_margin_and_a_metric() -> None:
    learn = fit_with([3.0, 2.9, 2.8, 2.7], partial(EarlyStoppingCallback, min_delta=0.5))
    assert len(learn.recorder.nb_batches) == 2
    learn = learner(metrics=[measures.accuracy], callback_fns=[partial(EarlyStoppingCallback, monitor="acuracy")])
    with pytest.warns(UserWarning, match="'acuracy' is not measured; nearest: 'accuracy'"):
        learn.fit(1)
    up = EarlyStoppingCallback(learn, monitor="accuracy")
    assert up.operator(2.0, 1.0)
    assert EarlyStoppingCallback(learn, monitor="error_rate").operator(1.0, 2.0)


def test_the_best_model_is_saved_and_loaded_at_the_end(tmp_path: Path) -> None:
    seen = []

    class Keep(LearnerCallback):
        def on_epoch_end(self, **kwargs: Any) -> None:
            seen.append(weights(self.learn._module))

    learn = learner(
        path=tmp_path,
        opt_func=sgd,
        callback_fns=[partial(ValidLosses, values=[3.0, 1.0, 2.0]), SaveModelCallback, Keep],
    )
    learn.fit(3, 0.1)
    assert same(weights(learn.model), seen[1])
    assert (tmp_path / "models" / "bestmodel.pth").exists()


def test_every_epoch_is_saved_and_an_interrupted_training_goes_on(tmp_path: Path) -> None:
    class Dies(Callback):
        def on_epoch_begin(self, epoch: int, **kwargs: Any) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    fns = [TrackEpochCallback, partial(SaveModelCallback, every="epoch", name="at")]
    whole = learner(path=tmp_path / "a", opt_func=sgd, callback_fns=fns)
    whole.fit(4, 0.1)
    broken = learner(path=tmp_path / "b", opt_func=sgd, callback_fns=fns)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(4, 0.1, callbacks=[Dies()])
    again = learner(path=tmp_path / "b", opt_func=sgd, callback_fns=fns)
    again.fit(4, 0.1)
    assert len(again.recorder.nb_batches) == 2
    assert same(weights(whole.model), weights(again.model))
    assert not (tmp_path / "b" / "models" / "epoch").exists()
    later = learner(path=tmp_path / "c", callback_fns=[partial(TrackEpochCallback, epoch_offset=3)])
    later.fit(5)
    assert len(later.recorder.nb_batches) == 2


def test_the_learning_rate_is_reduced_on_a_plateau() -> None:
    learn = fit_with([3.0, 3.0, 3.0, 1.0], partial(ReduceLROnPlateauCallback, patience=1, factor=0.1, min_lr=1e-3))
    assert learn.opt.lr == pytest.approx(0.05)
    assert len(learn.recorder.nb_batches) == 4


def test_nan_ends_the_training_at_once() -> None:
    class Poison(Callback):
        def on_backward_begin(self, last_loss: Any, iteration: int, **kwargs: Any) -> Any:
            return {"last_loss": last_loss * math.nan} if iteration == 4 else None

    learn = learner()
    learn.fit(4, callbacks=[Poison(), TerminateOnNaNCallback()])
    assert learn.trainer.clock.batches == 5
    assert [loss is None for loss in learn.recorder.val_losses] == [False, True]


def test_stop_after_n_batches() -> None:
    learn = learner()
    learn.fit(4, callbacks=[StopAfterNBatches(2)])
    assert learn.trainer.clock.batches == 2
    assert learn.recorder.val_losses == [None]


def test_phases_follow_each_other_with_their_own_rates_and_momenta() -> None:
    learn = learner(opt_func=sgd)
    phases = [
        TrainingPhase(3).schedule_hp("lr", (0.1, 0.4), annealing_linear),
        TrainingPhase(2).schedule_hp("lr", (0.4, 0.0), annealing_poly(2)).schedule_hp("mom", 0.5),
    ]
    learn.fit(5, callbacks=[GeneralScheduler(learn, phases)])
    assert learn.recorder.lrs == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.1, 0.0])
    assert learn.trainer.clock.batches == 6  # the phases were used up, so the training stopped
    with pytest.raises(ValueError, match="a phase schedules lr, mom, beta or wd"):
        TrainingPhase(1).schedule_hp("lrr", 1.0)


def test_flat_then_cosine() -> None:
    learn = learner(opt_func=sgd)
    learn.fit(4, callbacks=[FlatCosAnnealScheduler(learn, lr=0.1, tot_epochs=4, start_pct=0.5)])
    assert learn.recorder.lrs[:7] == pytest.approx([0.1] * 7)
    assert learn.recorder.lrs[7:] == pytest.approx([annealing_cos(0.1, 0.0, i / 6) for i in range(1, 6)])


def test_a_file_of_the_epochs(tmp_path: Path) -> None:
    learn = learner(path=tmp_path, metrics=[measures.accuracy], callback_fns=[CSVLogger])
    learn.fit(2)
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert lines[0] == "epoch,train_loss,valid_loss,accuracy,time"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1"]
    assert float(lines[2].split(",")[2]) == pytest.approx(learn.recorder.val_losses[1], abs=1e-6)
    assert list(learn.csv_logger.read_logged_file()["epoch"]) == [0, 1]


def test_mixup_trains_on_mixtures_and_validates_on_samples() -> None:
    seen: list[Any] = []

    class Look(Callback):
        _order = 5

        def on_batch_begin(self, last_target: Any, train: bool, **kwargs: Any) -> None:
            seen.append((train, tuple(last_target.shape)))

    torch.manual_seed(0)
    learn = learner(opt_func=sgd, callbacks=[Look()]).mixup()
    learn.fit(3, 0.05)
    assert seen[:4] == [(True, (8, 3))] * 3 + [(False, (4,))]
    assert learn.recorder.val_losses[-1] < learn.recorder.val_losses[0]
    assert isinstance(learn.mix_up_callback, MixUpCallback)
    loss = MixUpLoss(nn.CrossEntropyLoss())
    output = torch.randn(2, 3)
    target = torch.tensor([[0.0, 1.0, 0.75], [2.0, 2.0, 1.0]])
    each = nn.functional.cross_entropy
    expected = (0.75 * each(output[:1], torch.tensor([0])) + 0.25 * each(output[:1], torch.tensor([1]))
                + each(output[1:], torch.tensor([2]))) / 2  # fmt: skip
    assert torch.allclose(loss(output, target), expected)


def test_mixed_precision_is_the_native_one() -> None:
    learn = learner().to_fp16(loss_scale=8.0, dynamic=False)
    learn.fit(1)
    native = MixedPrecision(learn, max_noskip=7)
    assert (native.precision, native.growth_interval) == ("fp16", 7)
    for wrong in ({"flat_master": True}, {"clip": 0.1}):
        with pytest.raises(ValueError, match="is not carried"):
            MixedPrecision(learn, **wrong)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.resets = nn.GRU(4, 3, batch_first=True), 0

    def reset(self) -> None:
        self.resets += 1

    def forward(self, inputs: Any) -> Any:
        hidden = self.inner(inputs.unsqueeze(1).repeat(1, 2, 1))[0]
        return hidden[:, -1], [hidden], [hidden]


@pytest.mark.filterwarnings("ignore:The learning rate was 0")
def test_recurrent_models_are_regularised_and_reset() -> None:
    losses: dict[float, float] = {}
    for alpha in (0.0, 2.0):
        torch.manual_seed(0)
        model = Recurrent()
        learn = learner(model=model, callback_fns=[partial(RNNTrainer, alpha=alpha, beta=alpha)], data=tiny_loader(8))
        learn.fit(2, 0.0)
        losses[alpha] = learn.trainer.history["train/loss"][0]
        assert model.resets == 2
    assert losses[2.0] > losses[0.0]


def test_parts_of_a_loss_are_metrics() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.metrics: dict[str, Any] = {"classes": None, "size": None}

        def forward(self, output: Any, target: Any) -> Any:
            self.metrics = {"classes": nn.functional.cross_entropy(output, target), "size": output.pow(2).mean()}
            return sum(self.metrics.values())

    learn = learner(loss_func=Parts(), callback_fns=[LossMetrics])
    learn.fit(1)
    classes, size = learn.recorder.metrics[0]
    assert classes + size == pytest.approx(learn.recorder.val_losses[0], rel=1e-5)


def test_everything_that_the_package_offers_can_be_imported_by_its_old_path() -> None:
    from importlib import import_module

    from cadenza.dialects import installed

    with installed("fastai"):
        assert "LRFinder" in import_module("fastai.callbacks").__all__
        for name in import_module("fastai.callbacks").__all__:
            assert getattr(import_module("fastai.callbacks"), name) is getattr(package, name)
        assert import_module("fastai.callbacks.tracker").EarlyStoppingCallback is EarlyStoppingCallback
        with pytest.raises(AttributeError, match="fastai: CycleGANTrainer is not carried: CycleGAN is not carried"):
            import_module("fastai.callbacks").CycleGANTrainer
        with pytest.raises(
            ModuleNotFoundError, match=r"fastai: fastai\.vision\.all is not carried: it belongs to fastai"
        ):
            import_module("fastai.vision.all")
