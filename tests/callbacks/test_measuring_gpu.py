"""On a CUDA device: what measures is right there, and nothing waits for the device before a report is due."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from cadenza import Callback, MainCallback, Order, Trainer
from cadenza.callbacks.evaluate import Evaluate
from cadenza.callbacks.lr_monitor import LRMonitor
from cadenza.callbacks.measures import accuracy
from cadenza.callbacks.memory_monitor import MemoryMonitor
from cadenza.callbacks.metrics import Metrics
from cadenza.callbacks.results import ClassificationResults
from cadenza.callbacks.throughput import Throughput
from cadenza.callbacks.timer import Timer
from cadenza.testing import check_callback, tiny_classifier, tiny_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 1024 * 1024
CYCLES = 40_000_000  # more than 15 ms on any device of less than 2.6 GHz


def cut(sizes, seed=3):
    inputs, targets = (part.cuda() for part in tiny_data(sum(sizes), seed=seed).tensors)
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def made(*callbacks, lr=0.0):
    model = tiny_classifier().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cuda")


def set_mode(mode):
    with warnings.catch_warnings():  # the mode says of itself that it is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


class Strict(Callback):
    """Between the beginning and the end of a pass every wait for the device is an error."""

    order = Order.PREPARE - 1000

    def before_iter(self, run):
        set_mode("error")

    def _end(self, run):
        set_mode("default")

    after_train_epoch = after_val_epoch = after_error = _end

    def close(self):
        set_mode("default")


def share(output, targets):
    return (output.argmax(1) == targets).float().mean()


def torchmetric():
    torchmetrics = pytest.importorskip("torchmetrics")
    return torchmetrics.classification.MulticlassF1Score(3, validate_args=False)


class Sum:
    """An object whose state stays on the device."""

    def reset(self):
        self.total = torch.zeros((), device="cuda")

    def update(self, output, targets):
        self.total = self.total + targets.sum()

    def compute(self):
        return self.total


def whole(samples=16, seed=3):
    inputs, targets = tiny_data(samples, seed=seed).tensors
    return ClassificationResults().compute(tiny_classifier()(inputs), targets)


def test_batches_wait_for_nothing_and_values_are_right():
    callbacks = [
        Strict(),
        Metrics({"exact": accuracy, "share": share, "sum": Sum()}, stages={"train", "val"}),
        Evaluate(ClassificationResults(), stages={"train", "val"}),
        Throughput(every="1 step"),
        Timer(every="1 step", stages={"train", "val"}),
        LRMonitor("1 step"),
        MemoryMonitor("1 step"),
    ]
    trainer = made(*callbacks)
    trainer.fit(cut([6, 5, 5]), cut([4, 5], seed=1), epochs=2)
    for stage, expected in (("train", whole()), ("val", whole(9, 1))):
        for name in ("exact", "share", "accuracy"):
            assert trainer.history[f"{stage}/{name}"] == pytest.approx([expected["accuracy"]] * 2)
        assert trainer.history[f"{stage}/f1"] == pytest.approx([expected["f1"]] * 2)


def test_torchmetrics_on_the_device():
    trainer = made(Metrics({"f1": torchmetric()}, stages={"train", "val"}))
    trainer.fit(cut([6, 5, 5]), cut([4, 5], seed=1), epochs=2)
    assert trainer.history["train/f1"] == pytest.approx([whole()["f1"]] * 2, abs=1e-6)
    assert trainer.history["val/f1"] == pytest.approx([whole(9, 1)["f1"]] * 2, abs=1e-6)


def test_a_rate_on_the_device_is_not_read():
    class Moving(Callback):
        def after_train_iter(self, run):
            run.optimizer.param_groups[0]["lr"].mul_(0.5)

    model = tiny_classifier().cuda()
    adam = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5, device="cuda"), capturable=True)
    callbacks = [Strict(), LRMonitor("1 step"), Moving()]
    trainer = Trainer(model, adam, nn.CrossEntropyLoss(), callbacks=callbacks, device="cuda")
    history = trainer.fit(cut([4] * 3), epochs=1)
    assert [row["lr"] for row in history.iters] == [0.5, 0.25, 0.125]


class Asleep(MainCallback):
    """The device sleeps in forward; the host goes on at once."""

    def on_iter_forward(self, run):
        torch.cuda._sleep(CYCLES)
        super().on_iter_forward(run)


def test_timer_and_throughput_measure_the_device():
    trainer = made(Asleep(), Strict(), Timer(), Throughput())
    trainer.fit(cut([4] * 3), epochs=1)
    (row,) = trainer.history.epochs
    assert row["train/forward_ms"] >= 15
    assert row["train/step_ms"] > 0
    assert row["train/seconds"] >= 0.045
    assert row["train/samples_per_second"] * row["train/seconds"] == pytest.approx(12)


def test_a_report_in_between_leaves_out_what_is_not_done():
    trainer = made(Asleep(), Strict(), Timer(every="1 step"))
    trainer.fit(cut([4] * 6), epochs=1)
    assert all(row.get("train/forward_ms", 15) >= 15 for row in trainer.history.iters)
    assert trainer.history.epochs[0]["train/forward_ms"] >= 15


def test_marks_are_used_again():
    seen = []

    class Count(Callback):
        order = Order.SAVE + 200

        def after_train_iter(self, run):
            torch.cuda.synchronize()
            seen.append(len(timer._events._pending) + len(timer._events._free))

    timer = Timer()
    made(timer, Count()).fit(cut([4] * 300), epochs=1)
    assert max(seen) <= 1024


def test_the_peak_of_each_epoch():
    class Fill(Callback):
        def after_train_iter(self, run):
            if run.epoch == 0:
                torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")

    for reset in (True, False):
        torch.cuda.reset_peak_memory_stats()
        history = made(Fill(), MemoryMonitor(reset=reset)).fit(cut([4] * 2), epochs=2)
        first, second = history["memory/allocated_mib"]
        assert first >= 256
        assert (second < 256) == reset
        assert all(value >= 256 for value in history["memory/reserved_mib"])


@pytest.mark.parametrize("move", ["end", "batch"])
def test_saved_on_the_host_in_the_middle_of_a_pass_it_goes_on(move):
    def callbacks():
        metrics = Metrics({"exact": accuracy, "object": torchmetric()}, stages={"train"})
        return metrics, Evaluate(ClassificationResults(), stages={"train"}, move=move)

    def on_the_host(value):
        if isinstance(value, torch.Tensor):
            return value.cpu()
        if isinstance(value, dict):
            return {key: on_the_host(inner) for key, inner in value.items()}
        return [on_the_host(inner) for inner in value] if isinstance(value, list) else copy.copy(value)

    class Save(Callback):
        order = Order.SAVE

        def after_iter(self, run):
            states.append([on_the_host(callback.state_dict()) for callback in first])

    states, first, second = [], callbacks(), callbacks()
    expected = made(*first, Save()).fit(cut([6, 5, 5]), epochs=1).epochs[0]
    for callback, state in zip(second, states[0], strict=True):
        callback.load_state_dict(state)
    found = made(*second).fit(cut([6, 5, 5])[1:], epochs=1).epochs[0]
    for name in ("train/exact", "train/object", "train/f1", "train/recall"):
        assert found[name] == expected[name]


@pytest.mark.parametrize("kind", [Metrics, Evaluate, Throughput, Timer, LRMonitor, MemoryMonitor])
def test_it_behaves_as_a_callback(kind):
    def trainer(callbacks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.1), nn.Linear(6, 2)).cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cuda")

    check_callback(kind.example(), trainer)
