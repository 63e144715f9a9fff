"""AllPredictionsSame: what it takes for the same, when it says so, and that it reads the device once a pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks.guards.same_predictions import AllPredictionsSame, all_same
from cadenza.testing import tiny_loader

pytestmark = pytest.mark.filterwarnings("ignore:.*The run is stopped:UserWarning")


class Table(nn.Module):
    """Answers with the rows of a table, whatever it is asked; its one parameter is never used."""

    def __init__(self, *rows):
        super().__init__()
        self.rows, self.at = [torch.tensor(row) for row in rows], 0
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        if self.training:
            return inputs[:, :3] * self.unused
        self.at += 1
        return self.rows[self.at - 1] + 0 * self.unused


class Quiet(Callback):
    reason = None

    def after_run(self, run):
        self.reason = run.stop_reason


def loss(output, targets):
    return output.float().sum() * 0


def run_over(rows, same, targets=None, main=()):
    """Validates once on as many batches as there are ``rows``; the number of epochs trained, and why it ended."""
    targets = targets if targets is not None else torch.zeros(2, dtype=torch.long)
    model = Table(*rows)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss,
        callbacks=[same, quiet := Quiet(), *main],
        device="cpu",
    )
    trainer.fit([(torch.ones(2, 4), targets)], [(torch.ones(2, 4), targets)] * len(rows), epochs=1)
    return quiet.reason


CLASS_1 = [[0.1, 0.9, 0.0], [-3.0, 2.0, 1.0]]
MIXED = [[0.1, 0.9, 0.0], [3.0, 2.0, 1.0]]
FLOATS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("rows", "options", "targets", "expected"),
    [
        ([CLASS_1, CLASS_1], {}, None, "all 4 predictions on the validation set are 1 (epoch 1)"),
        ([CLASS_1, MIXED], {}, None, None),
        ([MIXED, CLASS_1], {}, None, None),
        ([CLASS_1], {"value": 1}, None, "are 1"),
        ([CLASS_1], {"value": 0}, None, None),
        ([CLASS_1], {"predictions": "value"}, None, None),
        ([CLASS_1], {}, FLOATS, None),  # targets that are no whole numbers: the rows themselves are compared
        ([[[1.0, 2.0, 3.0]] * 2] * 2, {}, FLOATS, "all 4 predictions on the validation set are the same values"),
        ([[[0.5], [0.5]], [[0.5], [0.5]]], {}, None, "are 0.5"),
        ([[0.5, 0.5], [0.5, 0.75]], {}, None, None),
        ([[0.5, 0.5], [0.5, 0.75]], {"tolerance": 0.25}, None, "are 0.5"),
        ([[math.nan, math.nan]], {}, None, None),
        ([CLASS_1], {"predictions": lambda output: output[:, 0] < 0.05}, None, None),
        ([MIXED], {"predictions": lambda output: output[:, 1] > 0.5}, None, "are 1"),
    ],
)
def test_what_is_the_same(rows, options, targets, expected):
    reason = run_over(rows, AllPredictionsSame("stop", **options), targets)
    assert (reason is None) if expected is None else expected in reason


def test_pixels_of_one_class_are_the_same():
    pixels = torch.zeros(2, 3, 2, 2)
    pixels[:, 2] = 1.0
    assert "are 2" in run_over([pixels.tolist()], AllPredictionsSame("stop"), torch.zeros(2, 2, 2, dtype=torch.long))
    pixels[1, 0, 1, 1] = 5.0
    assert run_over([pixels.tolist()], AllPredictionsSame("stop"), torch.zeros(2, 2, 2, dtype=torch.long)) is None


def test_a_stop_is_warned_of_too():
    with pytest.warns(UserWarning, match="all 4 predictions .* are 1 .*The run is stopped") as told:
        assert run_over([CLASS_1, CLASS_1], AllPredictionsSame("stop")) is not None
    assert [one.filename for one in told] == [__file__]


def test_it_warns_by_default_and_training_goes_on():
    with pytest.warns(UserWarning, match="all 4 predictions on the validation set are 1"):
        assert run_over([CLASS_1, CLASS_1], AllPredictionsSame()) is None


def test_one_sample_is_always_the_same_and_says_nothing():
    assert run_over([CLASS_1[:1]], AllPredictionsSame("stop"), torch.zeros(1, dtype=torch.long)) is None


def test_each_loader_is_judged_for_itself():
    model = Table(CLASS_1, MIXED)
    one = [(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))]
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss,
        callbacks=[AllPredictionsSame()],
        device="cpu",
    )
    with pytest.warns(UserWarning, match="validation loader 'a'") as caught:
        trainer.fit(one, {"a": one, "b": one}, epochs=1)
    assert len(caught) == 1


@pytest.mark.parametrize("wrap", [lambda logits: {"logits": logits}, lambda logits: (logits, "more")])
def test_the_logits_are_found_in_dicts_and_tuples(wrap):
    class Wrapping(MainCallback):
        def on_val_forward(self, run):
            run.output = wrap(run.model(run.inputs))

        def on_iter_loss(self, run):
            run.loss = run.model.unused.sum()

    assert "are 1" in run_over([CLASS_1, CLASS_1], AllPredictionsSame("stop"), main=[Wrapping()])


def test_an_output_of_unknown_form_is_an_error_that_says_what_to_do():
    class Odd(MainCallback):
        def on_val_forward(self, run):
            run.output = object()

    with pytest.raises(TypeError, match="give predictions="):
        run_over([CLASS_1], AllPredictionsSame(), main=[Odd()])


class HostReads(TorchDispatchMode):
    """Counts the times that a value is asked for on the host."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_it_reads_the_device_once_a_validation():
    def reads(callbacks):
        model = nn.Linear(4, 3)
        sgd = torch.optim.SGD(model.parameters(), lr=0.0)
        trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
        with HostReads() as counted:
            trainer.fit(tiny_loader(48), tiny_loader(48), epochs=2)
        return counted.count

    assert reads([AllPredictionsSame("stop")]) - reads([]) == 2


def test_it_plays_in_validation_only_and_keeps_the_step_closed():
    same = AllPredictionsSame()
    model = nn.Linear(4, 3)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, callbacks=[same], device="cpu")
    seen = {}

    @trainer.on("before_run")
    def look(run):
        seen.update({stage: len(run.plan.players_at("after_forward", stage)) for stage in ("train", "val", "test")})

    trainer.fit(tiny_loader(), epochs=1)
    assert seen == {"train": 0, "val": 1, "test": 0}


def test_all_same_compares_with_each_other_or_with_a_reference_within_a_tolerance():
    assert bool(all_same(torch.tensor([1.0, 1.0])))
    assert not bool(all_same(torch.tensor([1.0, 1.5])))
    assert bool(all_same(torch.tensor([1.0, 1.5]), tolerance=0.5))
    assert bool(all_same(torch.tensor([[1, 2], [1, 2]]), torch.tensor([1, 2])))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "shout"}, '"warn" or "stop"'),
        ({"predictions": "argmax"}, '"class", "value"'),
        ({"tolerance": -1}, "at least 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        AllPredictionsSame(**arguments)
