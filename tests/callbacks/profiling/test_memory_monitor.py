"""MemoryMonitor: what the process holds, from each of its sources."""

from __future__ import annotations

import gc
import sys
import types

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer, When
from cadenza.callbacks.profiling import memory_monitor
from cadenza.callbacks.profiling.memory_monitor import MemoryMonitor, host_memory, memory
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.points import POINTS, SPAN
from cadenza.testing import check_callback, tiny_classifier, tiny_loader

MIB = 1024 * 1024


class At(Callback):
    def __init__(self, point, act):
        self.point, self.act = point, act

    def plays(self):
        return {self.point: self.act}


def made(*callbacks):
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


@pytest.fixture
def without_psutil(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)


@pytest.fixture
def nothing_is_let_go():
    """What earlier tests left behind is cleared up before, and nothing meanwhile."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_what_is_held_shows(without_psutil, nothing_is_let_go):
    held = []

    def hold(run):
        if run.epoch == 1:
            held.append(torch.ones(64 * MIB, dtype=torch.uint8))

    history = made(MemoryMonitor(), At("after_train_epoch", hold)).fit(tiny_loader(), epochs=2)
    before, after = history["memory/rss_mib"]
    assert 56 <= after - before <= 96
    with open("/proc/self/status") as file:
        resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
    assert host_memory()["rss_mib"] == pytest.approx(resident, abs=16)
    assert len(held) == 1


def test_psutil_is_asked_first(monkeypatch):
    process = types.SimpleNamespace(memory_info=lambda: types.SimpleNamespace(rss=123 * MIB))
    monkeypatch.setitem(sys.modules, "psutil", types.SimpleNamespace(Process=lambda: process))
    assert made(MemoryMonitor()).fit(tiny_loader(), epochs=2)["memory/rss_mib"] == [123.0, 123.0]


def no_such_file(*args, **kwargs):
    raise FileNotFoundError("no /proc here")


def test_without_proc_the_peak_is_logged(without_psutil, monkeypatch):
    monkeypatch.setattr(memory_monitor, "open", no_such_file, raising=False)
    resource = types.SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: types.SimpleNamespace(ru_maxrss=77 * 1024))
    monkeypatch.setitem(sys.modules, "resource", resource)
    monkeypatch.setattr(sys, "platform", "linux")
    assert host_memory() == {"rss_peak_mib": 77.0}
    monkeypatch.setattr(sys, "platform", "darwin")  # which counts bytes
    assert host_memory() == {"rss_peak_mib": 77 / 1024}


def test_where_nothing_is_known_nothing_is_logged(without_psutil, monkeypatch):
    monkeypatch.setattr(memory_monitor, "open", no_such_file, raising=False)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert made(MemoryMonitor()).fit(tiny_loader(), epochs=1).names() == ["train/loss"]


def rows(history, kind):
    return [row for row in history.to_rows(kind) if any(name.startswith("memory/") for name in row)]


def test_every_epoch_or_every_few_steps():
    history = made(MemoryMonitor("2 epochs")).fit(tiny_loader(), tiny_loader(), epochs=4)
    assert [row["epoch"] for row in rows(history, "epoch")] == [1, 3]
    assert rows(history, "iter") == []
    history = made(MemoryMonitor("2 steps"), Accumulate(2)).fit(tiny_loader(32), tiny_loader(), epochs=4)
    inside = rows(history, "iter")
    assert [row["step"] for row in inside] == [2, 4, 6, 8]
    name = next(name for name in inside[0] if name.startswith("memory/"))
    assert history[name] == [row[name] for row in inside]  # there is one of them an epoch, and it is the greatest


def test_skips_a_stop_an_error_and_a_further_fit():
    skip = At("before_train_iter", lambda run: run.skip_batch())
    assert rows(made(MemoryMonitor("2 steps"), skip).fit(tiny_loader(), epochs=1), "iter") == []
    stop = At("after_train_iter", lambda run: run.stop())
    assert len(rows(made(MemoryMonitor(), stop).fit(tiny_loader(), epochs=3), "epoch")) == 1
    fail = At("after_train_iter", lambda run: 1 / 0 if run.clock.batches == 2 else None)
    trainer = made(MemoryMonitor("2 steps"), fail)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(tiny_loader(), epochs=1)
    trainer.remove(fail)
    assert [row["step"] for row in rows(trainer.fit(tiny_loader(40), epochs=1), "iter")] == [4, 6]


def test_within_a_window():
    history = made(When(MemoryMonitor(), every="2 epochs")).fit(tiny_loader(), epochs=4)
    assert [row["epoch"] for row in rows(history, "epoch")] == [1, 3]


def test_on_the_cpu_there_is_no_device_memory():
    assert set(memory(torch.device("cpu"))) <= {"rss_mib", "rss_peak_mib"}


def test_it_plays_outside_the_step():
    actions = {span.name for span in SPAN.values() if span.action}
    assert not {POINTS[name].span for name in MemoryMonitor().plays()} & (actions | {"fetch"})


def test_it_behaves_as_a_callback():
    check_callback(MemoryMonitor())
    assert MemoryMonitor("5 steps").explain() == "every 5 steps"
    with pytest.raises(ValueError, match="more than 0 epochs"):
        MemoryMonitor("0 epochs")
