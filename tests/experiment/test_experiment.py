"""The folder of a run: what is in it, when it is made, whose it is."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import cadenza.experiment.make_folder
from cadenza import Callback, CallbackError, Trainer, Watch
from cadenza.callbacks import CostLedger, GradientPlot, HistoryFile, HistoryPlot, NaNGuard, Notify, Profile
from cadenza.callbacks.showing.notify_channels import Command
from cadenza.experiment import Experiment, FolderError, FolderLocked, find_run, read_run
from cadenza.experiment.jsonl_file import read_lines
from cadenza.resume.signals import Preempted
from cadenza.testing import check_callback, tiny_classifier, tiny_loader

from ..processes import run
from .saved import Restore, Save
from .trained import At, EveryIteration, fitted, trainer_of


def rows_of(experiment: Experiment) -> list[dict[str, Any]]:
    return list(read_lines(experiment.metrics_file))


def events_of(experiment: Experiment) -> list[tuple[str, str]]:
    return [(event["kind"], event["says"]) for event in read_lines(experiment.folder / "events.jsonl")]


# What is in it ------------------------------------------------------------------------------------------------------


def test_everything_is_there(tmp_path: Path) -> None:
    experiment = fitted(tmp_path, seed=5, recipe={"lr": 0.1})
    folder = experiment.folder
    assert folder.parent == tmp_path / "tiny" / "first"
    assert {path.name for path in folder.iterdir()} >= {
        "run.json", "recipe.yaml", "packages.txt", "metrics.jsonl", "events.jsonl", "log.txt", "status.json",
        "report.html", "checkpoints", "plots", "tensorboard",
    }  # fmt: skip
    details = json.loads((folder / "run.json").read_text())
    assert details["project"] == "tiny"
    assert details["name"] == "first"
    assert details["id"] == folder.name == experiment.id
    assert details["seed"] == 5
    assert details["torch"] == torch.__version__
    assert details["hardware"]["device"] == "cpu"
    assert details["command"][0].startswith("python")
    assert details["settings"]["optimizer"] == {
        **details["settings"]["optimizer"], "class": "SGD", "lr": 0.1, "momentum": 0,
    }  # fmt: skip
    assert f"torch=={torch.__version__.split('+')[0]}" in (folder / "packages.txt").read_text()
    assert yaml.safe_load((folder / "recipe.yaml").read_text()) == {"lr": 0.1}
    assert experiment.status == "finished"


def test_every_row_of_the_history_is_written_with_the_same_numbers(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    trainer = trainer_of(EveryIteration(), experiment=experiment)
    history = trainer.fit(tiny_loader(), tiny_loader(9), epochs=2)
    written = [{k: v for k, v in row.items() if k != "clock_seconds"} for row in rows_of(experiment)]
    assert written == history.to_rows()
    assert len(written) == 8
    seconds = [row["clock_seconds"] for row in rows_of(experiment)]
    assert seconds == sorted(seconds)


def test_the_folder_is_made_when_a_run_begins(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path / "runs")
    trainer = trainer_of(experiment=experiment)
    assert not (tmp_path / "runs").exists()
    assert not experiment.has_folder
    with pytest.raises(AttributeError, match="made when a run begins"):
        experiment.folder
    trainer.fit(tiny_loader(), epochs=1)
    assert experiment.folder.is_dir()


def test_it_is_the_first_to_play_and_others_reach_it(tmp_path: Path) -> None:
    seen: list[Any] = []
    order = At("after_register", lambda run: seen.append((run.experiment.folder.is_dir(), run.experiment)))
    order.order = -1000
    experiment = fitted(tmp_path, order)
    assert seen == [(True, experiment)]
    trainer = trainer_of(order, experiment=experiment)
    assert trainer.callbacks[0] is experiment
    assert "Experiment" in type(trainer.callbacks[0]).__name__
    assert "Experiment: order" in str(trainer.explain())
    assert "writes to" in str(trainer.explain())


def test_given_among_the_callbacks_it_is_the_experiment_too(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    seen: list[Any] = []
    trainer_of(experiment, At("before_run", lambda run: seen.append(run.experiment))).fit(tiny_loader(), epochs=1)
    assert seen == [experiment]
    both = trainer_of(experiment, experiment=experiment)
    assert both.callbacks == (experiment,)


def test_a_second_experiment_in_one_run_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(Experiment("a", "b", tmp_path), experiment=Experiment("c", "d", tmp_path))
    with pytest.raises(ValueError, match="a run has one experiment"):
        trainer.fit(tiny_loader(), epochs=1)


def test_callbacks_write_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "elsewhere"
    ledger = CostLedger(every=2, budget=None, stream=open(os.devnull, "w"))  # noqa: SIM115
    with ledger.stream:  # type: ignore[union-attr]
        experiment = fitted(
            root, HistoryFile(), HistoryPlot(every="end"), GradientPlot(), Profile("0 steps", 1), ledger
        )
    assert {path.name for path in experiment.plots.iterdir()} == {
        "history.png",
        "gradients-000.png",
        "gradients-001.png",
    }
    assert {"history.csv", "profile.json", "costs.json"} <= {path.name for path in experiment.folder.iterdir()}
    assert not (tmp_path / "runs").exists()


def test_messages_name_the_experiment(tmp_path: Path) -> None:
    said = tmp_path / "said"
    write = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:]))"
    command = Command([sys.executable, "-c", write, str(said), "{title}", "{text}"])
    fitted(tmp_path, Notify(command, timeout=60), epochs=1)
    assert said.read_text().startswith("tiny/first: the training ended")
    assert f"in {tmp_path}" in said.read_text()


def test_a_guard_keeps_its_replay_there(tmp_path: Path) -> None:
    bad = [(torch.full((2, 4), torch.nan), torch.zeros(2, dtype=torch.long))]
    experiment = Experiment("tiny", "nan", tmp_path)
    with pytest.warns(UserWarning, match="the loss is nan"):
        trainer_of(NaNGuard("skip"), experiment=experiment).fit(bad, epochs=1)
    assert list((experiment.folder / "nan").iterdir())
    kinds = [kind for kind, _ in events_of(experiment)]
    assert "warning" in kinds
    assert "skip" in kinds


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "a\\b", "x" * 101, "end.", 5, None, "a\nb"])
def test_names_that_can_be_no_folder_are_refused(name: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names a folder"):
        Experiment("tiny", name, tmp_path)
    with pytest.raises(ValueError, match="names a folder"):
        Experiment(name, "first", tmp_path)


def test_recipes_and_seeds_are_checked(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="recipe is a dict"):
        Experiment("a", "b", tmp_path, recipe="lr: 1")  # type: ignore[arg-type]
    for seed in (-1, 2**32, 1.5, True):
        with pytest.raises(ValueError, match="a seed is"):
            Experiment("a", "b", tmp_path, seed=seed)  # type: ignore[arg-type]


# Git, secrets, environment ------------------------------------------------------------------------------------------


def test_the_state_of_git_and_the_difference_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / ".env").write_text("A=1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    (tmp_path / "train.py").write_text('x = 2\napi_token = "abcdefgh"\nfor a in sorted(b, key=len): pass\n')
    (tmp_path / ".env").write_text("DB_PASSWORD=hunter2\n")
    (tmp_path / "new.py").write_text("")
    monkeypatch.chdir(tmp_path)
    experiment = fitted(tmp_path / "runs", epochs=1)
    state = json.loads((experiment.folder / "run.json").read_text())["git"]
    assert len(state["commit"]) == 40
    assert sorted(state["changed"]) == [".env", "train.py"]
    assert "new.py" in state["untracked"]
    diff = (experiment.folder / "git.diff").read_text()
    assert "+x = 2" in diff
    assert "sorted(b, key=len)" in diff
    assert "abcdefgh" not in diff
    assert "hunter2" not in diff


def test_outside_a_repository_there_is_no_state_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    experiment = fitted(tmp_path, epochs=1)
    assert json.loads((experiment.folder / "run.json").read_text())["git"] is None


SCRIPT = """
import logging, sys, torch
from cadenza import Trainer
from cadenza.experiment import Experiment
from cadenza.testing import tiny_classifier, tiny_loader
torch.set_num_threads(1)
model = tiny_classifier()
lines = "-----{} PRIVATE KEY-----"
pem = "\\n".join([lines.format("BEGIN"), "pass" + "-4721", lines.format("END")])
recipe = {"mail": {"user": "me", "password": "pass-4711"}, "store": "s3://me:pass-4712@host/x", "api_key": "pass-4713",
          "cert": pem}
experiment = Experiment("tiny", "secret", sys.argv[1], recipe=recipe)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = Trainer(model, sgd, torch.nn.CrossEntropyLoss(), device="cpu", experiment=experiment)

@trainer.on("after_epoch")
def fail(run):
    run.experiment.text("note", "token=pass-4714")
    logging.getLogger("cadenza").warning("cannot read %s", pem)
    raise ConnectionError("cannot reach https://me:pass-4715@example.org")

trainer.fit(tiny_loader(), epochs=1)
"""


def test_no_secret_and_no_environment_value_reaches_the_folder(tmp_path: Path) -> None:
    words = ["--api-key", "pass-4716", "mail.password=pass-4717", "--token=pass-4718"]
    secrets = {"CADENZA_TEST_VALUE": "pass-4719", "WANDB_API_KEY": "pass-4720"}
    done = run(SCRIPT, tmp_path, *words, env={**os.environ, **secrets})
    assert "ConnectionError" in done.stderr
    (folder,) = (tmp_path / "tiny" / "secret").iterdir()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "report.html" for path in files)
    for path in files:
        text = path.read_bytes().decode("utf-8", "replace")
        if path.name == "run.json":
            text = text.replace(json.dumps(SCRIPT)[1:-1], "")  # the script itself, which -c puts on the command line
        assert "pass-47" not in text, f"{path.name} gives a secret away"
    assert read_run(folder).status["error"] == "ConnectionError: cannot reach https://***@example.org"


# Seeds and deterministic mode ---------------------------------------------------------------------------------------


def test_the_seed_of_the_experiment_is_that_of_the_trainer(tmp_path: Path) -> None:
    def losses(**options: Any) -> list[float]:
        loader = tiny_loader(shuffle=True)
        return trainer_of(**options).fit(loader, epochs=2)["train/loss"]

    by_trainer = losses(seed=3)
    assert losses(experiment=Experiment("a", "b", tmp_path, seed=3)) == by_trainer
    assert losses(experiment=Experiment("a", "b", tmp_path), seed=3) == by_trainer
    assert losses(experiment=Experiment("a", "b", tmp_path, seed=4)) != by_trainer
    with pytest.raises(ValueError, match="differ"):
        losses(experiment=Experiment("a", "b", tmp_path, seed=4), seed=3)


def test_deterministic_mode_lasts_as_long_as_the_run(tmp_path: Path) -> None:
    seen: list[bool] = []
    look = At("after_train_iter", lambda run: seen.append(torch.are_deterministic_algorithms_enabled()))
    experiment = fitted(tmp_path, look, deterministic=True)
    assert seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert json.loads((experiment.folder / "run.json").read_text())["deterministic"] is True


# Two at once --------------------------------------------------------------------------------------------------------


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cadenza.experiment.make_folder.time, "strftime", lambda *form: "20260101-000000")
    letters = iter([b"aaa", b"aaa", b"aaa", b"bbb"])
    monkeypatch.setattr(cadenza.experiment.make_folder.os, "urandom", lambda count: next(letters))
    first, second = (fitted(tmp_path, epochs=1).folder.name for _ in range(2))
    assert (first, second) == ("20260101-000000-616161", "20260101-000000-626262")


def test_of_two_runs_of_one_second_the_later_is_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cadenza.experiment.make_folder.time, "strftime", lambda *form: "20260101-000000")
    letters = iter([b"bbb", b"aaa"])
    monkeypatch.setattr(cadenza.experiment.make_folder.os, "urandom", lambda count: next(letters))
    first, second = (fitted(tmp_path, epochs=1).folder for _ in range(2))
    assert find_run("tiny/first", tmp_path) == second != first


def test_a_second_run_in_one_folder_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    refused: list[str] = []

    def intrude(run: Any) -> None:
        other = Experiment.at(run.experiment.folder)
        with pytest.raises(FolderLocked, match="another run is writing into"):
            trainer_of(experiment=other).fit(tiny_loader(), epochs=1)
        refused.append(read_run(run.experiment.folder).state)

    experiment = fitted(tmp_path, At("after_epoch", intrude))
    assert refused == ["running"]
    assert experiment.status == "finished"
    assert len(rows_of(experiment)) == 2
    trainer_of(experiment=Experiment.at(experiment.folder)).fit(tiny_loader(), epochs=1)  # now it may


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    code = """
import sys, os, signal, torch
from cadenza.foundation.locking import FolderLock
from pathlib import Path
FolderLock(Path(sys.argv[1]), 'wait').acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(code, str(tmp_path)).returncode == -9
    trainer_of(experiment=Experiment("a", "b", tmp_path)).fit(tiny_loader(), epochs=1)


# Several runs of one trainer ----------------------------------------------------------------------------------------


def test_a_further_fit_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    trainer = trainer_of(experiment=experiment)
    trainer.fit(tiny_loader(), epochs=2)
    folder = experiment.folder
    trainer.fit(tiny_loader(), epochs=1)
    assert experiment.folder == folder
    assert [row["epoch"] for row in rows_of(experiment)] == [0, 1, 2]
    assert [says for kind, says in events_of(experiment) if kind == "begin"] == ["fit began", "fit began again"]


def test_another_training_gets_another_folder(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    folders = []
    for _ in range(2):
        trainer_of(experiment=experiment).fit(tiny_loader(), epochs=1)
        folders.append(experiment.folder)
        assert len(rows_of(experiment)) == 1
    assert folders[0] != folders[1]


def test_a_validation_afterwards_adds_its_row_and_leaves_the_status(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    trainer = trainer_of(experiment=experiment)
    trainer.fit(tiny_loader(), epochs=1)
    before = json.loads((experiment.folder / "status.json").read_text())
    trainer.validate(tiny_loader())
    assert rows_of(experiment)[-1]["mode"] == "validate"
    assert json.loads((experiment.folder / "status.json").read_text()) == before


def test_a_test_alone_has_a_folder_too(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    trainer_of(experiment=experiment).test(tiny_loader())
    assert experiment.status == "finished"
    assert "test/loss" in rows_of(experiment)[0]


# Going on after a stop ----------------------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_in_the_same_file_and_rows_past_the_checkpoint_are_cut(tmp_path: Path) -> None:
    plain = fitted(tmp_path, EveryIteration(), epochs=3)
    experiment = Experiment("tiny", "resumed", tmp_path)
    saved: dict[str, Any] = {}
    saving = Save(saved, experiment)
    model = trainer_of(
        EveryIteration(), saving, At("after_epoch", lambda run: run.stop("enough"), 2), experiment=experiment
    )
    model.fit(tiny_loader(), tiny_loader(9), epochs=3)
    assert len(rows_of(experiment)) == 8
    again = Experiment.at(experiment.folder)
    trainer = trainer_of(Restore(saved, again), EveryIteration(), experiment=again)
    trainer.fit(tiny_loader(), tiny_loader(9), epochs=2)
    places = [[(row["kind"], row["epoch"], row["step"]) for row in rows_of(one)] for one in (plain, again)]
    assert places[0] == places[1]
    assert ("resume", "resumed at step 3 in epoch 2; 4 rows were cut") in events_of(again)


def test_a_checkpoint_of_another_folder_brings_its_rows(tmp_path: Path) -> None:
    saved: dict[str, Any] = {}
    first = Experiment("tiny", "first", tmp_path)
    trainer_of(Save(saved, first, after=1), experiment=first).fit(tiny_loader(), epochs=2)
    second = Experiment("tiny", "second", tmp_path)
    trainer_of(Restore(saved, second), experiment=second).fit(tiny_loader(), epochs=1)
    assert [row["epoch"] for row in rows_of(second)] == [0, 1, 2]


def test_a_training_from_the_beginning_in_an_old_folder_keeps_the_old_rows(tmp_path: Path) -> None:
    folder = fitted(tmp_path).folder
    again = Experiment.at(folder)
    trainer_of(experiment=again).fit(tiny_loader(), epochs=1)
    assert len(rows_of(again)) == 1
    assert len(list(read_lines(folder / "metrics.1.jsonl"))) == 2


def test_rows_of_iterations_in_an_old_folder_are_kept_apart_too(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "iterations", tmp_path)
    trainer_of(EveryIteration(), experiment=experiment).fit(tiny_loader(), epochs=1)
    before = rows_of(experiment)
    again = Experiment.at(experiment.folder)
    trainer_of(EveryIteration(), experiment=again).fit(tiny_loader(), epochs=1)
    assert [row["step"] for row in rows_of(again)] == [row["step"] for row in before]
    assert list(read_lines(experiment.folder / "metrics.1.jsonl")) == before


def test_what_is_no_folder_of_a_run_cannot_be_gone_on_in(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="not the folder of a run"):
        Experiment.at(tmp_path)


# How it ends --------------------------------------------------------------------------------------------------------


def raise_(error: BaseException) -> Any:
    def act(run: Any) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "state"),
    [(ValueError("no"), "failed"), (KeyboardInterrupt(), "interrupted"), (Preempted("now"), "preempted")],
)
def test_the_status_says_how_a_run_ended(tmp_path: Path, error: BaseException, state: str) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    with pytest.raises(type(error)):
        trainer_of(EveryIteration(), At("after_step", raise_(error), 5), experiment=experiment).fit(
            tiny_loader(), epochs=3
        )
    assert experiment.status == state
    assert len(rows_of(experiment)) == 5  # the row of the iteration that failed is not complete
    assert (experiment.folder / "report.html").exists()
    said = ": ".join(filter(None, (type(error).__name__, str(error))))
    assert events_of(experiment)[-1] == (state, f"{said}; raised in At at after_step")
    assert f"{said}; raised in At at after_step" in (experiment.folder / "report.html").read_text()


def test_an_error_before_the_first_step_is_a_failed_run(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    with pytest.raises(RuntimeError):
        trainer_of(At("before_run", raise_(RuntimeError("early"))), experiment=experiment).fit(tiny_loader(), epochs=1)
    assert experiment.status == "failed"


def test_a_stop_is_a_run_that_finished_with_a_reason(tmp_path: Path) -> None:
    experiment = fitted(tmp_path, At("after_epoch", lambda run: run.stop("good enough")), epochs=5)
    status = json.loads((experiment.folder / "status.json").read_text())
    assert (status["state"], status["stop_reason"], status["epochs"]) == ("finished", "good enough", 1)


# What happened ------------------------------------------------------------------------------------------------------


def test_best_values_skips_and_values_that_are_not_finite_are_noted(tmp_path: Path) -> None:
    class Odd(Callback):
        asks = {"skip_step"}

        def before_step(self, run: Any) -> None:
            if run.clock.batches == 1:
                run.skip_step()

        def after_epoch(self, run: Any) -> None:
            run.log("odd", float("nan") if run.epoch else 1.0)

    experiment = fitted(tmp_path, Odd(), Watch("val/loss"), epochs=2)
    happened = events_of(experiment)
    assert ("skip", "1 step was skipped") in happened
    assert ("not finite", "odd is nan") in happened
    assert [kind for kind, _ in happened].count("best") == 2


def test_two_metrics_that_could_be_best_do_not_disturb_it(tmp_path: Path) -> None:
    from cadenza.callbacks import EarlyStopping

    one, other = EarlyStopping("val/loss", patience=5), EarlyStopping("train/loss", patience=5)
    other.name = "other"
    assert fitted(tmp_path, one, other).status == "finished"


def test_the_log_has_what_was_said_and_warned_of_and_lets_it_pass(tmp_path: Path, caplog: Any) -> None:
    def speak(run: Any) -> None:
        logging.getLogger("cadenza.mine").warning("look %s", "here")
        warnings.warn("careful", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="careful"):
        experiment = fitted(tmp_path, At("after_epoch", speak))
    text = experiment.log_file.read_text()
    assert "warning: look here" in text
    assert "warning: UserWarning: careful" in text
    assert "epoch 1  step 3" in text
    assert "look here" in caplog.text
    assert {("warning", "look here"), ("warning", "careful")} <= set(events_of(experiment))
    assert not [handler for handler in logging.getLogger("cadenza").handlers if "LogFile" in type(handler).__name__]


def test_things_that_are_shown_are_kept(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("x")

    def show(run: Any) -> None:
        run.experiment.image("val/worst", torch.rand(3, 4, 4))
        run.experiment.histogram("weights", run.module[0].weight)
        run.experiment.text("note", "fine")
        run.experiment.artifact(other)

    experiment = fitted(tmp_path, At("after_epoch", show))
    assert (experiment.plots / "val-worst-000003.png").exists()
    assert (experiment.folder / "artifacts" / "other.txt").read_text() == "x"
    assert [one["kind"] for one in read_lines(experiment.folder / "media.jsonl")] == [
        "image", "histogram", "text", "artifact",
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="while a run goes on"):
        experiment.text("late", "too late")


# Disks and folders --------------------------------------------------------------------------------------------------


def test_a_root_that_cannot_be_written_is_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    steps: list[int] = []
    trainer = trainer_of(
        At("before_step", lambda run: steps.append(1)), experiment=Experiment("a", "b", tmp_path / "file" / "runs")
    )
    with pytest.raises(FolderError, match="no folder for the run can be made"):
        trainer.fit(tiny_loader(), epochs=1)
    assert not steps


def test_a_disk_without_room_is_an_error_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cadenza.experiment.make_folder, "_ROOM", 2**62)
    with pytest.raises(FolderError, match="there is no room for a run"):
        fitted(tmp_path / "runs")
    assert not list((tmp_path / "runs").rglob("run.json"))


LIMITED = """
import resource, sys, torch
import cadenza.experiment, cadenza.testing
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from tests.experiment.trained import trainer_of
experiment = cadenza.experiment.Experiment("tiny", "full", sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
trainer_of(experiment=experiment).fit(cadenza.testing.tiny_loader(), epochs=1)
"""
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit on files is set as on Linux")


@LINUX
@pytest.mark.long
def test_a_full_disk_at_the_beginning_leaves_no_half_made_folder(tmp_path: Path) -> None:
    done = run(LIMITED, str(tmp_path / "runs"), str(Path(__file__).parents[2]))
    assert "FolderError" in done.stderr
    assert not list(tmp_path.rglob("*.json"))
    assert not (tmp_path / "runs" / "tiny").exists()


# Finding it again ---------------------------------------------------------------------------------------------------


def test_a_run_is_found_by_folder_id_and_name(tmp_path: Path) -> None:
    first, second = fitted(tmp_path, epochs=1).folder, fitted(tmp_path, name="second", epochs=1).folder
    assert find_run(first) == first
    assert find_run(first.name, tmp_path) == first
    assert find_run(second.name.split("-")[-1], tmp_path) == second
    assert find_run("tiny/second", tmp_path) == second
    with pytest.raises(FolderError, match="did you mean 'tiny/second'"):
        find_run("tiny/secnd", tmp_path)
    with pytest.raises(FolderError, match="could be any of"):
        find_run("20", tmp_path)


# As a callback ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_it_behaves_as_a_callback_should_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_callback(lambda: Experiment("a", "b"), lambda callbacks: _trainer(callbacks))


def _trainer(callbacks: list[Callback]) -> Trainer:
    model = tiny_classifier(classes=2)
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.CrossEntropyLoss(),
        callbacks=callbacks,
        device="cpu",
    )


def test_weights_are_the_same_with_and_without_it(tmp_path: Path) -> None:
    def weights(experiment: Any) -> list[torch.Tensor]:
        trainer = trainer_of(EveryIteration(), experiment=experiment, seed=0)
        trainer.fit(tiny_loader(shuffle=True), tiny_loader(9), epochs=3)
        return list(trainer.model.parameters())

    one, other = weights(None), weights(Experiment("a", "b", tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_class_in_its_place_is_refused() -> None:
    with pytest.raises(CallbackError):
        trainer_of(Experiment)  # type: ignore[arg-type]
