"""HangWatch: what it says of a run that stands still. Each standstill lasts until the report is there, so that no test
depends on how fast the machine is."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.processes import run
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.guards.hang_watch import HangWatch, RunHung, stacks
from cadenza.testing import tiny_classifier, tiny_loader

SOURCE = Path(__file__).parents[3] / "src"
SOON = "0.05 seconds"


def make_trainer(*callbacks, model=None, criterion=None):
    model = model or tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, sgd, criterion or nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")


def reports_of_it(text, words=""):
    """The reports that show somebody standing still on purpose, and say so in ``words``. A slow machine may cause
    others, also one that was begun a moment before the run came here: it names the point before, and shows this."""
    found = [report for report in text.split("HangWatch: ")[1:] if "in stand_still" in report]
    return [report for report in found if words in report.splitlines()[0]]


def stand_still(read, reports=1, words=""):
    """Does not move before ``read()`` holds that many reports of it."""
    end = time.monotonic() + 60
    while len(reports_of_it(read(), words)) < reports and time.monotonic() < end:
        time.sleep(0.005)


class Still(Callback):
    """Stands still at one point, once."""

    def __init__(self, point, read, reports=1, words=""):
        self.point, self.read, self.reports, self.words, self.stood = point, read, reports, words, False

    def plays(self):
        return {self.point: self.stand_at_a_point}

    def stand_at_a_point(self, run):
        if not self.stood:
            self.stood = True
            stand_still(self.read, self.reports, self.words)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("before_epoch", "at before_epoch or after it (epoch 1)"),
        ("after_loss", "at after_loss or after it (epoch 1, train batch 1)"),
        ("after_train_epoch", "at after_train_epoch or after it (epoch 1, train batch 3)"),
        ("before_val_iter", "in the validation step after before_val_iter (epoch 1, val batch 1)"),
        ("after_epoch", "at after_epoch or after it (epoch 1)"),
    ],
)
def test_the_report_names_the_point_and_shows_the_stack(point, words):
    stream = io.StringIO()
    trainer = make_trainer(HangWatch(SOON, stream=stream), Still(point, stream.getvalue, words=words))
    history = trainer.fit(tiny_loader(), tiny_loader(), epochs=1)
    assert len(history["train/loss"]) == 1  # the run went on by itself
    report = reports_of_it(stream.getvalue(), words)[0]
    assert report.startswith("the run has stood still for")
    assert "Thread MainThread (of the run):" in report
    assert "in stand_at_a_point" in report


def test_inside_a_step_that_nobody_plays_it_says_after_which_point(caplog):
    stream = io.StringIO()
    words = "in the training step after before_train_iter (epoch 1, train batch 2)"

    class Stuck(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = tiny_classifier(), 0

        def forward(self, inputs):
            self.calls += 1
            if self.calls == 2:
                stand_still(stream.getvalue, words=words)
            return self.inner(inputs)

    with caplog.at_level(logging.ERROR, "cadenza"):
        make_trainer(HangWatch(SOON, stream=stream), model=Stuck()).fit(tiny_loader(), epochs=1)
    first = reports_of_it(stream.getvalue(), words)[0].splitlines()[0]
    assert first.endswith(words)
    assert f"HangWatch: {first}" in caplog.messages  # the logger gets the first line


def test_a_loader_that_gives_nothing_is_named():
    stream = io.StringIO()
    words = "while batch 3 of the train loader was waited for"

    def slow_batches():
        for index, batch in enumerate(tiny_loader()):
            if index == 2:
                stand_still(stream.getvalue, words=words)
            yield batch

    class Loader:
        __iter__ = staticmethod(slow_batches)

    make_trainer(HangWatch(SOON, stream=stream)).fit(Loader(), epochs=1)
    assert reports_of_it(stream.getvalue(), words)


def test_it_reports_again_when_the_standstill_has_lasted_twice_as_long():
    stream = io.StringIO()
    words = "at after_train_iter or after it (epoch 1, train batch 1)"
    still = Still("after_train_iter", stream.getvalue, reports=3, words=words)
    make_trainer(HangWatch(SOON, stream=stream), still).fit(tiny_loader(), epochs=1)
    lasted = [float(report.split("for ")[1].split()[0]) for report in reports_of_it(stream.getvalue(), words)]
    assert len(lasted) >= 3
    assert lasted == sorted(lasted)


def test_a_run_that_moves_is_left_alone_and_its_thread_ends():
    watch = HangWatch("10 minutes", stream=io.StringIO())
    seen = []

    class Look(Callback):
        def after_train_iter(self, run):
            seen.append([thread.name for thread in threading.enumerate()])

    trainer = make_trainer(watch, Look())
    for _ in range(2):
        trainer.fit(tiny_loader(), epochs=1)
    assert all("HangWatch of the run" in names for names in seen)
    assert "HangWatch of the run" not in [thread.name for thread in threading.enumerate()]
    assert watch.reports == 0


def test_the_thread_ends_after_an_exception_too():
    class Oops(Exception):
        pass

    def fail(*_):
        raise Oops

    with pytest.raises(Oops):
        make_trainer(HangWatch("10 minutes"), criterion=fail).fit(tiny_loader(), epochs=1)
    assert "HangWatch of the run" not in [thread.name for thread in threading.enumerate()]


def test_the_report_goes_to_the_end_of_a_file(tmp_path):
    file = tmp_path / "reports" / "hang.txt"

    def read():
        return file.read_text(encoding="utf-8") if file.exists() else ""

    for reports in (1, 2):
        make_trainer(HangWatch(SOON, file=file), Still("after_train_iter", read, reports)).fit(tiny_loader(), epochs=1)
    assert len(reports_of_it(read())) >= 2


def test_a_report_that_cannot_be_written_does_not_end_the_watch(tmp_path, caplog):
    watch = HangWatch(SOON, file=tmp_path)  # a folder

    def pretend():
        return "HangWatch: in stand_still" * (watch.reports >= 2)

    make_trainer(watch, Still("after_train_iter", pretend)).fit(tiny_loader(), epochs=1)
    assert any("could not write its report" in message for message in caplog.messages)
    assert watch.reports >= 2


def test_raise_ends_the_run_with_an_error():
    watch = HangWatch("1 second", action="raise", stream=io.StringIO())  # on a slow machine the run still comes there

    def forever(run):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.005)

    trainer = make_trainer(watch)
    trainer.on("after_train_iter")(forever)
    with pytest.raises(RunHung, match="HangWatch says where"):
        trainer.fit(tiny_loader(), epochs=1)
    assert trainer.clock.epochs == 0


def test_kill_ends_the_process_with_its_exit_code(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(
        "import time, torch\n"
        "from cadenza import Trainer\n"
        "from cadenza.callbacks.guards.hang_watch import HangWatch\n"
        "from cadenza.testing import tiny_classifier, tiny_loader\n"
        "model = tiny_classifier()\n"
        "watch = HangWatch('0.05 seconds', action='kill')\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "trainer = Trainer(model, sgd, lambda *_: time.sleep(100), callbacks=[watch], device='cpu')\n"
        "trainer.fit(tiny_loader(), epochs=1)\n"
    )
    done = run(script)
    assert done.returncode == 124
    assert "HangWatch: the run has stood still" in done.stderr
    assert "in fit" in done.stderr


def test_nothing_is_played_inside_the_run():
    assert list(HangWatch().plays()) == ["around_run"]


def test_the_stacks_of_other_threads():
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="the other")
    thread.start()
    try:
        assert "Thread the other:" in stacks()
        assert "MainThread" not in stacks()  # the thread that asks is left out
    finally:
        go.set()
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"after": "3 steps"}, "a time such as"),
        ({"after": "0 s"}, "more than 0"),
        ({"action": "stop"}, '"report", "raise" or "kill"'),
        ({"stream": sys.stderr, "file": "x"}, "not both"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        HangWatch(**arguments)


def test_explain_says_when_it_reports_and_where():
    assert "after 600 seconds without movement reports to standard error" in make_trainer(HangWatch()).explain()
