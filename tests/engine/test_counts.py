"""Samples and tokens are counted, means are weighted by them, predictions keep order and length."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.optim import SGD

from cadenza import MainCallback, Run, Trainer
from cadenza.data import count_samples, to_device
from cadenza.data.batch import gather
from cadenza.testing import Recorder, tiny_classifier, tiny_data, tiny_loader

TOKENS = torch.zeros(3, 5, dtype=torch.long)
IMAGES = torch.zeros(6, 3, 8, 8)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Record:
    text: str
    x: Tensor


COUNTED: list[tuple[Any, tuple[int, int]]] = [
    (IMAGES, (6, 0)),
    ((IMAGES, torch.zeros(6)), (6, 0)),
    ([[IMAGES, IMAGES], torch.zeros(6)], (6, 0)),
    ({"input_ids": TOKENS, "labels": TOKENS}, (3, 15)),
    (Pair(TOKENS, torch.zeros(3)), (3, 15)),
    (torch.zeros(3, 5), (3, 0)),
    (torch.tensor(2.0), (1, 0)),
    ("text", (1, 0)),
    ((), (1, 0)),
    ({"ids": ["a", "b", "c"], "x": torch.zeros(3, 2), "y": torch.zeros(3)}, (3, 0)),
    ((["a", "b", "c"], torch.zeros(3, 2), torch.zeros(3)), (3, 0)),
    (Record("a", torch.zeros(3, 2)), (3, 0)),
    ({"meta": {}, "x": torch.zeros(4, 2)}, (4, 0)),
]


@pytest.mark.parametrize(("batch", "counts"), COUNTED, ids=lambda value: type(value).__name__)
def test_the_first_tensor_says_how_many(batch: Any, counts: tuple[int, int]) -> None:
    assert count_samples(batch) == counts


def made(model: nn.Module | None = None, *callbacks: Any, criterion: Any = nn.functional.cross_entropy) -> Trainer:
    model = tiny_classifier() if model is None else model
    parameters = list(model.parameters())
    optimizer = SGD(parameters, lr=0.1) if parameters else None
    return Trainer(model, optimizer, criterion, callbacks=callbacks, device="cpu")


def exact_mean(losses: list[float], sizes: list[int]) -> float:
    return float(sum(Fraction(loss) * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes))


def test_means_are_weighted_by_samples_and_exact() -> None:
    """A ragged last batch counts for what it holds, and float32 losses are added up in float64."""
    data, batch_size = tiny_data(29), 4
    loader = [data[start : start + batch_size] for start in range(0, 29, batch_size)]
    losses: dict[str, list[float]] = {"train": [], "val": [], "test": []}
    trainer = made()
    trainer.on("after_loss")(lambda run: losses[run.stage].append(float(run.loss.detach())))
    history = trainer.fit(loader, loader, test_loaders=loader, epochs=1)
    sizes = [len(y) for _, y in loader]
    assert sizes[-1] == 1
    for stage, seen in losses.items():
        assert history[f"{stage}/loss"][0] == pytest.approx(exact_mean(seen, sizes), rel=1e-15, abs=0)


def test_a_long_epoch_is_as_exact() -> None:
    batches = [(torch.full((1 + index % 3, 1), 0.1 + index), torch.zeros(1)) for index in range(1200)]
    trainer = made(nn.Identity(), criterion=lambda output, targets: output.mean())
    losses, sizes = [float(x.mean()) for x, _ in batches], [len(x) for x, _ in batches]
    assert trainer.validate(batches)["val/loss"] == pytest.approx(exact_mean(losses, sizes), rel=1e-15, abs=0)


def test_a_python_number_is_a_loss_in_full() -> None:
    class Number(MainCallback):
        def on_iter_loss(self, run: Run) -> None:
            run.loss = 0.1  # type: ignore[assignment]

    assert made(None, Number()).validate(tiny_loader())["val/loss"] == pytest.approx(0.1, rel=1e-15, abs=0)


def test_losses_of_one_number_may_differ_in_shape_and_type() -> None:
    shapes = iter([torch.tensor(1.0), torch.tensor([2.0]), torch.tensor([[3.0]], dtype=torch.float64)])
    trainer = made(nn.Identity(), criterion=lambda output, targets: next(shapes))
    assert trainer.validate(list(tiny_loader(24))) == {"val/loss": 2.0}


def test_an_own_count_weighs_the_mean_and_moves_the_clock() -> None:
    class PerToken(MainCallback):
        def count(self, run: Run) -> tuple[int, int]:
            tokens = int((run.batch[1] > 0).sum())
            return tokens, 10 * tokens

    batches = [(torch.full((2, 1), 1.0), torch.tensor([1, 0])), (torch.full((2, 1), 4.0), torch.tensor([1, 1]))]
    trainer = made(nn.Linear(1, 1), PerToken(), criterion=lambda output, targets: (output * 0).sum() + targets.sum())
    history = trainer.fit(batches, epochs=1)
    assert (trainer.clock.samples, trainer.clock.tokens, trainer.clock.batches) == (3, 30, 2)
    assert history["train/loss"] == [(1 * 1 + 2 * 2) / 3]


def test_the_clock_counts_training_only() -> None:
    embed = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(10, 3))
    batch = (TOKENS, torch.tensor([0, 1, 2]))
    trainer = made(embed)
    trainer.fit([batch, batch], [batch] * 5, test_loaders=[batch], epochs=2)
    trainer.validate([batch])
    trainer.predict([batch])
    clock = trainer.clock
    assert (clock.batches, clock.steps, clock.samples, clock.tokens, clock.epochs) == (4, 4, 12, 60, 2)


def test_a_skipped_batch_counts_as_seen_but_not_in_the_mean() -> None:
    batches = [(torch.ones(2, 1), torch.zeros(1)), (torch.full((3, 1), 5.0), torch.zeros(1))]
    trainer = made(nn.Linear(1, 1), criterion=lambda output, targets: output.sum() * 0 + 7)
    trainer.on("before_train_iter")(lambda run: run.skip_batch() if run.batch_idx == 0 else None)
    assert trainer.fit(batches, epochs=1)["train/loss"] == [7.0]
    assert (trainer.clock.batches, trainer.clock.samples, trainer.clock.steps) == (2, 5, 1)


# Predictions ---------------------------------------------------------------------------------------------------------


class Returns(nn.Module):
    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(x)


@dataclass
class Output:
    logits: Tensor


FORMS: dict[str, tuple[Any, Any]] = {
    "tensor": (lambda x: x, lambda x: x),
    "tuple": (lambda x: (x, -x), lambda x: (x, -x)),
    "named tuple": (lambda x: Pair(x, -x), lambda x: Pair(x, -x)),
    "nested": (lambda x: {"a": (x, {"b": 2 * x})}, lambda x: {"a": (x, {"b": 2 * x})}),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("callbacks", [(), (Recorder,)], ids=["bare", "opened"])
def test_order_and_length_are_kept(form: str, callbacks: Any) -> None:
    gives, expected = FORMS[form]
    whole = torch.arange(22.0).reshape(11, 2)
    batches = [(part, part.sum(1)) for part in whole.split(4)]
    outputs = made(Returns(gives), *(make() for make in callbacks)).predict(batches)
    assert same(outputs, expected(whole))


def test_what_cannot_be_joined_is_a_list_with_one_entry_for_each_batch() -> None:
    batches = list(torch.arange(22.0).reshape(11, 2).split(4))
    assert made(Returns(lambda x: x.sum())).predict(batches) == [b.sum() for b in batches]
    assert made(Returns(lambda x: f"{len(x)} rows")).predict(batches) == ["4 rows", "4 rows", "3 rows"]
    ragged = made(Returns(lambda x: torch.zeros(1, len(x)))).predict(batches)
    assert [tuple(part.shape) for part in ragged] == [(1, 4), (1, 4), (1, 3)]
    objects = made(Returns(Output)).predict(batches)
    assert torch.equal(torch.cat([output.logits for output in objects]), torch.cat(batches))


def test_one_output_for_each_sample_stays_with_its_sample() -> None:
    """A detector gives a list with one entry for each sample; these are not mixed over batches."""
    whole = torch.arange(16.0).reshape(4, 4)
    detect = Returns(lambda x: [{"boxes": row.reshape(-1, 2)} for row in x])
    outputs = made(detect).predict(list(whole.split(2)))
    flat = [one for batch in outputs for one in (batch if isinstance(batch, list) else [batch])]
    assert len(flat) == 4
    assert all(torch.equal(one["boxes"], row.reshape(-1, 2)) for one, row in zip(flat, whole, strict=True))


def test_predictions_carry_no_graph_and_play_only_their_points() -> None:
    recorder = Recorder()
    trainer = made(None, recorder)
    assert not trainer.predict(tiny_loader()).requires_grad
    assert {"before_pred_epoch", "after_forward", "after_run"} <= set(recorder.trace)
    assert not {"before_loss", "before_backward", "before_epoch", "before_val_epoch"} & set(recorder.trace)


def test_gather_of_nothing() -> None:
    assert gather([]) == []


# Moving --------------------------------------------------------------------------------------------------------------

META = torch.device("meta")


def test_every_form_keeps_its_type_when_it_moves() -> None:
    x = torch.ones(2)
    forms = [
        [x],
        (x,),
        {"x": x},
        OrderedDict(x=x),
        Pair(x, x),
        Record("a", x),
        defaultdict(list, x=x),
        UserDict(x=x),
        MappingProxyType({"x": x}),
        [{"x": (x, "t", 3)}],
    ]
    for form in forms:
        moved = to_device(form, META)
        assert type(moved) is type(form)
    assert to_device(Record("a", x), META).x.device == META
    for form in (UserDict(x=x), MappingProxyType({"x": x}), defaultdict(list, x=x)):
        assert to_device(form, META)["x"].device == META
    assert to_device([{"x": (x, "t", 3)}], META)[0]["x"][0].device == META
    assert to_device([{"x": (x, "t", 3)}], META)[0]["x"][1:] == ("t", 3)


def test_an_object_that_can_move_itself_does() -> None:
    packed = pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    moved = to_device(packed, META)
    assert moved.data.device == META
    assert moved.batch_sizes.device == torch.device("cpu"), "the lengths of a packed sequence stay on the CPU"
