"""A script that is started again goes on in the unfinished run of its project and name, and says so."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza import Callback, Preempted, Trainer
from cadenza.callbacks import Checkpoint, Progress
from cadenza.checkpoint import Shelf
from cadenza.experiment import Experiment, FolderError, FolderLocked, read_run
from cadenza.experiment.jsonl_file import read_lines
from cadenza.experiment.records import run_folders
from cadenza.testing import tiny_classifier, tiny_loader

from ..processes import Program, ranks, run
from .trained import trainer_of

pytestmark = pytest.mark.timeout(300)
LR = 0.1


class Killed(Callback):
    """Ends the process by SIGKILL behind a step, as long as a file is there."""

    def __init__(self, step: int, armed: str) -> None:
        self.step, self.armed = step, Path(armed)

    def after_train_iter(self, run: Any) -> None:
        if run.clock.steps == self.step and self.armed.exists():
            self.armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def script(
    root: str | Path,
    *more: Callback,
    name: str = "first",
    epochs: int = 3,
    lr: float = LR,
    resume: Any = "auto",
    experiment: Experiment | None = None,
    to: str | None = None,
    samples: int = 24,
    **options: Any,
) -> Trainer:
    """What a user has in a file and starts again and again: 3 steps an epoch."""
    experiment = experiment or Experiment("tiny", name, root, report=False, **{"seed": 1, **options})
    trainer = trainer_of(Checkpoint("2 steps", to=to, background=False), *more, experiment=experiment, lr=lr)
    trainer.fit(tiny_loader(samples, shuffle=True), tiny_loader(9), epochs=epochs, resume=resume)
    return trainer


class Interrupted(Exception):
    pass


class Fails(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    passive = True

    def after_train_iter(self, run: Any) -> None:
        if run.clock.steps == self.step:
            raise Interrupted


def interrupted(root: Path, step: int = 5, **options: Any) -> Path:
    with pytest.raises(Interrupted):
        script(root, Fails(step), resume=None, **options)
    return newest(root)


def newest(root: Path) -> Path:
    return run_folders(root)[-1]


def folders(root: Path) -> list[str]:
    return [str(folder) for folder in run_folders(root)]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "clock_seconds"} for row in read_lines(folder / "metrics.jsonl")]


CODE = """
import sys
import torch
from tests.experiment.test_found_again import Killed, script
torch.set_num_threads(1)
trainer = script(sys.argv[1], Killed(int(sys.argv[2]), sys.argv[3]))
torch.save(trainer.model.state_dict(), sys.argv[4])
print(len(trainer.history.epochs))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_a_killed_script_started_again_goes_on_to_the_same_bits_and_says_so(tmp_path: Path) -> None:
    armed, whole, again = tmp_path / "armed", tmp_path / "whole.pt", tmp_path / "again.pt"
    plain = run(CODE, tmp_path / "plain", 5, armed, whole, strict=True)
    assert plain.returncode == 0
    assert plain.stderr.startswith("cadenza: ")
    assert "training starts from the beginning" in plain.stderr
    assert plain.stderr.count("\n") == 1

    armed.touch()
    words = (CODE, tmp_path / "cut", 5, armed, again)
    assert run(*words, strict=True).returncode == -signal.SIGKILL
    (folder,) = folders(tmp_path / "cut")
    assert read_run(folder).state == "killed"
    resumed = run(*words, strict=True)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr == f"cadenza: resumed run {folder} from epoch 2, batch 1\n"
    assert folders(tmp_path / "cut") == [folder]
    assert read_run(folder).state == "finished"
    one, other = torch.load(whole, weights_only=True), torch.load(again, weights_only=True)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert rows_of(Path(folder)) == rows_of(newest(tmp_path / "plain"))

    third = run(*words, strict=True)
    assert third.returncode == 0, third.stderr
    assert third.stdout == "3\n"
    assert third.stderr == f"cadenza: nothing to do: run {folder} has ended after 3 epochs and 9 steps\n"
    assert folders(tmp_path / "cut") == [folder]
    back = torch.load(again, weights_only=True)
    assert all(torch.equal(one[name], back[name]) for name in one)


# Which run ------------------------------------------------------------------------------------------------------------


class Terminates(Callback):
    """Gets SIGTERM in the first validation."""

    passive = True

    def before_val_iter(self, run: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_resume_of_an_epoch_that_was_trained_says_so(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(Preempted):
        script(tmp_path, Terminates())
    capsys.readouterr()
    assert len(script(tmp_path).history.epochs) == 3
    assert capsys.readouterr().err == f"cadenza: resumed run {newest(tmp_path)} from epoch 1, after its training\n"


def test_a_longer_fit_goes_on_with_the_run_that_ended(tmp_path: Path, capsys: Any) -> None:
    script(tmp_path, epochs=1)
    capsys.readouterr()
    assert len(script(tmp_path, epochs=3).history.epochs) == 3
    assert capsys.readouterr().err == f"cadenza: resumed run {newest(tmp_path)} from epoch 2\n"
    assert len(folders(tmp_path)) == 1
    assert len(rows_of(newest(tmp_path))) == 3


def test_a_run_that_finished_returns_its_history_and_is_left_alone(tmp_path: Path, capsys: Any) -> None:
    first = script(tmp_path)
    before = (newest(tmp_path) / "status.json").read_text()
    capsys.readouterr()
    again = script(tmp_path)
    assert again.history["train/loss"] == first.history["train/loss"]
    assert "nothing to do" in capsys.readouterr().err
    assert (newest(tmp_path) / "status.json").read_text() == before
    assert set(again.test(tiny_loader(9))) == {"test/loss"}
    assert len(folders(tmp_path)) == 1


@pytest.mark.parametrize("changed", [{"lr": 0.3}, {"seed": 2}, {"recipe": {"width": 3}}], ids=["lr", "seed", "recipe"])
def test_a_finished_run_with_other_settings_is_no_reason_not_to_begin(
    tmp_path: Path, capsys: Any, changed: dict[str, Any]
) -> None:
    script(tmp_path)
    capsys.readouterr()
    assert len(script(tmp_path, **changed).history.epochs) == 3
    said = capsys.readouterr().err
    assert "training starts from the beginning" in said
    assert next(iter(changed)) in said
    assert len(folders(tmp_path)) == 2


def test_a_rate_that_a_schedule_has_changed_is_no_other_setting(tmp_path: Path) -> None:
    def scheduled(*more: Callback) -> Trainer:
        model = tiny_classifier()
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        trainer = Trainer(
            model,
            sgd,
            torch.nn.CrossEntropyLoss(),
            scheduler=torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5),
            callbacks=[Checkpoint("1 step", background=False), *more],
            experiment=Experiment("tiny", "first", tmp_path, seed=1, report=False),
            device="cpu",
        )
        trainer.fit(tiny_loader(shuffle=True), epochs=4, resume="auto")
        return trainer

    for step in (5, 8, 11):
        with pytest.raises(Interrupted):
            scheduled(Fails(step))
    assert scheduled().clock.steps == 12
    assert len(folders(tmp_path)) == 1


def test_other_data_are_another_setting(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(FolderError, match="batches was 3, now 4"):
        script(tmp_path, samples=32)


def test_an_unfinished_run_with_other_settings_is_an_error_that_says_what_to_write(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    with pytest.raises(FolderError) as caught:
        script(tmp_path, lr=0.3)
    said = str(caught.value)
    assert f"Experiment.at({str(folder)!r})" in said
    assert "optimizer.lr was 0.1, now 0.3" in said
    assert "leave resume out" in said
    assert folders(tmp_path) == [str(folder)]
    named = script(tmp_path, lr=0.3, experiment=Experiment.at(folder))
    assert len(named.history.epochs) == 3
    assert folders(tmp_path) == [str(folder)]


def test_of_several_runs_the_one_with_these_settings_goes_on(tmp_path: Path) -> None:
    mine, other = interrupted(tmp_path), interrupted(tmp_path, lr=0.3)
    script(tmp_path)
    assert read_run(mine).state == "finished"
    assert read_run(other).state == "failed"


def test_several_candidates_are_an_error_that_lists_them(tmp_path: Path) -> None:
    both = interrupted(tmp_path), interrupted(tmp_path)
    with pytest.raises(FolderError) as caught:
        script(tmp_path)
    assert all(str(folder) in str(caught.value) for folder in both)
    assert "several" in str(caught.value)
    assert len(folders(tmp_path)) == 2


def test_with_one_place_for_checkpoints_the_newest_run_goes_on(tmp_path: Path, capsys: Any) -> None:
    to = str(tmp_path / "kept")
    interrupted(tmp_path / "runs", 5, to=to)
    with pytest.raises(Interrupted):
        script(tmp_path / "runs", Fails(9), to=to, resume=to)
    capsys.readouterr()
    assert len(script(tmp_path / "runs", to=to).history.epochs) == 3
    assert capsys.readouterr().err.startswith(f"cadenza: resumed run {newest(tmp_path / 'runs')} from epoch 3, batch 2")
    assert len(folders(tmp_path / "runs")) == 2


def test_runs_without_a_checkpoint_and_other_names_do_not_count(tmp_path: Path, capsys: Any) -> None:
    interrupted(tmp_path, 1, lr=0.3)
    interrupted(tmp_path, name="other")
    capsys.readouterr()
    script(tmp_path)
    assert capsys.readouterr().err.endswith("; training starts from the beginning\n")
    assert len(folders(tmp_path)) == 3


def test_checkpoints_beside_the_script_are_not_those_of_an_experiment(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    trainer_of(Checkpoint(background=False)).fit(tiny_loader(), epochs=2)
    assert len(Shelf("checkpoints").names()) > 0
    assert script(tmp_path / "runs", epochs=1).clock.epochs == 1


def test_what_only_shows_is_no_setting(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    script(tmp_path, Progress(display=None))
    assert folders(tmp_path) == [str(folder)]


def test_an_experiment_among_the_callbacks_is_found_as_well(tmp_path: Path, capsys: Any) -> None:
    def trained(*more: Callback) -> None:
        experiment = Experiment("tiny", "first", tmp_path, seed=1, report=False)
        trainer = trainer_of(experiment, Checkpoint("2 steps", background=False), *more, seed=1)
        trainer.fit(tiny_loader(shuffle=True), epochs=3, resume="auto")

    with pytest.raises(Interrupted):
        trained(Fails(5))
    capsys.readouterr()
    trained()
    assert capsys.readouterr().err.startswith(f"cadenza: resumed run {newest(tmp_path)} from epoch 2, batch 1")
    assert len(folders(tmp_path)) == 1


def test_an_own_loop_finds_its_run(tmp_path: Path, capsys: Any) -> None:
    def looped(step: int = 0) -> None:
        experiment = Experiment("tiny", "own", tmp_path, seed=1, report=False)
        trainer = trainer_of(Checkpoint("2 steps", background=False), experiment=experiment)
        with trainer.run(epochs=2, resume="auto") as run:
            for _ in run.epochs():
                for _ in run.train(tiny_loader(shuffle=True)):
                    run.train_step()
                    if run.clock.steps == step:
                        raise Interrupted

    with pytest.raises(Interrupted):
        looped(5)
    capsys.readouterr()
    looped()
    looped()
    resumed, ended = capsys.readouterr().err.splitlines()
    assert resumed == f"cadenza: resumed run {newest(tmp_path)} from epoch 2, batch 1"
    assert ended.startswith("cadenza: nothing to do: ")


def test_a_script_of_two_fits_goes_on_in_the_second(tmp_path: Path) -> None:
    def staged(*more: Callback) -> Trainer:
        trainer = script(tmp_path, *more, epochs=1)
        for group in trainer._training.optimizers[0].param_groups:
            group["lr"] = 0.01
        trainer.fit(tiny_loader(shuffle=True), tiny_loader(9), epochs=2, resume="auto")
        return trainer

    with pytest.raises(Interrupted):
        staged(Fails(5))
    assert staged().clock.epochs == 2  # those of the whole training
    assert len(folders(tmp_path)) == 1


RUNNING = """
import sys, time
from tests.experiment.test_found_again import script
from cadenza import Callback
class Waits(Callback):
    passive = True
    def after_train_iter(self, run):
        if run.clock.steps == 3:
            time.sleep(200)
script(sys.argv[1], Waits())
"""


def test_a_run_that_goes_on_elsewhere_is_not_touched(tmp_path: Path) -> None:
    process = Program(RUNNING, tmp_path)
    try:
        while not folders(tmp_path) or not Shelf(str(newest(tmp_path) / "checkpoints")).names():
            assert process.is_alive(), process.errors
        with pytest.raises(FolderLocked, match=str(process.pid)):
            script(tmp_path)
        assert len(folders(tmp_path)) == 1
        script(tmp_path, seed=2)
        assert len(folders(tmp_path)) == 2
    finally:
        process.kill()


def test_without_an_experiment_a_resume_speaks_too(tmp_path: Path, capsys: Any) -> None:
    def trained(epochs: int) -> None:
        trainer_of(Checkpoint("2 steps", to=str(tmp_path), background=False)).fit(
            tiny_loader(), epochs=epochs, resume="auto"
        )

    trained(1)
    trained(1)
    trained(2)
    begun, ended, longer = capsys.readouterr().err.splitlines()
    assert begun == "cadenza: no checkpoint was found; training starts from the beginning"
    assert ended.startswith("cadenza: nothing to do: ")
    assert re.fullmatch(r"cadenza: resumed from epoch 2 \(checkpoint \S+\)", longer)


def test_a_closed_standard_error_ends_no_training(tmp_path: Path, monkeypatch: Any) -> None:
    for stream in (None, open(os.devnull, "w", encoding="utf-8")):  # noqa: SIM115
        if stream is not None:
            stream.close()
        monkeypatch.setattr("sys.stderr", stream)
        script(tmp_path)


# Many processes -------------------------------------------------------------------------------------------------------


def together(root: str, step: int) -> tuple[str, list[float], str]:
    import contextlib
    import io

    torch.set_num_threads(1)
    experiment = Experiment("tiny", "many", root, seed=1, report=False)
    callbacks = [Checkpoint("2 steps", background=False), *([Fails(step)] if step else [])]
    trainer = trainer_of(*callbacks, experiment=experiment, strategy="ddp")
    with contextlib.redirect_stderr(io.StringIO()) as said:
        trainer.fit(tiny_loader(48), epochs=2, resume="auto")
    return str(experiment.folder), trainer.history["train/loss"], said.getvalue()


def test_all_processes_agree_on_the_run_that_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        ranks(together, str(tmp_path), 5)
    (folder,) = folders(tmp_path)
    one, other = ranks(together, str(tmp_path), 0, results="all")
    assert one[0] == other[0] == folder
    assert one[2].startswith(f"cadenza: resumed run {folder} from epoch ")
    assert other[2] == ""
    one, other = ranks(together, str(tmp_path), 0, results="all")
    assert one[0] == other[0] == folder
    assert "nothing to do" in one[2]
    assert other[2] == ""
    assert folders(tmp_path) == [folder]
    plain = ranks(together, str(tmp_path / "plain"), 0)
    assert plain[1] == one[1]


def test_an_unclear_choice_ends_all_processes(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Interrupted):
            ranks(lone, str(tmp_path))
    with pytest.raises((FolderError, RuntimeError), match="several unfinished runs"):  # by who is the first to say it
        ranks(together, str(tmp_path), 0)


def lone(root: str) -> None:
    """Interrupts a run of its own."""
    torch.set_num_threads(1)
    experiment = Experiment("tiny", "many", root, seed=1, report=False)
    trainer = trainer_of(Checkpoint("2 steps", background=False), Fails(5), experiment=experiment, strategy="ddp")
    trainer.fit(tiny_loader(48), epochs=2)
