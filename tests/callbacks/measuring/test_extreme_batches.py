"""ExtremeBatches: the batch that a search by hand finds, on every stage, and copies that nobody can change."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.measuring.extreme_batches import ExtremeBatches, _Candidate, _Search, copied
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.testing import check_callback, tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def made(*callbacks, lr=0.1, criterion=LOSS):
    model = tiny_classifier()
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=lr), criterion, callbacks=callbacks, device="cpu")


def losses_by_hand(loader, model, train=True):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for inputs, targets in loader:
        loss = LOSS(model(inputs), targets)
        losses.append(loss.item())
        if train:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses


def test_the_batches_that_a_search_by_hand_finds():
    extremes, model = ExtremeBatches(keep="both"), tiny_classifier()
    trainer = made(extremes)
    train, val = list(tiny_loader(48)), list(tiny_loader(44, seed=1))
    trainer.fit(train, val, epochs=1)
    expected = {"train": losses_by_hand(train, model), "val": losses_by_hand(val, model, train=False)}
    assert trainer.store["extreme_batches"] is extremes.found
    for stage, data in (("train", train), ("val", val)):
        losses = expected[stage]
        for kind, choose in (("best", min), ("worst", max)):
            found, index = extremes.found[stage][kind], losses.index(choose(losses))
            assert (found.value, found.batch_idx, found.epoch) == (losses[index], index, 0)
            assert torch.equal(found.batch[0], data[index][0])
            assert torch.equal(found.batch[1], data[index][1])
            assert found.output is None


class Scores(nn.Module):
    """The mean of the first target value is the loss."""

    def forward(self, output, targets):
        return targets.float().mean() + 0 * output.sum()


def batches(*values):
    """Batches whose targets have these values, and whose inputs do too unless that would spoil the model."""
    return [(torch.full((2, 4), float(value)).nan_to_num(), torch.full((2,), float(value))) for value in values]


def found_by(extremes, values, **fit):
    trainer = made(extremes, criterion=Scores())
    trainer.fit(batches(*values), epochs=1, **fit)
    return {kind: (one.batch_idx, one.batch[1][0].item()) for kind, one in extremes.found["train"].items()}


@pytest.mark.parametrize(
    ("values", "best", "worst"),
    [
        ((1, 3, 2), (0, 1), (1, 3)),
        ((2, 2, 2), (0, 2), (0, 2)),  # equal is not better: the first is kept
        ((2, math.nan, 9, math.nan), (0, 2), (1, math.nan)),
        ((math.nan, 5), (1, 5), (0, math.nan)),
    ],
)
def test_ties_and_nan(values, best, worst):
    found = found_by(ExtremeBatches(keep="both"), values)
    assert found["best"] == best
    assert found["worst"] == pytest.approx(worst, nan_ok=True)


def test_max_is_better():
    def height(run):
        return run.targets.max()

    assert found_by(ExtremeBatches(height, keep="both", mode="max"), (1, 3, 2)) == {"best": (1, 3), "worst": (0, 1)}


class LogMetric(Callback):
    """Logs in every second batch only."""

    def after_loss(self, run):
        if run.batch_idx % 2 == 0:
            run.log(f"{run.stage}/accuracy", run.targets.mean())


def test_a_metric_counts_in_the_iterations_that_logged_it():
    extremes = ExtremeBatches("train/accuracy", keep="both")
    trainer = made(extremes, LogMetric(), criterion=Scores())
    trainer.fit(batches(5, 0, 7, 9, 6), batches(1), epochs=1)
    found = extremes.found["train"]
    assert (found["best"].batch_idx, found["best"].value) == (2, 7.0)
    assert (found["worst"].batch_idx, found["worst"].value) == (0, 5.0)
    assert list(extremes.found) == ["train"]


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("train/acuracy", "no metric 'train/acuracy'; did you mean 'train/accuracy'"),
        ("val/loss", "measured once a pass"),
    ],
)
def test_a_metric_that_no_iteration_logs_is_an_error_at_the_end_of_the_first_pass(by, words):
    trainer = made(ExtremeBatches(by), LogMetric(), criterion=Scores())
    with pytest.raises(KeyError, match=words):
        trainer.fit(batches(1, 2), batches(3), epochs=3, validate_every="1 step")
    assert trainer.clock.epochs == 0


def test_every_stage_and_every_loader_for_itself():
    extremes = ExtremeBatches(lambda run: run.inputs.max(), mode="min", stages=("train", "val", "test", "pred"))
    trainer = made(extremes, criterion=Scores())
    trainer.fit(
        batches(*[0] * 3), {"day": batches(0, 1), "night": batches(2, 0)}, epochs=1, test_loaders=batches(0, 0, 4)
    )
    indices = {name: found["worst"].batch_idx for name, found in extremes.found.items()}
    assert indices == {"train": 0, "val/day": 1, "val/night": 0, "test": 2}
    trainer.predict(batches(1, 2))
    assert {name: found["worst"].batch_idx for name, found in extremes.found.items()} == {"pred": 1}


def test_validation_inside_a_training_pass_does_not_mix_with_it():
    extremes = ExtremeBatches()
    trainer = made(extremes, criterion=Scores())
    trainer.fit(batches(1, 5, 2, 3), batches(9, 8), epochs=1, validate_every="2 steps")
    assert {name: found["worst"].value for name, found in extremes.found.items()} == {"train": 5.0, "val": 9.0}


def test_each_epoch_has_its_own():
    extremes, seen = ExtremeBatches(stages={"val"}), []
    trainer = made(extremes)
    trainer.on("after_epoch")(lambda run: seen.append(run.store["extreme_batches"]["val"]["worst"]))
    trainer.fit(tiny_loader(48), tiny_loader(24), epochs=3)
    trainer.fit(tiny_loader(48), tiny_loader(24), epochs=1)
    assert [one.epoch for one in seen] == [0, 1, 2, 3]
    assert len({one.value for one in seen}) == 4
    assert list(trainer.store["extreme_batches"]) == ["val"]


def test_the_batch_is_a_copy_and_the_output_is_kept_if_asked():
    class Reusing:
        """Gives the same tensors again and again, filled anew."""

        def __iter__(self):
            inputs, targets = torch.empty(2, 4), torch.empty(2)
            for value in (1.0, 4.0, 2.0):
                inputs.fill_(value), targets.fill_(value)
                yield inputs, targets

    extremes = ExtremeBatches(outputs=True)
    trainer = made(extremes, criterion=Scores(), lr=0.0)
    trainer.fit(Reusing(), epochs=1)
    worst = extremes.found["train"]["worst"]
    assert torch.equal(worst.batch[0], torch.full((2, 4), 4.0))
    assert torch.equal(worst.output, trainer.model(worst.batch[0]))
    assert not worst.output.requires_grad


class Skip(Callback):
    asks = frozenset({"skip_batch"})

    def __init__(self, point):
        self.point = point

    def plays(self):
        return {self.point: lambda run: run.skip_batch() if run.batch_idx == 1 else None}


@pytest.mark.parametrize("point", ["before_train_iter", "before_forward", "before_loss"])
def test_a_skipped_batch_does_not_count(point):
    extremes = ExtremeBatches()
    made(Skip(point), extremes, criterion=Scores()).fit(batches(1, 9, 3), epochs=1)
    assert extremes.found["train"]["worst"].value == 3.0


def test_accumulation_does_not_weigh_the_loss():
    extremes = ExtremeBatches()
    made(Accumulate(2), extremes, criterion=Scores()).fit(batches(1, 9, 3), epochs=1)
    assert extremes.found["train"]["worst"].value == 9.0


def test_a_stop_keeps_what_was_seen_and_an_error_lets_go():
    extremes = ExtremeBatches()
    trainer = made(extremes, criterion=Scores())
    trainer.on("after_train_iter")(lambda run: run.stop() if run.batch_idx == 1 else None)
    trainer.fit(batches(4, 1, 9), epochs=1)
    assert extremes.found["train"]["worst"].value == 4.0
    failing = ExtremeBatches()
    trainer = made(failing, criterion=Scores())
    trainer.on("after_train_iter")(lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(batches(4, 1, 9), epochs=1)
    assert (failing.found, failing._open) == ({}, {})


def test_values_that_wait_are_read_together_and_in_order():
    search = _Search(("best", "worst"), higher_is_better=False, read_every=3)
    search.waiting = [
        _Candidate(torch.tensor(value), 0, index, None, None) for index, value in enumerate((2.0, 1.0, 3.0, 3.0))
    ]
    assert {kind: one.batch_idx for kind, one in search.kept().items()} == {"best": 1, "worst": 2}
    assert search.waiting == []


Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Named:
    x: torch.Tensor
    label: str


def test_copies_keep_their_form():
    x = torch.ones(2, requires_grad=True)
    value = {"pair": Pair(x, 3), "list": [x * 2], "named": Named(x, "a")}
    copy = copied(value)
    with torch.no_grad():
        x.fill_(7.0)
    assert type(copy["pair"]) is Pair
    assert copy["pair"].x.tolist() == [1.0, 1.0]
    assert copy["named"] == Named(copy["named"].x, "a")
    assert not copy["list"][0].requires_grad
    view = torch.zeros(1000)[:2]
    assert copied(view).untyped_storage().nbytes() == 8, "only what the view shows is kept"


def test_the_step_stays_closed_and_weights_are_bit_equal():
    plain, watched = made(), made(ExtremeBatches(keep="both"))
    for trainer in (plain, watched):
        trainer.fit(tiny_loader(), tiny_loader(), epochs=2)
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    inside = {"forward", "loss", "backward", "step", "zero_grad"}
    assert not any(point.split("_", 1)[1] in inside for point in ExtremeBatches().plays())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"by": 3}, TypeError, 'by is "loss"'),
        ({"by": lambda run: 1}, ValueError, 'mode="min"'),
        ({"keep": "all"}, ValueError, '"worst", "best" or "both"'),
        ({"mode": "up"}, ValueError, '"min" or "max"'),
        ({"stages": {"training"}}, ValueError, "train, val, test, pred"),
        ({"stages": {"pred"}}, ValueError, "a prediction has no loss"),
        ({"read_every": 0}, ValueError, "at least 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        ExtremeBatches(**arguments)


def test_explain_says_what_was_inferred():
    assert ExtremeBatches("val/accuracy", keep="best").explain() == (
        "keeps the best batch of a pass by val/accuracy, higher is better"
    )


@pytest.mark.parametrize("callback", [ExtremeBatches(keep="both", stages="test")])
def test_it_survives_what_can_happen_to_a_callback(callback):
    check_callback(callback)


def test_a_name_of_no_stage_that_nobody_logs_is_told_at_the_end():
    with pytest.warns(UserWarning, match="ExtremeBatches kept nothing: .* no metric 'hardness'"):
        made(ExtremeBatches("hardness", mode="max")).fit(tiny_loader(), epochs=1)
