"""Metrics: equal to those of the whole set at once, whatever is cut, skipped, stopped, saved or raised."""

from __future__ import annotations

import copy
import json
from functools import partial

import pytest
import torch
import torchmetrics
from torch import nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from cadenza import Callback, MainCallback, Order, Trainer, When
from cadenza.callbacks.measuring.metrics import Metrics
from cadenza.callbacks.measuring.per_sample import accuracy, mean_absolute_error, mean_squared_error, top_k_accuracy
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.points import POINTS, SPAN
from cadenza.testing import Recorder, check_callback, tiny_classifier, tiny_data

CUTS = ([16], [5, 3, 1, 7], [1] * 16, [15, 1])


def whole(samples=16, seed=3):
    inputs, targets = tiny_data(samples, seed=seed).tensors
    return inputs, targets


def cut(sizes, seed=3):
    inputs, targets = whole(sum(sizes), seed)
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def made(*callbacks, lr=0.0, main=()):
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[*main, *callbacks], device="cpu")


def at_once(function, seed=3, samples=16):
    inputs, targets = whole(samples, seed)
    with torch.no_grad():
        return function(tiny_classifier()(inputs), targets)


def share(output, targets):
    """One number for the batch."""
    return (output.argmax(1) == targets).double().mean()


def objects(classes=3):
    kinds = (MulticlassAccuracy, MulticlassF1Score, MulticlassAUROC)
    return torchmetrics.MetricCollection([kind(classes) for kind in kinds])


def probabilities(run):
    """Torchmetrics guesses from each batch whether scores are logits, and small ones can mislead it."""
    return run.output.softmax(1), run.targets


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_functions_over_ragged_batches_equal_the_whole_set_at_once(sizes):
    functions = {
        "accuracy": accuracy,
        "share": share,
        "top": partial(top_k_accuracy, k=2),
        "number": lambda output, targets: float(len(targets)),
    }
    found = made(Metrics(functions)).validate(cut(sizes))
    assert found["val/accuracy"] == found["val/share"] == at_once(accuracy).double().mean()
    assert found["val/top"] == at_once(functions["top"]).double().mean()
    assert found["val/number"] == sum(n * n for n in sizes) / 16
    assert 0 < found["val/accuracy"] < found["val/top"] < 1


@pytest.mark.parametrize("sizes", CUTS, ids=str)
def test_torchmetrics_over_ragged_batches_equal_the_whole_set_at_once(sizes):
    metrics = Metrics({"f1": MulticlassF1Score(3), "all": objects()}, prepare=probabilities)
    found = made(metrics).validate(cut(sizes))
    expected = at_once(lambda output, targets: objects()(output.softmax(1), targets))
    assert found["val/f1"] == pytest.approx(float(expected["MulticlassF1Score"]), abs=1e-6)
    for name, value in expected.items():
        assert found[f"val/all/{name}"] == pytest.approx(float(value), abs=1e-6)


def test_errors_of_numbers():
    model = nn.Linear(2, 1)
    inputs, targets = torch.randn(10, 2), torch.randn(10)
    trainer = Trainer(
        model,
        criterion=lambda output, targets: (output[:, 0] - targets).square().mean(),
        callbacks=[Metrics({"mae": mean_absolute_error, "mse": mean_squared_error})],
        device="cpu",
    )
    found = trainer.validate([(inputs[:7], targets[:7]), (inputs[7:], targets[7:])])
    errors = (model(inputs)[:, 0] - targets).detach().double()
    assert found["val/mae"] == pytest.approx(float(errors.abs().mean()), rel=1e-6)
    assert found["val/mse"] == pytest.approx(found["val/loss"], rel=1e-6)


def test_values_over_positions_and_soft_labels():
    output = torch.tensor([[[2.0, 0.0, 0.0, 9.0], [1.0, 1.0, 1.0, 1.0]]])  # one sample, two classes, four positions
    assert accuracy(output, torch.tensor([[0, 1, 1, 1]])).tolist() == [0.75]
    scores = torch.tensor([[0.2, 0.8], [0.9, 0.1]])
    assert accuracy(scores, torch.tensor([[0.4, 0.6], [0.3, 0.7]])).tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="need targets of shape"):
        accuracy(torch.zeros(4, 2), torch.zeros(4, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="from 1 to the number of classes, here 2, not 5"):
        top_k_accuracy(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="do not match"):
        mean_absolute_error(torch.zeros(4, 1), torch.zeros(4, 4))


def test_each_stage_and_each_loader_has_its_own():
    metrics = Metrics({"accuracy": accuracy, "f1": MulticlassF1Score(3)}, stages={"train", "val", "test"})
    loaders = {"a": cut([5, 4], seed=1), "b": cut([2, 2], seed=2)}
    history = made(metrics).fit(cut([6, 10]), loaders, epochs=2, test_loaders=cut([3, 1], seed=5))
    for name, seed, samples in (("train", 3, 16), ("val/a", 1, 9), ("val/b", 2, 4), ("test", 5, 4)):
        assert history[f"{name}/accuracy"] == [at_once(accuracy, seed, samples).double().mean()] * 2
        expected = at_once(lambda output, targets: MulticlassF1Score(3)(output, targets), seed, samples)
        assert history[f"{name}/f1"] == pytest.approx([float(expected)] * 2)


def test_training_sees_the_outputs_that_the_steps_were_made_from():
    model, seen = tiny_classifier(), []
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for inputs, targets in cut([6, 6, 4]):
        output = model(inputs)
        seen += (output.argmax(1) == targets).tolist()
        nn.functional.cross_entropy(output, targets).backward()
        sgd.step()
        sgd.zero_grad()
    trainer = made(Metrics({"accuracy": accuracy}, stages={"train"}), lr=0.5)
    assert trainer.fit(cut([6, 6, 4]), epochs=1)["train/accuracy"] == [sum(seen) / 16]


def test_a_validation_inside_training_leaves_the_training_alone():
    metrics = Metrics({"accuracy": accuracy, "f1": MulticlassF1Score(3)}, stages={"train", "val"})
    history = made(metrics).fit(cut([4] * 4), cut([5, 4], seed=1), epochs=1, validate_every="2 steps")
    assert history["train/accuracy"] == [at_once(accuracy).double().mean()]
    inside = [row for row in history.iters if "val/accuracy" in row]
    assert [row["step"] for row in inside] == [2, 4]
    assert all(row["val/accuracy"] == at_once(accuracy, 1, 9).double().mean() for row in inside)


def test_an_own_object_a_dict_and_a_row_of_numbers():
    class Extremes:
        def reset(self):
            self.values = []

        def update(self, output, targets):
            self.values.append(output.max())

        def compute(self):
            return {"max": max(self.values), "each": torch.stack(self.values)}

    found = made(Metrics({"output": Extremes()})).validate(cut([8, 8]))
    assert found["val/output/max"] == max(found["val/output/each/0"], found["val/output/each/1"])


def test_the_users_object_is_not_touched():
    mine = MulticlassAccuracy(3)
    made(Metrics({"accuracy": mine})).validate(cut([8, 8]))
    assert mine.update_count == 0
    assert mine.tp.sum() == 0


def test_prepare_takes_other_forms_apart():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_classifier()

        def forward(self, pixels):
            return {"logits": self.inner(pixels)}

    batches = [{"pixels": inputs, "kind": targets} for inputs, targets in cut([9, 7])]

    class Main(MainCallback):
        def on_iter_forward(self, run):
            run.output = run.model(run.batch["pixels"])
            run.loss = run.output["logits"].mean()

    metrics = Metrics({"accuracy": accuracy}, prepare=lambda run: (run.output["logits"], run.batch["kind"]))
    trainer = Trainer(Wrapped(), callbacks=[Main(), metrics], device="cpu")
    assert trainer.validate(batches)["val/accuracy"] == at_once(accuracy).double().mean()


# Skip, stop, accumulation, windows -----------------------------------------------------------------------------------


class At(Callback):
    order = Order.SAVE

    def __init__(self, point, act):
        self.point, self.act = point, act

    def plays(self):
        return {self.point: self.act}


def skipping(point, index):
    return At(point, lambda run: run.skip_batch() if run.batch_idx == index and run.stage == "val" else None)


@pytest.mark.parametrize("point", ["before_iter", "before_val_iter", "before_forward", "after_forward", "before_loss"])
def test_skipped_batches_are_left_out(point):
    metrics = Metrics({"accuracy": accuracy, "f1": MulticlassF1Score(3)})
    found = made(metrics, skipping(point, 1)).validate(cut([5, 3, 8]))
    rest = cut([5, 3, 8])
    expected = made(Metrics({"accuracy": accuracy, "f1": MulticlassF1Score(3)})).validate([rest[0], rest[2]])
    assert found == expected


def test_a_pass_whose_batches_were_all_skipped_has_no_value():
    found = made(Metrics({"accuracy": accuracy, "f1": MulticlassF1Score(3)}), skipping("before_iter", 0)).validate(
        cut([8])
    )
    assert found == {}


def test_a_skipped_backward_still_measures_and_a_held_step_changes_nothing():
    skip = At("before_backward", lambda run: run.skip_backward() if run.batch_idx == 0 else None)
    for more in ([skip], [Accumulate(2)], []):
        trainer = made(Metrics({"accuracy": accuracy}, stages={"train"}), *more)
        assert trainer.fit(cut([6, 6, 4]), epochs=1)["train/accuracy"] == [at_once(accuracy).double().mean()]


def test_a_stop_in_validation_leaves_it_without_a_result():
    stop = At("after_val_iter", lambda run: run.stop("enough") if run.batch_idx == 0 else None)
    metrics = Metrics({"accuracy": accuracy}, stages={"train", "val"})
    trainer = made(metrics, stop)
    history = trainer.fit(cut([8, 8]), cut([4, 4]), epochs=2)
    assert "val/accuracy" not in history
    assert "val/loss" not in history
    assert history["train/accuracy"] == [at_once(accuracy).double().mean()]


def test_a_stop_in_training_measures_what_was_trained():
    stop = At("after_train_iter", lambda run: run.stop("enough"))
    history = made(Metrics({"accuracy": accuracy}, stages={"train"}), stop).fit(cut([8, 8]), epochs=2)
    inputs, targets = cut([8, 8])[0]
    assert history["train/accuracy"] == [accuracy(tiny_classifier()(inputs), targets).double().mean()]


def test_after_an_error_a_further_fit_begins_anew():
    fail = At("after_train_iter", lambda run: 1 / 0 if run.clock.batches == 1 else None)
    trainer = made(Metrics({"accuracy": accuracy, "f1": MulticlassF1Score(3)}, stages={"train"}), fail)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(cut([8, 8]), epochs=1)
    assert trainer.fit(cut([8, 8]), epochs=1)["train/accuracy"] == [at_once(accuracy).double().mean()]


def test_within_a_window_only_its_epochs_are_measured():
    history = made(When(Metrics({"accuracy": accuracy}), every="2 epochs")).fit(cut([16]), cut([8, 8]), epochs=4)
    assert ["val/accuracy" in row for row in history.epochs] == [False, True, False, True]


def test_in_a_loop_of_ones_own_batches_without_an_output_are_left_out():
    trainer = made(Metrics({"accuracy": accuracy}))
    with trainer.run(epochs=1) as run:
        for _ in run.epochs():
            for _ in run.train(cut([16])):
                run.train_step()
            for _ in run.validate(cut([8, 8])):
                if run.batch_idx == 0:
                    run.eval_step()
    inputs, targets = cut([8, 8])[0]
    assert trainer.history["val/accuracy"] == [accuracy(tiny_classifier()(inputs), targets).double().mean()]


def test_added_in_the_middle_of_a_run():
    trainer = made()
    metrics = Metrics({"accuracy": accuracy}, stages={"train"})
    trainer.on("after_train_iter")(lambda run: trainer.add(metrics) if run.clock.batches == 1 else None)
    inputs, targets = cut([8, 8])[1]
    expected = accuracy(tiny_classifier()(inputs), targets).double().mean()
    assert trainer.fit(cut([8, 8]), epochs=1)["train/accuracy"] == [expected]


# The batch path ------------------------------------------------------------------------------------------------------


def test_it_plays_outside_the_step():
    actions = {span.name for span in SPAN.values() if span.action}
    played = Metrics({"accuracy": accuracy}, stages={"train", "val"}).plays()
    assert not {POINTS[name].span for name in played} & (actions | {"fetch"})


READS = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__")


def test_nothing_waits_for_the_device(monkeypatch):
    class Sum:
        def reset(self):
            self.total = torch.zeros(())

        def update(self, output, targets):
            self.total = self.total + output.sum()

        def compute(self):
            return self.total

    metrics = {"accuracy": accuracy, "share": share, "top": partial(top_k_accuracy, k=2), "sum": Sum()}
    trainer = made(Metrics(metrics, stages={"train", "val"}), lr=0.1)

    def refuse(*args, **kwargs):
        raise AssertionError("a tensor was read on the host")

    with monkeypatch.context() as patch:
        for name in READS:
            patch.setattr(torch.Tensor, name, refuse)
        trainer.fit(cut([6, 6, 4]), cut([5, 4], seed=1), epochs=2)
    assert len(trainer.history["val/sum"]) == 2


def test_graphs_are_not_kept():
    kept = []

    class Keep:
        def reset(self): ...

        def update(self, output, targets):
            kept.append(output)

        def compute(self):
            return 0.0

    made(Metrics({"keep": Keep()}, stages={"train"})).fit(cut([8, 8]), epochs=1)
    assert [output.grad_fn for output in kept] == [None, None]


# What fails ----------------------------------------------------------------------------------------------------------


def broken(output, targets):
    raise ZeroDivisionError("no such thing")


class BrokenAtTheEnd:
    def reset(self): ...

    def update(self, output, targets): ...

    def compute(self):
        raise ZeroDivisionError("no such thing")


class Square(BrokenAtTheEnd):
    def compute(self):
        return torch.zeros(2, 2)


@pytest.mark.parametrize("metric", [broken, BrokenAtTheEnd()], ids=["function", "object"])
def test_a_metric_that_raises_ends_the_run_with_its_name(metric):
    with pytest.raises(ZeroDivisionError) as caught:
        made(Metrics({"accuracy": accuracy, "mine": metric})).validate(cut([8, 8]))
    notes = "\n".join(caught.value.__notes__)
    assert "the metric 'mine' of Metrics" in notes
    assert "raised in Metrics at" in notes


def wrong_shape(output, targets):
    return torch.zeros(3)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (broken, "ZeroDivisionError: no such thing"),
        (BrokenAtTheEnd(), "ZeroDivisionError: no such thing"),
        (Square(), r"must be one real number, not a tensor of shape \(2, 2\)"),
        (wrong_shape, r"shape \(3,\) for a batch of 8 samples"),
    ],
)
def test_with_warn_it_is_left_out_once_and_the_rest_goes_on(metric, said):
    trainer = made(Metrics({"mine": metric, "accuracy": accuracy}, on_error="warn"))
    with pytest.warns(UserWarning, match=said) as warned:
        history = trainer.fit(cut([8, 8]), cut([8, 8]), epochs=3)
    assert len(warned) == 1
    assert "Metrics goes on without the metric 'mine'" in str(warned[0].message)
    assert history["val/accuracy"] == [at_once(accuracy).double().mean()] * 3
    assert "val/mine" not in history
    with pytest.warns(UserWarning, match="goes on without"):
        trainer.validate(cut([8]))  # the next run tries again


def test_a_prepare_that_raises_is_one_failure():
    metrics = Metrics({"a": accuracy, "b": share}, prepare=lambda run: run.batch["x"], on_error="warn")
    with pytest.warns(UserWarning, match="output and targets for a, b") as warned:
        found = made(metrics).validate(cut([8, 8]))
    assert len(warned) == 1
    assert set(found) == {"val/loss"}
    with pytest.raises(TypeError):
        made(Metrics({"a": accuracy}, prepare=lambda run: run.batch["x"])).validate(cut([8, 8]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (({},), "metrics is a dict"),
        (({"loss": accuracy},), "the run itself measures the loss"),
        (({"": accuracy},), "the name of a metric is a text"),
        (({"a": MulticlassAccuracy},), "MulticlassAccuracy is a class; give an instance"),
        (({"a": 3},), "function of output and targets or an object"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, said):
    with pytest.raises((TypeError, ValueError), match=said):
        Metrics(*arguments)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stages": {"pred"}}, "stages is some of train, val, test"),
        ({"stages": ()}, "stages is some of"),
        ({"on_error": "ignore"}, 'on_error is "raise" or "warn"'),
        ({"prepare": 3}, "prepare is a function"),
    ],
)
def test_refusals_of_options(more, said):
    with pytest.raises((TypeError, ValueError), match=said):
        Metrics({"accuracy": accuracy}, **more)


def test_two_of_them_need_two_names():
    one, other = Metrics({"accuracy": accuracy}), Metrics({"share": share}, stages={"train"})
    with pytest.raises(TypeError, match=r"give one of them another \.name"):
        made(one, other)
    other.name = "shares"
    assert set(made(one, other).fit(cut([8]), cut([8]), epochs=1).names()) == {
        "train/loss",
        "train/share",
        "val/accuracy",
        "val/loss",
    }


# State ---------------------------------------------------------------------------------------------------------------


def measuring(classes=3):
    metrics = {"accuracy": accuracy, "share": share, "f1": MulticlassF1Score(classes), "all": objects(classes)}
    return Metrics(metrics, stages={"train", "val"})


def through_json(value):
    """What a checkpoint does to a state: tensors by themselves, the rest as JSON."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {json.loads(json.dumps(key)): through_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [through_json(inner) for inner in value]
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_saved_in_the_middle_of_an_epoch_it_goes_on_bit_equal(at):
    batches = cut([6, 5, 1, 4])
    saved = {}

    def save(run):
        if run.clock.batches == at:
            saved.update(
                model=copy.deepcopy(run.module.state_dict()),
                optimizer=copy.deepcopy(run.optimizer.state_dict()),
                metrics=through_json(metrics.state_dict()),
            )

    metrics = measuring()
    straight = made(metrics, At("after_iter", save), lr=0.5)
    expected = straight.fit(batches, epochs=1).epochs[-1]
    kept = copy.deepcopy(saved["metrics"])
    resumed = measuring()
    trainer = made(resumed, lr=0.5)
    trainer.model.load_state_dict(saved["model"])
    trainer._training.optimizers[0].load_state_dict(saved["optimizer"])
    resumed.load_state_dict(saved["metrics"])
    found = trainer.fit(batches[at:], epochs=1).epochs[-1]
    names = [name for name in expected if name.startswith("train/") and name != "train/loss"]
    assert len(names) == 6
    assert {name: found[name] for name in names} == {name: expected[name] for name in names}
    assert str(saved["metrics"]) == str(kept)  # going on did not change what was saved
    assert metrics.state_dict() == resumed.state_dict() == {"passes": {}}


def test_a_state_survives_until_the_pass_goes_on():
    metrics, states = measuring(), []
    made(metrics, At("after_iter", lambda run: states.append(through_json(metrics.state_dict())))).fit(
        cut([6, 10]), epochs=1
    )
    fresh = measuring()
    fresh.load_state_dict(copy.deepcopy(states[0]))
    assert str(fresh.state_dict()) == str(states[0])
    assert list(states[0]["passes"]) == ["train/"]


def test_taken_back_in_the_middle_of_a_pass():
    metrics, states = measuring(), []

    def act(run):
        states.append(through_json(metrics.state_dict()))
        if run.batch_idx == 2:
            metrics.load_state_dict(states[0])  # as if batches 1 and 2 had not been

    history = made(metrics, At("after_iter", act)).fit(cut([6, 5, 5]), epochs=1)
    inputs, targets = cut([6, 5, 5])[0]
    assert history["train/accuracy"] == [accuracy(tiny_classifier()(inputs), targets).double().mean()]


def test_an_object_without_a_state_begins_anew():
    class Count:
        def reset(self):
            self.count = 0

        def update(self, output, targets):
            self.count += len(targets)

        def compute(self):
            return self.count

    metrics, states = Metrics({"count": Count()}, stages={"train"}), []
    made(metrics, At("after_iter", lambda run: states.append(metrics.state_dict()))).fit(cut([6, 10]), epochs=1)
    fresh = Metrics({"count": Count()}, stages={"train"})
    fresh.load_state_dict(states[0])
    assert made(fresh).fit(cut([6, 10])[1:], epochs=1)["train/count"] == [10]


def test_it_behaves_as_a_callback():
    check_callback(measuring(classes=2))


def test_explain_says_what_is_measured():
    assert Metrics.example().explain() == "accuracy over train, val"
    assert "accuracy over train, val" in str(made(Metrics.example(), Recorder(["after_run"])).explain())


class Judge:
    """A metric with weights of its own, as those that a network decides."""

    def __init__(self):
        self.layer = nn.Linear(3, 1)
        self.reset()

    def reset(self):
        self.scores = []

    def update(self, output, targets):
        self.scores.append(self.layer(output).mean())

    def compute(self):
        assert not any(score.requires_grad for score in self.scores)  # else every batch of a pass would be kept
        return torch.stack(self.scores).mean()


def test_a_metric_with_weights_of_its_own_keeps_no_graph():
    judge = Judge()
    metrics = {"object": judge, "function": lambda output, targets: judge.layer(output).numpy().mean()}
    measured = Metrics(metrics, stages={"train", "val"})
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[measured], device="cpu")
    history = trainer.fit(cut([8, 8]), cut([8, 8]), epochs=1)
    for stage in ("train", "val"):
        assert history[f"{stage}/object"] == pytest.approx(history[f"{stage}/function"])
    assert torch.is_grad_enabled()
