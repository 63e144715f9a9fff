"""Signals, full disks and stores that are down: what ``Checkpoint`` does when things go wrong."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cadenza import Callback, Preempted
from cadenza.callbacks import Checkpoint
from cadenza.checkpoint import SaveFailed, Shelf
from cadenza.checkpoint.backends.disk import Disk
from cadenza.experiment import Experiment

from ..processes import run
from .heard import hearing
from .saving import End, difference, loader, trainer


class Act(Callback):
    """Calls ``act()`` at the ``count``-th time ``point`` is played."""

    def __init__(self, point: str, act: Callable[[], Any], count: int = 1) -> None:
        self.point, self.act, self.left = point, act, count

    def plays(self) -> dict[str, Any]:
        return {self.point: self.play}

    def play(self, run: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


def sent(name: str, point: str = "before_forward", count: int = 4) -> Act:
    return Act(point, lambda: signal.raise_signal(getattr(signal, name)), count)


# Signals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "error"), [("SIGTERM", Preempted), ("SIGUSR1", Preempted), ("SIGINT", KeyboardInterrupt)]
)
def test_a_signal_saves_after_the_iteration_and_handlers_come_back(
    name: str, error: type[BaseException], tmp_path: Path
) -> None:
    heard: list[int] = []
    number = getattr(signal, name)
    before = signal.signal(number, lambda number, frame: heard.append(number))
    try:
        mine = signal.getsignal(number)
        with pytest.raises(error) as caught:
            trainer(sent(name), Checkpoint(None, to=tmp_path)).fit(loader(), epochs=2)
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)
    assert heard == [number]
    assert "saved" in str(caught.value)
    assert Shelf(tmp_path).read("last").meta["step"] == 4


@pytest.mark.parametrize("first", [[], [signal.SIGTERM]], ids=["", "after SIGTERM"])
def test_a_second_ctrl_c_ends_it_at_once(first: list[signal.Signals], tmp_path: Path) -> None:
    def twice() -> None:
        for number in first:
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer(Act("before_forward", twice, 4), Checkpoint(None, to=tmp_path)).fit(loader(), epochs=2)
    assert Shelf(tmp_path).names() == []
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_signals_alone(tmp_path: Path) -> None:
    seen: list[Any] = []
    look = Act("before_forward", lambda: seen.append(signal.getsignal(signal.SIGTERM)))
    thread = threading.Thread(target=lambda: trainer(look, Checkpoint(to=tmp_path)).fit(loader(), epochs=1))
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert seen == [before]
    assert len(Shelf(tmp_path).names()) == 1


@pytest.mark.parametrize(("needed", "saved"), [(100.0, 2), (0.001, 4)])
def test_a_save_that_would_not_fit_is_not_begun(needed: float, saved: int, tmp_path: Path) -> None:
    saving = Checkpoint("2 steps", grace="30 seconds", background=False, to=tmp_path)

    def slow() -> None:
        assert saving._writer is not None
        saving._writer.speed.measured(saving._writer._size, needed)

    with pytest.raises(Preempted), hearing() as told:
        trainer(Act("before_forward", slow, 4), sent("SIGTERM"), saving).fit(loader(), epochs=2)
    last = Shelf(tmp_path).read("last").meta["step"]
    assert last == saved
    assert ["the last one stands" in one for one in told] == [True] * (needed > 30)


# Full disks ---------------------------------------------------------------------------------------------------------


class FullSystem:
    """``os`` on a disk without room: what is written from the moment on that it is full, fails."""

    full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: Any) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)


@pytest.mark.parametrize("on_failure", ["warn", "raise"])
def test_a_disk_that_is_full(on_failure: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    system = FullSystem()

    class Small(Checkpoint):
        def shelf(self, experiment: Any = None) -> Shelf:
            return Shelf(tmp_path, system=system)

    saving = Small("2 steps", on_failure=on_failure, background=False)
    fill = Act("before_forward", lambda: setattr(system, "full", True), 4)
    made = trainer(fill, saving)
    if on_failure == "raise":
        with pytest.raises(SaveFailed, match="No space left"):
            made.fit(loader(), epochs=2)
    else:
        with pytest.warns(UserWarning, match="No space left") as told:
            made.fit(loader(), epochs=2)
        assert made.clock.epochs == 2
        assert len(told) == 1
        assert caplog.text.count("No space left") > 1  # each of them
    assert [meta["step"] for meta in Shelf(tmp_path).metas().values()] == [2]
    Shelf(tmp_path).verify("epoch=0-step=2")
    assert Shelf(tmp_path).torn() == []


LIMITED = """
import resource, signal
from pathlib import Path
import torch
torch.set_num_threads(1)
from cadenza import Callback
from cadenza.callbacks import Checkpoint
from tests.callbacks.saving import loader, trainer

class Limit(Callback):
    def before_forward(self, run):
        if run.clock.batches == 3:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

made = trainer(Limit(), Checkpoint("2 steps", to={folder!r}, background=False))
made.fit(loader(), epochs=2)
print("epochs", made.clock.epochs)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="the system limits no files")
def test_files_that_really_may_not_grow(tmp_path: Path) -> None:
    done = run(LIMITED.format(folder=str(tmp_path)))
    assert "epochs 2" in done.stdout, done.stderr
    assert Shelf(tmp_path).read("last").meta["step"] == 2


# Stores that are down -----------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from cadenza.checkpoint.backends import retry

    original = retry.Attempts.__init__
    monkeypatch.setattr(retry.Attempts, "__init__", lambda self, *given: original(self, *given[:2], 0.0))


@pytest.mark.parametrize("with_experiment", [True, False])
def test_a_store_that_goes_down_does_not_end_the_training(
    with_experiment: bool,
    quick: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    memory = fsspec.filesystem("memory")
    url = f"memory://down-{with_experiment}"
    memory.pipe_file(f"/down-{with_experiment}/x", b"")

    def refuse(*given: Any, **more: Any) -> Any:
        raise OSError("the store is down")

    def down() -> None:
        monkeypatch.setattr(type(memory), "_open", refuse)
        monkeypatch.setattr(type(memory), "pipe_file", refuse)

    whole, again = End(), End()
    trainer(Checkpoint("2 steps", to=tmp_path / "whole"), whole).fit(loader(), epochs=2)
    experiment = Experiment("project", "first", root=tmp_path) if with_experiment else None
    callbacks = Act("before_forward", down, 4), Checkpoint("2 steps", to=url), sent("SIGTERM", count=8)
    with pytest.raises(Preempted), pytest.warns(UserWarning, match="It is in"):
        trainer(*callbacks, experiment=experiment).fit(loader(), epochs=2)
    spilled = [path for path in tmp_path.rglob("*-epoch=1-step=8") if path.is_dir()]
    assert len(spilled) == 1
    assert "unsent-checkpoints" in str(spilled[0])
    assert (experiment is not None) == (experiment is not None and spilled[0].is_relative_to(experiment.folder))
    assert [record for record in caplog.records if "It is in" in record.message and record.levelno == logging.WARNING]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    if experiment is None:
        trainer(Checkpoint("2 steps", to=url), again).fit(loader(), epochs=2, resume="auto")
        assert difference(whole, again) is None
    memory.rm(f"/down-{with_experiment}", recursive=True)


def test_the_disk_is_the_real_one(tmp_path: Path) -> None:
    """What ``FullSystem`` stands in for is what a shelf uses."""
    assert isinstance(Shelf(tmp_path).store, Disk)
