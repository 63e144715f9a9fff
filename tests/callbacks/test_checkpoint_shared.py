"""Two runs that use one place for their checkpoints, and places that are none."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from cadenza import Callback, Preempted
from cadenza.callbacks import Checkpoint
from cadenza.checkpoint import NoCheckpoint, Shelf, load_weights
from cadenza.checkpoint.problems import Taken
from cadenza.foundation.locking import FolderLocked, folder

from ..checkpoint.states import small_state
from .saving import Break, End, Oops, loader, trainer


class At(Callback):
    """Does something at the ``count``-th time a training iteration is over."""

    order = 10**6

    def __init__(self, act: Any, count: int = 3) -> None:
        self.act, self.left = act, count

    def after_train_iter(self, run: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PATIENCE", 0.1)


# One folder ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_second_run_is_refused_and_changes_nothing(resume: Any, tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def intrude() -> None:
        Shelf(tmp_path).draft("open")  # a save that is under way looks torn; a resume would set it aside
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(
            FolderLocked, match=r"another run is writing into .* \(process .*\); wait until it ended, or"
        ):
            trainer(Checkpoint(to=tmp_path, replace=True)).fit(loader(), epochs=1, resume=resume)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        seen.append(before)

    trainer(Checkpoint("1 step", to=tmp_path, background=False), At(intrude)).fit(loader(), epochs=1)
    assert seen
    assert Shelf(tmp_path).read("last").meta["step"] == 5
    assert not (tmp_path / ".lock").exists()


def test_others_may_read_meanwhile(tmp_path: Path) -> None:
    def read() -> None:
        assert Shelf(tmp_path / "one").read("last").meta["step"] > 0
        assert load_weights(tmp_path / "one")
        other = trainer(Checkpoint(to=tmp_path / "other"))
        other.fit(loader(), epochs=1, resume=tmp_path / "one")
        assert other.clock.steps == 5

    trainer(Checkpoint("1 step", to=tmp_path / "one", background=False), At(read)).fit(loader(), epochs=1)


def test_further_fits_and_runs_that_failed_leave_no_lock(tmp_path: Path) -> None:
    made = trainer(Checkpoint(to=tmp_path))
    made.fit(loader(), epochs=1)
    made.fit(loader(), epochs=1)
    with pytest.raises(Oops):
        trainer(Checkpoint("1 step", to=tmp_path), Break("after_step", 2)).fit(loader(), epochs=3, resume="auto")
    with pytest.raises(FileExistsError, match="holds the checkpoints of another run"):
        trainer(Checkpoint(to=tmp_path)).fit(loader(), epochs=1)
    assert not (tmp_path / ".lock").exists()
    trainer(Checkpoint(to=tmp_path)).fit(loader(), epochs=3, resume="auto")


def test_a_run_whose_folder_was_taken_over_stops_saving_there(tmp_path: Path) -> None:
    """As after a minute without a sign of life, while another machine resumed it."""

    def lose() -> None:
        (tmp_path / ".lock").write_bytes((tmp_path / ".lock").read_bytes().replace(b'"token": "', b'"token": "x'))

    with pytest.raises(FolderLocked, match="has taken over"):
        trainer(Checkpoint("1 step", to=tmp_path, background=False), At(lose, 2)).fit(loader(), epochs=2)
    assert Shelf(tmp_path).read("last").meta["step"] == 1


def test_retention_leaves_alone_what_another_run_wrote(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for number, run in enumerate(("a", "b", "a", "b", "a"), 1):
        shelf.write(f"v{number}", small_state(float(number)), {"run": run})
    assert shelf.retain(1, 0, {"a"}) == ["000001-v1", "000003-v3"]
    assert [name[7:] for name in shelf.names()] == ["v2", "v4", "v5"]


# One place in an object store ----------------------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[str]:
    yield "memory://shared"
    for path in fsspec.filesystem("memory").ls("/", detail=False):  # all of this process share this memory
        fsspec.filesystem("memory").rm(path, recursive=True)


def test_the_second_writer_in_an_object_store_is_refused(place: str, tmp_path: Path) -> None:
    """Both begin while it is empty. The first one to save keeps the place."""
    first = Checkpoint("1 step", to=place, background=False)

    def intrude() -> None:
        trainer(first).fit(loader(), epochs=1)

    second = trainer(Checkpoint("4 steps", to=place, background=False), At(intrude))
    with pytest.raises(Taken, match=r"another run has written the checkpoint 0.* to memory://shared; give each run"):
        second.fit(loader(), epochs=1)
    assert {meta["run"] for meta in Shelf(place).metas().values()} == {first.id}
    assert Shelf(place).read("last").meta["step"] == 5


def test_two_that_resume_the_same_run_notice_each_other(place: str) -> None:
    trainer(Checkpoint(to=place)).fit(loader(), epochs=1)

    def intrude() -> None:
        trainer(Checkpoint(to=place, background=False)).fit(loader(), epochs=2, resume="auto")

    with pytest.raises(Taken, match="another run has written"):
        trainer(Checkpoint("4 steps", to=place, background=False), At(intrude)).fit(loader(), epochs=2, resume="auto")


@pytest.mark.parametrize("batch", [1, 2], ids=["before ours", "over ours"])
def test_a_checkpoint_of_the_same_name_is_noticed(batch: int, place: str) -> None:
    """Two runs that are the same but for their ids save under the same names, and a store lets them."""

    def intrude() -> None:
        other = Shelf("memory://other")
        name = other.write("epoch=0-step=1", small_state(1.0), {"run": "another"})
        store = fsspec.filesystem("memory")
        for path in store.ls(f"/other/{name}", detail=False):
            store.copy(path, path.replace("/other/", "/shared/"))

    with pytest.raises(Taken, match="another run has written the checkpoint 000001-epoch=0-step=1"):
        trainer(Checkpoint("1 step", to=place, background=False), At(intrude, batch)).fit(loader(), epochs=1)


def test_a_run_may_take_the_place_of_another_and_deletes_its_checkpoints(place: str) -> None:
    trainer(Checkpoint(to=place)).fit(loader(), epochs=1)
    again = Checkpoint("1 step", to=place, replace=True, background=False)
    trainer(again).fit(loader(), epochs=1)
    assert {meta["run"] for meta in Shelf(place).metas().values()} == {again.id}


# What is no place ----------------------------------------------------------------------------------------------------


def test_a_file_of_weights_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1)}, tmp_path / "weights.pt")
    with pytest.raises(NotADirectoryError, match=r"weights.pt is a file.*leave resume out and add the callback Load\("):
        trainer().fit(loader(), epochs=1, resume=tmp_path / "weights.pt")


def test_a_file_in_a_checkpoint_names_its_folder(tmp_path: Path) -> None:
    name = Shelf(tmp_path).write("v1", small_state(1.0))
    with pytest.raises(NotADirectoryError, match=rf"is one file of a checkpoint. Give its folder: .*{name}"):
        trainer().fit(loader(), epochs=1, resume=tmp_path / name / "model.safetensors")


def test_a_checkpoint_without_its_number_is_said(tmp_path: Path) -> None:
    name = Shelf(tmp_path).write("v1", small_state(1.0))
    (tmp_path / name).rename(tmp_path / "best")
    with pytest.raises(ValueError, match=r"best was renamed: the folder of a checkpoint begins with its number"):
        trainer().fit(loader(), epochs=1, resume=tmp_path / "best")


@pytest.mark.parametrize("inside", ["", "deeper/checkpoints"])
@pytest.mark.parametrize("resume", [None, "auto"])
def test_checkpoints_do_not_go_into_a_file(inside: str, resume: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"Checkpoint\(to=.* needs a folder, and .*file is a file"):
        trainer(Checkpoint(to=tmp_path / "file" / inside)).fit(loader(), epochs=1, resume=resume)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_path_that_is_not_there_is_said_as_before(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint):
        trainer().fit(loader(), epochs=1, resume=tmp_path / "nothing.pt")


# Folders that are not what they seem ---------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", [True, False], ids=["renamed", "files copied"])
def test_an_old_checkpoint_under_a_larger_number_is_passed_over(moved: bool, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    names = [shelf.write(f"v{number}", small_state(float(number))) for number in (1, 2, 3)]
    if moved:
        (tmp_path / names[0]).rename(tmp_path / "000009-v1")
    else:
        shutil.rmtree(tmp_path / names[2])
        shutil.copytree(tmp_path / names[0], tmp_path / names[2])
    saved = Shelf(tmp_path).read("last")
    assert saved.state["clock"]["steps"] == (3 if moved else 2)
    assert "it holds the files of 000001-v1: it was renamed, or they were" in next(iter(saved.passed_over.values()))


# Loaders that can be read once ---------------------------------------------------------------------------------------


def batches(count: int = 8) -> Iterator[Any]:
    for number in range(count):
        yield torch.randn(6, 4, generator=torch.Generator().manual_seed(number)), torch.arange(6) % 3


def test_a_generator_is_said_at_the_first_save(tmp_path: Path) -> None:
    made = trainer(Checkpoint("2 steps", to=tmp_path))
    with pytest.raises(TypeError, match=r"Checkpoint cannot save a run that could not be resumed.*a generator, can be"):
        made.fit(batches(), epochs=1)
    assert made.clock.steps == 2
    assert Shelf(tmp_path).names() == []


def test_the_same_of_a_loader_whose_iter_is_itself(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a zip, can be read only once.*Give a DataLoader, a list"):
        trainer(Checkpoint("2 steps", to=tmp_path)).fit(zip(*zip(*batches(), strict=True), strict=True), epochs=1)


def test_between_two_epochs_a_generator_is_no_matter(tmp_path: Path) -> None:
    whole, again = End(), End()
    trainer(Checkpoint(None, to=tmp_path / "whole"), whole).fit(batches(), epochs=1)
    trainer(Checkpoint(to=tmp_path / "one")).fit(batches(), epochs=1)
    trainer(Checkpoint(to=tmp_path / "one"), again).fit(batches(), epochs=1, resume="auto")
    assert Shelf(tmp_path / "one").read("last").meta["step"] == 8


def test_a_signal_saves_the_weights_all_the_same(tmp_path: Path) -> None:
    term = At(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with (
        pytest.raises(Preempted),
        pytest.warns(UserWarning, match="cannot be resumed from this save, though its weights"),
    ):
        trainer(Checkpoint(to=tmp_path), term).fit(batches(), epochs=1)
    assert load_weights(tmp_path)
    with pytest.raises(TypeError, match="can be read only once"):
        trainer(Checkpoint(to=tmp_path)).fit(batches(), epochs=1, resume="auto")
