"""A disk that fills up under the experiment ends no training, and what was not written is written when it has room."""

from __future__ import annotations

import json
import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza import Callback
from cadenza.callbacks import Checkpoint, HistoryFile
from cadenza.checkpoint import Shelf
from cadenza.experiment import CannotWrite, Experiment, read_run
from cadenza.experiment.jsonl_file import LinesFile, Trouble, WaitingLines, read_lines
from cadenza.testing import tiny_loader

from ..processes import run
from .trained import At, EveryIteration, fitted, trainer_of

FULL = Path("/dev/full")
LINUX = pytest.mark.skipif(not FULL.exists(), reason="there is no device that is always full")


class Full(Callback):
    """After its epoch ``begin`` the file ``name`` of the experiment is on a full disk, until its epoch ``end``. The
    device may only be written: to read it never ends."""

    order = 10**7

    def __init__(self, name: str, begin: int = 0, end: int | None = None) -> None:
        self.file, self.begin, self.end = name, begin, end

    def after_epoch(self, run: Any) -> None:
        path = run.experiment.folder / self.file
        kept = path.with_name(f"kept-{path.name}")
        if run.epoch == self.begin:
            if path.exists():
                path.rename(kept)
            path.symlink_to(FULL)
        elif run.epoch == self.end:
            path.unlink()
            if kept.exists():
                kept.rename(path)


@contextmanager
def hearing() -> Iterator[list[str]]:
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


# Rows and lines -----------------------------------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "media.jsonl", "log.txt"])
def test_lines_are_written_when_there_is_room_again(tmp_path: Path, name: str) -> None:
    plain = fitted(tmp_path, EveryIteration(), Tell(), name="plain", epochs=5)
    with hearing() as said:
        experiment = fitted(tmp_path, EveryIteration(), Tell(), Full(name, 1, 3), name="full", epochs=5)
    assert len(said) == (name != "log.txt")
    assert all("cannot be written" in one and "The training goes on" in one for one in said)
    assert experiment.status == "finished"
    texts = [
        [
            without_times(line)
            for line in (one.folder / name).read_text().splitlines()
            if "cannot be written" not in line
        ]
        for one in (plain, experiment)
    ]
    assert texts[0] == texts[1]


class Tell(Callback):
    """Shows a text and logs a warning in each epoch."""

    def after_epoch(self, run: Any) -> None:
        run.experiment.text("note", f"epoch {run.epoch}")
        logging.getLogger("cadenza").warning("this is epoch %d", run.epoch)


def without_times(line: str) -> Any:
    if not line.startswith("{"):
        return line[20:].partition("clock_seconds")[0].replace("/plain/", "/full/").partition("/full/")[0]
    found = json.loads(line)
    return {name: value for name, value in found.items() if name not in ("time", "clock_seconds")}


@LINUX
def test_rows_that_find_no_room_until_the_end_are_counted_and_come_back_with_a_resume(tmp_path: Path) -> None:
    saving = Checkpoint("2 steps", to=tmp_path / "saved", background=False)
    experiment = Experiment("tiny", "full", tmp_path, report=False)
    with hearing() as said:
        trainer = trainer_of(EveryIteration(), saving, Full("metrics.jsonl"), experiment=experiment, seed=0)
        trainer.fit(tiny_loader(), epochs=3)
    assert "cannot be written" in said[0]
    assert "9 rows of this run could not be written" in said[1]
    assert len(said) == 2
    assert max(meta["step"] for meta in Shelf(tmp_path / "saved").metas().values()) == 9
    file = experiment.metrics_file
    file.unlink()
    file.with_name("kept-metrics.jsonl").rename(file)
    again = Experiment.at(experiment.folder)
    saving = Checkpoint("2 steps", to=tmp_path / "saved", background=False)
    trainer = trainer_of(EveryIteration(), saving, Full("metrics.jsonl", 99), experiment=again, seed=0)
    trainer.fit(tiny_loader(), epochs=4, resume="auto")
    steps = [row["step"] for row in read_lines(file)]
    assert steps == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12]


@LINUX
def test_lines_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadenza.experiment.jsonl_file.MOST_WAITING", 3)
    path = tmp_path / "rows.jsonl"
    lines = WaitingLines(LinesFile(path), Trouble(tmp_path))
    path.symlink_to(FULL)
    with hearing() as said:
        for number in range(5):
            lines.append([{"number": number}])
    assert ["cannot be written" in one for one in said] == [True]
    path.unlink()
    lines.append([{"number": 5}])
    assert [row["number"] for row in read_lines(path)] == [3, 4, 5]
    with pytest.warns(UserWarning, match="3 rows of this run could not be written"):
        lines.warn_of_rest()


def test_a_resumed_run_that_cannot_bring_its_rows_says_so_before_it_trains(tmp_path: Path) -> None:
    first = Experiment("tiny", "first", tmp_path)
    trainer_of(Checkpoint(to=tmp_path / "saved"), experiment=first).fit(tiny_loader(), epochs=1)
    second = Experiment("tiny", "first", tmp_path)

    def block(run: Any) -> None:
        second.metrics_file.unlink()
        second.metrics_file.mkdir()

    trainer = trainer_of(Checkpoint(to=tmp_path / "saved"), At("after_register", block), experiment=second)
    with pytest.raises(CannotWrite, match=r"metrics\.jsonl cannot be written"):
        trainer.fit(tiny_loader(), epochs=2, resume="auto")
    assert trainer.clock.steps == 3


def test_cutting_lines_needs_no_room(tmp_path: Path) -> None:
    file = LinesFile(tmp_path / "rows.jsonl")
    file.append({"number": number} for number in range(4))
    inode = file.path.stat().st_ino
    file.cut(2)
    assert (file.path.stat().st_ino, file.count, len(list(read_lines(file.path)))) == (inode, 2, 2)


# Small files and pictures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["status.json", "run.json"])
def test_a_small_file_that_cannot_be_replaced_ends_nothing(tmp_path: Path, name: str) -> None:
    def block(run: Any) -> None:
        (run.experiment.folder / name).unlink()
        (run.experiment.folder / name / "there").mkdir(parents=True)

    early = At("after_register", block)
    experiment = Experiment("tiny", "first", tmp_path, report=False)
    with hearing() as said:
        trainer = trainer_of(early, experiment=experiment)
        trainer.fit(tiny_loader(), epochs=2)
    assert len(said) == 1
    assert "cannot be written: Is a directory" in said[0]
    assert trainer.clock.epochs == 2


@pytest.mark.parametrize("kind", ["image", "figure", "artifact"])
def test_what_is_shown_and_cannot_be_kept_is_left_out(tmp_path: Path, kind: str) -> None:
    from matplotlib.figure import Figure

    (tmp_path / "file").write_text("x")

    def show(run: Any) -> None:
        what = {"image": (kind, torch.rand(4, 4)), "figure": (kind, Figure()), "artifact": (tmp_path / "file",)}
        getattr(run.experiment, kind)(*what[kind])

    def block(run: Any) -> None:
        run.experiment.plots.rmdir()
        run.experiment.plots.write_text("")
        (run.experiment.folder / "artifacts").write_text("")

    with hearing() as said:
        experiment = fitted(tmp_path, At("before_run", block), At("after_epoch", show), report=False)
    assert len(said) == 1
    assert "cannot be written" in said[0]
    assert experiment.status == "finished"
    assert not (experiment.folder / "media.jsonl").exists()


def test_an_artifact_that_is_not_there_is_still_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        fitted(tmp_path, At("after_epoch", lambda run: run.experiment.artifact(tmp_path / "none")))


# A limit on the size of all files -------------------------------------------------------------------------------------

LIMITED = """
import resource, sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[3])
from cadenza import Callback
from cadenza.callbacks import Checkpoint, GradientPlot, HistoryFile, HistoryPlot
from cadenza.experiment import CSV, Experiment, TensorBoard
from cadenza.testing import tiny_loader
from tests.experiment.trained import EveryIteration, trainer_of

class Quota(Callback):
    order = 10**7

    def after_epoch(self, run):
        if run.epoch == 0:
            self.limit(1)
        elif run.epoch == 3 and sys.argv[2] == "back":
            self.limit(resource.RLIM_INFINITY)

    def limit(self, size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

experiment = Experiment("tiny", "full", sys.argv[1])
writing = [CSV(), HistoryFile(rows="all"), HistoryPlot(), GradientPlot(), Checkpoint("2 steps", background=False)]
callbacks = [EveryIteration(), *writing]
trainer = trainer_of(*callbacks, Quota(), experiment=experiment)
trainer.fit(tiny_loader(), epochs=6)
print(trainer.clock.epochs)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="the system limits no files")
@pytest.mark.parametrize("room", ["back", "never"])
def test_a_quota_on_everything_that_is_written(tmp_path: Path, room: str) -> None:
    done = run(LIMITED, tmp_path, room, Path(__file__).parents[2])
    assert (done.returncode, done.stdout.strip()) == (0, "6"), done.stderr
    (folder,) = (tmp_path / "tiny" / "full").iterdir()
    files = ["metrics.jsonl", "metrics.csv", "history.csv"]
    for name in files:
        assert (folder / name).read_text().endswith("\n")
    for who in ("HistoryFile", "GradientPlot"):
        assert done.stderr.count(f"{who} could not write to its disk") == 1
    assert done.stderr.count(f"{folder} cannot be written") == 1
    assert done.stderr.count("could not be stored") == 1
    rows = list(read_lines(folder / "metrics.jsonl"))
    if room == "never":
        assert [row["step"] for row in rows] == [1, 2, 3]
        assert "21 rows of this run could not be written" in done.stderr
        return
    whole = [step for epoch in range(6) for step in (3 * epoch + 1, 3 * epoch + 2, 3 * epoch + 3, 3 * epoch + 3)]
    assert [row["step"] for row in rows] == whole
    for name in files[1:]:
        assert len((folder / name).read_text().splitlines()) == 1 + len(whole)
    assert read_run(folder).state == "finished"
    assert (folder / "plots" / "history.png").stat().st_size > 1000
    assert not list(folder.glob("unsent-*"))
    assert Shelf(folder / "checkpoints").read("last").meta["step"] == 18


# Callbacks that write beside it ---------------------------------------------------------------------------------------


@LINUX
def test_a_history_file_on_a_full_disk_waits_for_room(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "full", tmp_path)
    with hearing() as said:
        full = Full("history.csv", 1, 3)
        trainer_of(HistoryFile(), full, experiment=experiment).fit(tiny_loader(), epochs=5)
    assert ["could not write to its disk" in one for one in said] == [True]
    lines = (experiment.folder / "history.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2", "3", "4"]
