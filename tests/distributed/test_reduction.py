"""Gradients that are put together after the backward are those that DistributedDataParallel puts together during it."""

from __future__ import annotations

import tempfile
import warnings

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks import Accumulate, Freeze, GradientClip
from cadenza.distributed import DDP
from cadenza.testing import tiny_classifier, tiny_loader

from ..processes import ranks
from .crew import Mine, fitted, play, trainer_with

pytestmark = pytest.mark.timeout(300)


class Apart(Callback):
    """Does by hand what recorded steps need."""

    def before_run(self, run):
        run.training_state.strategy.reduce_apart(run, run.processes)
        assert run.processes.reduction is not None


class StopsOne(Callback):
    """Rank 1 wants to stop, at a batch that the others do not know."""

    def after_train_iter(self, run):
        if run.rank == 1 and run.clock.batches == 5:
            run.stop("rank 1 has had enough")

    def after_run(self, run):
        run.store["reason"] = run.stop_reason


def normed(momentum=0.1):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 3))


def uneven():
    """Rank 1 has one batch less than rank 0, and a smaller one."""
    batches, rank = list(tiny_loader()), dist.get_rank()
    inputs, targets = batches[0]
    return Mine(batches[:3] if rank == 0 else [batches[1], (inputs[:2], targets[:2])])


class Types(nn.Module):
    """Parameters of several types; the first is one that cannot carry a plain number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.turned = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.coarse, self.fine = nn.Linear(4, 4).bfloat16(), nn.Linear(4, 3).double()

    def forward(self, inputs):
        turned = (inputs.to(torch.complex64) @ self.turned).abs()
        return self.fine(self.coarse(turned.bfloat16()).double()).float()


class Grows(nn.Module):
    """Its forward makes a buffer, replaces one, and lets one grow; all of them matter for what it returns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("means", torch.zeros(1))
        self.register_buffer("late", None)

    def forward(self, inputs):
        if self.training:
            mean = inputs.detach().mean()
            self.count = self.count + 1
            self.means = torch.cat([self.means, mean[None]])
            self.late = mean if self.late is None else self.late + mean
        return self.linear(inputs) * (1 + self.late * 0.1 + self.means.mean() + self.count * 0.01)


class SkipsLast(Callback):
    asks, agree = frozenset({"skip_batch"}), "same"

    def before_train_iter(self, run):
        if run.clock.batches % 2 == 1:
            run.skip_batch()


class Alternates(Callback):
    """Trains one layer in even epochs and the other one in odd ones."""

    def around_train_epoch(self, run):
        rests = run.module[run.epoch % 2 * 2].requires_grad_(False)
        rests.zero_grad()
        yield
        rests.requires_grad_(True)


CASES = {
    "plain": lambda: ([], {}),
    "clipped": lambda: ([GradientClip(0.1)], {}),
    "accumulated": lambda: ([Accumulate(3)], {}),
    "normed": lambda: ([], {"model": normed()}),
    "normed and accumulated": lambda: ([Accumulate(2)], {"model": normed()}),
    "uneven": lambda: ([], {"train": uneven()}),
    "uneven and normed": lambda: ([], {"train": uneven(), "model": normed(momentum=0.0)}),
    "uneven, normed, accumulated": lambda: ([Accumulate(2)], {"train": uneven(), "model": normed(momentum=0.0)}),
    "several types": lambda: ([], {"model": Types()}),
    "growing buffers": lambda: ([], {"model": Grows()}),
    "skipped": lambda: ([SkipsLast()], {"model": normed()}),
    "stopped by one": lambda: ([StopsOne()], {}),
    "frozen at first": lambda: ([Freeze("0", until="1 epoch")], {"model": tiny_classifier()}),
    "frozen in turns": lambda: ([Alternates()], {"model": tiny_classifier()}),
}


def both(name):
    """How a training ends with torch's own way, and with ours."""
    found = []
    for more in ([], [Apart()]):
        callbacks, options = CASES[name]()
        found.append(fitted([*callbacks, *more], **options))
    return [[one["error"], one["clock"], one["reason"], one["history"], one["weights"]] for one in found]


def refused():
    """While a step is recorded, nothing but the gradients may be talked about."""

    class Talks(Callback):
        def after_train_iter(self, run):
            with run.processes.talking(lambda talk: None, only=True):
                dist.all_reduce(torch.zeros(1))

    return fitted([Apart(), Talks()])["error"]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.used(inputs)


def without_gradient():
    return fitted([Apart()], model=Branches())["error"]


def stepped_too_soon():
    class Steps(MainCallback):
        def on_iter_backward(self, run):
            run.loss.backward()
            run.optimizers[0].step()

    return fitted([Apart(), Steps()])["error"]


def thawed(*more):
    return fitted([Freeze("0", until="1 step"), *more])["error"]


def counted():
    """How many batches each process trained on, by a buffer that the forward replaces."""
    model = Grows()
    found = fitted([], model=model, train=uneven(), strategy=DDP(broadcast_buffers=False))
    return found["error"] or int(model.count)


def kept_in_turns():
    """What talks, hears and is called in a run in which other parameters are trained in each epoch."""
    seen = []

    class Sees(Callback):
        def before_train_iter(self, run):
            seen.append((run.processes.reduction, run.processes.reduction.ears, run.model))

    error = fitted([Apart(), Alternates(), Sees()])["error"]
    return error or [len({id(one[place]) for one in seen}) for place in range(3)]


def left_behind():
    """The weights and buffers of a second fit, if the first one put gradients together in the one way or the other."""
    found = []
    for more in ([], [Apart()]):
        model = normed()
        trainer = trainer_with(more, model=model, strategy=DDP(broadcast_buffers=False))
        trainer.fit(tiny_loader(), epochs=1)
        assert trainer._training.processes.reduction is None
        for callback in more:
            trainer.remove(callback)
        trainer.fit(tiny_loader(), tiny_loader(), epochs=1)
        found.append([*model.state_dict().values()])
    return found


def reasons():
    """Why steps of several processes are not recorded, as it is said for some settings."""
    found = []
    for flags in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
        with trainer_with([], strategy=DDP(**flags)).run(epochs=1) as run:
            found.append(run.training_state.strategy.why_not_recorded(run, "captured"))
    with trainer_with([]).run(epochs=1) as run:
        run.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        found.append(run.training_state.strategy.why_not_recorded(run, "captured"))
    return found


class Unsized:
    """Nobody knows how many batches there are, so a window may be open when they end."""

    divides_over_ranks = True

    def __iter__(self):
        return iter(uneven())


class OwnForward(MainCallback):
    def __init__(self, name):
        self.called = name

    def on_iter_forward(self, run):
        run.output = getattr(run, self.called)(run.batch[0])


def past_the_wrapper():
    return fitted([OwnForward("module")])["error"]


def past_the_model():
    """Weights of a training whose forward calls the module itself, and of one that calls what it should."""
    found = [fitted([Apart(), Accumulate(2), OwnForward(name)], Unsized()) for name in ("module", "model")]
    return [one["error"] or one["weights"] for one in found]


class Scaled(nn.Module):
    """A criterion that has something to learn."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs * self.scale, targets)


def strangers():
    """What is said of parameters that are not in the model."""
    model, criterion = tiny_classifier(), Scaled()
    sgd = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with Trainer(model, sgd, criterion, device="cpu", strategy="ddp").run(epochs=1):
            pass
    return [str(one.message) for one in said]


OTHERS = {
    "strangers": (strangers, ()),
    "refused": (refused, ()),
    "without gradient": (without_gradient, ()),
    "stepped too soon": (stepped_too_soon, ()),
    "thawed": (thawed, ()),
    "thawed apart": (thawed, (Apart(),)),
    "counted": (counted, ()),
    "kept in turns": (kept_in_turns, ()),
    "left behind": (left_behind, ()),
    "past the model": (past_the_model, ()),
    "past the wrapper": (past_the_wrapper, ()),
    "reasons": (reasons, ()),
}


@pytest.fixture(scope="module")
def answers():
    scenarios = {**{name: (both, (name,)) for name in CASES}, **OTHERS}
    with tempfile.TemporaryDirectory() as folder:
        found = ranks(play, folder, [*scenarios.values()], results="all", timeout=280)
    return [dict(zip(scenarios, one, strict=True)) for one in found]


@pytest.mark.parametrize("name", CASES)
def test_weights_are_the_same_to_the_bit(answers, name):
    for rank in range(2):
        usual, apart = answers[rank][name]
        assert usual[0] is None
        assert usual[:4] == apart[:4]
        assert torch.equal(usual[4], apart[4])
    assert torch.equal(answers[0][name][1][4], answers[1][name][1][4])


def test_who_is_asked_to_stop_by_one_stops(answers):
    stopped = [answers[rank]["stopped by one"][1][2] for rank in range(2)]
    assert stopped == ["rank 1 has had enough (asked by rank 1)"] * 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("refused", "LonelyCollective: the step talks to the other processes in its midst (allreduce"),
        ("without gradient", "unused.weight has no gradient"),
        ("without gradient", "find_unused_parameters=True"),
        ("stepped too soon", "so putting the gradients of all processes together would come too late"),
        ("past the wrapper", "the forward did not call run.model"),
        ("thawed", "0.weight is trained from the midst of an epoch on"),
        ("thawed apart", "0.weight is trained from the midst of an epoch on"),
    ],
)
def test_what_cannot_be_is_refused(answers, name, said):
    for rank in range(2):
        assert said in answers[rank][name]


def test_a_round_without_a_batch_leaves_buffers_alone(answers):
    assert [answers[rank]["counted"] for rank in range(2)] == [9, 6]


def test_all_steps_of_a_run_hear_with_the_same_ears(answers):
    for rank in range(2):
        assert answers[rank]["kept in turns"] == [3, 1, 1]


def test_the_next_fit_does_not_notice(answers):
    for rank in range(2):
        usual, apart = answers[rank]["left behind"]
        assert all(torch.equal(one, other) for one, other in zip(usual, apart, strict=True))


def test_a_forward_that_calls_the_module_itself_is_put_together_as_well(answers):
    for rank in range(2):
        past, through = answers[rank]["past the model"]
        assert torch.equal(past, through)
        assert torch.equal(past, answers[0]["past the model"][0])


def test_parameters_that_are_not_in_the_model_are_told_of(answers):
    (said,) = answers[0]["strangers"]
    assert "the optimizers train parameters that are not in the model (1)" in said
    assert answers[1]["strangers"] == []


def test_why_not_is_said(answers):
    for rank in range(2):
        plain, *others = answers[rank]["reasons"]
        assert plain is None
        said = ("static_graph lets torch", "find_unused_parameters looks", "a hook of DistributedDataParallel")
        assert all(one.startswith(begin) for one, begin in zip(others, said, strict=True))


def test_one_process_has_nothing_to_put_together():
    trainer = trainer_with([], strategy=DDP(find_unused_parameters=True, static_graph=True))
    with trainer.run(epochs=1) as run:
        why = [run.training_state.strategy.why_not_recorded(run, mode) for mode in ("auto", "captured", "compiled")]
    assert why == [None, None, None]
