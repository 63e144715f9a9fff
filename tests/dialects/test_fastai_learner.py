"""fastai's Learner: training, measuring, saving, and what belongs to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.dialects.fastai import (
    AccumulateScheduler,
    AdamW,
    BnFreeze,
    Callback,
    DataBunch,
    DatasetType,
    GradientClipping,
    Learner,
    LearnerCallback,
    RecordOnCPU,
    ShowGraph,
    accuracy,
    error_rate,
)
from cadenza.testing import tiny_classifier, tiny_data, tiny_loader

from .rooms import same, trainer_with, weights


def sgd(parameters: Any, lr: float, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def learner(**options: Any) -> Learner:
    given = {
        "data": (tiny_loader(), tiny_loader(10, batch_size=4)),
        "model": tiny_classifier(),
        "loss_func": nn.CrossEntropyLoss(),
        "silent": True,
    }
    return Learner(**(given | options))


def test_fit_is_that_of_the_native_trainer_with_the_same_optimizer() -> None:
    learn = learner(opt_func=torch.optim.SGD, wd=0.0)
    learn.fit(2, 0.1)
    plain = trainer_with()
    history = plain.fit(tiny_loader(), tiny_loader(10, batch_size=4), epochs=2)
    assert same(weights(learn.model), weights(plain.model))
    assert learn.recorder.val_losses == history["val/loss"]


def test_the_default_optimizer() -> None:
    learn = learner()
    assert isinstance(learn.opt.opt, torch.optim.AdamW)
    assert (learn.opt.mom, learn.opt.beta, learn.opt.wd) == (0.9, 0.99, 0.01)
    assert AdamW.func is torch.optim.Adam  # its decay is decoupled by true_wd, and then torch's AdamW does it
    assert type(learner(true_wd=False).opt.opt) is torch.optim.Adam


def test_metrics_are_means_over_samples_and_are_recorded_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    learn = learner(metrics=[accuracy, error_rate], silent=False)
    learn.fit(2, 1e-2)
    inputs, targets = tiny_data(10).tensors
    exact = float((learn.model(inputs).argmax(1) == targets).float().mean())
    last = learn.recorder.metrics[-1]
    assert last == pytest.approx([exact, 1 - exact])
    assert learn.trainer.history["val/accuracy"][-1] == pytest.approx(exact)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["epoch", "train_loss", "valid_loss", "accuracy", "error_rate", "time"]
    assert [line.split()[0] for line in lines[1:]] == ["0", "1"]
    assert learn.validate() == pytest.approx([learn.recorder.val_losses[-1], exact, 1 - exact])


def test_the_recorder_keeps_rates_losses_and_counts() -> None:
    learn = learner(opt_func=sgd)
    learn.fit(2, 0.05)
    recorder = learn.recorder
    assert recorder.lrs == [0.05] * 6
    assert recorder.moms == [0.9] * 6
    assert len(recorder.losses) == 6
    assert recorder.nb_batches == [3, 3]
    for picture in (recorder.plot_lr(show_moms=True), recorder.plot_losses(), recorder.plot_metrics()):
        assert picture.axes
    learn.fit(1, 0.05)
    assert learn.recorder.nb_batches == [3]


def test_one_cycle_rises_to_max_lr_and_falls_below_where_it_began() -> None:
    learn = learner(opt_func=sgd)
    learn.fit_one_cycle(10, max_lr=0.1, pct_start=0.3)
    lrs, moms = learn.recorder.lrs, learn.recorder.moms
    assert len(lrs) == 30
    assert lrs[0] == pytest.approx(0.1 / 25)
    assert max(lrs) == lrs[9] == pytest.approx(0.1)
    assert lrs[-1] < 0.1 / 25
    assert moms[0] == pytest.approx(0.95)
    assert min(value for value in moms if value is not None) == pytest.approx(0.85)


def test_lr_find_sweeps_and_puts_everything_back() -> None:
    learn = learner(opt_func=sgd)
    learn.fit(1, 0.05)
    before = weights(learn.model)
    learn.lr_find(start_lr=1e-4, end_lr=1.0, num_it=10)
    assert same(before, weights(learn.model))
    assert learn.recorder.lrs == pytest.approx([1e-4 * 1e4 ** (i / 10) for i in range(len(learn.recorder.lrs))])
    assert not any(learn.recorder.val_losses)
    assert learn.recorder.plot(skip_start=0, skip_end=1).axes[0].get_xscale() == "log"


def test_lr_find_stops_when_the_loss_explodes() -> None:
    learn = learner(opt_func=torch.optim.SGD, wd=0.0)
    learn.lr_find(start_lr=1.0, end_lr=1e9, num_it=60)
    assert len(learn.recorder.lrs) < 60


def test_predictions_and_targets() -> None:
    learn = learner()
    preds, targets, losses = learn.get_preds(with_loss=True)
    inputs, expected = tiny_data(10).tensors
    outputs = learn.model(inputs).detach()
    assert torch.allclose(preds, outputs.softmax(-1))
    assert torch.equal(targets, expected)
    assert torch.allclose(losses, nn.functional.cross_entropy(outputs, expected, reduction="none"), atol=1e-6)
    assert torch.allclose(learn.get_preds(activ=lambda values: values)[0], outputs, atol=1e-6)
    assert len(learn.get_preds(n_batch=1)[0]) == 4
    assert len(learn.get_preds(DatasetType.Train)[0]) == 24
    with pytest.raises(ValueError, match="no test loader"):
        learn.get_preds(DatasetType.Test)


def test_save_and_load(tmp_path: Path) -> None:
    learn = learner(path=tmp_path)
    learn.fit(1)
    path = learn.save("mine", return_path=True)
    assert path == tmp_path / "models" / "mine.pth"
    saved, moment = weights(learn.model), learn.opt.opt.state_dict()["state"][0]["exp_avg"].clone()
    learn.fit(1)
    learn.load("mine")
    assert same(saved, weights(learn.model))
    assert torch.equal(learn.opt.opt.state_dict()["state"][0]["exp_avg"], moment)
    learn.save("bare", with_opt=False)
    other = learner(path=tmp_path, model=tiny_classifier(seed=3)).load("bare")
    assert same(saved, weights(other.model))


def test_layer_groups_and_slices() -> None:
    model = tiny_classifier()
    learn = learner(model=model, layer_groups=[model[0], model[2]])  # type: ignore[index]
    learn.fit(1, slice(1e-4, 1e-2))
    assert learn.opt.read_val("lr") == pytest.approx([1e-4, 1e-2])
    assert learn.lr_range(slice(1e-2)) == pytest.approx([1e-3, 1e-2])
    assert learn.lr_range(0.1) == 0.1


def test_a_learner_callback_knows_its_learner() -> None:
    seen: list[Any] = []

    class MyThing(LearnerCallback):
        def on_train_begin(self, **kwargs: Any) -> None:
            seen.append((self.learn.my_thing is self, self.loss_func is self.learn.loss_func, self.cb_name))
            with pytest.raises(AttributeError, match="there is no attribute of a Learner 'loss_fnc' here; the nearest"):
                self.loss_fnc

    learn = learner(callback_fns=[MyThing])
    learn.fit(1)
    assert seen == [(True, True, "my_thing")]
    thing = MyThing(learn)
    learn.fit(1, callbacks=[thing])
    del learn
    with pytest.raises(ReferenceError):
        thing.learn


def test_the_model_may_be_replaced_through_the_learner_for_the_time_of_a_fit() -> None:
    class Parallel(LearnerCallback):
        _order = -20

        def on_train_begin(self, **kwargs: Any) -> None:
            self.learn.model = nn.DataParallel(self.learn.model)

        def on_train_end(self, **kwargs: Any) -> None:
            self.learn.model = self.learn.model.module

    learn = learner(callback_fns=[Parallel])
    learn.fit(1)
    assert isinstance(learn.model, nn.Sequential)
    with pytest.raises(AttributeError, match="keeps its model"):
        learn.model = tiny_classifier()


def test_data_in_several_forms() -> None:
    class Bunch:
        train_dl, valid_dl = tiny_loader(8), tiny_loader(8)

    for data in (tiny_loader(8), (tiny_loader(8), tiny_loader(8)), Bunch(), DataBunch(tiny_loader(8), tiny_loader(8))):
        learner(data=data).fit(1)
    with pytest.raises(AttributeError, match="fastai: there is no attribute of the data 'train_dss' here; the nearest"):
        DataBunch(tiny_loader(8)).train_dss


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda learn: learn.fit_one_cicle, "there is no attribute of a Learner 'fit_one_cicle' here; the nearest is"),
        (lambda learn: learn.to_distributed, "to_distributed is not carried: processes are started around the script"),
        (lambda learn: learn.export, "export is not carried: it would be a pickle"),
        (lambda learn: learn.freeze(), "there is one layer group, so freezing leaves nothing to train"),
        (lambda learn: learn.fit(1, [0.1, 0.2]), "2 values for 1 layer groups"),
    ],
)
def test_what_is_refused(act: Any, message: str) -> None:
    with pytest.raises((AttributeError, ValueError), match=message):
        act(learner())


def test_a_refused_callback_leaves_the_learner_usable() -> None:
    class Bad(Callback):
        def on_nothing(self, **kwargs: Any) -> None: ...

    learn = learner()
    with pytest.raises(TypeError, match="there is no hook 'on_nothing'"):
        learn.fit(1, callbacks=[Bad()])
    learn.fit(1)


# What fastai.train had -----------------------------------------------------------------------------------------------


def test_gradient_clipping_by_a_word() -> None:
    learn = learner(opt_func=torch.optim.SGD, wd=0.0, data=tiny_loader(8)).clip_grad(1e-3)
    before = weights(learn.model)
    learn.fit(1, 1.0)
    moved = math.sqrt(sum(float((a - b).pow(2).sum()) for a, b in zip(before, weights(learn.model), strict=True)))
    assert moved == pytest.approx(1e-3, rel=1e-2)
    assert isinstance(learn.gradient_clipping, GradientClipping)


@pytest.mark.parametrize(("samples", "drop_last"), [(32, False), (40, False), (40, True)])
def test_accumulation_with_validation(samples: int, drop_last: bool) -> None:
    learn = learner(
        opt_func=torch.optim.SGD,
        wd=0.0,
        data=(tiny_loader(samples), tiny_loader(8)),
        loss_func=nn.CrossEntropyLoss(reduction="sum"),
    )
    learn.fit(2, 0.1, callbacks=[AccumulateScheduler(learn, n_step=2, drop_last=drop_last)])
    hand = tiny_classifier()
    optimizer = torch.optim.SGD(hand.parameters(), lr=0.1)
    for _ in range(2):
        for inputs, targets in tiny_loader(samples, batch_size=16):
            if len(inputs) == 16 or not drop_last:
                optimizer.zero_grad()
                nn.functional.cross_entropy(hand(inputs), targets).backward()
                optimizer.step()
    pairs = zip(weights(learn.model), weights(hand), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    with pytest.raises(ValueError, match='reduction="sum"'):
        AccumulateScheduler(learner(), 2)


def test_frozen_batch_norm_and_graph_and_batches_on_the_cpu() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    for parameter in model[1].parameters():
        parameter.requires_grad = False
    kept = RecordOnCPU()
    learn = learner(model=model, callback_fns=[BnFreeze, ShowGraph], callbacks=[kept])
    learn.fit(1)
    assert torch.equal(model[1].running_mean, torch.zeros(6))  # type: ignore[arg-type]
    assert learn.show_graph.figure.axes
    assert len(kept.input) == len(kept.target) == 2  # the last batch of validation
