"""GradientStats: what it logs against values computed by hand, when it looks, and that nothing is read on the way."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks.measuring.gradient_stats import GradientStats, gradient_stats
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.clip import GradientClip
from cadenza.testing import check_callback, tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()
NAMES = ("norm", "mean", "std", "zeros")


def made(*callbacks, model=None, lr=0.1):
    model = tiny_classifier() if model is None else model
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=lr), LOSS, callbacks=callbacks, device="cpu")


def by_hand(gradients):
    """The four values over all elements, put into one vector first."""
    flat = torch.cat([gradient.flatten() for gradient in gradients]).double()
    return {
        "norm": flat.square().sum().sqrt().item(),
        "mean": flat.mean().item(),
        "std": flat.std(correction=0).item(),
        "zeros": (flat == 0).double().mean().item(),
    }


def logged(history, group):
    return [{name: row[f"train/gradients/{group}/{name}"] for name in NAMES} for row in rows(history)]


def rows(history):
    return [row for row in history.iters if any("gradients" in name for name in row)]


def hand_written(model, batches, accumulate=1):
    """The gradients of every step of a plain loop."""
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.1), []
    for index, (inputs, targets) in enumerate(batches):
        (LOSS(model(inputs), targets) / accumulate).backward()
        if (index + 1) % accumulate == 0:
            steps.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
            optimizer.step()
            optimizer.zero_grad()
    return steps


def of_layer(step, layer):
    return [gradient for name, gradient in step.items() if name.startswith(layer)]


def test_every_value_is_that_of_a_loop_of_ones_own():
    model = tiny_classifier()
    with torch.no_grad():
        model[0].bias[0] = -100.0  # a dead unit
    trainer = made(GradientStats(every="2 steps"), model=copy.deepcopy(model))
    history = trainer.fit(tiny_loader(48), epochs=1)
    steps = hand_written(model, tiny_loader(48))[1::2]
    assert [row["step"] for row in rows(history)] == [2, 4, 6]
    for group in ("0", "2", "all"):
        expected = [by_hand(of_layer(step, "" if group == "all" else group)) for step in steps]
        for found, wanted in zip(logged(history, group), expected, strict=True):
            assert found == pytest.approx(wanted, rel=1e-4, abs=1e-7)
    assert logged(history, "0")[0]["zeros"] == pytest.approx(5 / 40), "four weights and a bias of the dead unit"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (1, ["body", "head", "model"]),
        (2, ["body.0", "body.2", "head", "model"]),
        (lambda name: "biases" if name.endswith("bias") else None, ["biases"]),
    ],
)
def test_parameters_are_grouped_by_parts_of_their_names_or_by_a_function(groups, expected):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.scale = tiny_classifier(), nn.Linear(3, 3), nn.Parameter(torch.ones(3))

        def forward(self, inputs):
            return self.head(self.body(inputs)) * self.scale

    history = made(GradientStats("1 step", groups=groups), model=Net()).fit(tiny_loader(8), epochs=1)
    assert [name.split("/")[2] for name in history.names() if name.endswith("norm")] == sorted([*expected, "all"])


def test_accumulated_gradients_are_complete_and_looked_at_once_a_step():
    trainer = made(Accumulate(2), GradientStats("2 steps"))
    history = trainer.fit(tiny_loader(48), epochs=1)
    steps = hand_written(tiny_classifier(), tiny_loader(48), accumulate=2)
    (found,) = logged(history, "all")
    assert found == pytest.approx(by_hand(steps[1].values()), rel=1e-4)


def test_after_backward_sees_the_window_grow():
    history = made(Accumulate(2), GradientStats("2 steps", at="after_backward")).fit(tiny_loader(48), epochs=1)
    found = logged(history, "all")
    assert [row["batch"] for row in rows(history)] == [3, 4]
    steps = hand_written(tiny_classifier(), tiny_loader(48), accumulate=2)
    assert found[1] == pytest.approx(
        by_hand(steps[1].values()), rel=1e-4
    )  # each batch was back-propagated as its share
    assert found[0]["norm"] != pytest.approx(found[1]["norm"])


def test_before_the_step_it_sees_what_the_clip_left():
    history = made(GradientClip(norm=0.01, log=True), GradientStats("1 step")).fit(tiny_loader(), epochs=1)
    assert [row["train/gradients/all/norm"] for row in rows(history)] == pytest.approx([0.01] * 3, rel=1e-3)
    assert history["train/gradients/all/norm"] == pytest.approx([0.01], rel=1e-3)
    assert min(row["train/grad_norm"] for row in rows(history)) > 0.01


def test_frozen_parameters_do_not_count():
    model = tiny_classifier()
    model[0].requires_grad_(False)
    history = made(GradientStats("1 step"), model=model).fit(tiny_loader(8), epochs=1)
    assert "train/gradients/0/norm" not in history
    assert history["train/gradients/all/norm"] == history["train/gradients/2/norm"]


def test_sparse_and_half_gradients():
    dense, sparse = nn.Embedding(6, 2), nn.Embedding(6, 2, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    for embedding in (dense, sparse):
        (embedding(torch.tensor([1, 1, 4])) * torch.tensor([1.0, -2.0])).sum().backward()
    one, other = (gradient_stats(e.named_parameters())["model"] for e in (dense, sparse))
    assert {k: v.item() for k, v in one.items()} == pytest.approx({k: v.item() for k, v in other.items()})
    assert one["zeros"].item() == pytest.approx(8 / 12)
    weight = torch.zeros(2, dtype=torch.float16, requires_grad=True)
    weight.grad = torch.tensor([300.0, 400.0], dtype=torch.float16)
    assert gradient_stats([("w", weight)])["all"]["norm"].item() == 500.0, "its square does not fit into fp16"


def test_an_empty_sparse_gradient_and_kinds_that_are_mixed():
    empty, double = nn.Embedding(4, 2, sparse=True), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    empty(torch.zeros(0, dtype=torch.long)).sum().backward()
    double.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    stats = gradient_stats([("empty.weight", empty.weight), ("double.weight", double)])
    assert {name: value.item() for name, value in stats["empty"].items()} == {
        "norm": 0,
        "mean": 0,
        "std": 0,
        "zeros": 1,
    }
    assert {name: value.item() for name, value in stats["all"].items()} == pytest.approx(
        by_hand([torch.zeros(8), double.grad])
    )


def test_nothing_is_there_without_gradients():
    assert gradient_stats(tiny_classifier().named_parameters()) == {}


class Skip(Callback):
    asks = frozenset({"skip_step"})

    def after_backward(self, run):
        if run.batch_idx == 0:
            run.skip_step()


def test_a_step_that_is_not_made_is_not_measured():
    history = made(Skip(), GradientStats("1 step")).fit(tiny_loader(), epochs=1)
    assert [row["step"] for row in rows(history)] == [1, 2]


def test_weights_are_bit_equal_and_a_second_fit_goes_on():
    plain, watched = made(), made(GradientStats("2 steps"))
    for trainer in (plain, watched):
        trainer.fit(tiny_loader(), epochs=1)
        trainer.fit(tiny_loader(), epochs=1)
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    assert [row["step"] for row in rows(watched.history)] == [2, 4, 6]


def test_continuing_elsewhere_measures_the_same():
    whole = made(GradientStats("2 steps"))
    whole.fit(tiny_loader(48), epochs=1)
    first = made(GradientStats("2 steps"))
    batches = list(tiny_loader(48))
    first.fit(batches[:3], epochs=1)
    second = made(GradientStats("2 steps"), model=copy.deepcopy(first.model))
    second.clock.load_state_dict(first.clock.state_dict())
    second.fit(batches[3:], epochs=1)
    assert logged(first.history, "all") + logged(second.history, "all") == logged(whole.history, "all")


def test_nothing_is_read_on_the_way(monkeypatch):
    trainer, batches = made(GradientStats("1 step")), list(tiny_loader())
    with monkeypatch.context() as patch:
        for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__"):
            patch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a tensor was read"))
        trainer.fit(batches, epochs=1)
    assert len(rows(trainer.history)) == 3
    assert len(trainer.history["train/gradients/all/std"]) == 1


def test_it_says_so_if_there_was_nothing_to_see():
    class OwnStep(MainCallback):
        def on_iter_backward(self, run):
            run.loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()

    with pytest.warns(UserWarning, match="OwnStep.on_iter_backward steps the optimizer itself"):
        made(OwnStep(), GradientStats("2 steps")).fit(tiny_loader(), epochs=1)


def test_it_only_looks_so_lbfgs_takes_it():
    model = tiny_classifier()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    trainer = Trainer(model, optimizer, LOSS, callbacks=[GradientStats("1 step")], device="cpu")
    assert len(rows(trainer.fit(tiny_loader(), epochs=1))) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"every": "2 epochs"}, "every counts steps"),
        ({"every": "0 steps"}, "more than 0 steps"),
        ({"groups": 0}, "at least 1"),
        ({"groups": "layers"}, "a function of a parameter's name"),
        ({"at": "after_step"}, '"before_step" or "after_backward"'),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        GradientStats(**arguments)


@pytest.mark.parametrize("callback", [GradientStats("1 step", at="after_backward")])
def test_it_survives_what_can_happen_to_a_callback(callback):
    check_callback(callback)
