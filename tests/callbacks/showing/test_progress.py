"""Progress: what it shows, where, how often, and that no display can stop a training."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from tests.callbacks.heard import hearing
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cadenza import Callback, Order, Trainer, When
from cadenza.callbacks import Progress
from cadenza.callbacks.showing.displays import choose
from cadenza.points import POINTS, SPAN
from cadenza.testing import check_callback, tiny_classifier, tiny_loader

SOURCE = Path(__file__).parents[3] / "src"


class Time:
    """A clock that stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch):
    clock = Time()
    monkeypatch.setattr("cadenza.callbacks.showing.progress.monotonic", clock)
    return clock


class Slow:
    """Batches whose loss is known by hand; each takes ``seconds`` to arrive."""

    def __init__(self, time, losses, seconds):
        self.time, self.losses, self.seconds = time, losses, seconds

    def __iter__(self):
        for loss in self.losses:
            self.time.now += self.seconds
            yield torch.full((2, 1), float(loss)), torch.zeros(2)


class Sized(Slow):
    def __len__(self):
        return len(self.losses)


class Times(nn.Module):
    """Returns its input times a weight of one, which is trained with a learning rate of zero."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.weight


def by_hand(*callbacks):
    model = Times()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return Trainer(model, optimizer, lambda output, _: output.mean(), callbacks=list(callbacks), device="cpu")


def tiny(*callbacks):
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")


# Plain lines ----------------------------------------------------------------------------------------------------------


def test_plain_lines_are_those_computed_by_hand(time):
    out = io.StringIO()
    train, val = Sized(time, [1, 2, 3, 4, 5, 6, 7], 8.0), Slow(time, [10, 20], 0.5)
    by_hand(Progress("plain", stream=out)).fit(train, val, epochs=2)
    # A batch each 8 s: the fourth one comes at 32 s, the first moment that is 30 s after the last line.
    assert out.getvalue().splitlines() == [
        "epoch 1/2  train  4/7  0.1 batches/s  loss 4.000",
        "epoch 1/2  train/loss 4.000  val/loss 15.00  57.0 s",
        "epoch 2/2  train  4/7  0.1 batches/s  loss 4.000",
        "epoch 2/2  train/loss 4.000  val/loss 15.00  57.0 s",
    ]


def test_plain_output_has_neither_colour_nor_carriage_return(time, tmp_path):
    path = tmp_path / "log.txt"
    with path.open("w") as out:
        by_hand(Progress(stream=out)).fit(Sized(time, range(1, 20), 8.0), epochs=2)
    written = path.read_bytes()
    assert written.count(b"\n") == 2 * (4 + 1)
    assert b"\r" not in written
    assert b"\x1b" not in written


def test_default_stream_is_the_stdout_of_the_run(time, capsys):
    progress = Progress()
    by_hand(progress).fit([(torch.ones(1), torch.ones(1))], epochs=1)
    assert capsys.readouterr().out == "epoch 1/1  train/loss 1.000  0.0 s\n"


def test_four_significant_digits(time):
    out = io.StringIO()
    trainer = by_hand(Progress("plain", stream=out))
    values = {"a": 0.123456, "b": 1234.56, "c": 1e-7 / 3, "d": float("nan"), "e": 123456.0, "f": torch.tensor(0.5)}
    trainer.on("after_train_epoch")(lambda run: [run.log(name, value) for name, value in values.items()])
    trainer.fit(Slow(time, [2], 1.0), epochs=1)
    expected = "a 0.1235  b 1235  c 3.333e-08  d nan  e 123,456  f 0.5000"
    assert out.getvalue() == f"epoch 1/1  train/loss 2.000  {expected}  1.0 s\n"


def test_epoch_shows_only_what_was_measured_in_it(time):
    out = io.StringIO()
    trainer = by_hand(Progress("plain", stream=out))
    trainer.on("after_epoch")(lambda run: run.log("constant", 1.0))
    trainer.fit(Slow(time, [2], 1.0), Slow(time, [3], 1.0), epochs=3, validate_every="2 epochs")
    assert out.getvalue().splitlines() == [
        "epoch 1/3  train/loss 2.000  constant 1.000  1.0 s",
        "epoch 2/3  train/loss 2.000  val/loss 3.000  constant 1.000  2.0 s",
        "epoch 3/3  train/loss 2.000  constant 1.000  1.0 s",
    ]


def test_a_second_fit_goes_on_counting(time):
    out = io.StringIO()
    trainer = by_hand(Progress("plain", stream=out))
    trainer.fit(Slow(time, [2], 1.0), epochs=1)
    trainer.fit(Slow(time, [2], 1.0), epochs=1)
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == ["epoch 1/1", "epoch 2/2"]


def test_steps_in_place_of_epochs(time):
    out = io.StringIO()
    by_hand(Progress("plain", stream=out)).fit(Sized(time, [1, 2, 3, 4], 15.0), steps=6)
    assert out.getvalue().splitlines() == [
        "step 2/6  train  2/4  0.1 batches/s  loss 2.000",
        "step 4/6  train  4/4  0.1 batches/s  loss 4.000",
        "epoch 1, step 4/6  train/loss 2.500  60.0 s",
        "step 6/6  train  2/4  0.1 batches/s  loss 2.000",
        "epoch 2, step 6/6, not finished  train/loss 1.500  30.0 s",
    ]


def test_a_stop_is_told_with_its_reason(time):
    out = io.StringIO()
    trainer = by_hand(Progress("plain", stream=out))
    trainer.on("after_train_iter")(lambda run: run.stop("enough") if run.batch_idx == 1 else None)
    trainer.fit(Slow(time, [1, 3, 5], 1.0), epochs=4)
    assert out.getvalue().splitlines() == ["epoch 1/4, not finished  train/loss 2.000  2.0 s", "stopped: enough"]


@pytest.mark.parametrize(
    ("mode", "metrics"), [("validate", "val/loss 2.000  "), ("test", "test/loss 2.000  "), ("predict", "")]
)
def test_runs_without_training(time, mode, metrics):
    out = io.StringIO()
    getattr(by_hand(Progress("plain", stream=out)), mode)(Sized(time, [1, 2, 3], 16.0))
    stage = {"validate": "val", "predict": "pred"}.get(mode, mode)
    loss = "" if mode == "predict" else "  loss 2.000"
    assert out.getvalue().splitlines() == [
        f"{stage}  2/3  0.1 batches/s{loss}",
        f"{mode}  3 batches  {metrics}48.0 s",
    ]


def test_loaders_are_named_and_may_have_no_length(time):
    out = io.StringIO()
    loaders = {"day": Slow(time, [1, 2], 20.0), "night": Sized(time, [3, 4], 20.0)}
    by_hand(Progress("plain", stream=out)).validate(loaders)
    assert out.getvalue().splitlines() == [
        "val day  2  0.1 batches/s  loss 2.000",
        "val night  2/2  0.1 batches/s  loss 4.000",
        "validate  4 batches  val/day/loss 1.500  val/night/loss 3.500  80.0 s",
    ]


def test_validation_inside_an_epoch_does_not_slow_the_rate_of_training(time):
    out = io.StringIO()
    train, val = Sized(time, [1] * 60, 1.0), Sized(time, [5, 7], 25.0)
    by_hand(Progress("plain", stream=out)).fit(train, val, epochs=1, validate_every="20 steps")
    assert out.getvalue().splitlines() == [
        "epoch 1/1  val  1/2  0.0 batches/s  loss 5.000",
        "epoch 1/1  train  25/60  1.0 batches/s  loss 1.000",
        "epoch 1/1  val  1/2  0.0 batches/s  loss 5.000",
        "epoch 1/1  train  45/60  1.0 batches/s  loss 1.000",
        "epoch 1/1  val  1/2  0.0 batches/s  loss 5.000",
        "epoch 1/1  val/loss 6.000  train/loss 1.000  210.0 s",
    ]


def test_names_that_the_stream_cannot_write_are_no_failure(time):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    trainer = by_hand(Progress("plain", stream=out))
    trainer.on("after_train_epoch")(lambda run: run.log("précision", 0.5))
    trainer.fit(Slow(time, [2], 1.0), epochs=1)
    assert raw.getvalue() == b"epoch 1/1  train/loss 2.000  pr?cision 0.5000  1.0 s\n"


def test_skipped_batches_have_no_loss_and_do_no_harm(time):
    out = io.StringIO()
    trainer = by_hand(Progress("plain", stream=out))
    trainer.on("before_train_iter")(lambda run: run.skip_batch() if run.batch_idx != 1 else None)
    trainer.fit(Sized(time, [1, 2, 3, 4, 5], 31.0), epochs=1)
    assert [line.split("  loss")[1:] for line in out.getvalue().splitlines()] == [[]] + [[" 2.000"]] * 4 + [[]]


# How often ------------------------------------------------------------------------------------------------------------


class Reads(TorchDispatchMode):
    """Counts how often a number is read from a tensor, which is what waits for a device."""

    count = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.fixture
def notebook(monkeypatch, time):
    """Stands in for IPython in a kernel: records what is displayed, when, and where it ends up."""
    shown = types.SimpleNamespace(updates=[], cells=[])

    class Handle:
        def __init__(self, index):
            self.index = index

        def update(self, content, raw):
            put(self.index, content, raw)

    def put(index, content, raw):
        assert raw
        shown.updates.append((time.now, content["text/plain"]))
        shown.cells[index] = content["text/plain"]

    def display(content, raw, display_id):
        assert display_id is True
        shown.cells.append(None)
        put(len(shown.cells) - 1, content, raw)
        return Handle(len(shown.cells) - 1)

    package = types.ModuleType("IPython")
    package.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    package.__spec__ = types.SimpleNamespace(name="IPython")
    inner = types.ModuleType("IPython.display")
    inner.display = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return shown


def test_at_most_ten_updates_a_second_and_no_more_reads_than_updates(time, notebook):
    with Reads() as reads:
        by_hand(Progress()).fit(Sized(time, [1] * 1000, 0.01), epochs=1)
    when = [moment for moment, _ in notebook.updates]
    assert 70 <= len(when) <= 90
    assert all(eleventh - first >= 1 for first, eleventh in zip(when[:-11], when[10:-1], strict=True))
    assert 0 < reads.count <= len(when)


def test_epochs_that_end_in_a_moment_share_an_update_and_none_is_lost(time, notebook):
    with Reads() as reads:
        by_hand(Progress()).fit(Slow(time, [1], 0.01), epochs=50)
    texts = [text for _, text in notebook.updates if "train/loss" in text]
    assert texts == [f"epoch {epoch:>2}/50  train/loss 1.000  0.0 s" for epoch in range(1, 51)]
    moments = sorted({moment for moment, _ in notebook.updates})
    assert len(moments) <= 11
    assert reads.count <= len(moments)


def test_nothing_is_read_when_nothing_is_shown(time):
    trainer = by_hand(Progress(None))
    with Reads() as reads:
        trainer.fit(Slow(time, [1] * 20, 1.0), epochs=2)
    assert reads.count == 0


def test_it_plays_outside_the_step():
    played = [POINTS[name] for name in Progress().plays()]
    assert not [point.name for point in played if point.span in SPAN and SPAN[point.span].action]
    assert [point.name for point in played if point.span in ("fetch", "iter")] == ["after_iter"]


def test_it_reports_on_the_main_rank_alone():
    assert (Progress.order, Progress.ranks) == (Order.REPORT, "main")


def test_it_behaves_as_a_callback_should():
    check_callback(lambda: Progress("plain", stream=io.StringIO()))


def test_the_training_is_the_same_to_the_last_bit():
    models = []
    for callbacks in ([], [Progress("plain", stream=io.StringIO())]):
        trainer = tiny(*callbacks)
        trainer.fit(tiny_loader(), tiny_loader(seed=1), epochs=3)
        models.append(trainer.model.state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


# A notebook -----------------------------------------------------------------------------------------------------------


def test_in_a_notebook_the_live_line_becomes_the_line_of_its_epoch(time, notebook):
    by_hand(Progress()).fit(Sized(time, [1, 2, 3], 1.0), Sized(time, [4], 1.0), epochs=2)
    assert notebook.cells == [
        "epoch 1/2  train/loss 2.000  val/loss 4.000  4.0 s",
        "epoch 2/2  train/loss 2.000  val/loss 4.000  4.0 s",
    ]
    assert [text for _, text in notebook.updates][:5] == [
        "epoch 1/2  train  1/3  1.0 batches/s  loss 1.000",
        "epoch 1/2  train  2/3  1.0 batches/s  loss 2.000",
        "epoch 1/2  train  3/3  1.0 batches/s  loss 3.000",
        "epoch 1/2  val  1/1  1.0 batches/s  loss 4.000",
        "epoch 1/2  train/loss 2.000  val/loss 4.000  4.0 s",
    ]


def test_a_stream_of_ones_own_is_used_in_a_notebook_too(time, notebook):
    out = io.StringIO()
    by_hand(Progress(stream=out)).fit(Sized(time, [1], 1.0), epochs=1)
    assert out.getvalue() == "epoch 1/1  train/loss 1.000  1.0 s\n"
    assert notebook.cells == []


# A terminal -----------------------------------------------------------------------------------------------------------


class PseudoTerminal:
    """A real one, with somebody who reads what is written to it."""

    def __init__(self, encoding="utf-8"):
        self.master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w", encoding=encoding)
        self.written = b""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.master, 4096)
            except OSError:  # the other side was closed
                return
            if not data:
                return
            self.written += data

    def finish(self):
        """Closes it and returns what was written."""
        self.stream.close()
        self.reader.join(timeout=60)
        os.close(self.master)
        return self.written.decode("utf-8")


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return PseudoTerminal


def lines_on_screen(written):
    """What is left on the screen after the few control sequences that a live line needs."""
    lines, row, column = [""], 0, 0
    for control, command, text in re.findall(r"\x1b\[([?\d;]*)([A-Za-z])|(\r|\n|[^\x1b\r\n]+)", written):
        if command == "A":
            row -= int(control or 1)
        elif command == "K":
            lines[row] = ""
        elif text == "\r":
            column = 0
        elif text == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines if line.strip()]


def live_lines(written):
    """Every live line that was drawn, without colours."""
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", written)
    return [part for part in re.split(r"[\r\n]+", plain) if " train " in part or " val " in part]


def test_a_terminal_gets_a_live_line_and_keeps_the_epochs(time, terminal):
    tty = terminal()
    progress = Progress(stream=tty.stream)
    assert progress.explain() == "live line, since the output is a terminal"
    by_hand(progress).fit(Sized(time, [1, 2, 3, 4], 1.0), Sized(time, [5], 1.0), epochs=2)
    written = tty.finish()
    assert lines_on_screen(written) == [
        "epoch 1/2  train/loss 2.500  val/loss 5.000  5.0 s",
        "epoch 2/2  train/loss 2.500  val/loss 5.000  5.0 s",
    ]
    drawn = live_lines(written)
    assert re.fullmatch(r"epoch 1/2  train  [━╸╺]{32}  2/4  1\.0 batches/s  loss 2\.000 *", drawn[1])
    assert any("val" in line and "1/1" in line and "loss 5.000" in line for line in drawn)
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l"), "the cursor must be visible again"


@pytest.mark.parametrize("columns", [1, 2, 5, 20])
def test_a_narrow_terminal_cuts_the_live_line_to_one_row(time, terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    tty = terminal()
    by_hand(Progress(stream=tty.stream)).fit(Sized(time, [1, 2, 3, 4], 1.0), epochs=1)
    written = tty.finish()
    assert lines_on_screen(written) == ["epoch 1/1  train/loss 2.500  4.0 s"]
    if columns == 20:
        assert [line.rstrip() for line in live_lines(written)] == ["epoch 1/1  train  1…"] + [
            f"epoch 1/1  train  {done}…" for done in (2, 3, 4)
        ]


def test_in_a_narrow_terminal_the_loss_is_worth_more_than_the_rate(time, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    tty = terminal()
    by_hand(Progress(stream=tty.stream)).fit(Sized(time, [1, 2, 3, 4], 1.0), epochs=1)
    assert [line.rstrip() for line in live_lines(tty.finish())] == [
        f"epoch 1/1  train  {done}/4  loss {done}.000" for done in (1, 2, 3, 4)
    ]


def test_a_terminal_without_the_letters_gets_others(time, terminal):
    tty = terminal(encoding="ascii")
    trainer = by_hand(Progress(stream=tty.stream))
    trainer.on("after_train_epoch")(lambda run: run.log("précision", 0.5))
    trainer.fit(Sized(time, [1, 2, 3, 4], 1.0), {"größe": Sized(time, [5], 1.0)}, epochs=1)
    written = tty.finish()
    assert lines_on_screen(written) == ["epoch 1/1  train/loss 2.500  pr?cision 0.5000  val/gr??e/loss 5.000  5.0 s"]
    assert any("----" in line for line in live_lines(written))


def test_an_exception_leaves_the_terminal_in_order(time, terminal):
    tty = terminal()

    class Failing(Callback):
        def before_forward(self, run):
            if run.epoch == 1:
                raise RuntimeError("by design")

    trainer = by_hand(Progress(stream=tty.stream), Failing())
    with pytest.raises(RuntimeError, match="by design"):
        trainer.fit(Sized(time, [1, 2], 1.0), epochs=3)
    written = tty.finish()
    assert lines_on_screen(written) == ["epoch 1/3  train/loss 1.500  2.0 s"]
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


def test_a_terminal_that_is_closed_in_mid_training_does_not_stop_it(time, terminal):
    tty = terminal()
    trainer = by_hand(Progress(stream=tty.stream))
    trainer.on("before_epoch")(lambda run: tty.finish() if run.epoch == 1 else None)
    stdout, stderr = sys.stdout, sys.stderr
    with hearing() as told:
        trainer.fit(Sized(time, [1, 2], 1.0), epochs=3)
    assert trainer.clock.epochs == 3
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    [message] = told
    assert message.startswith("Progress shows nothing more, the run goes on: ")


SCRIPT = """
import sys, time, torch
known = set(sys.modules)
from cadenza.callbacks import Progress
print("optional:", {name.split(".")[0] for name in set(sys.modules) - known} & {"rich", "tqdm", "IPython"})
from cadenza import Trainer
from cadenza.testing import tiny_classifier, tiny_loader

model = tiny_classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = Trainer(model, optimizer, torch.nn.CrossEntropyLoss(), callbacks=[Progress()], device="cpu")
print(next(line for line in trainer.explain().splitlines() if "Progress" in line))

@trainer.on("before_val_epoch")
def talk(run):
    print("out", run.epoch, type(sys.stdout).__name__)
    print("err", run.epoch, file=sys.stderr)

trainer.on("before_train_iter")(lambda run: time.sleep(0.05))
before = sys.stdout
trainer.fit(tiny_loader(), tiny_loader(), epochs=2)
assert sys.stdout is before
"""


def test_a_script_in_a_terminal(terminal, tmp_path):
    """What others print stands above the live line, errors go where they went, and no package is loaded too early."""
    tty = terminal()
    errors = tmp_path / "stderr.txt"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with errors.open("w") as file:
        done = subprocess.run([sys.executable, "-c", SCRIPT], stdout=tty.stream, stderr=file, env=env, timeout=280)
    left = lines_on_screen(tty.finish())
    assert done.returncode == 0, errors.read_text()
    assert errors.read_text() == "err 0\nerr 1\n"
    assert [re.sub(r"\d+\.\d+", "N", line) for line in left] == [
        "optional: set()",
        "  Progress: order 400; on main; live line, since the output is a terminal",
        *("out 0 FileProxy", "epoch 1/2  train/loss N  val/loss N  N s"),
        *("out 1 FileProxy", "epoch 2/2  train/loss N  val/loss N  N s"),
    ]


# Displays that fail ---------------------------------------------------------------------------------------------------


class Broken(io.StringIO):
    """A stream whose reader has gone away after ``lines`` lines."""

    def __init__(self, lines, error):
        super().__init__()
        self.left, self.error = lines, error

    def write(self, text):
        if not self.left:
            raise self.error
        self.left -= 1
        return super().write(text)


@pytest.mark.parametrize("display", ["plain", "rich"])
@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left"), ValueError("closed")]
)
def test_a_stream_that_fails_is_given_up_with_one_warning(time, display, error):
    trainer = by_hand(Progress(display, stream=Broken(0, error)))
    with hearing() as told:
        trainer.fit(Sized(time, [1, 2], 31.0), epochs=3)
        trainer.fit(Sized(time, [1, 2], 31.0), epochs=1)
    assert trainer.clock.epochs == 4
    [message] = told
    assert message == f"Progress shows nothing more, the run goes on: {error!r}"


@pytest.mark.parametrize("display", ["auto", "plain", "rich"])
def test_a_stream_that_was_closed_before(time, display):
    out = io.StringIO()
    out.close()
    trainer = by_hand(Progress(display, stream=out))
    with hearing() as told:
        trainer.fit(Sized(time, [1, 2], 31.0), epochs=2)
    assert trainer.clock.epochs == 2
    assert len(told) == 1


def test_no_stdout_at_all(time, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    trainer = by_hand(Progress())
    with hearing() as told:
        trainer.fit(Sized(time, [1, 2], 31.0), epochs=1)
    assert told == ["Progress shows nothing more, the run goes on: since there is no stdout"]


def test_epochs_that_waited_are_told_when_the_run_fails(time):
    out, written = io.StringIO(), []
    trainer = by_hand(Progress("plain", stream=out))

    @trainer.on("before_epoch")
    def fail(run):
        if run.epoch == 13:
            written.append(len(out.getvalue().splitlines()))
            raise RuntimeError("by design")

    with pytest.raises(RuntimeError, match="by design"):
        trainer.fit(Slow(time, [1], 0.01), epochs=20)
    assert written == [10]
    assert [line.split("  train")[0] for line in out.getvalue().splitlines()] == [
        f"epoch {number:>2}/20" for number in range(1, 14)
    ]


# Which display --------------------------------------------------------------------------------------------------------


def test_the_choice_in_a_terminal(terminal, monkeypatch):
    tty = terminal()
    assert choose("auto", tty.stream) == ("rich", "since the output is a terminal")
    monkeypatch.setenv("CI", "true")
    assert choose("auto", tty.stream) == ("plain", "since CI is set")
    monkeypatch.setenv("CI", "false")
    monkeypatch.setenv("TERM", "dumb")
    assert choose("auto", tty.stream) == ("plain", "since the terminal cannot move its cursor")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich", None)
    assert choose("auto", tty.stream) == ("plain", "since rich is not installed")
    assert tty.finish() == ""


def test_explain_says_what_was_chosen_and_why(capsys):
    assert Progress().explain() == "plain lines, since the output is not a terminal"
    assert Progress("rich").explain() == "live line, as asked"
    assert Progress(None).explain() == "shows nothing, as asked"
    assert "Progress: order 400; on main; plain lines, since" in tiny(Progress()).explain()


def test_a_display_that_cannot_be_is_refused_at_once(monkeypatch):
    with pytest.raises(ValueError, match='display is "auto", "rich", "plain", "notebook" or None, not \'tqdm\''):
        Progress("tqdm")
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(ImportError, match='display="rich" needs rich: pip install'):
        Progress("rich")
    with pytest.raises(ImportError, match='display="notebook" needs IPython: pip install'):
        Progress("notebook")


# Joining and windows --------------------------------------------------------------------------------------------------


def test_added_to_a_running_fit(time, notebook):
    trainer = by_hand()
    progress = Progress()
    trainer.on("after_train_iter")(lambda run: trainer.add(progress) if run.clock.batches == 2 else None)
    trainer.fit(Sized(time, [1, 2, 3, 4, 5], 1.0), epochs=1)
    assert [text for _, text in notebook.updates] == [
        "epoch 1/1  train  3/5  loss 3.000",
        "epoch 1/1  train  4/5  1.0 batches/s  loss 4.000",
        "epoch 1/1  train  5/5  1.0 batches/s  loss 5.000",
        "epoch 1/1  train/loss 3.000  3.0 s",
    ]


def test_in_a_window_of_the_clock(time):
    out = io.StringIO()
    trainer = by_hand(When(Progress("plain", stream=out), every="2 epochs"))
    trainer.fit(Slow(time, [1], 1.0), epochs=4)
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == ["epoch 2/4", "epoch 4/4"]


def test_a_loop_of_ones_own(time):
    out = io.StringIO()
    train, val = Sized(time, [1, 3, 5], 1.0), Sized(time, [7], 1.0)
    with by_hand(Progress("plain", stream=out)).run(epochs=2) as run:
        for _ in run.epochs():
            for _ in run.train(train):
                run.train_step()
                if run.batch_idx == 1:
                    break
            for _ in run.validate(val):
                run.eval_step()
    assert out.getvalue().splitlines()[0] == "epoch 1/2  train/loss 2.000  val/loss 7.000  3.0 s"
