"""ActivationStats: its values against outputs computed by hand, and hooks that are never left behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks.measuring.activation_stats import ActivationStats, activation_stats
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.testing import check_callback, tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()
NAMES = ("mean", "std", "near_zero")


def made(*callbacks, model=None):
    model = tiny_classifier() if model is None else model
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), LOSS, callbacks=callbacks, device="cpu")


def by_hand(output, near_zero=1e-3):
    values = output.detach().flatten().double()
    near = (values.abs() <= near_zero).double().mean().item()
    return {"mean": values.mean().item(), "std": values.std(correction=0).item(), "near_zero": near}


def rows(history):
    return [row for row in history.iters if any("activations" in name for name in row)]


def logged(history, module):
    return [{name: row[f"train/activations/{module}/{name}"] for name in NAMES} for row in rows(history)]


def outputs(model, inputs):
    """What each layer of a sequential model puts out."""
    found = {}
    for name, layer in model.named_children():
        found[name] = inputs = layer(inputs)
    return found


def hooks_of(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def test_every_value_is_that_of_the_layer_called_by_hand():
    trainer, model = made(ActivationStats("2 steps")), tiny_classifier()
    optimizer, expected = torch.optim.SGD(model.parameters(), lr=0.1), []
    for index, (inputs, targets) in enumerate(tiny_loader(48)):
        if index % 2 == 1:
            expected.append({name: by_hand(output) for name, output in outputs(model, inputs).items()})
        LOSS(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    history = trainer.fit(tiny_loader(48), epochs=1)
    for module in "012":
        for found, wanted in zip(logged(history, module), expected, strict=True):
            assert found == pytest.approx(wanted[module], rel=1e-4, abs=1e-6)
    assert 0 < logged(history, "1")[0]["near_zero"] < 1


def test_weights_are_bit_equal_hooks_gone_and_a_second_fit_goes_on():
    plain, watched = made(), made(ActivationStats("2 steps"))
    for trainer in (plain, watched):
        trainer.fit(tiny_loader(), epochs=1)
        trainer.fit(tiny_loader(), epochs=1)
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    assert hooks_of(watched.model) == 0
    assert [row["batch"] for row in rows(watched.history)] == [2, 4, 6]


def test_hooks_are_there_in_the_forwards_that_are_looked_at_and_nowhere_else():
    counted = []

    class Look(nn.Module):
        def forward(self, inputs):
            counted.append((self.training, hooks_of(self)))
            return inputs

    trainer = made(ActivationStats("2 steps"), model=nn.Sequential(Look(), tiny_classifier()))
    trainer.on("after_forward")(lambda run: counted.append(("after", hooks_of(run.module))))
    trainer.fit(tiny_loader(16), tiny_loader(8), epochs=1)
    assert counted == [(True, 0), ("after", 0), (True, 1), ("after", 0), (False, 0), ("after", 0)]


@pytest.mark.parametrize("where", ["forward", "after_forward", "before_backward"])
def test_hooks_are_gone_after_an_exception(where):
    class Fails(nn.Module):
        def forward(self, inputs):
            if where == "forward":
                raise RuntimeError("on purpose")
            return inputs

    trainer = made(ActivationStats("1 step"), model=nn.Sequential(tiny_classifier(), Fails()))
    if where != "forward":
        trainer.on(where)(lambda run: 1 / 0)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        trainer.fit(tiny_loader(), epochs=1)
    assert hooks_of(trainer.model) == 0


def test_under_accumulation_the_first_batch_of_the_step_is_measured():
    history = made(Accumulate(2), ActivationStats("2 steps", modules=["0"])).fit(tiny_loader(48), epochs=1)
    assert [row["batch"] for row in rows(history)] == [3]


class Skip(Callback):
    asks = frozenset({"skip_batch"})

    def before_forward(self, run):
        if run.batch_idx == 0:
            run.skip_batch()


def test_a_skipped_batch_is_not_measured():
    history = made(Skip(), ActivationStats("1 step")).fit(tiny_loader(), epochs=1)
    assert [row["batch"] for row in rows(history)] == [2, 3]


def test_a_module_that_is_called_twice_counts_with_both_outputs():
    layer = nn.Linear(4, 4)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, inputs):
            return self.layer(self.layer(inputs)[:2])

    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    with activation_stats(model := Twice()) as stats:
        model(inputs)
    both = torch.cat([layer(inputs), layer(layer(inputs)[:2])])
    assert {name: value.item() for name, value in stats["layer"].items()} == pytest.approx(by_hand(both), rel=1e-4)
    assert hooks_of(model) == 0


def test_what_a_layer_put_out_before_it_was_changed_in_place():
    model = nn.Sequential(nn.Linear(4, 50), nn.ReLU(inplace=True))
    inputs = torch.randn(8, 4)
    with activation_stats(model) as stats:
        model(inputs)
    assert stats["0"]["near_zero"] < 0.1
    assert stats["1"]["near_zero"].item() == pytest.approx(by_hand(model(inputs))["near_zero"])


def test_outputs_in_tuples_and_dicts_and_without_numbers():
    class Odd(nn.Module):
        def forward(self, inputs):
            return {"index": inputs.argmax(1), "more": (None, inputs.half())}

    class Nothing(nn.Module):
        def forward(self, inputs):
            return None

    odd, nothing = Odd(), Nothing()
    with activation_stats(nn.ModuleDict({"odd": odd, "nothing": nothing})) as stats:
        odd(torch.tensor([[3.0, 5.0]]))
        nothing(torch.ones(1))
    assert {name: {k: v.item() for k, v in values.items()} for name, values in stats.items()} == {
        "odd": {"mean": 4.0, "std": 1.0, "near_zero": 0.0}
    }


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (None, ["body.0", "body.1", "body.2", "head"]),
        (["body.*", "head"], ["body.0", "body.1", "body.2", "head"]),
        (["model", "body"], ["model", "body"]),
        (lambda name, module: isinstance(module, nn.ReLU), ["body.1"]),
    ],
)
def test_modules_are_chosen_by_name_by_kind_and_by_a_function(modules, expected):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = tiny_classifier(), nn.Linear(3, 3)

        def forward(self, inputs):
            return self.head(self.body(inputs))

    with activation_stats(model := Net(), modules=modules) as stats:
        model(torch.ones(2, 4))
    assert sorted(stats) == sorted(expected)


def test_a_name_that_is_no_module_is_refused_when_training_begins():
    trainer = made(ActivationStats("50 steps", modules=["2", "3"]))
    with pytest.raises(ValueError, match=r"no module '3'.*Known: model, 0, 1, 2"):
        trainer.fit(tiny_loader(), epochs=1)
    assert trainer.clock.batches == 0


def test_it_says_so_if_no_module_played():
    class Own(MainCallback):
        def on_iter_forward(self, run):
            run.output = run.inputs @ run.module[0].weight.T

    with pytest.warns(UserWarning, match="saw none of its modules play in the forward of Own") as caught:
        made(Own(), ActivationStats("1 step")).fit(tiny_loader(), epochs=1)
    assert len(caught) == 1


def test_nothing_is_read_on_the_way(monkeypatch):
    trainer, batches = made(ActivationStats("1 step")), list(tiny_loader())
    with monkeypatch.context() as patch:
        for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__"):
            patch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a tensor was read"))
        trainer.fit(batches, epochs=1)
    assert len(rows(trainer.history)) == 3
    assert len(trainer.history["train/activations/0/std"]) == 1


def test_continuing_elsewhere_measures_the_same():
    batches = list(tiny_loader(48))
    whole, first = made(ActivationStats("2 steps")), made(ActivationStats("2 steps"))
    whole.fit(batches, epochs=1)
    first.fit(batches[:3], epochs=1)
    second = made(ActivationStats("2 steps"), model=copy.deepcopy(first.model))
    second.clock.load_state_dict(first.clock.state_dict())
    second.fit(batches[3:], epochs=1)
    assert logged(first.history, "2") + logged(second.history, "2") == logged(whole.history, "2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"every": "2 epochs"}, "every counts steps"),
        ({"modules": "0"}, "a list of names or patterns"),
        ({"modules": []}, "a list of names or patterns"),
        ({"near_zero": -1.0}, "at least 0"),
        ({"near_zero": float("nan")}, "at least 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ActivationStats(**arguments)


@pytest.mark.parametrize("callback", [ActivationStats("1 step")])
def test_it_survives_what_can_happen_to_a_callback(callback):
    check_callback(callback)
