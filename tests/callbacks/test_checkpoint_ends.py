"""The end of a run: what was asked together with a save, and signals that come when all is done but the last save."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cadenza import Callback, Preempted
from cadenza.callbacks import Checkpoint, TimeLimit
from cadenza.checkpoint import Shelf

from .saving import Break, End, Oops, difference, loader, trainer


class Ask(Callback):
    """Asks when so many batches were trained, in the iteration after which a checkpoint is saved."""

    def __init__(self, what: str, batch: int) -> None:
        self.what, self.batch = what, batch

    def after_train_iter(self, run: Any) -> None:
        if run.clock.batches == self.batch:
            getattr(run, self.what)()


# What was asked together with a save --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "batch", "breaks", "batches"),
    [
        ("stop", 7, Break("after_train_epoch", 2), 7),
        ("stop", 10, Break("after_run"), 10),
        ("end_epoch", 2, Break("after_train_epoch", 1), 12),
        ("skip_validation", 6, Break("before_fetch", 8), 15),
    ],
)
def test_a_request_of_the_saved_iteration_is_met_after_a_resume(
    what: str, batch: int, breaks: Break, batches: int, tmp_path: Path
) -> None:
    ends = [End(), End()]
    for end, folder in zip(ends, ("whole", "killed"), strict=True):
        saving = Checkpoint("1 step", to=tmp_path / folder, background=False)
        if folder == "killed":
            with pytest.raises(Oops):
                trainer(saving, Ask(what, batch), breaks).fit(loader(), loader(2), epochs=3)
            saving = Checkpoint("1 step", to=tmp_path / folder, background=False)
        made = trainer(saving, Ask(what, batch), end)
        made.fit(loader(), loader(2), epochs=3, resume="auto")
        assert made.clock.batches == batches
    assert difference(*ends) is None


def test_a_stop_is_no_stop_of_a_run_that_is_to_be_longer(tmp_path: Path) -> None:
    saving = Checkpoint("1 step", to=tmp_path, background=False)
    with pytest.raises(Oops):
        trainer(saving, Ask("stop", 7), Break("after_run")).fit(loader(), epochs=3)
    made = trainer(Checkpoint(to=tmp_path))
    made.fit(loader(), epochs=4, resume="auto")
    assert made.clock.batches == 20


def test_a_run_that_had_stopped_says_why_when_it_is_taken_back(tmp_path: Path) -> None:
    for _ in range(2):
        made = trainer(Checkpoint(to=tmp_path), Ask("stop", 7))
        made.fit(loader(), epochs=3, resume="auto")
        assert made.stop_reason == "asked at after_train_iter"


@pytest.mark.parametrize("steps", [7, 10])
def test_the_last_step_is_the_last_also_after_a_resume(steps: int, tmp_path: Path) -> None:
    ends = [End(), End()]
    trainer(Checkpoint("1 step", to=tmp_path / "whole"), ends[0]).fit(loader(), loader(2), steps=steps)
    saving = Checkpoint("1 step", to=tmp_path / "killed", background=False)
    with pytest.raises(Oops):
        trainer(saving, Break("after_run")).fit(loader(), loader(2), steps=steps)
    made = trainer(Checkpoint("1 step", to=tmp_path / "killed"), ends[1])
    made.fit(loader(), loader(2), steps=steps, resume="auto")
    assert made.clock.steps == steps
    assert difference(*ends) is None


# Signals ------------------------------------------------------------------------------------------------------------


class Late(Callback):
    """Sends a signal at a point, after everybody else has played there."""

    order = 10**6

    def __init__(self, name: str, point: str = "after_epoch", count: int = 2) -> None:
        self.name, self.point, self.left, self.number = "Late", point, count, getattr(signal, name)

    def plays(self) -> dict[str, Any]:
        return {self.point: self.play}

    def play(self, run: Any) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize(("name", "error"), [("SIGTERM", Preempted), ("SIGINT", KeyboardInterrupt)])
def test_a_signal_after_the_last_epoch_is_heeded(
    name: str, error: type[BaseException], final: bool, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        trainer(Checkpoint(None, final=final, to=tmp_path), Late(name)).fit(loader(), epochs=2)
    if name == "SIGTERM":
        assert caught.value.code == 143  # type: ignore[attr-defined]
    saved = Shelf(tmp_path).read("last")
    assert saved.meta["epoch"] == 2
    assert saved.state["ended"] is not None
    made = trainer(Checkpoint(None, final=final, to=tmp_path))
    made.fit(loader(), epochs=2, resume="auto")
    assert made.clock.batches == 10


def test_another_handler_that_raises_does_not_keep_the_run_from_saving(tmp_path: Path) -> None:
    """As that of a Spark driver in the same process."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt, match="the run is saved"):
            trainer(Checkpoint(None, to=tmp_path), Late("SIGINT")).fit(loader(), epochs=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Shelf(tmp_path).read("last").meta["epoch"] == 2


class Signalling:
    """``os``, which sends a signal in the middle of a write once it is armed."""

    armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: Any) -> int:
        if self.armed:
            self.armed = False
            signal.raise_signal(signal.SIGTERM)
        return os.write(descriptor, data)


def test_a_signal_in_the_last_save_ends_the_run_when_that_is_committed(tmp_path: Path) -> None:
    system = Signalling()

    class Watched(Checkpoint):
        def shelf(self, experiment: Any = None) -> Shelf:
            return Shelf(tmp_path, system=system)

    class Arm(Callback):
        order = 10**6

        def after_run(self, run: Any) -> None:
            system.armed = True

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted):
        trainer(Watched(None, background=False), Arm()).fit(loader(), epochs=1)
    assert not system.armed
    assert signal.getsignal(signal.SIGTERM) is before
    assert Shelf(tmp_path).read("last").state["ended"] is not None


def test_a_signal_at_the_end_of_an_evaluation_is_heeded(tmp_path: Path) -> None:
    with pytest.raises(Preempted):
        trainer(Checkpoint(to=tmp_path), Late("SIGTERM", "after_val_epoch", 1)).validate(loader())


@pytest.mark.parametrize("point", ["after_train_epoch", "after_epoch"])
def test_a_signal_after_a_pause_leaves_the_place_that_was_saved(point: str, tmp_path: Path) -> None:
    ends = [End(), End()]
    trainer(Checkpoint(None, to=tmp_path / "whole"), ends[0]).fit(loader(), loader(2), epochs=2)
    saving = Checkpoint(None, to=tmp_path / "paused")
    with pytest.raises(Preempted):
        trainer(saving, TimeLimit("0 seconds"), Late("SIGTERM", point, 1)).fit(loader(), loader(2), epochs=2)
    saved = Shelf(tmp_path / "paused")
    assert [meta["batch"] for meta in saved.metas().values()] == [1]
    trainer(Checkpoint(None, to=tmp_path / "paused"), ends[1]).fit(loader(), loader(2), epochs=2, resume="auto")
    assert difference(*ends) is None
