"""Evaluate: results over whole sets, in passes and over loaders of its own."""

from __future__ import annotations

import copy

import pytest
import torch
from sklearn import metrics as sk
from torch import nn

from cadenza import Callback, MainCallback, Order, Trainer, Watch
from cadenza.callbacks.measuring.evaluate import Evaluate
from cadenza.callbacks.measuring.result_packages import (
    BinaryResults,
    ClassificationResults,
    RegressionResults,
    ResultPackage,
)
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.points import POINTS, SPAN
from cadenza.testing import check_callback, tiny_classifier, tiny_data, tiny_loader


def cut(sizes, seed=3):
    inputs, targets = tiny_data(sum(sizes), seed=seed).tensors
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def made(*callbacks, lr=0.0, model=None):
    model = tiny_classifier() if model is None else model
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def scikit(batches, model=None):
    """Macro F1 of the model over all batches at once."""
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    predicted = (model or tiny_classifier())(inputs).argmax(1)
    return pytest.approx(sk.f1_score(targets, predicted, average="macro"), abs=1e-12)


class At(Callback):
    order = Order.SAVE

    def __init__(self, point, act):
        self.point, self.act = point, act

    def plays(self):
        return {self.point: self.act}


class Seen(ResultPackage):
    """Keeps what it was given."""

    def __init__(self):
        super().__init__()
        self.given = []

    def compute(self, predictions, targets):
        self.given.append((predictions, targets))
        return {"seen": len(targets)}


# Passes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[16], [5, 3, 1, 7], [1] * 16], ids=str)
@pytest.mark.parametrize("move", ["end", "batch"])
def test_ragged_batches_equal_the_whole_set_at_once(sizes, move):
    found = made(Evaluate(ClassificationResults(), move=move)).validate(cut(sizes))
    assert found["val/f1"] == scikit(cut([16]))
    assert set(found) == {"val/loss", "val/accuracy", "val/precision", "val/recall", "val/f1"}


def test_the_package_gets_all_in_order_on_the_cpu():
    package = Seen()
    made(Evaluate(package)).validate(cut([5, 3]))
    predictions, targets = package.given[0]
    inputs, expected = tiny_data(8, seed=3).tensors
    torch.testing.assert_close(predictions, tiny_classifier()(inputs))
    assert torch.equal(targets, expected)
    assert not predictions.requires_grad


def test_every_stage_every_second_epoch_into_metrics_and_history():
    evaluate = Evaluate(ClassificationResults(), stages={"train", "val", "test"}, every="2 epochs")
    loaders = {"a": cut([5, 4], seed=1), "b": cut([2, 2], seed=2)}
    trainer = made(evaluate)
    history = trainer.fit(cut([6, 10]), loaders, epochs=4, test_loaders=cut([3, 1], seed=5))
    for name, seed, samples in (("train", 3, 16), ("val/a", 1, 9), ("val/b", 2, 4), ("test", 5, 4)):
        assert history[f"{name}/f1"] == [scikit(cut([samples], seed))] * 2
    assert ["train/f1" in row for row in history.epochs] == [False, True, False, True]
    assert trainer.validate(cut([9], seed=1))["val/f1"] == scikit(cut([9], seed=1))


def test_two_numbers_and_two_classes():
    model = nn.Linear(4, 1)
    inputs, targets = tiny_data(20).tensors
    rows = list(zip(inputs.split(7), (targets == 1).float().unsqueeze(1).split(7), strict=True))
    package = BinaryResults() + RegressionResults()
    trainer = Trainer(model, criterion=nn.BCEWithLogitsLoss(), callbacks=[Evaluate(package)], device="cpu")
    found = trainer.validate(rows)
    scores = model(inputs).detach()[:, 0]
    assert found["val/roc_auc"] == pytest.approx(sk.roc_auc_score(targets == 1, scores))
    assert found["val/average_precision"] == pytest.approx(sk.average_precision_score(targets == 1, scores))
    assert found["val/rmse"] == pytest.approx(sk.root_mean_squared_error((targets == 1).double(), scores.double()))


@pytest.mark.parametrize("point", ["before_val_iter", "before_forward", "before_loss"])
def test_skipped_batches_are_left_out(point):
    skip = At(point, lambda run: run.skip_batch() if run.stage == "val" and run.batch_idx == 1 else None)
    batches = cut([5, 3, 8])
    assert made(Evaluate(ClassificationResults()), skip).validate(batches)["val/f1"] == scikit(batches[::2])


def test_a_pass_without_a_batch_has_no_result():
    skip = At("before_val_iter", lambda run: run.skip_batch())
    assert made(Evaluate(ClassificationResults()), skip).validate(cut([8])) == {}


def test_a_stop_in_validation_leaves_it_without_a_result():
    package = Seen()
    stop = At("after_val_iter", lambda run: run.stop("enough"))
    history = made(Evaluate(package), stop).fit(cut([8]), cut([4, 4]), epochs=2)
    assert package.given == []
    assert "val/seen" not in history


def test_accumulation_and_a_validation_inside_leave_it_alone():
    evaluate = Evaluate(ClassificationResults(), stages={"train", "val"})
    history = made(evaluate, Accumulate(2)).fit(cut([4] * 4), cut([5, 4], seed=1), epochs=2, validate_every="1 step")
    assert history["train/f1"] == [scikit(cut([16]))] * 2
    assert [row["val/f1"] for row in history.iters if "val/f1" in row] == [scikit(cut([9], seed=1))] * 4


def test_prepare_takes_other_forms_apart():
    class Main(MainCallback):
        def on_iter_forward(self, run):
            run.output = {"logits": run.model(run.batch["x"])}
            run.loss = run.output["logits"].mean()

    batches = [{"x": inputs, "kind": targets} for inputs, targets in cut([9, 7])]
    prepare = lambda run: (run.output["logits"], run.batch["kind"])  # noqa: E731
    inside = Evaluate(ClassificationResults(), prepare=prepare)
    nested = Evaluate(ClassificationResults(), prepare=prepare, loader=batches)
    history = made(Main(), inside, nested).fit(batches, batches, epochs=1)
    assert history["val/f1"] == history["eval/f1"] == [scikit(cut([16]))]


# A loader of its own -------------------------------------------------------------------------------------------------


def test_a_loader_of_its_own_is_gone_over_after_each_training_pass():
    class Watching(Callback):
        def after_train_epoch(self, run):
            models.append(copy.deepcopy(run.module).eval())

    models = []
    dropout = nn.Sequential(tiny_classifier(), nn.Dropout(0.5))
    loader = tiny_loader(20, 6, shuffle=True)
    evaluate = Evaluate(ClassificationResults(), loader=loader, name="held", every="2 epochs")
    history = made(evaluate, Watching(), lr=0.3, model=dropout).fit(cut([6, 10]), epochs=4)
    batches = list(tiny_loader(20, 20))
    assert history["held/f1"] == [scikit(batches, models[1]), scikit(batches, models[3])]
    assert len(set(history["held/f1"])) == 2
    assert ["held/f1" in row for row in history.epochs] == [False, True, False, True]


def test_a_loader_of_its_own_changes_nothing_in_the_training():
    states = []
    for more in ([], [Evaluate(ClassificationResults(), loader=tiny_loader(20, 6, shuffle=True))]):
        torch.manual_seed(0)
        model = nn.Sequential(tiny_classifier(), nn.BatchNorm1d(3), nn.Dropout(0.5))
        made(*more, lr=0.3, model=model).fit(tiny_loader(24, shuffle=True), epochs=3)
        states.append(model.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(*(s.values() for s in states), strict=True))


def test_what_it_measures_can_be_watched_in_the_same_epoch():
    best = []
    watch = Watch("held/accuracy")
    evaluate = Evaluate(ClassificationResults(), loader=cut([9], seed=1), name="held")
    trainer = made(evaluate, watch, At("after_best", lambda run: best.append(run.best)))
    trainer.fit(cut([8]), epochs=2)
    assert [(one.epoch, one.value) for one in best] == [(0, trainer.history["held/accuracy"][0])]


def test_after_a_stop_the_loader_is_left_alone():
    package = Seen()
    stop = At("after_train_iter", lambda run: run.stop("enough"))
    made(Evaluate(package, loader=cut([8])), stop).fit(cut([4, 4]), epochs=2)
    assert package.given == []


# The batch path ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", [None, cut([8])])
def test_it_plays_outside_the_step(loader):
    actions = {span.name for span in SPAN.values() if span.action}
    played = Evaluate(ClassificationResults(), stages={"train", "val"}, loader=loader).plays()
    assert not {POINTS[name].span for name in played} & (actions | {"fetch"})


def test_batches_wait_for_nothing(monkeypatch):
    trainer = made(Evaluate(Seen(), stages={"train"}), lr=0.1)

    def refuse(*args, **kwargs):
        raise AssertionError("a tensor was read on the host")

    with monkeypatch.context() as patch:
        for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__"):
            patch.setattr(torch.Tensor, name, refuse)
        trainer.fit(cut([6, 6, 4]), epochs=1)
    assert trainer.history["train/seen"] == [16]


# What fails ----------------------------------------------------------------------------------------------------------


class Broken(ResultPackage):
    def compute(self, predictions, targets):
        raise ZeroDivisionError("no such thing")


class Loss(ResultPackage):
    def compute(self, predictions, targets):
        return {"loss": 1.0}


class Texts(ResultPackage):
    def compute(self, predictions, targets):
        return {"words": "many"}


@pytest.mark.parametrize("loader", [None, cut([8])], ids=["pass", "loader"])
@pytest.mark.parametrize(
    ("package", "error"), [(Broken(), ZeroDivisionError), (Loss(), ValueError), (Texts(), TypeError)]
)
def test_a_package_that_raises_ends_the_run_or_is_left_out(package, error, loader):
    with pytest.raises(error) as caught:
        made(Evaluate(package, loader=loader)).fit(cut([8]), cut([8]), epochs=1)
    assert f"it was {package} of Evaluate" in "\n".join(caught.value.__notes__)
    with pytest.warns(UserWarning, match=f"goes on without {package}") as warned:
        history = made(Evaluate(package, loader=loader, on_error="warn")).fit(cut([8]), cut([8]), epochs=3)
    assert len(warned) == 1
    assert set(history.names()) == {"train/loss", "val/loss"}


@pytest.mark.parametrize("loader", [None, cut([4, 4])], ids=["pass", "loader"])
def test_a_prepare_that_raises(loader):
    evaluate = Evaluate(Seen(), loader=loader, prepare=lambda run: run.batch["x"], on_error="warn")
    with pytest.warns(UserWarning, match="goes on without Seen") as warned:
        made(evaluate).fit(cut([8]), cut([4, 4]), epochs=2)
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"package": ClassificationResults}, "package is an object with compute"),
        ({"package": 3}, "package is an object with compute"),
        ({"every": "3 steps"}, "every counts epochs"),
        ({"move": "never"}, 'move is "end" or "batch"'),
        ({"loader": iter([])}, "each time that it is gone over"),
        ({"loader": 3}, "each time that it is gone over"),
        ({"name": ""}, "name is what the results of a loader are called by"),
        ({"stages": {"pred"}}, "stages is some of train, val, test"),
        ({"on_error": None}, 'on_error is "raise" or "warn"'),
    ],
)
def test_arguments_that_make_no_sense_are_refused(more, said):
    arguments = {"package": ClassificationResults(), **more}
    with pytest.raises((TypeError, ValueError), match=said):
        Evaluate(**arguments)


# State ---------------------------------------------------------------------------------------------------------------


class Pair(nn.Module):
    """Gives a dict, which is collected as it comes."""

    def __init__(self):
        super().__init__()
        self.inner = tiny_classifier()

    def forward(self, x):
        return {"logits": self.inner(x)}


class Inner(ResultPackage):
    def compute(self, predictions, targets):
        return ClassificationResults().compute(predictions["logits"], targets)


@pytest.mark.parametrize("move", ["end", "batch"])
@pytest.mark.parametrize("form", ["tensor", "dict"])
@pytest.mark.parametrize("at", [1, 3])
def test_saved_in_the_middle_of_an_epoch_it_goes_on(at, form, move):
    batches, saved = cut([6, 5, 1, 4]), {}

    def new(evaluate, *more):
        model = tiny_classifier() if form == "tensor" else Pair()
        sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        cross = nn.CrossEntropyLoss()
        criterion = cross if form == "tensor" else lambda output, targets: cross(output["logits"], targets)
        return Trainer(model, sgd, criterion, callbacks=[evaluate, *more], device="cpu"), sgd

    def save(run):
        if run.clock.batches == at:
            states = (run.module.state_dict(), run.optimizer.state_dict(), first.state_dict())
            saved.update(zip(("model", "optimizer", "evaluate"), copy.deepcopy(states), strict=True))

    def evaluating():
        return Evaluate(ClassificationResults() if form == "tensor" else Inner(), stages={"train"}, move=move)

    first, second = evaluating(), evaluating()
    straight, _ = new(first, At("after_iter", save))
    expected = straight.fit(batches, epochs=1).epochs[-1]
    trainer, sgd = new(second)
    trainer.model.load_state_dict(saved["model"])
    sgd.load_state_dict(saved["optimizer"])
    second.load_state_dict(saved["evaluate"])
    assert str(second.state_dict()) == str(saved["evaluate"])
    found = trainer.fit(batches[at:], epochs=1).epochs[-1]
    assert {name: found[name] for name in expected if name != "train/loss" and name.startswith("train/")} == {
        name: value for name, value in expected.items() if name != "train/loss" and name.startswith("train/")
    }
    assert first.state_dict() == second.state_dict() == {"passes": {}}


def test_it_behaves_as_a_callback():
    check_callback(Evaluate(ClassificationResults(), loader=tiny_loader(6, 4), name="held", prepare=halves))


def halves(run):
    return run.output[:, :2], run.targets % 2


def test_explain_says_what_is_computed():
    assert Evaluate.example().explain() == "ClassificationResults over train, val, every 1 epoch"
    nested = Evaluate(BinaryResults() + RegressionResults(), loader=[1], name="held")
    assert nested.explain() == "BinaryResults + RegressionResults over held/* of a loader, every 1 epoch"
