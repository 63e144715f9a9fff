"""Saved with four processes, gone on with two and with one: every sample once in an epoch, and as many in a step."""

from __future__ import annotations

import tempfile
import warnings

import pytest

from cadenza.callbacks import Checkpoint
from cadenza.distributed import RankFailed
from cadenza.testing import tiny_loader

from ..processes import ranks
from .crew import play, trainer_with
from .trainings import BreaksOff, ledger, train

pytestmark = pytest.mark.timeout(300)
SAMPLES = {"ddp": 52, "fsdp": 104}
STOPS = {"ddp": (3, 22), "fsdp": (10, 30)}
"""Where the first two legs break off. Under FSDP processes look every eighth batch whether a save is wanted."""


def go(folder, stop, options):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        clock = train(folder, stop, **options)
    return clock, [str(one.message) for one in said]


@pytest.fixture(
    scope="module", params=["ddp", pytest.param("fsdp", marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def legs(request):
    """Four processes break off in the first epoch, two go on and break off in the second, one ends the run."""
    samples, (first, second) = SAMPLES[request.param], STOPS[request.param]
    how = {"samples": samples, "batch_size": 2, "norm": False, "strategy": request.param}
    with tempfile.TemporaryDirectory() as folder:
        to = f"{folder}/run"
        found = [ranks(go, to, first, how, workers=4, timeout=100)]
        found.append(ranks(go, to, second, how, workers=2, timeout=100))
        found.append(go(to, None, {**how, "strategy": "single"}))
        yield found, [ledger(to, size, size) for size in (4, 2, 1)], samples


def test_every_sample_is_seen_once_in_an_epoch(legs):
    _, seen, samples = legs
    last = {}
    for leg in seen:  # a batch that was trained after the last save is trained again by the next leg
        first = min(leg)
        last = {key: indices for key, indices in last.items() if key < first}
        last.update(leg)
    for epoch in range(3):
        indices = [index for (number, _), batch in last.items() if number == epoch for index in batch]
        assert sorted(indices) == list(range(samples))


def test_a_step_sees_as_many_samples(legs):
    found, _, samples = legs
    (clock, said), steps = found[-1], -(-samples // 8)
    assert clock[1:] == (3 * steps, 3 * samples, 3)
    assert any("saved with 2 processes and goes on with 1" in one for one in said)


class Divided(list):
    """Batches of each rank alone."""

    divides_over_ranks = True


def go_divided(folder, stop):
    """Trains on batches that every rank has for itself, with a checkpoint after each step."""
    callbacks = [Checkpoint("1 step", to=folder, background=False)] + ([BreaksOff(stop)] if stop else [])
    trainer = trainer_with(callbacks, strategy="auto")
    try:
        trainer.fit(Divided(tiny_loader(batch_size=4)), epochs=2, resume="auto")
    except (KeyError, RankFailed):
        pass
    return trainer.clock.batches


def go_refused(folder, options):
    try:
        return train(folder, **options)
    except Exception as error:  # one of the ranks may hear of it from the other
        return str(error)


@pytest.fixture(scope="module")
def refused():
    """A run of one process that two want to go on with, and what they said; and two of two, that one will want."""
    how = {"samples": 52, "batch_size": 2, "norm": False}
    with tempfile.TemporaryDirectory() as folder:
        train(f"{folder}/run", 3, strategy="single", **how)
        scenarios = [
            (go_refused, (f"{folder}/run", how)),
            (go_divided, (f"{folder}/divided", 4)),
            (go, (f"{folder}/asked", 3, {**how, "ends_epoch": 2})),
        ]
        yield folder, ranks(play, folder, scenarios, timeout=100)


def test_what_cannot_be_kept_is_refused_with_the_numbers(refused):
    _, (said, *_) = refused
    assert "a step of the saved run sees 2 samples; 2 process" in said


@pytest.mark.filterwarnings("ignore:.*saved with 2 processes:UserWarning")
def test_a_loader_that_divides_itself_is_refused_in_mid_epoch_with_the_numbers(refused):
    folder, (_, batches, _) = refused
    assert batches == 4
    with pytest.raises(ValueError, match="saved with 2 of them, after 3 batches of each, and goes on with 1, which"):
        go_divided(f"{folder}/divided", None)


@pytest.mark.filterwarnings("ignore:.*saved with 2 processes:UserWarning")
def test_what_another_process_asked_for_is_done_by_the_one_that_is_left(refused):
    folder, (*_, (clock, _)) = refused
    assert clock[0] == 3
    *_, epochs = train(f"{folder}/asked", strategy="single", samples=52, batch_size=2, norm=False)
    assert epochs == 3
    batches = {
        epoch: [batch for number, batch in ledger(f"{folder}/asked", 1, 1) if number == epoch] for epoch in (0, 1)
    }
    assert len(batches[0]) <= 2
    assert len(batches[1]) == 26
