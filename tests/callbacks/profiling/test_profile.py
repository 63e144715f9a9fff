"""Profile: the steps of its window and no others, written and closed however the run ends."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer, When
from cadenza.callbacks.profiling.profile import Profile
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.testing import check_callback, tiny_classifier, tiny_loader


def made(*callbacks, experiment=None):
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss()
    return Trainer(model, optimizer, loss, callbacks=callbacks, device="cpu", experiment=experiment)


def marks(path):
    """The batches in a trace, in order of time, and how often a product was computed in each."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    batches = sorted((e["ts"], e["dur"], e["name"]) for e in events if e["name"].startswith("train batch"))
    products = [event["ts"] for event in events if event["name"] == "aten::addmm"]
    return {name: sum(begin <= ts <= begin + took for ts in products) for begin, took, name in batches}


def nothing_runs():
    return not torch.autograd._profiler_enabled()


def test_the_window_holds_the_steps_that_were_asked_for(tmp_path):
    look = Profile(start="2 steps", steps=3, path=tmp_path / "deep" / "trace.json")
    trainer = made(look)
    trainer.fit(tiny_loader(48), epochs=2)
    assert marks(look.trace) == {"train batch 3": 2, "train batch 4": 2, "train batch 5": 2}
    assert "aten::addmm" in look.table.read_text()
    assert trainer.store["profile"] == {"trace": str(look.trace), "table": str(look.table)}
    assert sorted(path.name for path in look.trace.parent.iterdir()) == ["trace.json", "trace.txt"]
    assert nothing_runs()


def test_it_looks_once_over_all_fits_and_its_state_says_so(tmp_path):
    look = Profile(start="0 steps", steps=1, path=tmp_path / "trace.json")
    trainer = made(look)
    trainer.fit(tiny_loader(), epochs=1)
    written = look.trace.read_bytes()
    trainer.fit(tiny_loader(), epochs=1)
    assert look.trace.read_bytes() == written
    resumed = Profile(start="0 steps", steps=1, path=tmp_path / "other.json")
    resumed.load_state_dict(look.state_dict())
    made(resumed).fit(tiny_loader(), epochs=1)
    assert not (tmp_path / "other.json").exists()


def test_held_batches_belong_to_the_step_and_epochs_do_not_end_the_window(tmp_path):
    look = Profile(start="1 step", steps=2, path=tmp_path / "trace.json")
    made(Accumulate(2), look).fit(tiny_loader(24), epochs=3)  # three batches, so two steps an epoch
    assert list(marks(look.trace)) == ["train batch 3", "train batch 1", "train batch 2"]


class SkipSteps(Callback):
    asks = frozenset({"skip_step"})

    def after_backward(self, run):
        if run.batch_idx in (0, 1):
            run.skip_step()


def test_a_step_that_is_not_made_does_not_count(tmp_path):
    look = Profile(start="0 steps", steps=1, path=tmp_path / "trace.json")
    made(SkipSteps(), look).fit(tiny_loader(32), epochs=1)
    assert list(marks(look.trace)) == ["train batch 1", "train batch 2", "train batch 3"]


@pytest.mark.parametrize("end", ["the run ends", "a stop", "an exception"])
def test_it_is_closed_and_written_however_the_run_ends(tmp_path, end):
    look = Profile(start="1 step", steps=50, path=tmp_path / "trace.json")
    trainer = made(look)

    @trainer.on("after_loss")
    def mishap(run):
        if run.clock.steps == 2 and end == "a stop":
            run.stop()
        if run.clock.steps == 2 and end == "an exception":
            raise ZeroDivisionError("on purpose")

    if end == "an exception":
        with pytest.raises(ZeroDivisionError) as caught:
            trainer.fit(tiny_loader(48), epochs=1)
        assert not any("cadenza: then" in note for note in caught.value.__notes__)
    else:
        trainer.fit(tiny_loader(48), epochs=1)
    last = 5 if end == "the run ends" else 2
    assert list(marks(look.trace)) == [f"train batch {index}" for index in range(2, last + 2)]
    assert nothing_runs()


def test_a_run_that_is_too_short_writes_nothing(tmp_path):
    look = Profile(start="3 steps", steps=1, path=tmp_path / "trace.json")
    trainer = made(look)
    with pytest.warns(UserWarning, match="the fit ended after 3 steps, and its window begins after 3 steps"):
        trainer.fit(tiny_loader(24), epochs=1)
    trainer.validate(tiny_loader())
    assert not look.done
    assert list(tmp_path.iterdir()) == []


def test_where_the_files_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(Profile("0 steps", 1), experiment=SimpleNamespace(folder=tmp_path / "mine")).fit(tiny_loader(8), epochs=1)
    made(Profile("0 steps", 1)).fit(tiny_loader(8), epochs=1)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert files == {"mine/profile.json", "mine/profile.txt", "runs/profile.json", "runs/profile.txt"}


def test_a_packed_trace_and_more_columns(tmp_path):
    look = Profile("0 steps", 1, path=tmp_path / "t.json.gz", shapes=True, memory=True, stacks=True, rows=3)
    made(look).fit(tiny_loader(8), epochs=1)
    names = {event["name"] for event in json.loads(gzip.decompress(look.trace.read_bytes()))["traceEvents"]}
    assert "train batch 1" in names
    table = look.table.read_text()
    assert look.table.name == "t.txt"
    assert "Input Shapes" in table
    assert "CPU Mem" in table


def test_weights_are_bit_equal_and_when_can_limit_it(tmp_path):
    look = Profile("0 steps", 1, path=tmp_path / "t.json")
    plain, watched = made(), made(When(look, start="2 steps"))
    for trainer in (plain, watched):
        trainer.fit(tiny_loader(48), tiny_loader(), epochs=1)
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    assert list(marks(look.trace)) == ["train batch 3"]


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(OSError, match="taken") as caught:
        made(Profile("0 steps", 1, path=tmp_path / "taken" / "t.json")).fit(tiny_loader(), epochs=1)
    assert any("Profile at after_train_iter" in note for note in caught.value.__notes__)
    for steps, words in ((1, "Profile is switched off"), (9, "Profile wrote nothing")):
        trainer = made(Profile("0 steps", steps, path=tmp_path / "taken" / "t.json", on_error="warn"))
        with pytest.warns(UserWarning, match=words):
            trainer.fit(tiny_loader(), epochs=1)
        assert trainer.clock.steps == 3
    assert nothing_runs()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"start": "soon"}, ValueError, "not a duration"),
        ({"steps": 0}, ValueError, "steps is a whole number of at least 1"),
        ({"rows": 0}, ValueError, "rows is a whole number of at least 1"),
        ({"path": "trace.html"}, ValueError, "ends in .json or .json.gz"),
        ({"path": 3}, TypeError, "path is the name of a file"),
        ({"on_error": "ignore"}, ValueError, '"raise" or "warn"'),
    ],
)
def test_bad_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        Profile(**arguments)


@pytest.mark.long
def test_conformance_with_an_open_window(tmp_path):
    check_callback(Profile(start="0 steps", steps=1, path=tmp_path / "trace.json"))
