"""Interrupted anywhere and resumed, a run with ``Checkpoint`` ends as the uninterrupted one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from cadenza import Callback, Preempted, Trainer
from cadenza.callbacks import EMA, Accumulate, Checkpoint, Load
from cadenza.checkpoint import NoCheckpoint, Shelf
from cadenza.experiment import Experiment
from cadenza.testing import Recorder

from .saving import Break, End, Oops, difference, loader, trainer

EPOCHS = 3


def interrupted(breaks: Break, folder: Path, fit: Any, *more: Callback, every: str = "1 step") -> None:
    with pytest.raises(breaks.error):
        fit(trainer(Checkpoint(every, to=folder, background=False), *more, breaks), None)


# Wherever it stopped ------------------------------------------------------------------------------------------------


def plain(made: Trainer, resume: Any) -> None:
    made.fit(loader(), loader(2), epochs=EPOCHS, resume=resume)


def several(made: Trainer, resume: Any) -> None:
    loaders = {"near": loader(2), "far": loader(3)}
    made.fit(loader(), loaders, epochs=EPOCHS, test_loaders={"held": loader(4), "out": loader(5)}, resume=resume)


def in_between(made: Trainer, resume: Any) -> None:
    made.fit(loader(), loader(2), epochs=EPOCHS, validate_every="3 steps", resume=resume)


def in_steps(made: Trainer, resume: Any) -> None:
    made.fit(loader(), loader(2), steps=12, resume=resume)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(20):
            yield torch.full((4,), number / 20) + torch.rand(4), number % 3


def streamed(made: Trainer, resume: Any) -> None:
    made.fit(DataLoader(Stream(), batch_size=6), epochs=EPOCHS, resume=resume)


def own_loop(made: Trainer, resume: Any) -> None:
    with made.run(epochs=EPOCHS, resume=resume) as run:
        for _ in run.epochs():
            for _batch in run.train(loader()):
                run.forward()
                run.backward()
                run.step()
            for _batch in run.validate(loader(2)):
                run.eval_step()


STOPS = [
    (plain, Break("after_step", 7)),
    (plain, Break("after_epoch", 2)),
    (plain, Break("before_epoch", 2)),
    (plain, Break("after_train_epoch", 2)),
    (plain, Break("after_val_iter", 7)),
    (plain, Break("after_run", 1)),
    (several, Break("before_val_iter", 13)),  # in the first loader of the second epoch
    (several, Break("before_val_iter", 18)),  # in the second
    (several, Break("before_test_iter", 18)),
    (in_between, Break("before_val_iter", 3)),
    (in_between, Break("after_step", 8)),
    (in_steps, Break("after_step", 9)),
    (streamed, Break("after_step", 6)),
    (own_loop, Break("after_backward", 8)),
    (own_loop, Break("before_val_iter", 6)),
    (own_loop, Break("after_epoch", 1)),
]


@pytest.mark.parametrize(("fit", "breaks"), STOPS, ids=lambda one: getattr(one, "__name__", None) or one.point)
def test_it_ends_as_if_nothing_had_been(fit: Any, breaks: Break, tmp_path: Path) -> None:
    whole, again = End(), End()
    fit(trainer(Checkpoint("1 step", to=tmp_path / "whole", background=False), Accumulate(2), EMA(0.9), whole), None)
    one = Break(breaks.point, breaks.left)
    interrupted(one, tmp_path / "killed", fit, Accumulate(2), EMA(0.9))
    fit(trainer(Checkpoint("1 step", to=tmp_path / "killed"), Accumulate(2), EMA(0.9), again), "auto")
    assert difference(whole, again) is None


@pytest.mark.parametrize(("fit", "stage", "count"), [(plain, "val", 3), (several, "val", 17), (several, "test", 8)])
def test_an_evaluation_that_a_signal_breaks_off_is_made_again(fit: Any, stage: str, count: int, tmp_path: Path) -> None:
    class Warned(Callback):
        def plays(self) -> dict[str, Any]:
            return {f"before_{stage}_iter": self.count}

        def count(self, run: Any) -> None:
            self.left = getattr(self, "left", count) - 1
            if self.left == 0:
                signal.raise_signal(signal.SIGTERM)

    whole, again = End(), End()
    fit(trainer(Checkpoint(None, to=tmp_path / "whole"), EMA(0.9), whole), None)
    with pytest.raises(Preempted):
        fit(trainer(Checkpoint(None, to=tmp_path / "killed"), EMA(0.9), Warned()), None)
    assert len(Shelf(tmp_path / "killed").names()) == 1
    fit(trainer(Checkpoint(None, to=tmp_path / "killed"), EMA(0.9), again), "auto")
    assert difference(whole, again) is None


def test_a_callback_that_resets_itself_when_the_epoch_begins(tmp_path: Path) -> None:
    """It counts batches, and halves the weights after the fourth of each epoch."""

    class Counts(Callback):
        seen = 0

        def before_train_epoch(self, run: Any) -> None:
            self.seen = 0

        def after_step(self, run: Any) -> None:
            self.seen += 1
            if self.seen == 4:
                with torch.no_grad():
                    run.module[0].weight.mul_(0.5)

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen = state["seen"]

    whole, again = End(), End()
    plain(trainer(Counts(), Checkpoint("1 step", to=tmp_path / "whole"), whole), None)
    interrupted(Break("after_step", 7), tmp_path / "killed", plain, Counts())
    plain(trainer(Counts(), Checkpoint("1 step", to=tmp_path / "killed"), again), "auto")
    assert difference(whole, again) is None


# From where ---------------------------------------------------------------------------------------------------------


def test_from_one_checkpoint_a_folder_of_them_and_an_experiment(tmp_path: Path) -> None:
    experiment = Experiment("project", "first", root=tmp_path)
    saving = Checkpoint("2 steps", keep_last=9, background=False)
    made = trainer(saving, Break("after_step", 7), experiment=experiment)
    with pytest.raises(Oops):
        made.fit(loader(), epochs=2)
    folder = experiment.checkpoints
    first = folder / Shelf(folder).names()[0]
    begun = {}
    for place in (first, folder, experiment.folder, str(folder)):

        class Look(Callback):
            def after_load(self, run: Any, place: Any = place) -> None:
                begun[place] = run.clock.steps

        again = trainer(Look(), Checkpoint(to=tmp_path / f"new-{len(begun)}"))
        with pytest.warns(UserWarning, match="'first', which this trainer does not have"):
            again.fit(loader(), epochs=2, resume=place)
    assert begun == {first: 2, folder: 6, experiment.folder: 6, str(folder): 6}
    last = trainer(Checkpoint(), experiment=Experiment("project", "first", root=tmp_path))
    assert last.fit(loader(), epochs=2, resume="auto").epochs[-1]["epoch"] == 1
    assert last.clock.steps == 10


def test_resuming_does_not_need_a_callback_that_saves(tmp_path: Path) -> None:
    interrupted(Break("after_step", 7), tmp_path, plain)
    made = trainer()
    with pytest.warns(UserWarning, match="state of a callback 'Checkpoint'"):
        made.fit(loader(), loader(2), epochs=EPOCHS, resume=tmp_path)
    assert made.clock.epochs == EPOCHS
    with pytest.raises(ValueError, match="there is no such callback"):
        trainer().fit(loader(), epochs=1, resume="auto")


def test_a_path_without_a_checkpoint_and_what_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match=re.escape(str(tmp_path))):
        trainer().fit(loader(), epochs=1, resume=tmp_path)
    with pytest.raises(TypeError, match='resume is "auto" or the path'):
        trainer().fit(loader(), epochs=1, resume=True)


# What had ended -----------------------------------------------------------------------------------------------------


def test_a_run_that_had_ended_returns_its_history_and_plays_nothing(tmp_path: Path) -> None:
    first = trainer(Checkpoint(to=tmp_path))
    rows = first.fit(loader(), loader(2), epochs=2).to_rows()
    saved, recorder = Shelf(tmp_path).names(), Recorder()
    second = trainer(Checkpoint(to=tmp_path), recorder)
    assert second.fit(loader(), loader(2), epochs=2, resume="auto").to_rows() == rows
    assert recorder.trace == []
    assert Shelf(tmp_path).names() == saved
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))


def test_more_epochs_go_on_as_if_they_had_been_asked_for_at_once(tmp_path: Path) -> None:
    whole, again = End(), End()
    trainer(Checkpoint(to=tmp_path / "a"), whole).fit(loader(), loader(2), epochs=4)
    trainer(Checkpoint(to=tmp_path / "b")).fit(loader(), loader(2), epochs=2)
    trainer(Checkpoint(to=tmp_path / "b"), again).fit(loader(), loader(2), epochs=4, resume="auto")
    assert difference(whole, again) is None


def test_a_new_run_does_not_write_among_the_checkpoints_of_another(tmp_path: Path) -> None:
    trainer(Checkpoint(to=tmp_path)).fit(loader(), epochs=1)
    saved = Shelf(tmp_path).names()
    with pytest.raises(FileExistsError, match=r"resume='auto'.*replace=True"):
        trainer(Checkpoint(to=tmp_path)).fit(loader(), epochs=1)
    assert Shelf(tmp_path).names() == saved
    trainer(Checkpoint(to=tmp_path, replace=True, keep_last=1)).fit(loader(), epochs=1)
    assert len(Shelf(tmp_path).names()) == 1
    assert Shelf(tmp_path).names() != saved


def test_a_warm_start_does_not_undo_a_resume(tmp_path: Path) -> None:
    old = {name: torch.zeros_like(value) for name, value in trainer().model.state_dict().items()}
    whole, again = End(), End()
    plain(trainer(Load(old), Checkpoint("1 step", to=tmp_path / "whole"), whole), None)
    interrupted(Break("after_step", 7), tmp_path / "killed", plain, Load(old))
    plain(trainer(Load(old), Checkpoint(to=tmp_path / "killed"), again), "auto")
    assert difference(whole, again) is None


# What does not fit --------------------------------------------------------------------------------------------------


def test_another_model_or_number_of_optimizers_is_said(tmp_path: Path) -> None:
    interrupted(Break("after_step", 3), tmp_path, plain)
    saved = Shelf(tmp_path).names()
    with pytest.raises(RuntimeError, match=r"0\.weight.*(shape|size)") as caught:
        plain(trainer(Checkpoint(to=tmp_path), hidden=9), "auto")
    assert any(f"{saved[-1]} is of another model" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match=r"holds 1 optimizers?, this trainer has 2"):
        plain(trainer(Checkpoint(to=tmp_path), optimizers=2), "auto")
    assert Shelf(tmp_path).names() == saved


def test_a_callback_that_is_missing_or_new_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupted(Break("after_step", 3), tmp_path, plain, EMA(0.9))
    with pytest.warns(UserWarning, match="state of a callback 'EMA', which this trainer does not have"):
        plain(trainer(Checkpoint(to=tmp_path)), "auto")


def test_a_newer_one_that_is_damaged_is_told_where_a_script_shows_it(tmp_path: Path) -> None:
    whole, again = End(), End()
    plain(trainer(Checkpoint(to=tmp_path / "whole"), whole), None)
    tmp_path /= "broken off"
    interrupted(Break("after_step", 4), tmp_path, plain)
    used, newest = Shelf(tmp_path).names()[-2:]
    file = tmp_path / newest / "state.json"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=f"goes on from {used}: newer ones cannot be used: {newest} .state.json is sh"):
        plain(trainer(Checkpoint(to=tmp_path), again), "auto")
    assert difference(whole, again) is None
