"""What one process asks becomes the same decision in all, at the same step, by the rule of who asks."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler

from cadenza import Callback, When
from cadenza.callbacks import Accumulate, Freeze, HangWatch, NaNGuard, TimeLimit
from cadenza.distributed import DDP, main_only
from cadenza.distributed.failures import fork_safety
from cadenza.testing import tiny_classifier, tiny_data, tiny_loader

from ..processes import ranks
from .crew import Mine, fitted, play, trainer_with

pytestmark = pytest.mark.timeout(300)


class Asks(Callback):
    """Asks for something at one point of one batch, on some ranks."""

    def __init__(self, request, point, on, agree="any", asks=(), epoch=0, ranks="all"):
        self.request, self.point, self.on = request, point, on
        self.agree, self.asks, self.epoch, self.ranks = agree, frozenset(asks), epoch, ranks
        self.done = False

    def plays(self):
        return {self.point: self.ask, "after_run": self.after}

    def ask(self, run):
        if run.rank in self.on and run.epoch == self.epoch and not self.done:
            self.done = self.request == "stop"
            getattr(run, self.request)(*(["enough"] if self.request == "stop" else []))

    def after(self, run):
        if self.request != "save":
            run.store["reason"] = run.stop_reason


class Saver(Callback):
    owns = {"save"}

    def save(self, run):
        run.store["reason"] = [*(run.store.get("reason") or []), run.clock.steps]


class Counts(Callback):
    """How many iterations were played, and which actions were skipped."""

    def __init__(self):
        self.seen = []

    def after_train_iter(self, run):
        self.seen.append("".join(sorted(name[0] for name in run.skipped)))

    def after_run(self, run):
        run.store["reason"] = self.seen


def ask(strategy, *args, **named):
    extra = [Saver()] if args[0] == "save" else []
    return fitted([Asks(*args, **named), *extra], tiny_loader(80), strategy=strategy)


def nan_on_one(action):
    poisoned = [(x / 0 if index == 1 else x, y) for index, (x, y) in enumerate(tiny_loader())]
    mine = Mine(poisoned if dist.get_rank() == 1 else tiny_loader())
    counts = Counts()
    guard = NaNGuard(action, check_every=1, snapshot_every=None)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fitted([guard, counts], mine, epochs=1)


class Unsized:
    """Batches of this rank alone, nobody knows how many."""

    divides_over_ranks = True

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def shorter_on_one(strategy, known):
    batches = list(tiny_loader())[: 1 if dist.get_rank() else 3]
    train = Mine(batches) if known else Unsized(batches)
    return fitted([Accumulate(2)], train, strategy=strategy, val=Mine(batches))


class Slow(Callback):
    def before_step(self, run):
        if run.rank == 1:
            time.sleep(0.05)


class Windows(Callback):
    def __init__(self):
        self.open = []

    def before_train_iter(self, run):
        self.open.append(run.clock.batches)

    def after_run(self, run):
        run.store["reason"] = self.open


def slow_rank():
    windows = Windows()
    return fitted([Slow(), When(windows, every="0.11 seconds")], tiny_loader(80))


def time_limit():
    class Late(TimeLimit):
        def after_register(self, run):
            super().after_register(run)
            self._began -= 100 * (run.rank == 1)  # this rank believes that its time is over, which does not count

    return fitted([Late("50 seconds"), Slow()], tiny_loader(80))


class Lonely(Callback):
    ranks = "main"

    def after_train_epoch(self, run):
        dist.all_reduce(torch.ones(1))


class HalfLonely(Callback):
    @main_only
    def after_train_epoch(self, run):
        dist.barrier()

    @main_only
    def around_val_epoch(self, run):
        run.store["held"] = run.rank
        yield


def lonely(callback):
    return fitted([callback()], strategy=DDP(debug=True))


class Logs(Callback):
    def after_train_iter(self, run):
        run.log("train/rank", float(run.rank + run.batch_idx), over_ranks="mean")

    def after_val_epoch(self, run):
        run.log("val/mean", torch.tensor(float(run.rank)), over_ranks="mean")
        run.log("val/main", 10.0 + run.rank)


def logs():
    trainer = trainer_with([Logs()])
    history = trainer.fit(tiny_loader(), tiny_loader(), epochs=1)
    return (
        [row.get("train/rank") for row in history.iters],
        history.epochs[0]["val/mean"],
        history.epochs[0]["val/main"],
    )


def every_sample_once():
    inputs = torch.arange(23.0).repeat(4, 1).T
    loader = torch.utils.data.DataLoader(inputs, batch_size=4)
    shuffled = torch.utils.data.DataLoader(tiny_data(23), batch_size=4, shuffle=True)
    seen = []

    class Sees(Callback):
        def after_fetch(self, run):
            if hasattr(run, "batch") and run.stage == "train":
                seen.extend(run.batch[0][:, 0].tolist())

    trainer = trainer_with([Sees()], model=torch.nn.Linear(4, 3))
    trainer.fit(shuffled, epochs=1)
    with torch.no_grad():
        expected = trainer.model(inputs)
    return seen, torch.allclose(trainer.predict(loader), expected), trainer.clock.samples


def forks_wait():
    """Starts a loader's worker, and says how often a fork has waited for the threads of this process."""
    waited, settle = [], fork_safety.settle
    fork_safety.settle = lambda: (waited.append(1), settle())
    try:
        return fitted([], DataLoader(tiny_data(16), 4, num_workers=1, multiprocessing_context="fork"), epochs=1), waited
    finally:
        fork_safety.settle = settle


def frozen_later():
    return fitted([Freeze("0", until="1 epoch")])


def ragged():
    """Four rounds; in the last one rank 1 has no batch."""
    return tiny_loader(25, 4)


def unsized():
    return Unsized(list(tiny_loader(32))[: 3 if dist.get_rank() else 4])


def validated(train):
    """After which steps a validation began, if there is one after every second."""
    seen = []

    class Sees(Callback):
        def before_val_epoch(self, run):
            seen.append(run.clock.steps)

    trainer = trainer_with([Sees()])
    trainer.fit(train(), tiny_loader(), epochs=2, validate_every="2 steps")
    return seen


def validated_alone():
    """A loop of one's own that validates in a round in which rank 1 has no batch."""
    try:
        with trainer_with([]).run(epochs=1) as run:
            for _ in run.epochs():
                for _ in run.train(ragged()):
                    run.train_step()
                    if run.batch_idx == 3:
                        for _ in run.validate(tiny_loader()):
                            run.eval_step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def asked_alike_by_one():
    """In the fourth round rank 1 has no batch, and does not play this point."""

    class Stops(Callback):
        agree = "same"

        def after_train_iter(self, run):
            if run.batch_idx == 3:
                run.stop()

    return fitted([Stops()], ragged())["error"]


HERE = "rank 1: at before_step or after it (epoch 2, train batch 1) on rank 1"
"""On a slow machine others are written as well: where a rank stood that was only late."""


class Stuck(Callback):
    """Rank 1 does not go on until rank 0 has written that it stands here, however long that takes."""

    def __init__(self, report):
        self.report = report

    def before_step(self, run):
        until = time.monotonic() + 100
        if run.rank == 1 and run.epoch == 1 and run.batch_idx == 0:
            while HERE not in read(self.report) and time.monotonic() < until:
                time.sleep(0.05)


def read(file):
    return file.read_text() if file.exists() else ""


def hang(folder):
    file = Path(folder, f"report-{dist.get_rank()}")
    fitted([Stuck(Path(folder, "report-0")), HangWatch(after="0.5 seconds", file=str(file))])
    return read(file)


class Sent(TorchDispatchMode):
    """Counts collectives and their bytes."""

    def __init__(self):
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.calls += 1
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return func(*args, **(kwargs or {}))


def by_hand(steps):
    model = torch.nn.parallel.DistributedDataParallel(tiny_classifier())
    sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    for inputs, targets in list(tiny_loader(steps * 8)):
        loss(model(inputs), targets).backward()
        sgd.step()
        sgd.zero_grad()


def divided_here(steps):
    trainer_with([Counts()]).fit(tiny_loader(steps * 16), epochs=1)


def divided_by_sampler(steps):
    data = tiny_loader(steps * 16).dataset
    trainer_with([Counts()]).fit(DataLoader(data, 8, sampler=DistributedSampler(data)), epochs=1)


def what_is_sent():
    """Collectives and bytes of 20 steps more, by hand and with callbacks that ask for nothing, on data that is divided
    here and on data that a sampler divides."""
    found = []
    for train in (by_hand, divided_here, divided_by_sampler):
        sums = []
        for steps in (20, 20, 40):  # the first training of a process also meets the others
            with Sent() as sent:
                train(steps)
            sums.append((sent.calls, sent.bytes))
        found.append((sums[2][0] - sums[1][0], sums[2][1] - sums[1][1]))
    return found


SCENARIOS = {
    "stop": (ask, ("ddp", "stop", "before_step", {1})),
    "stop after the iteration": (ask, ("ddp", "stop", "after_iter", {0})),
    "stop in validation": (ask, ("ddp", "stop", "before_val_iter", {1})),
    "stop at the end of the epoch": (ask, ("ddp", "stop", "after_epoch", {1})),
    "stop under fsdp": (ask, ("fsdp", "stop", "before_step", {1})),
    "all, asked by one": (ask, ("ddp", "stop", "before_step", {1}, "all")),
    "all, asked by all": (ask, ("ddp", "stop", "before_step", {0, 1}, "all")),
    "main, asked by another": (ask, ("ddp", "stop", "before_step", {1}, "main")),
    "main, asked by main": (ask, ("ddp", "stop", "before_step", {0}, "main")),
    "end_epoch": (ask, ("ddp", "end_epoch", "before_step", {1})),
    "skip_validation": (ask, ("ddp", "skip_validation", "after_train_epoch", {1})),
    "save": (ask, ("ddp", "save", "after_step", {1})),
    "undeclared skip": (ask, ("ddp", "skip_step", "before_step", {1})),
    "declared skip": (ask, ("ddp", "skip_step", "before_step", {1}, "any", {"skip_step"})),
    "nan, stop": (nan_on_one, ("stop",)),
    "nan, skip": (nan_on_one, ("skip",)),
    "shorter": (shorter_on_one, ("ddp", True)),
    "shorter, unknown": (shorter_on_one, ("ddp", False)),
    "shorter under fsdp": (shorter_on_one, ("fsdp", False)),
    "slow": (slow_rank, ()),
    "time limit": (time_limit, ()),
    "lonely": (lonely, (Lonely,)),
    "half lonely": (lonely, (HalfLonely,)),
    "logs": (logs, ()),
    "every sample once": (every_sample_once, ()),
    "forks": (forks_wait, ()),
    "frozen later": (frozen_later, ()),
    "validated": (validated, (ragged,)),
    "validated, unknown": (validated, (unsized,)),
    "validated alone": (validated_alone, ()),
    "asked alike by one": (asked_alike_by_one, ()),
    "hang": (hang, (None,)),
    "sent": (what_is_sent, ()),
}


@pytest.fixture(scope="module")
def answers():
    with tempfile.TemporaryDirectory() as folder:
        scenarios = [(fn, tuple(folder if arg is None else arg for arg in args)) for fn, args in SCENARIOS.values()]
        found = ranks(play, folder, scenarios, results="all", timeout=280)
    return {name: (found[0][place], found[1][place]) for place, name in enumerate(SCENARIOS)}


def both(answers, name):
    """What both ranks say; they must have ended alike."""
    one, other = answers[name]
    assert one["error"] is None, one["error"]
    assert other["error"] is None, other["error"]
    assert one["clock"] == other["clock"]
    torch.testing.assert_close(one["weights"], other["weights"], rtol=0, atol=0, equal_nan=True)
    assert max(one["seconds"], other["seconds"]) < 60
    return one, other


@pytest.mark.parametrize("name", ["validated", "validated, unknown"])
def test_all_validate_at_the_same_time(answers, name):
    """Also if it is time when one of them has no batch."""
    assert answers[name] == ([2, 4, 6, 8], [2, 4, 6, 8])


def test_who_asks_alike_where_others_do_not_play_is_told(answers):
    said = 'Stops asked run.stop() with agree = "same" in a round for which other processes have no batch'
    assert said in answers["asked alike by one"][0]
    assert answers["asked alike by one"][1].startswith("RankFailed: rank 0 failed")


def test_who_would_validate_alone_is_told(answers):
    said = "rank 0 opens a pass in a training iteration for which others have no batch"
    assert said in answers["validated alone"][0]
    assert answers["validated alone"][1].startswith("RankFailed: rank 0 failed")


@pytest.mark.parametrize("name", ["stop", "stop under fsdp", "main, asked by main"])
def test_a_stop_of_one_stops_all_at_the_same_step(answers, name):
    one, other = answers[name]
    assert one["clock"] == other["clock"]
    assert one["clock"][1] < 15
    assert one["reason"].startswith("enough")
    assert one["reason"] == other["reason"]


def test_the_reason_says_who_asked(answers):
    assert both(answers, "stop")[0]["reason"] == "enough (asked by rank 1)"
    assert both(answers, "stop")[0]["clock"] == [2, 2, 0]  # asked after the first backward, told with the second
    assert both(answers, "stop after the iteration")[0]["clock"] == [2, 2, 0]


def test_a_stop_outside_of_training_is_heard_at_the_next_boundary(answers):
    assert both(answers, "stop in validation")[0]["clock"] == [5, 5, 1]
    assert both(answers, "stop at the end of the epoch")[0]["clock"] == [5, 5, 1]


def test_all_needs_every_process_and_main_hears_rank_0_alone(answers):
    assert both(answers, "all, asked by one")[0]["clock"] == [15, 15, 3]
    assert both(answers, "all, asked by all")[0]["clock"] == [2, 2, 0]
    assert both(answers, "main, asked by another")[0]["clock"] == [15, 15, 3]


def test_end_epoch_skip_validation_and_save_are_agreed_too(answers):
    assert both(answers, "end_epoch")[0]["clock"] == [2 + 5 + 5, 12, 3]
    epochs = both(answers, "skip_validation")[0]["history"]
    assert ["val/loss" in row for row in epochs] == [False, True, True]
    one, other = both(answers, "save")
    assert (
        one["reason"] == other["reason"] == [2, 4, 5]
    )  # asked after a step, told with the next backward; the last at the boundary


def test_a_skip_must_be_declared_and_is_then_the_same_for_all(answers):
    asking, other = answers["undeclared skip"][1], answers["undeclared skip"][0]
    assert "asks = {'skip_step'} in class Asks" in asking["error"]
    assert other["error"].startswith("RankFailed: rank 1 failed in Asks at before_step")
    assert both(answers, "declared skip")[0]["clock"] == [15, 10, 3]


def test_nan_on_one_rank(answers):
    stopped, skipped = both(answers, "nan, stop")[0], both(answers, "nan, skip")
    assert stopped["clock"][0] == 3  # read after the second batch, told with the third
    assert skipped[0]["clock"][:2] == [3, 2]
    assert skipped[0]["reason"] == skipped[1]["reason"] == ["", "bsz", ""]
    assert bool(skipped[0]["weights"].isfinite().all())


@pytest.mark.parametrize("name", ["shorter", "shorter, unknown"])
def test_a_loader_that_is_shorter_on_one_rank(answers, name):
    assert both(answers, name)[0]["clock"] == [9, 6, 3]


def test_a_loader_that_is_shorter_under_fsdp(answers):
    one, other = answers["shorter under fsdp"]
    assert (one["error"], other["error"]) == (None, None)
    assert one["clock"] == other["clock"] == [9, 6, 3]


def test_windows_in_seconds_and_time_limits_are_those_of_rank_0(answers):
    one, other = both(answers, "slow")
    assert one["reason"] == other["reason"]
    assert one["reason"]
    assert both(answers, "time limit")[0]["clock"] == [15, 15, 3]


def test_a_collective_where_not_all_are_is_caught_at_once(answers):
    one, other = answers["lonely"]
    assert "LonelyCollective: Lonely does not play on all ranks, but calls" in one["error"]
    assert "rank 0 failed in Lonely at after_train_epoch" in other["error"]
    assert "HalfLonely.after_train_epoch does not play on all ranks" in answers["half lonely"][0]["error"]


def test_values_are_those_of_rank_0_or_the_mean(answers):
    for rows, mean, main in answers["logs"]:
        assert rows == [0.5, 1.5]
        assert (mean, main) == (0.5, 10.0)


def test_every_sample_once_and_predictions_in_the_order_of_the_data(answers):
    (one, first, samples), (other, second, _) = answers["every sample once"]
    assert sorted(one + other) == pytest.approx(sorted(tiny_data(23).tensors[0][:, 0].tolist()))
    assert first
    assert second
    assert samples == 23


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later ones hold the lock themselves while they fork")
def test_a_fork_waits_for_the_threads_of_collectives(answers):
    for found, waited in answers["forks"]:
        assert found["error"] is None
        assert waited


def test_parameters_that_are_trained_only_later(answers):
    one, _ = both(answers, "frozen later")
    before = torch.cat([parameter.detach().flatten() for parameter in tiny_classifier().parameters()])
    assert not torch.equal(one["weights"], before)


def test_hang_watch_says_which_rank_stands_where(answers):
    report = answers["hang"][0]
    assert "rank 0: " in report
    assert HERE in report


def test_a_run_in_which_nobody_asks_has_the_collectives_of_plain_ddp(answers):
    for plain, *both in answers["sent"]:
        for ours in both:
            assert plain[0] == ours[0] == 20
            assert 0 < ours[1] - plain[1] <= 64 * 20
