"""Ranks that are set up differently: an error at the beginning, with what differs, and not a wait."""

from __future__ import annotations

import io
import os
import tempfile
import time

import pytest
import torch
from torch import nn

import cadenza
from cadenza import Callback, MainCallback, When
from cadenza.callbacks import (
    Accumulate,
    Checkpoint,
    CostLedger,
    EarlyStopping,
    Evaluate,
    Freeze,
    GradientClip,
    NaNGuard,
    Progress,
    Timer,
)
from cadenza.callbacks.measuring.result_packages import ClassificationResults
from cadenza.distributed import DDP
from cadenza.distributed.agreement.compare_setup import difference
from cadenza.experiment import Experiment
from cadenza.testing import tiny_classifier, tiny_loader

from ..processes import ranks
from .crew import play, trainer_with


class Counts(Callback):
    """Has a state."""

    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state): ...


class OnMain(Counts):
    ranks = "main"


class Skips(Callback):
    asks = frozenset({"skip_step"})


class MaySkip(Counts):
    def __init__(self, *requests):
        self.asks = frozenset(requests)


class Exchanges(Callback):
    same_on_ranks = ("size",)

    def __init__(self, size):
        self.size = size

    def after_epoch(self, run):
        run.from_main(self.size)


class OwnLoss(MainCallback):
    pass


class Prints(Callback):
    def after_epoch(self, run): ...


def on_rank_0() -> bool:
    return os.environ["RANK"] == "0"


def ended(call):
    """How ``call`` ended, and after how long."""
    begun = time.monotonic()
    try:
        call()
    except BaseException as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begun
    return None, time.monotonic() - begun


def fit(zero, one):
    """Fits with ``zero()`` on rank 0 and ``one()`` on the other: what differs of the trainer's and fit's arguments."""
    given = (zero if on_rank_0() else one)() or {}
    options = {name: given.pop(name) for name in ("callbacks", "model", "strategy") if name in given}
    trainer = trainer_with(options.pop("callbacks", []), **options)
    fitting = {
        "train_loader": tiny_loader(),
        "val_loader": tiny_loader(),
        **({} if "steps" in given else {"epochs": 2}),
    }
    return ended(lambda: trainer.fit(**{**fitting, **given}))


def having(*makers):
    return lambda: {"callbacks": [make() for make in makers]}


def nothing():
    return {}


def wide(width):
    return lambda: {"model": nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.Linear(width, 3))}


def validates_alone():
    """Rank 0 alone validates after the fit."""
    trainer = trainer_with([])
    trainer.fit(tiny_loader(), epochs=1)
    return ended(lambda: trainer.validate(tiny_loader()) if on_rank_0() else trainer.fit(tiny_loader(), epochs=1))


def trained_elsewhere():
    """Rank 1 has trained alone before."""
    trainer = trainer_with([])
    trainer.clock.epochs += not on_rank_0()
    return ended(lambda: trainer.fit(tiny_loader(), epochs=1))


def other_optimizer():
    model = tiny_classifier()
    kind = torch.optim.SGD if on_rank_0() else torch.optim.AdamW
    trainer = cadenza.Trainer(model, kind(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), device="cpu")
    return ended(lambda: trainer.fit(tiny_loader(), epochs=1))


def own_loop():
    def loop(epochs):
        with trainer_with([]).run(epochs=epochs) as run:
            for _ in run.epochs():
                for _ in run.train(tiny_loader()):
                    run.train_step()

    return ended(lambda: loop(1 if on_rank_0() else 2))


def buffered(*names):
    def make():
        model = tiny_classifier()
        for name in names:
            model.register_buffer(name, torch.zeros(2))
        return {"model": model}

    return make


def renamed(*names):
    return lambda: {"model": nn.Sequential(nn.Flatten(), nn.ModuleDict({name: nn.Linear(4, 4) for name in names}))}


def ledger():
    return CostLedger(every=2, budget=None, stream=io.StringIO())


def lazy():
    """Parameters without a shape, which torch refuses with what to do."""
    return fit(*[lambda: {"model": nn.Sequential(nn.Flatten(), nn.LazyLinear(3))}] * 2)


def two_of(first, second):
    return having(first, second), having(second, first)


DIFFERENT = {
    "Checkpoint on rank 0": ([having(Checkpoint), nothing], "Checkpoint is among the callbacks on rank 0 and not"),
    "Checkpoint on rank 1": ([nothing, having(Checkpoint)], "Checkpoint is among the callbacks on rank 1 and not"),
    "Accumulate on rank 0": ([having(lambda: Accumulate(2)), nothing], "Accumulate is among the callbacks on rank 0"),
    "other n of Accumulate": (
        [having(lambda: Accumulate(2)), having(lambda: Accumulate(3))],
        "Accumulate.n is 2 on rank 0 and 3 on rank 1",
    ),
    "carry of Accumulate": (
        [having(lambda: Accumulate(2)), having(lambda: Accumulate(2, carry=True))],
        "Accumulate.carry is False on rank 0 and True on rank 1",
    ),
    "action of NaNGuard": (
        [having(lambda: NaNGuard(action="skip")), having(lambda: NaNGuard(action="stop"))],
        "NaNGuard.action is skip on rank 0 and stop on rank 1",
    ),
    "may skip on rank 0 alone": (
        [having(lambda: MaySkip("skip_step")), having(MaySkip)],
        "MaySkip.asks is skip_step on rank 0 and nothing on rank 1",
    ),
    "Evaluate on rank 0": ([having(lambda: Evaluate(ClassificationResults())), nothing], "Evaluate is among"),
    "EarlyStopping on rank 1": ([nothing, having(lambda: EarlyStopping("val/loss"))], "EarlyStopping is among"),
    "Freeze on rank 1": ([nothing, having(lambda: Freeze("0"))], "Freeze is among the callbacks on rank 1"),
    "GradientClip on rank 0": ([having(lambda: GradientClip(1.0)), nothing], "GradientClip is among"),
    "Experiment on rank 0": (
        [having(lambda: Experiment("a", "b", tempfile.gettempdir())), nothing],
        "Experiment 'b' is among",
    ),
    "When around Accumulate on rank 0": (
        [having(lambda: When(EarlyStopping("val/loss"), start="1 epoch")), nothing],
        "When(EarlyStopping, from 1 epoch) is among the callbacks on rank 0",
    ),
    "a state on rank 1": ([nothing, having(Counts)], "Counts is among the callbacks on rank 1"),
    "skips on rank 0": ([having(Skips), nothing], "Skips is among the callbacks on rank 0"),
    "exchanges on rank 0": ([having(lambda: Exchanges(1)), nothing], "Exchanges is among the callbacks on rank 0"),
    "exchanges otherwise": (
        [having(lambda: Exchanges(1)), having(lambda: Exchanges(2))],
        "Exchanges.size is 1 on rank 0 and 2 on rank 1",
    ),
    "another order": (
        list(two_of(Counts, Skips)),
        "The callbacks are in the order Counts, Skips on rank 0 and Skips, Counts on rank 1",
    ),
    "own loss on rank 1": (
        [nothing, having(OwnLoss)],
        "The main callback is MainCallback with lr_every='epoch' on rank 0 and OwnLoss with",
    ),
    "validation on rank 0": ([nothing, lambda: {"val_loader": None}], "val_loader is a loader on rank 0 and None"),
    "two validations on rank 0": (
        [lambda: {"val_loader": {"a": tiny_loader(), "b": tiny_loader()}}, nothing],
        "val_loader is loaders for a, b on rank 0 and a loader on rank 1",
    ),
    "tests on rank 1": ([nothing, lambda: {"test_loaders": tiny_loader()}], "test_loaders is None on rank 0"),
    "other epochs": ([nothing, lambda: {"epochs": 3}], "epochs is 2 on rank 0 and 3 on rank 1"),
    "steps on rank 1": ([nothing, lambda: {"steps": 6}], "epochs is 2 on rank 0 and None on rank 1"),
    "validates at other times": (
        [nothing, lambda: {"validate_every": "2 steps"}],
        "validate_every is 1 epoch on rank 0 and 2 steps on rank 1",
    ),
    "another layer": ([wide(8), wide(9)], "The parameter 1.weight is (8, 4) float32 on rank 0 and (9, 4) float32"),
    "another buffer": (
        [nothing, buffered("mean")],
        "The buffer mean is not there on rank 0 and (2,) float32 on rank 1",
    ),
    "buffers in another order": (
        [buffered("mean", "spread"), buffered("spread", "mean")],
        "The buffers are in another order on rank 1 than on rank 0",
    ),
    "parameters in another order": (
        [renamed("a", "b"), renamed("b", "a")],
        "The parameters are in another order on rank 1 than on rank 0",
    ),
    "other flags of DDP": (
        [nothing, lambda: {"strategy": DDP(static_graph=True)}],
        "strategy is DDP() on rank 0 and DDP(static_graph=True) on rank 1",
    ),
    "resume on rank 0": (
        [lambda: {"callbacks": [Checkpoint()], "resume": "auto"}, having(Checkpoint)],
        "resume is given on rank 0 and None on rank 1",
    ),
    "resume and Checkpoint on rank 0": (
        [lambda: {"callbacks": [Checkpoint()], "resume": "auto"}, lambda: {"resume": "auto"}],
        "Checkpoint is among the callbacks on rank 0 and not on rank 1",
    ),
}
OTHERS = {
    validates_alone: "Rank 0 begins a validate and rank 1 a fit",
    trained_elsewhere: "Rank 0 has trained 0 epochs and 0 steps and rank 1 1 epochs and 0 steps",
    other_optimizer: "The optimizer is SGD of 4 parameters on rank 0 and AdamW of 4 parameters on rank 1",
    own_loop: "epochs is 1 on rank 0 and 2 on rank 1",
}
HARMLESS = {
    "progress on rank 0": [having(Progress), nothing],
    "a ledger on rank 0": [having(ledger), nothing],
    "a ledger on both, and a rank that may skip": [having(ledger, lambda: MaySkip("skip_step"))] * 2,
    "a timer on rank 1": [nothing, having(Timer)],
    "a function of one's own on rank 0": [having(Prints), nothing],
    "for rank 0 by its class": [having(OnMain), nothing],
    "for rank 0 on both": [having(OnMain), having(OnMain)],
    "buffers that are not sent": [
        lambda: {"strategy": DDP(broadcast_buffers=False)},
        lambda: {"strategy": DDP(broadcast_buffers=False), **buffered("mean")()},
    ],
    "own loaders and labels": [lambda: {"train_loader": tiny_loader(seed=1)}, nothing],
}


@pytest.fixture(scope="module")
def answers():
    scenarios = [(fit, makers) for makers, _ in DIFFERENT.values()]
    scenarios += [(scenario, ()) for scenario in OTHERS]
    scenarios += [(fit, makers) for makers in HARMLESS.values()]
    scenarios += [(lazy, ())]
    with tempfile.TemporaryDirectory() as folder:
        both = ranks(play, folder, scenarios, results="all")
    return dict(zip([*DIFFERENT, *OTHERS, *HARMLESS, lazy], zip(*both, strict=True), strict=True))


@pytest.mark.parametrize("name", [*DIFFERENT, *OTHERS], ids=lambda one: getattr(one, "__name__", one))
def test_a_difference_is_an_error_on_all_ranks(answers, name):
    said = DIFFERENT[name][1] if name in DIFFERENT else OTHERS[name]
    for error, seconds in answers[name]:
        assert error is not None
        assert error.startswith("SetupDiffers: The ranks are set up differently. ")
        assert said in error
        assert seconds < 30  # a collective would wait for half an hour


@pytest.mark.parametrize("name", HARMLESS)
def test_callbacks_that_need_no_other_rank_may_differ(answers, name):
    assert [error for error, _ in answers[name]] == [None, None]


def test_parameters_that_have_no_shape_yet_get_the_error_of_torch(answers):
    for error, _ in answers[lazy]:
        assert "Run a dummy forward pass" in error


def test_ranks_that_differ_alike_are_named_together():
    said = difference([{"epochs": "1"}, {"epochs": "2"}, {"epochs": "1"}, {"epochs": "2"}])
    assert "epochs is 1 on rank 0 and 2 on ranks 1, 3" in said


def leaves(calls):
    """Rank 1 makes one call of the trainer less than rank 0, and ends."""
    trainer = trainer_with([])
    for call in calls if on_rank_0() else calls[:-1]:
        getattr(trainer, call)(tiny_loader(), **({"epochs": 1} if call == "fit" else {}))


@pytest.mark.parametrize("calls", [["fit"], ["fit", "validate"]], ids=" ".join)
def test_a_rank_that_ended_before_the_others_is_explained(calls):
    with pytest.raises(RuntimeError) as caught:
        ranks(leaves, calls, timeout=60)
    assert any(f"rank 0 begins a {calls[-1]}, and another rank is gone" in note for note in caught.value.__notes__)
