"""Ctrl-C in a script that saves ends with one line, and a KeyboardInterrupt can be caught as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cadenza

SCRIPT = """
import signal, sys, warnings
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
import torch
from cadenza import Trainer
from cadenza.callbacks import Checkpoint
from cadenza.testing import tiny_classifier, tiny_loader

def hook(kind, value, traceback):
    print("a hook of the script", file=sys.stderr)

if "hook" in sys.argv:
    sys.excepthook = hook
saving = [] if "unsaved" in sys.argv else [Checkpoint(to="saved")]
stage = "val" if "val" in sys.argv else "train"
model = tiny_classifier()
trainer = Trainer(model, torch.optim.SGD(model.parameters(), 0.1), torch.nn.CrossEntropyLoss(), callbacks=saving)

@trainer.on(f"after_{stage}_iter")
def interrupt(run):
    if run.epoch == 1 and run.batch_idx == 1:
        signal.raise_signal(signal.SIGINT)

try:
    trainer.fit(tiny_loader(), tiny_loader(), epochs=3)
except KeyboardInterrupt as error:
    if "caught" not in sys.argv:
        raise
    print("caught", error)
    raise ValueError("later")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("script") / "train.py"
    file.write_text(SCRIPT)
    return file


def ended(script: Path, folder: Path, *words: str) -> tuple[int, str, str]:
    source = str(Path(cadenza.__file__).parents[1])
    given = {"env": {**os.environ, "PYTHONPATH": source}, "cwd": folder, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words[:1], str(script), *words[1:]], timeout=120, **given)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("stage", ["train", pytest.param("val", marks=pytest.mark.long)])
def test_a_script_ends_with_one_line_that_says_how_to_go_on(stage, script, tmp_path):
    code, _, said = ended(script, tmp_path, "-u", stage)
    assert code == -signal.SIGINT  # 130 in a shell, whose loops end too
    (line,) = said.splitlines()
    assert line.startswith(f"interrupted; the run is saved in {tmp_path / 'saved'} (000002-epoch=1")
    assert line.endswith('). To continue it, call fit(..., resume="auto")')


@pytest.mark.parametrize("word", [pytest.param("unsaved", marks=pytest.mark.long), "hook"])
def test_without_a_save_or_with_a_hook_of_the_scripts_python_decides(word, script, tmp_path):
    code, _, said = ended(script, tmp_path, "-u", word)
    assert code == -signal.SIGINT
    assert "Traceback" in said if word == "unsaved" else said == "a hook of the script\n"


def test_what_is_caught_says_nothing_and_later_errors_are_shown_as_always(script, tmp_path):
    code, out, said = ended(script, tmp_path, "-u", "caught")
    assert (code, out) == (1, "caught SIGINT came; the run is saved\n")
    assert "interrupted;" not in said
    assert "ValueError: later" in said


@pytest.mark.long
def test_an_interactive_session_shows_the_error(script, tmp_path):
    _, _, said = ended(script, tmp_path, "-i")
    assert "Traceback" in said
    assert "KeyboardInterrupt: SIGINT came; the run is saved" in said
