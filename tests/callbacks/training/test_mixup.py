"""MixUp: the loss of two targets, soft targets, its own random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import cadenza
from cadenza.callbacks.training.cutmix import CutMix
from cadenza.callbacks.training.mixup import MixUp, mixup
from cadenza.foundation.host_draws import Draws
from cadenza.testing import check_callback, tiny_classifier, tiny_loader

SEED, ALPHA = 5, 0.4


class Hold(cadenza.Callback):
    """Steps after every second batch."""

    asks = frozenset({"hold_step"})

    def before_train_iter(self, run: cadenza.Run) -> None:
        if run.batch_idx % 2 == 0:
            run.hold_step()


class Skip(cadenza.Callback):
    """Asks one batch away."""

    def __init__(self, batch: int, point: str) -> None:
        self.batch, self.point = batch, point

    def plays(self) -> dict[str, Any]:
        return {self.point: lambda run: run.skip_batch() if run.batch_idx == self.batch else None}


def made(*callbacks: cadenza.Callback, criterion: Any = None) -> cadenza.Trainer:
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return cadenza.Trainer(model, sgd, criterion or nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def by_hand(epochs: int, *, every: int = 1, skipped: int = -1) -> tuple[nn.Module, list[float]]:
    """The same training as a plain loop; ``skipped`` is a batch that is mixed and then left out."""
    model, draws = tiny_classifier(), Draws(SEED)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    means = []
    for _ in range(epochs):
        losses, sizes = [], []
        for index, (inputs, targets) in enumerate(tiny_loader(20)):
            permutation, lam = draws.permutation(len(inputs), inputs.device), draws.beta(ALPHA)
            if index == skipped:
                continue
            mixed, partners = mixup(inputs, targets, lam, permutation)
            output = model(mixed)
            loss = cross_entropy(output, targets) * lam + cross_entropy(output, partners) * (1 - lam)
            loss.backward()
            losses.append(loss.detach().double())
            sizes.append(len(inputs))
            if (index + 1) % every == 0 or index == 2:
                sgd.step()
                sgd.zero_grad()
        means.append(float((torch.stack(losses) * torch.tensor(sizes)).sum() / sum(sizes)))
    return model, means


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("every", [1, 2])
def test_it_equals_a_loop_by_hand_also_when_steps_are_held(every: int) -> None:
    trainer = made(MixUp(ALPHA, seed=SEED), *([Hold()] if every == 2 else []))
    history = trainer.fit(tiny_loader(20), epochs=3)
    model, means = by_hand(3, every=every)
    assert_equal(trainer.model, model)
    assert history["train/loss"] == means


@pytest.mark.parametrize("point", ["before_forward", "before_loss", "before_backward"])
def test_a_skipped_batch_leaves_nothing_for_the_next(point: str) -> None:
    trainer = made(MixUp(ALPHA, seed=SEED), Skip(1, point))
    trainer.fit(tiny_loader(20), epochs=2)
    assert_equal(trainer.model, by_hand(2, skipped=1)[0])


def test_a_batch_that_is_not_mixed_is_as_it_was() -> None:
    plain, mixed = made(), made(MixUp(probability=0.0))
    for trainer in (plain, mixed):
        trainer.fit(tiny_loader(20), epochs=2)
    assert_equal(plain.model, mixed.model)


def test_about_so_many_batches_are_mixed() -> None:
    batches, seen = list(tiny_loader(80)), []
    trainer = made(MixUp(probability=0.25, seed=1))
    trainer.on("before_forward")(lambda run: seen.append(torch.equal(run.inputs, batches[run.batch_idx][0])))
    trainer.fit(batches, epochs=20)
    assert 0.15 < seen.count(False) / len(seen) < 0.35


def test_validation_sees_what_the_loader_gives_and_the_users_batch_is_untouched() -> None:
    batches = list(tiny_loader(20))
    kept = [(inputs.clone(), targets.clone()) for inputs, targets in batches]
    trainer = made(MixUp(seed=SEED))
    history = trainer.fit(batches, batches, epochs=1)
    for (inputs, targets), (old_inputs, old_targets) in zip(batches, kept, strict=True):
        assert torch.equal(inputs, old_inputs)
        assert torch.equal(targets, old_targets)
    assert history["val/loss"] == [trainer.validate(batches)["val/loss"]]


def test_soft_targets_give_the_same_training_up_to_rounding() -> None:
    hard, soft = made(MixUp(seed=SEED)), made(MixUp(seed=SEED, soft=3))
    means = [trainer.fit(tiny_loader(20), epochs=3)["train/loss"] for trainer in (hard, soft)]
    assert means[0] == pytest.approx(means[1], rel=1e-5)
    for one, other in zip(hard.model.parameters(), soft.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_soft_targets_leave_the_step_closed() -> None:
    inside = {"before_loss", "after_loss"}
    assert inside <= set(MixUp().plays())
    assert not inside & set(MixUp(soft=3).plays())


def test_floating_point_targets_are_mixed_as_they_are() -> None:
    batches = [(inputs, one_hot(targets, 3).float()) for inputs, targets in tiny_loader(20)]
    given, made_here = made(MixUp(seed=SEED, soft=3)), made(MixUp(seed=SEED, soft=3))
    given.fit(batches, epochs=2)
    made_here.fit(tiny_loader(20), epochs=2)
    assert_equal(given.model, made_here.model)


def test_a_batch_with_names_and_a_loss_of_the_users_own() -> None:
    class Named(cadenza.MainCallback):
        def on_iter_forward(self, run: cadenza.Run) -> None:
            run.output = run.model(run.batch["x"])

        def on_iter_loss(self, run: cadenza.Run) -> None:
            run.loss = cross_entropy(run.output, run.batch["label"])

    trainer = made(Named(), MixUp(ALPHA, seed=SEED))
    history = trainer.fit([{"x": inputs, "label": targets} for inputs, targets in tiny_loader(20)], epochs=3)
    model, means = by_hand(3)
    assert_equal(trainer.model, model)
    assert history["train/loss"] == means


def test_a_batch_that_is_played_again_is_mixed_in_the_same_way() -> None:
    losses: list[tuple[Tensor, Tensor]] = []
    trainer = made(MixUp(seed=SEED))
    trainer.on("before_step")(lambda run: losses.append((run.loss.detach(), run.recompute().detach())))
    trainer.fit(tiny_loader(20), epochs=1)
    assert all(torch.equal(first, again) for first, again in losses)
    assert len(losses) == 3


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0}, "alpha must be a number above 0, not 0"),
        ({"alpha": float("inf")}, "above 0"),
        ({"probability": 1.5}, "probability must be from 0 to 1, not 1.5"),
        ({"soft": 1}, "at least 2, not 1"),
        ({"soft": True}, "number of classes"),
        ({"seed": -1}, "at least 0, not -1"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    for kind in (MixUp, CutMix):
        with pytest.raises(ValueError, match=message):
            kind(**arguments)


class LossInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_classifier()

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.inner(inputs), targets)


class OwnLoss(cadenza.MainCallback):
    def on_iter_forward(self, run: cadenza.Run) -> None:
        run.output = run.loss = run.model(*run.batch)


def test_a_model_that_computes_its_own_loss_needs_soft_targets() -> None:
    model = LossInside()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hard = cadenza.Trainer(model, sgd, callbacks=[OwnLoss(), MixUp(seed=SEED)], device="cpu")
    with pytest.raises(RuntimeError, match=r"computes its own loss.*MixUp\(soft=classes\)"):
        hard.fit(tiny_loader(20), epochs=1)
    soft = cadenza.Trainer(model, sgd, callbacks=[OwnLoss(), MixUp(seed=SEED, soft=3)], device="cpu")
    soft.fit(tiny_loader(20), epochs=2)
    outside = made(MixUp(seed=SEED, soft=3))
    outside.fit(tiny_loader(20), epochs=2)
    assert_equal(model.inner, outside.model)


def test_only_soft_targets_can_be_mixed_twice() -> None:
    for one, other in (({}, {}), ({"soft": 3}, {})):
        with pytest.raises(cadenza.CallbackError, match="both own 'targets"):
            made(MixUp(**one), CutMix(**other))
    targets: list[Tensor] = []
    trainer = made(MixUp(soft=3, seed=1), CutMix(soft=3, seed=2))
    trainer.on("before_forward")(lambda run: targets.append(run.targets))
    trainer.fit(tiny_loader(20), epochs=1)
    assert all(torch.allclose(part.sum(1), torch.ones(len(part))) for part in targets)


def test_what_cannot_be_mixed_is_named() -> None:
    ids = [(torch.zeros(4, 6, dtype=torch.long), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(TypeError, match=r"floating-point inputs.*tensor\[4, 6\].*torch.int64"):
        made(MixUp()).fit(ids, epochs=1)
    with pytest.raises(TypeError, match="one tensor"):
        made(MixUp()).fit([(torch.zeros(4, 4), torch.zeros(4, 4), torch.zeros(4))], epochs=1)


def test_explain_says_how() -> None:
    assert MixUp().explain() == "weights the losses of both targets"
    assert MixUp(soft=10, probability=0.5).explain() == "soft targets of 10 classes, in 50% of the batches"


@pytest.mark.parametrize("callback", [MixUp(soft=2)], ids=["soft"])
def test_it_behaves_as_a_callback_should(callback: MixUp) -> None:
    check_callback(callback)
