"""``cadenza train`` and what is done with its results, as a user types it."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from cadenza import Trainer
from cadenza.callbacks import EarlyStopping, Metrics, OneCycleSchedule, accuracy
from cadenza.checkpoint import Shelf
from cadenza.cli.main import main
from cadenza.experiment.records import read_run, run_folders
from cadenza.recipes.ready.datasets import Digits
from cadenza.recipes.ready.models import MLP

from ..processes import run


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Shelf(str(folder / "checkpoints")).read("last").state["model"]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def newest() -> Path:
    return run_folders("runs")[-1]


QUICK = ["fit.epochs=2", "~callbacks.progress"]


def test_train_says_how_good_it_got_and_where_everything_is(here, capsys):
    assert main(["train", "digits", "fit.epochs=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch 1/2")
    assert lines[-2].startswith("val/accuracy 0.")
    assert Path(lines[-1]) == newest()
    assert read_run(newest()).state == "finished"


def test_ten_lines_of_python_give_the_same_weights(here):
    assert main(["train", "digits", *QUICK]) == 0

    torch.manual_seed(0)
    model = MLP(64, [128], 10, dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    callbacks = [Metrics({"accuracy": accuracy}), OneCycleSchedule(), EarlyStopping("val/accuracy", patience=10)]
    trainer = Trainer(model, optimizer, torch.nn.CrossEntropyLoss(), callbacks=callbacks, seed=0)
    train = DataLoader(Digits("train"), batch_size=32, shuffle=True)
    trainer.fit(train, DataLoader(Digits("val"), batch_size=120), epochs=2)

    assert equal(weights(newest()), model.state_dict())


def test_the_printed_recipe_trains_to_the_same_weights(here, capsys):
    words = ["digits", *QUICK, "callbacks.ema.decay=0.9", "optimizer=sgd", "optimizer.lr=1e-1", "seed=3"]
    assert main(["train", *words, "--print-config"]) == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    assert main(["train", *words]) == 0
    first = newest()
    assert main(["train", "printed.yaml"]) == 0
    assert newest() != first
    assert equal(weights(first), weights(newest()))


def test_a_dry_run_builds_and_writes_nothing(here, capsys):
    assert main(["train", "digits", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "digits: 20 epochs; 9610 parameters" in said
    assert "EarlyStopping" in said
    assert list(here.iterdir()) == []


def test_trackers_and_the_report_take_part(here):
    words = ["trackers=[CSV,TensorBoard]", "callbacks.report=", "callbacks.throughput=true"]
    assert main(["train", "digits", *QUICK, *words]) == 0
    assert list(newest().glob("*.csv"))
    assert list((newest() / "tensorboard").rglob("events*"))
    assert (newest() / "report.html").is_file()


@pytest.mark.long
def test_two_processes_make_one_run_and_speak_once(here):
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "cadenza.cli.main"]
    done = subprocess.run([*words, "train", "digits", *QUICK], capture_output=True, text=True, cwd=here)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stated: at least") == 1
    assert len(run_folders("runs")) == 1


def test_without_an_experiment_there_is_no_folder(here):
    assert main(["train", "digits", *QUICK, "experiment=false", "~callbacks.checkpoint"]) == 0
    assert list(here.iterdir()) == []


# A user's own callback ------------------------------------------------------------------------------------------------

OWN = """
import os, signal
from pathlib import Path
from cadenza import Callback
from cadenza.recipes import register


@register("callback")
class SendSignal(Callback):
    def __init__(self, step: int, name: str = "SIGTERM"):
        self.step, self.signal = step, getattr(signal, name)

    def after_step(self, run):
        if run.clock.steps == self.step and Path("armed").exists():
            Path("armed").unlink()
            os.kill(os.getpid(), self.signal)


@register("callback", name="notes")
class Notes(Callback):
    def __init__(self, word: str = "said"):
        self.word = word

    def after_run(self, run):
        Path("note.txt").write_text(self.word)
"""


@pytest.mark.parametrize(
    "form", ["callbacks: {notes: {word: hello}}", "callbacks:\n- Notes: {word: hello}"], ids=["mapping", "list"]
)
@pytest.mark.parametrize("how", ["named in the recipe", "as an option", "as a module"])
def test_a_registered_callback_of_the_user_is_used(form, how, here):
    name = f"own_{abs(hash((form, how)))}"
    (here / f"{name}.py").write_text(
        OWN.replace('name="notes"', f'name="notes_{name}"').replace("SendSignal", f"S{name}")
    )
    named = f"imports: [{name}.py]\n" if how == "named in the recipe" else ""
    text = form.replace("notes", f"notes_{name}").replace("- Notes", f"- Notes_{name}")
    (here / "my.yaml").write_text(f"defaults: [digits, _self_]\n{named}{text}\n")
    options = {"as an option": ["--import", f"{name}.py"], "as a module": ["--import", name]}.get(how, [])
    assert main(["train", "my.yaml", *QUICK, *options]) == 0
    assert (here / "note.txt").read_text() == "hello"


def test_a_stored_recipe_does_not_import_by_itself(here, capsys):
    (here / "mine_stored.py").write_text(OWN.replace('"notes"', '"notes_stored"').replace("SendSignal", "SendStored"))
    (here / "my.yaml").write_text(
        "defaults: [digits, _self_]\nimports: [mine_stored.py]\ncallbacks: {notes_stored: }\n"
    )
    assert main(["train", "my.yaml", *QUICK]) == 0
    capsys.readouterr()
    assert main(["validate", str(newest())]) == 1
    assert "say --import" in capsys.readouterr().err
    assert main(["train", str(newest() / "recipe.yaml")]) == 1
    assert main(["validate", str(newest()), "--import", "mine_stored.py"]) == 0
    assert "val/accuracy" in capsys.readouterr().out


def test_a_stored_recipe_needs_its_packages_allowed_again(here, capsys):
    text = "defaults: [digits, _self_]\nmodel: {_target_: torchvision_like.models.Net}\n"
    (here / "torchvision_like").mkdir()
    (here / "torchvision_like" / "__init__.py").write_text("")
    (here / "torchvision_like" / "models.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (here / "my.yaml").write_text(text)
    sys.path.insert(0, str(here))
    try:
        assert main(["train", "my.yaml", *QUICK]) == 1
        assert "--allow torchvision_like" in capsys.readouterr().err
        assert main(["train", "my.yaml", *QUICK, "--allow", "torchvision_like"]) == 0
        assert main(["validate", str(newest())]) == 1
        assert main(["validate", str(newest()), "--allow", "torchvision_like"]) == 0
    finally:
        sys.path.remove(str(here))


# Signals and resuming ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_run_that_was_ended_by_a_signal_goes_on_to_the_same_weights(name, code, here, capsys):
    (here / "signals.py").write_text(OWN.replace('"notes"', f'"n{name}"').replace("SendSignal", f"Send{name.title()}"))
    own = f"callbacks: {{Send{name.title()}: {{step: 50, name: {name}}}}}\n"
    (here / "my.yaml").write_text(f"defaults: [digits, _self_]\nimports: [signals.py]\n{own}")
    words = ["train", "my.yaml", *QUICK, "fit.epochs=3"]
    assert main(words) == 0
    whole = weights(newest())
    (here / "armed").touch()
    capsys.readouterr()
    assert main(words) == code
    said = capsys.readouterr().err
    cut = newest()
    assert said.startswith("cadenza: ")
    assert said.endswith(f"{name} came; the run is saved; `cadenza train {cut} --resume` goes on with it\n")
    assert said.count("\n") == 1
    assert read_run(cut).status["steps"] < 120
    assert main([*words, "callbacks.gradient_clip.norm=0.5", "--resume"]) == 1
    said = capsys.readouterr().err
    assert f"{cut} (" in said
    assert "recipe.callbacks.gradient_clip.norm" in said
    assert "`cadenza train RUN --resume`" in said
    assert main([*words, "--resume"]) == 0
    assert newest() == cut
    assert equal(weights(cut), whole)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_without_a_checkpoint_sigterm_is_pythons_own(here):
    (here / "plain_signals.py").write_text(OWN)
    (here / "my.yaml").write_text(
        "defaults: [digits]\nimports: [plain_signals.py]\ncallbacks: {send_signal: {step: 5}}\n"
    )
    (here / "armed").touch()
    code = "import sys; from cadenza.cli.main import main; sys.exit(main(sys.argv[1:]))"
    assert run(code, "train", "my.yaml", "~callbacks.checkpoint", cwd=here).returncode == -signal.SIGTERM


def test_a_resume_that_finds_nothing_says_so_and_begins(here, capsys):
    words = ["train", "digits", "fit.epochs=1", "~callbacks.progress"]
    assert main([*words, "~callbacks.early_stopping", "~callbacks.checkpoint"]) == 0
    assert main([*words, "--resume"]) == 0
    assert capsys.readouterr().err.endswith("; training starts from the beginning\n")
    assert main([*words, "--resume"]) == 0
    assert capsys.readouterr().err.startswith(f"cadenza: nothing to do: run {newest()} has ended after 1 epochs")
    assert len(run_folders("runs")) == 2
    assert main(["train", str(run_folders("runs")[0]), *words[2:], "--resume"]) == 1  # it has no checkpoint callback


def test_a_run_named_by_its_folder_goes_on(here):
    assert main(["train", "digits", *QUICK, "~callbacks.one_cycle_schedule"]) == 0
    assert main(["train", str(newest()), "fit.epochs=3", "--resume"]) == 0
    assert len(run_folders("runs")) == 1
    assert read_run(newest()).status["epochs"] == 3


# Looking at results ---------------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(here, capsys) -> list[Path]:
    assert main(["train", "diabetes", *QUICK, "optimizer.lr=0.01"]) == 0
    assert main(["train", "diabetes", *QUICK]) == 0
    capsys.readouterr()
    return list(run_folders("runs"))


def test_runs_compare_report_validate_test_and_predict(two_runs, capsys):
    first, second = two_runs
    assert main(["runs"]) == 0
    table = capsys.readouterr().out
    assert table.count("finished") == 2
    assert "val/loss" in table

    assert main(["compare", str(first), second.name]) == 0
    said = capsys.readouterr().out
    assert "optimizer.lr" in said
    assert "0.01" in said
    assert "val/mean_absolute_error" in said

    assert main(["report", str(first), str(second), "--out", "both.html"]) == 0
    assert Path("both.html").stat().st_size > 10_000
    capsys.readouterr()

    assert main(["validate", str(second), "--checkpoint", "last"]) == 0
    told = dict(line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert float(told["val/loss"]) == pytest.approx(read_run(second).last()["val/loss"], rel=1e-5)

    assert main(["test", str(second)]) == 0
    assert "test/mean_absolute_error" in capsys.readouterr().out

    torch.save(torch.zeros(5, 10), "inputs.pt")
    assert main(["predict", str(second), "inputs.pt", "--out", "outputs.pt"]) == 0
    assert torch.load("outputs.pt", weights_only=True).shape == (5, 1)
    assert main(["predict", str(second), "test"]) == 0
    assert torch.load(second / "predictions-test.pt", weights_only=True).shape == (67, 1)


STATEFUL = """
import torch
from torch import nn
from cadenza.recipes import register


@register("model", name="centred_digits")
class Centred(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.register_buffer("mean", None)

    def forward(self, inputs):
        if self.training:
            self.mean = inputs.mean(0)
        return super().forward(inputs - self.mean)


@register("loss", name="growing_loss")
class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.ones(()))

    def forward(self, output, target):
        if output.requires_grad:
            self.calls += 1
        return self.calls * nn.functional.cross_entropy(output, target)
"""


def test_a_run_whose_model_and_loss_create_a_state_is_measured_with_it(here, capsys):
    (here / "stateful.py").write_text(STATEFUL)
    (here / "my.yaml").write_text("defaults: [digits, _self_]\nmodel: centred_digits\nloss: growing_loss\n")
    assert main(["train", "my.yaml", "--import", "stateful.py", *QUICK]) == 0
    capsys.readouterr()
    assert main(["validate", str(newest()), "--import", "stateful.py", "--checkpoint", "last"]) == 0
    told = dict(line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert float(told["val/loss"]) == pytest.approx(read_run(newest()).last()["val/loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["runs"], 1, "there are no runs in runs"),
        (["compare", "x"], 2, "two or more runs"),
        (["compare", "x", "y"], 1, "no run 'x'"),
        (["report", "x"], 1, "no run 'x' in runs. `cadenza runs` lists them"),
        (["validate", "x"], 1, "no run 'x'"),
        (["predict", "x", "val"], 1, "no run 'x'"),
        (["explain", "digts"], 1, "did you mean 'digits'"),
        (["replay", "x.pt"], 1, "there is no file x.pt"),
        (["ablate", "digits", "--metric", "val/acc", "fit.epochs=1"], 1, "did you mean 'val/accuracy'"),
    ],
)
def test_what_is_not_there_is_one_message(words, code, says, here, capsys):
    assert main(words) == code
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_warning_is_one_line(here, capsys):
    assert main(["train", "digits", "fit.epochs=1"]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # of what was left open elsewhere
        warnings.showwarning = lambda *told: sys.stderr.write(warnings.formatwarning(*told[:4]))  # as outside of pytest
        assert main(["train", str(newest()), "fit.epochs=2", "--resume", "~callbacks.early_stopping"]) == 0
    told, *_ = capsys.readouterr().err.splitlines(keepends=True)
    says = "the checkpoint holds the state of a callback 'EarlyStopping', which this trainer does not have"
    assert told == f"cadenza: warning: {says}\n"


def test_explain_prints_the_score(capsys):
    assert main(["explain", "digits", "callbacks.gradient_clip.norm=1"]) == 0
    assert "before_step" in capsys.readouterr().out


def test_ablate_says_what_each_contributes(here, capsys):
    assert main(["ablate", "rivals", "fit.epochs=1", "callbacks.ema.decay=0.5", "--seeds", "2", "--out", "out"]) == 0
    said = capsys.readouterr().out
    rows = {line.split("  ")[0]: line for line in said.splitlines()}
    assert "since they only show or save: checkpoint, progress" in said
    assert "\nin_turn: cannot be trained without it" in said
    assert "\nmetrics: it measures val/distance\n" in said
    values = [line.rsplit(" ", 1)[1] for line in said.splitlines() if line.startswith("as it is, seed")]
    without = [line.rsplit(" ", 1)[1] for line in said.splitlines() if line.startswith("without ema, seed")]
    contributed = sum(map(float, without)) / 2 - sum(map(float, values)) / 2  # lower is better
    assert float(rows["ema"].split()[-1]) == pytest.approx(contributed, rel=0.05, abs=1e-3)
    assert (here / "out" / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert "seed 1" in (here / "out" / "ablation.csv").read_text()
    assert not (here / "runs").exists()


def test_replay_finds_the_recipe_in_the_folder_of_the_run(here, capsys):
    (here / "bad_data.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\nfrom cadenza.recipes import register\n"
        "@register('dataset')\nclass BadDigits(TensorDataset):\n"
        "    def __init__(self, samples: int = 64):\n"
        "        inputs = torch.randn(samples, 64); inputs[40] = float('nan')\n"
        "        super().__init__(inputs, torch.zeros(samples, dtype=torch.long))\n"
    )
    text = "imports: [bad_data.py]\ndata: {train: bad_digits}\ncallbacks: {nan_guard: {check_every: 1}}\n"
    (here / "my.yaml").write_text(f"defaults: [digits, _self_]\n{text}")
    main(["train", "my.yaml", "~callbacks.progress", "fit.epochs=1"])
    capsys.readouterr()
    (file,) = list(here.rglob("*.pt"))
    assert main(["replay", str(file)]) == 1
    assert "--import" in capsys.readouterr().err
    assert main(["replay", str(file), "--import", "bad_data.py"]) == 0
    assert "the batch" in capsys.readouterr().out
    assert main(["replay", str(file), "my.yaml"]) == 0
