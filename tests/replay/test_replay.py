"""Replay: the recorded steps happen again bit for bit, and the module that is named is the one that did it."""

from __future__ import annotations

import copy
import math
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cadenza import Callback, Order, Trainer
from cadenza.callbacks import EMA, Accumulate, CosineSchedule, OneCycleSchedule, Schedule
from cadenza.callbacks.guards.nan_guard import NaNGuard
from cadenza.replay.find_nonfinite import not_finite
from cadenza.replay.snapshot import CannotKeep, to_host

pytestmark = pytest.mark.filterwarnings("ignore:.*The run is stopped:UserWarning")

BATCHES = 12
SIGN = 100.0
"""What stands in the first feature of a batch in which a module is to misbehave."""


def make_data(bad=7, count=BATCHES):
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(6, 4, generator=generator), torch.arange(6) % 3) for _ in range(count)]
    if bad is not None:
        data[bad][0][:, 0] = SIGN
    return data


class Look(nn.Module):
    """Tells the others whether the sign is in this batch; what they compute from it would not show it."""

    seen = False

    def forward(self, inputs):
        Look.seen = bool(inputs.amax() > SIGN / 2)
        return inputs


class Divide(nn.Module):
    """Divides by zero where the sign was seen."""

    def forward(self, inputs):
        return inputs / 0 if Look.seen else inputs


class Root(nn.Module):
    """Finite everywhere, but where the sign was seen its gradient is not."""

    def forward(self, inputs):
        return inputs + (inputs - inputs.detach()).abs().sqrt() if Look.seen else inputs


class Own(nn.Module):
    """Goes wrong in its own forward, not in a child."""

    def __init__(self):
        super().__init__()
        self.look, self.inner = Look(), nn.Linear(4, 3)

    def forward(self, inputs):
        output = self.inner(self.look(inputs))
        return output / 0 if Look.seen else output


class Mask(nn.Module):
    """Puts infinities into its output in good order."""

    def forward(self, inputs):
        return torch.cat([inputs, torch.full_like(inputs[:, :1], -math.inf)], 1)


class Unmask(nn.Module):
    def forward(self, inputs):
        return inputs[:, :-1]


def make_model(*middle, seed=0):
    """A model whose parts are called look, first, body, second and head; ``middle`` are first and second."""
    torch.manual_seed(seed)
    first, second = (*middle, nn.Identity(), nn.Identity())[:2]
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.25))
    parts = {"look": Look(), "first": first, "body": body, "second": second, "head": nn.Linear(8, 3)}
    model = nn.Sequential()
    for name, module in parts.items():
        model.add_module(name, module)
    return model


def make_trainer(*callbacks, model=None, criterion=None, optimizer=None, scheduler=None, **more):
    model = model if model is not None else make_model()
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
    made = make(model.parameters())
    given = None if scheduler is None else scheduler(made)
    criterion = criterion or nn.CrossEntropyLoss()
    return Trainer(model, made, criterion, scheduler=given, callbacks=list(callbacks), device="cpu", **more)


def guard_in(folder, **options):
    return NaNGuard(**{"check_every": 3, "snapshot_every": 5, "folder": folder, **options})


def state_of(training, callbacks):
    """Everything that shapes the next step."""
    return copy.deepcopy(
        {
            "model": training.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in training.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in training.schedulers],
            "callbacks": [callback.state_dict() for callback in callbacks if isinstance(callback, Noise)],
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": numpy.random.get_state()[1].tolist(),
        }
    )


class Witness(Callback):
    """Keeps the state in which one batch, counted over all epochs, is fetched."""

    order = -5000

    def __init__(self, batch):
        self.batch, self.state = batch, None

    def after_fetch(self, run):
        if run.clock.batches == self.batch and hasattr(run, "batch"):
            self.state = state_of(run.training_state, run.callbacks)


def assert_equal(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


# Bit for bit --------------------------------------------------------------------------------------------------------


class Noise(Callback):
    """Changes batches with random numbers of all kinds, and gradients, and counts in its state."""

    def __init__(self):
        self.count = 0

    def before_train_iter(self, run):
        self.count += 1
        noise = torch.randn_like(run.inputs) * random.random() + float(numpy.random.rand()) * self.count
        run.inputs = run.inputs + 0.01 * noise

    def before_step(self, run):
        for parameter in run.module.parameters():
            parameter.grad.clamp_(-0.05, 0.05)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Hold(Callback):
    """Accumulates three batches."""

    asks = {"hold_step"}

    def before_train_iter(self, run):
        run.loss_weight = 1 / 3
        if (run.batch_idx + 1) % 3:
            run.hold_step()


def milestones(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize("bad", [0, 4, 7, BATCHES + 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"callbacks": [Noise]},
        {"callbacks": [Noise, Hold]},
        {"optimizer": adam, "scheduler": milestones},
        {"callbacks": [lambda: CosineSchedule(warmup="3 steps"), EMA]},
        {"callbacks": [lambda: Accumulate(2), lambda: Schedule(torch=milestones, cadence="step")]},
        {"callbacks": [OneCycleSchedule], "optimizer": adam},
    ],
    ids=["plain", "random callback", "accumulation", "Adam and a schedule", "cosine", "torch's", "one cycle"],
)
def test_a_replay_arrives_where_the_run_was_before_that_batch(tmp_path, bad, options):
    """Dropout, batch norm, momentum, schedule, callbacks, random numbers: compared with a run that ends there."""
    made = dict(options)
    callbacks = made.pop("callbacks", [])

    def make(*extra, seed=0):
        model = make_model(nn.Identity(), Divide(), seed=seed)
        return make_trainer(*extra, *(callback() for callback in callbacks), model=model, **made)

    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(11)
    make(guard := guard_in(tmp_path), witness := Witness(bad)).fit(Marked(bad), epochs=2)
    fresh = make(seed=9)
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(99)
    result = fresh.replay(guard.file)
    epoch, batch = divmod(bad, BATCHES)
    assert (result.epoch, result.batch_idx, result.kind, result.module) == (epoch, batch, "output", "second")
    assert result.exact
    assert_equal(state_of(fresh._training, fresh.callbacks), witness.state)
    assert (fresh.clock.batches, fresh.clock.epochs, fresh.clock.steps) == (bad, epoch, result.step)
    assert torch.equal(result.batch[0][:, 0], torch.full((6,), SIGN))


class Marked:
    """The same batches in each epoch, but for one, counted over all epochs, that holds the sign."""

    def __init__(self, bad):
        self.given, self.bad = 0, bad

    def __len__(self):
        return BATCHES

    def __iter__(self):
        for inputs, targets in make_data(bad=None):
            if self.given == self.bad:
                inputs[:, 0] = SIGN
            self.given += 1
            yield inputs, targets


class Late(nn.Module):
    """Draws random numbers for batches that ask for it."""

    def forward(self, inputs):
        return nn.functional.dropout(inputs, 0.25) if inputs[0, 1] == 10 else inputs


@pytest.mark.parametrize("draws", [False, True], ids=["nobody draws", "draws begin in the middle"])
def test_random_numbers_that_nobody_draws_are_not_kept_and_a_replay_needs_none(tmp_path, draws):
    """The tape with batches 10 to 14 begins without any; those that are drawn from batch 12 on follow from it."""
    data = make_data(bad=None, count=20)
    data[13][0][:, 0] = SIGN
    for inputs, _ in data[12:] if draws else ():
        inputs[:, 1] = 10

    def make(*callbacks):
        torch.manual_seed(0)
        return make_trainer(*callbacks, model=nn.Sequential(Late(), Look(), nn.Linear(4, 8), Divide(), nn.Linear(8, 3)))

    make(guard := guard_in(tmp_path), witness := Witness(13)).fit(data, epochs=1)
    assert [one["rng"] for one in torch.load(guard.file, weights_only=True)["batches"]] == [None] * 4
    torch.manual_seed(99)
    fresh = make()
    result = fresh.replay(guard.file)
    assert (result.batch_idx, result.kind, result.exact) == (13, "output", True)
    assert_equal(state_of(fresh._training, []), witness.state)


def test_an_exact_replay_shows_the_loss_of_every_step(tmp_path):
    """The file holds the losses; one that is altered is noticed."""
    guard = guard_in(tmp_path)
    make_trainer(guard, model=make_model(nn.Identity(), Divide())).fit(make_data(), epochs=1)
    tape = torch.load(guard.file, weights_only=True)
    assert [one["batch_idx"] for one in tape["batches"]] == [5, 6, 7]
    assert [math.isfinite(one["loss"]) for one in tape["batches"]] == [True, True, False]
    tape["batches"][0]["loss"] = math.nextafter(tape["batches"][0]["loss"], 10)
    torch.save(tape, guard.file)
    result = make_trainer(model=make_model(nn.Identity(), Divide())).replay(guard.file)
    assert not result.exact
    assert "differ from the recorded ones" in str(result)
    assert result.module == "second"


class Jittered(Dataset):
    """Draws from the global generator for each sample, as augmentations do."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        sample = torch.randn(4) * random.random()
        return (sample.abs() + SIGN if index == 40 else sample), index % 3


def test_batches_of_a_shuffling_random_loader_are_kept_as_they_were(tmp_path):
    guard = guard_in(tmp_path, snapshot_every=4)
    trainer = make_trainer(guard, model=make_model(nn.Identity(), Divide()))
    torch.manual_seed(2)
    trainer.fit(DataLoader(Jittered(), batch_size=4, shuffle=True), epochs=1)
    result = make_trainer(model=make_model(nn.Identity(), Divide(), seed=3)).replay(guard.file)
    assert (result.module, result.kind, result.exact) == ("second", "output", True)


def test_a_snapshot_waits_for_gradients_that_are_held(tmp_path):
    """Windows of three batches, a snapshot due after each two: it is taken where a window begins."""
    guard = guard_in(tmp_path, snapshot_every=2, check_every=1)
    make_trainer(guard, Hold(), model=make_model(nn.Identity(), Divide())).fit(make_data(bad=8), epochs=1)
    tape = torch.load(guard.file, weights_only=True)
    assert [one["batch_idx"] for one in tape["batches"]] == [6, 7, 8]
    assert make_trainer(Hold(), model=make_model(nn.Identity(), Divide(), seed=3)).replay(guard.file).exact


@pytest.mark.parametrize("action", ["skip", "raise"])
def test_the_files_of_all_actions_can_be_played(tmp_path, action):
    guard = guard_in(tmp_path, action=action)
    trainer = make_trainer(guard, model=make_model(nn.Identity(), Divide()))
    expected = pytest.warns(UserWarning, match="batch 8") if action == "skip" else pytest.raises(ArithmeticError)
    with expected:
        trainer.fit(make_data(), epochs=1)
    result = trainer.replay(guard.file)
    assert (result.step, result.module, result.exact) == (7, "second", True)


# Who did it ---------------------------------------------------------------------------------------------------------


def log_of_negative(output, targets):
    loss = nn.functional.cross_entropy(output, targets)
    return torch.log(-loss) if Look.seen else loss


def root_of_zero(output, targets):
    loss = nn.functional.cross_entropy(output, targets)
    return loss + (loss - loss.detach()).abs().sqrt() if Look.seen else loss


class Reckless(Callback):
    """Sets an infinite learning rate for one step."""

    def before_step(self, run):
        run.optimizer.param_groups[0]["lr"] = math.inf if run.batch_idx == 7 else 0.05


def nested():
    return nn.Sequential(make_model(), nn.Sequential(nn.ReLU(), Divide()))


def masked():
    return make_model(nn.Identity(), nn.Sequential(Mask(), Unmask(), Divide()))


CASES = {
    "first module": (lambda: make_model(Divide()), None, "output", "first"),
    "later module": (lambda: make_model(nn.Identity(), Divide()), None, "output", "second"),
    "nested module": (nested, None, "output", "1.1"),
    "own code of the model": (Own, None, "output", "Own"),
    "behind a mask of infinities": (masked, None, "output", "second.2"),
    "criterion": (make_model, log_of_negative, "loss", "criterion"),
    "gradient of a module": (lambda: make_model(nn.Identity(), Root()), None, "gradient", "second"),
    "gradient of the criterion": (make_model, root_of_zero, "gradient", "criterion"),
    "step": (make_model, None, "parameter", "body.0"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("watch", ["loss", "both"])
def test_the_module_that_is_named_did_it(tmp_path, case, watch):
    make, criterion, kind, module = CASES[case]
    callbacks = [Reckless] if case == "step" else []
    torch.manual_seed(0)
    model = make()
    fresh = copy.deepcopy(model)
    guard = guard_in(tmp_path, watch=watch)
    make_trainer(guard, *(c() for c in callbacks), model=model, criterion=criterion).fit(make_data(), epochs=1)
    result = make_trainer(*(c() for c in callbacks), model=fresh, criterion=criterion).replay(guard.file)
    assert (result.kind, result.module, result.step, result.exact) == (kind, module, 7, True)
    assert "step 7 (epoch 1, batch 8)" in str(result)


def test_a_batch_that_holds_nan_itself_is_named(tmp_path):
    data = make_data(bad=None)
    data[7][0][1, 2] = math.nan
    guard = guard_in(tmp_path)
    trainer = make_trainer(guard)
    trainer.fit(data, epochs=1)
    result = trainer.replay(guard.file)
    assert (result.kind, result.detail) == ("batch", "the batch (1 of 24 values is nan)")


def test_a_model_that_was_broken_before_is_named(tmp_path):
    model = make_model()
    with torch.no_grad():
        model.head.bias[1] = math.inf
    guard = guard_in(tmp_path)
    trainer = make_trainer(guard, model=model)
    trainer.fit(make_data(), epochs=1)
    result = trainer.replay(guard.file)
    assert (result.kind, result.module, result.step) == ("parameter", "head", 0)
    assert "head.bias (1 of 3 values is inf)" in str(result)


def test_what_does_not_happen_again_is_said(tmp_path):
    guard = guard_in(tmp_path)
    make_trainer(guard, model=make_model(nn.Identity(), Divide())).fit(make_data(), epochs=1)
    mended = make_trainer(model=make_model(nn.Identity(), nn.Identity()))
    result = mended.replay(guard.file)
    assert (result.kind, result.module, result.step, result.exact) == ("nothing", None, 7, False)
    assert str(result).startswith("Everything was finite up to step 7")


# What a replay leaves alone -----------------------------------------------------------------------------------------


def test_those_who_measure_report_and_save_do_not_play(tmp_path):
    played = []

    def maker(kind, where):
        class Player(Callback):
            order = where
            name = kind

            def after_train_iter(self, run):
                played.append(kind)

            def after_run(self, run):
                played.append(f"end of {kind}")

        return Player()

    guard = guard_in(tmp_path)
    trainer = make_trainer(
        guard,
        maker("update", Order.UPDATE),
        maker("measure", Order.MEASURE),
        maker("save", Order.SAVE),
        model=make_model(nn.Identity(), Divide()),
    )
    history = trainer.fit(make_data(), epochs=1)
    rows = history.to_rows()
    played.clear()
    trainer.replay(guard.file)
    assert set(played) == {"update"}
    assert str(trainer.history.to_rows()) == str(rows)


def test_the_gradient_mode_and_the_hooks_are_as_before(tmp_path):
    guard = guard_in(tmp_path)
    trainer = make_trainer(guard, model=make_model(nn.Identity(), Divide()))
    trainer.fit(make_data(), epochs=1)
    with torch.no_grad():
        trainer.replay(guard.file)
        assert not torch.is_grad_enabled()
    for module in trainer.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert len(trainer.fit(make_data(bad=None), epochs=1)["train/loss"]) == 2  # and training can go on


# Refused ------------------------------------------------------------------------------------------------------------


def test_another_model_is_refused_by_name(tmp_path):
    guard = guard_in(tmp_path)
    make_trainer(guard, model=make_model(nn.Identity(), Divide())).fit(make_data(), epochs=1)
    with pytest.raises(ValueError, match=r"not the model of the replay file: they differ in .*weight"):
        make_trainer(model=nn.Linear(4, 3)).replay(guard.file)


def test_another_file_is_refused(tmp_path):
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="is not a replay file"):
        make_trainer().replay(tmp_path / "other.pt")


def test_a_running_trainer_is_refused(tmp_path):
    guard = guard_in(tmp_path)
    trainer = make_trainer(guard, model=make_model(nn.Identity(), Divide()))
    trainer.fit(make_data(), epochs=1)
    file = guard.file
    trainer.on("after_train_iter")(lambda run: trainer.replay(file))
    with pytest.raises(RuntimeError, match="this trainer is running"):
        trainer.fit(make_data(), epochs=1)


def test_what_can_be_kept():
    kept = to_host({"x": [torch.ones(2)], "id": ("a", 1, None)})
    assert kept["id"] == ("a", 1, None)
    with pytest.raises(CannotKeep, match=r"this\['x'\]\[1\] is a ndarray"):
        to_host({"x": [1, numpy.zeros(2)]})


def test_what_is_not_finite_is_counted_in_words():
    assert not_finite({"a": torch.ones(3), "b": "text", "c": torch.arange(3)}) == ""
    value = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert not_finite((value,)) == "1 of 4 values is nan and 2 are inf"
    assert not_finite(torch.full((2,), -math.inf)) == "2 of 2 values are inf"
