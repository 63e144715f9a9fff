"""Trackers that are down, slow or hang: the training waits for none of them, and no row is lost."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza import Callback
from cadenza.callbacks import Checkpoint
from cadenza.checkpoint.backends import watchdog
from cadenza.experiment import CSV, Experiment, MLflow, TensorBoard, Tracker, WandB, read_run
from cadenza.experiment.jsonl_file import LinesFile, read_lines
from cadenza.testing import tiny_loader

from ..processes import ranks, run
from .servers import fail, forward, refusing, served, silent
from .test_trackers import events, show
from .trained import At, EveryIteration, fitted, trainer_of

STEPS = [1, 2, 3, 3, 4, 5, 6, 6]
"""Those of the rows of two epochs."""


@contextlib.contextmanager
def hearing() -> Iterator[list[str]]:
    """What Cadenza warns of inside."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


def unsent(experiment: Experiment, tracker: str) -> list[dict[str, Any]]:
    return list(read_lines(experiment.folder / f"unsent-{tracker}.jsonl"))


def steps(calls: list[dict[str, Any]]) -> list[int]:
    return [call["row"]["step"] for call in calls if call["what"] == "log"]


class Kept(Tracker):
    """Keeps the rows that it took in ``taken``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.taken: list[dict[str, Any]] = []

    def log(self, row: dict[str, Any]) -> None:
        self.taken.append(row)


class Stuck(Kept):
    """One of its methods does not return before ``free`` is set."""

    patience = 0.05

    def __init__(self, method: str) -> None:
        super().__init__()
        self.free, self.inside = threading.Event(), threading.Event()
        original = getattr(self, method)

        def stuck(*given: Any, **named: Any) -> None:
            self.inside.set()
            self.free.wait()
            original(*given, **named)

        setattr(self, method, stuck)


# The training does not wait -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["start", "hyperparameters", "log", "image", "flush"])
def test_a_training_ends_while_its_tracker_hangs(tmp_path: Path, method: str) -> None:
    tracker = Stuck(method)
    with hearing() as said:
        experiment = fitted(tmp_path, EveryIteration(), At("before_run", show), tracker)
    assert tracker.inside.is_set()
    assert experiment.status == "finished"
    left = unsent(experiment, "stuck")
    taken = [row["step"] for row in tracker.taken]
    assert [*taken, *steps(left)][-8:] == STEPS
    assert "Stuck failed, the training goes on" in said[0]
    assert "did not answer within 0.05 s" in said[0]
    assert f"could not send {len(left)} things of this run; {len(left)} of them are in" in said[1]
    tracker.free.set()


def test_a_tracker_that_hangs_as_it_closes_is_left(tmp_path: Path) -> None:
    tracker = Stuck("finish")
    with pytest.warns(UserWarning, match="did not answer"):
        experiment = fitted(tmp_path, EveryIteration(), tracker)
    assert [row["step"] for row in tracker.taken] == STEPS
    assert not (experiment.folder / "unsent-stuck.jsonl").exists()
    tracker.free.set()


def test_what_a_tracker_takes_late_is_not_sent_again(tmp_path: Path) -> None:
    tracker = Stuck("log")
    trainer = trainer_of(tracker, experiment=Experiment("tiny", "first", tmp_path))
    with pytest.warns(UserWarning, match="Stuck"):
        trainer.fit(tiny_loader(), epochs=2)
    tracker.free.set()
    trainer.fit(tiny_loader(), epochs=1)
    assert [row["epoch"] for row in tracker.taken] == [0, 1, 2]
    assert not list(tmp_path.rglob("unsent-*"))


HANGING = """
import sys, threading, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from tests.experiment.test_trackers_down import Stuck
from tests.experiment.trained import fitted
tracker = Stuck("log")
tracker.name = "stuck tracker"
print(fitted(sys.argv[1], tracker).status)
"""


def test_a_process_ends_while_its_tracker_hangs(tmp_path: Path) -> None:
    here = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", HANGING, str(tmp_path), here]
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["cadenza"].__path__[0]).parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=250)
    assert (done.returncode, done.stdout.strip()) == (0, "finished"), done.stderr


def train_two(root: str) -> int:
    """Of each rank how many steps it made."""
    torch.set_num_threads(1)
    tracker = Stuck("start")
    trainer = trainer_of(tracker, experiment=Experiment("tiny", "many", root), strategy="ddp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(tiny_loader(), epochs=2)
    return trainer.clock.steps


def test_of_several_processes_none_waits(tmp_path: Path) -> None:
    made = ranks(train_two, str(tmp_path), workers=2, results="all")
    assert made[0] == made[1] > 0
    (file,) = tmp_path.rglob("unsent-stuck.jsonl")
    assert [call["row"]["epoch"] for call in read_lines(file)] == [0, 1]


# Nothing is lost ----------------------------------------------------------------------------------------------------


def trained(experiment: Experiment, tracker: Tracker, *more: Any, resume: Any = None, epochs: int = 3) -> None:
    saving = Checkpoint("2 steps", background=False)
    trainer = trainer_of(EveryIteration(), saving, tracker, *more, experiment=experiment, seed=0)
    trainer.fit(tiny_loader(), epochs=epochs, resume=resume)


def stop(run: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("again", ["same folder", "another folder"])
def test_a_resumed_run_sends_what_was_left(tmp_path: Path, again: str) -> None:
    first = Stuck("start")
    experiment = Experiment("tiny", "first", tmp_path)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="could not send"):
        trained(experiment, first, At("after_train_iter", stop, 5))
    assert steps(unsent(experiment, "stuck")) == [1, 2, 3, 3, 4]  # that of the fifth was not complete
    old, second = experiment.folder, Stuck("start")
    second.free.set()
    going_on = Experiment.at(old) if again == "same folder" else Experiment("tiny", "first", tmp_path)
    trained(going_on, second, At("after_train_iter", lambda run: None), resume=old / "checkpoints")
    assert [row["step"] for row in second.taken] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9]
    assert not list(tmp_path.rglob("unsent-*"))
    first.free.set()


class Line(Tracker):
    """Adds a line to ``path`` for each row; is down while ``path.down`` is there."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def log(self, row: dict[str, Any]) -> None:
        if self.path.with_suffix(".down").exists():
            raise ConnectionError("down")
        LinesFile(self.path).append([row])


KILLED = """
import sys, warnings, torch
torch.set_num_threads(1)
warnings.simplefilter("ignore")
from pathlib import Path
from cadenza.experiment import Experiment
from tests.experiment.test_trackers_down import Line, trained
from tests.experiment.trained import At
import os, signal
def kill(run):
    os.kill(os.getpid(), signal.SIGKILL)
root = Path(sys.argv[1])
trained(Experiment("tiny", "killed", root), Line(root / "rows"), At("after_train_iter", kill, int(sys.argv[2])))
"""


@pytest.mark.skipif(os.name == "nt", reason="killed as on POSIX")
@pytest.mark.parametrize("down", [True, False])
def test_a_killed_run_that_is_resumed_sends_every_row_once(tmp_path: Path, down: bool) -> None:
    if down:
        (tmp_path / "rows.down").touch()
    assert run(KILLED, tmp_path, 8).returncode == -signal.SIGKILL
    (folder,) = (tmp_path / "tiny" / "killed").iterdir()
    before = [(row["step"], row["kind"]) for row in read_lines(tmp_path / "rows")]
    (tmp_path / "rows.down").unlink(missing_ok=True)
    again = Experiment.at(folder)
    more = At("after_train_iter", lambda run: None)
    trained(again, Line(str(tmp_path / "rows")), more, resume="auto")
    rows = [row["step"] for row in read_lines(tmp_path / "rows")]
    resumed_at = next(event["step"] for event in read_run(folder).events if event["kind"] == "resume")
    wanted = [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9]
    # This tracker cannot take back what is trained again. A save in the last step is before the row of its epoch.
    repeated = [step for step, kind in before if step > resumed_at or (step == resumed_at and kind == "epoch")]
    assert sorted(rows) == sorted(wanted + repeated)
    assert rows[len(before) :] == [*wanted[len(before) - len(repeated) :]]
    assert not list(folder.glob("unsent-*"))


def test_a_training_from_the_beginning_keeps_what_an_earlier_one_left(tmp_path: Path) -> None:
    first = Stuck("start")
    second_type = type("Stuck", (Kept,), {})
    with hearing():
        experiment = fitted(tmp_path, first)
    second = second_type()
    trainer_of(second, experiment=Experiment.at(experiment.folder)).fit(tiny_loader(), epochs=1)
    assert [row["epoch"] for row in second.taken] == [0]
    assert [call["row"]["epoch"] for call in read_lines(experiment.folder / "unsent-stuck.1.jsonl")] == [0, 1]
    first.free.set()


def test_two_trackers_of_a_kind_have_an_outbox_each(tmp_path: Path) -> None:
    first, second = Stuck("log"), Stuck("log")
    second.name = "second"
    with hearing():
        experiment = fitted(tmp_path, first, second)
    assert {path.name for path in experiment.folder.glob("unsent-*")} == {"unsent-stuck.jsonl", "unsent-stuck-2.jsonl"}
    first.free.set()
    second.free.set()


def test_a_run_without_an_experiment_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tracker = Kept()
    trainer_of(EveryIteration(), tracker).fit(tiny_loader(), tiny_loader(9), epochs=2)
    assert [row["step"] for row in tracker.taken] == STEPS
    assert not list(tmp_path.iterdir())


def test_one_that_fails_in_its_flush_gets_everything_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Collecting(Kept):
        collects = True

        def __init__(self) -> None:
            super().__init__()
            self.collected: list[dict[str, Any]] = []
            self.up = False

        def log(self, row: dict[str, Any]) -> None:
            self.collected.append(row)

        def flush(self) -> None:
            rows, self.collected = self.collected, []
            if not self.up:
                raise ConnectionError("down")
            self.taken += rows

    tracker = Collecting()
    with pytest.warns(UserWarning, match="down"):
        fitted(tmp_path, EveryIteration(), tracker, At("after_run", lambda run: setattr(tracker, "up", True)))
    assert [row["step"] for row in tracker.taken] == STEPS


def test_a_file_that_is_gone_does_not_hold_up_the_rest(tmp_path: Path) -> None:
    tracker = Kept()
    shown = At("before_run", lambda run: run.experiment.artifact(tmp_path / "shown"))
    (tmp_path / "shown").write_text("")
    gone = At("before_epoch", lambda run: (run.experiment.folder / "artifacts" / "shown").unlink())
    fitted(tmp_path, shown, gone, tracker)
    assert [row["epoch"] for row in tracker.taken] == [0, 1]


def test_a_picture_that_is_never_taken_does_not_hold_up_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "FIRST", 0.0)

    class Rows(Kept):
        collects = True

        def __init__(self) -> None:
            super().__init__()
            self.tries, self.tried = 0, threading.Condition()

        def image(self, name: str, file: str, step: int) -> None:
            with self.tried:
                self.tries += 1
                self.tried.notify_all()
            raise ValueError("no place for pictures")

    tracker = Rows()

    class Patient(Callback):
        def before_epoch(self, run: Any) -> None:
            with tracker.tried:
                tracker.tried.wait_for(lambda: tracker.tries >= min(run.epoch, 3))

    shown = At("before_run", lambda run: run.experiment.image("image", torch.rand(3, 4, 4)))
    with pytest.warns(UserWarning, match="no place for pictures"):
        fitted(tmp_path, shown, tracker, Patient(), epochs=6)
    assert tracker.tries == 3
    assert [row["epoch"] for row in tracker.taken] == [0, 1, 2, 3, 4, 5]
    assert "Rows never took image, so it was left out" in caplog.text
    assert not list(tmp_path.rglob("unsent-*"))


def test_the_outbox_of_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    """Another experiment resumes from a checkpoint of a run that is still under way."""
    first, second = Stuck("start"), Stuck("start")
    experiment = Experiment("tiny", "first", tmp_path)
    second.free.set()

    def branch(run: Any) -> None:
        other, more = Experiment("tiny", "first", tmp_path), At("before_epoch", lambda run: None)
        trained(other, second, more, resume=experiment.checkpoints)
        assert steps(unsent(experiment, "stuck")) == [1, 2, 3, 3]

    with hearing():
        trained(experiment, first, At("before_epoch", branch, 2))
    assert [row["step"] for row in second.taken] == [3, 3, 4, 5, 6, 6, 7, 8, 9, 9]  # from the save at step 2 on
    first.free.set()


# MLflow -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be slow, and a server that is there answers."""
    monkeypatch.setattr(Tracker, "patience", 200.0)


@pytest.mark.parametrize("down", [refusing, silent, lambda: served(fail)])
def test_mlflow_without_a_server_keeps_all_rows(
    tmp_path: Path, down: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cadenza.experiment.trackers.import_tracker.ANSWER", 0.2)
    with down() as address, hearing() as said:
        experiment = fitted(tmp_path, EveryIteration(), MLflow(address))
    assert steps(unsent(experiment, "mlflow")) == STEPS
    assert experiment.status == "finished"
    assert "Error" in said[0]
    assert "8 of them are in" in said[1]


SERVER = """
import os, sys
os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", _MLFLOW_SERVER_FILE_STORE=sys.argv[1],
                  _MLFLOW_SERVER_ARTIFACT_ROOT=sys.argv[2], MLFLOW_SERVER_ALLOWED_HOSTS="*")
from mlflow.server import app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def mlflow_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """That of a real server of MLflow."""
    root = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-W", "ignore", "-c", SERVER, f"sqlite:///{root / 'mlflow.db'}", str(root / "files")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGKILL)


def stored(port: int, experiment: Experiment) -> list[tuple[int, float]]:
    """The losses of the one run that the server has of ``experiment``."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"http://127.0.0.1:{port}")
    project = client.get_experiment_by_name("tiny")
    found = client.search_runs([project.experiment_id], f"tags.`cadenza.folder` = '{experiment.folder}'")
    (run,) = found
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train/loss_batch")
    return [(metric.step, metric.value) for metric in history]


@pytest.mark.usefixtures("patient")
def test_mlflow_gets_all_rows_once_its_server_is_back(
    tmp_path: Path, mlflow_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "FIRST", 0.0)
    up, failed = threading.Event(), threading.Event()

    def recovering(request: Any) -> None:
        if up.is_set():
            forward(request, mlflow_port)
        else:
            fail(request)
            failed.set()

    with served(recovering) as address:
        back = At("after_epoch", lambda run: failed.wait() and up.set(), 2)
        with pytest.warns(UserWarning, match="the server answers 500"):
            experiment = fitted(tmp_path, EveryIteration(), MLflow(address), back, epochs=3)
    assert stored(mlflow_port, experiment) == batch_losses(experiment)
    assert not (experiment.folder / "unsent-mlflow.jsonl").exists()


def batch_losses(experiment: Experiment) -> list[tuple[int, float]]:
    rows = read_lines(experiment.metrics_file)
    return [(row["step"], row["train/loss"]) for row in rows if row["kind"] == "iter"]


@pytest.mark.usefixtures("patient")
def test_mlflow_gets_all_rows_from_a_server_that_is_slower_than_the_training(tmp_path: Path, mlflow_port: int) -> None:
    ended = threading.Event()

    def slow(request: Any) -> None:
        ended.wait()
        forward(request, mlflow_port)

    with served(slow) as address:
        end = At("after_run", lambda run: ended.set())
        experiment = fitted(tmp_path, EveryIteration(), MLflow(address), end)
    assert stored(mlflow_port, experiment) == batch_losses(experiment)


@pytest.mark.usefixtures("patient")
def test_an_answer_that_is_lost_makes_no_second_run_or_value(
    tmp_path: Path, mlflow_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does what it was asked, and the first answer of each kind does not arrive."""
    monkeypatch.setattr(watchdog, "FIRST", 0.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    lost: list[str] = []
    several = threading.Condition()

    def losing(request: Any) -> None:
        what = "/".join(request.path.split("/")[-2:])
        often = {"runs/search": 0, "runs/log-batch": 2}.get(what, 1)
        if request.command != "POST" or lost.count(what) >= often:
            forward(request, mlflow_port)
            return
        request.wfile, wire = io.BytesIO(), request.wfile
        forward(request, mlflow_port)
        request.wfile, request.close_connection = wire, True
        with several:
            lost.append(what)
            several.notify_all()

    class Patient(Callback):
        """Gives each epoch the time for one attempt, so that the last one comes after all that are lost."""

        def before_epoch(self, run: Any) -> None:
            with several:
                several.wait_for(lambda: len(lost) >= run.epoch or lost.count("runs/log-batch") == 2)

    with served(losing) as address, pytest.warns(UserWarning, match="MLflow failed"):
        experiment = fitted(tmp_path, EveryIteration(), MLflow(address), Patient(), epochs=6)
    assert lost.count("runs/create") == 1
    assert lost.count("runs/log-batch") == 2
    assert stored(mlflow_port, experiment) == batch_losses(experiment)


# Weights & Biases, TensorBoard, CSV -----------------------------------------------------------------------------------


@pytest.mark.parametrize("down", [refusing, silent, lambda: served(fail)])
def test_wandb_without_its_server_keeps_all_rows(
    tmp_path: Path, down: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cadenza.experiment.trackers.import_tracker.ANSWER", 0.2)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with down() as address, hearing() as said:
        monkeypatch.setenv("WANDB_BASE_URL", address)
        experiment = fitted(tmp_path, EveryIteration(), WandB(mode="online"))
    assert steps(unsent(experiment, "wandb")) == STEPS
    assert "8 of them are in" in said[1]


@pytest.mark.parametrize("make", [TensorBoard, CSV, WandB])
def test_a_place_that_cannot_be_written_keeps_all_rows(tmp_path: Path, make: Any) -> None:
    (tmp_path / "file").write_text("")
    with hearing() as said:
        experiment = fitted(tmp_path, EveryIteration(), make(path=tmp_path / "file" / "there"))
    assert steps(unsent(experiment, make.__name__.lower())) == STEPS
    assert "8 of them are in" in said[1]


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes with names")
def test_a_csv_file_on_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody reads: whoever opens it waits for ever, as on a network file system that is gone."""
    monkeypatch.setattr(Tracker, "patience", 0.05)
    pipe = tmp_path / "rows.csv"

    def replace(run: Any) -> None:
        while not pipe.exists():
            time.sleep(0.01)
        pipe.unlink()
        os.mkfifo(pipe)

    with hearing() as said:
        experiment = fitted(tmp_path, At("before_epoch", replace, 2), CSV(pipe))
    assert [call["row"]["epoch"] for call in unsent(experiment, "csv")] == [1]
    assert "did not answer" in said[0]
    with pipe.open("rb", buffering=0):  # the thread goes on
        pass


TENSORBOARD = """
import os, socket, sys, time, torch
torch.set_num_threads(1)
from tests.experiment.trained import EveryIteration, fitted
from cadenza.experiment import TensorBoard, Tracker
Tracker.patience = 0.05
place = os.path.join(sys.argv[1], "events")
os.mkdir(place)
now, name = int(time.time()), f"{socket.gethostname()}.{os.getpid()}"
for second in range(300):
    for number in range(2):
        os.mkfifo(os.path.join(place, f"events.out.tfevents.{now + second:010d}.{name}.{number}"))
print(fitted(sys.argv[1], EveryIteration(), TensorBoard(place)).folder)
"""


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes with names")
def test_tensorboard_on_a_disk_that_hangs(tmp_path: Path) -> None:
    """The event file is a pipe that nobody reads, whatever second its name says."""
    done = run(TENSORBOARD, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert steps(list(read_lines(folder / "unsent-tensorboard.jsonl"))) == STEPS
    assert "did not answer" in done.stderr
    assert read_run(folder).state == "finished"


FULL = """
import resource, sys, torch
torch.set_num_threads(1)
from tests.experiment.trained import At, EveryIteration, fitted
from cadenza.experiment import TensorBoard, Tracker
Tracker.patience = 200.0

def limit(size):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    return lambda run: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

full, room = At("after_epoch", limit(1)), At("after_run", limit(resource.RLIM_INFINITY))
print(fitted(sys.argv[1], EveryIteration(), TensorBoard(), full, room).folder)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="the system limits no files")
def test_tensorboard_gets_all_rows_once_its_disk_has_room(tmp_path: Path) -> None:
    done = run(FULL, tmp_path)
    assert done.returncode == 0, done.stderr
    experiment = Experiment.at(done.stdout.strip())
    found = {event.step: event.value for event in events(experiment.tensorboard).Scalars("train/loss_batch")}
    assert found == pytest.approx(dict(batch_losses(experiment)))
    assert not list(experiment.folder.glob("unsent-*"))


TRACKIO = """
import sys, torch
torch.set_num_threads(1)
from tests.experiment.trained import EveryIteration, fitted
from cadenza.experiment import Trackio
print(fitted(sys.argv[1], EveryIteration(), Trackio()).folder)
"""


def test_trackio_without_a_place_for_its_store_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = {"TRACKIO_DIR": str(tmp_path / "file" / "store"), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = run(TRACKIO, tmp_path, env={**os.environ, **places})
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert read_run(folder).state == "finished"
    assert steps(list(read_lines(folder / "unsent-trackio.jsonl"))) == STEPS
