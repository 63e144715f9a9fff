"""Functions at points, callbacks that come and go, and one instance in one run at a time."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, CallbackError, MainCallback, Run, Trainer, Watch
from cadenza.callbacks import Checkpoint
from cadenza.testing import Recorder, tiny_classifier, tiny_loader


def made(*callbacks: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


# Functions -----------------------------------------------------------------------------------------------------------


def test_a_function_plays_and_is_given_back() -> None:
    trainer, seen = made(), []

    def note(run: Run) -> None:
        seen.append(run.epoch)

    assert trainer.on("after_epoch")(note) is note
    trainer.fit(tiny_loader(), epochs=2)
    assert seen == [0, 1]


def test_the_same_name_at_the_same_point_replaces() -> None:
    """A notebook cell that is run twice does not play twice."""
    trainer, seen = made(), []

    def define(word: str) -> None:
        @trainer.on("after_epoch")
        def note(run: Run) -> None:
            seen.append(word)

    define("old")
    define("new")
    trainer.fit(tiny_loader(), epochs=1)
    assert seen == ["new"]
    assert len(trainer.callbacks) == 1


def test_one_function_at_two_points() -> None:
    trainer, seen = made(), []

    def note(run: Run) -> None:
        seen.append(run.epoch)

    trainer.on("before_epoch")(note)
    trainer.on("after_epoch")(note)
    trainer.fit(tiny_loader(), epochs=1)
    assert seen == [0, 0]


def test_lambdas_of_two_lines_both_play() -> None:
    trainer, seen = made(), []
    trainer.on("after_epoch")(lambda run: seen.append("one"))
    trainer.on("after_epoch")(lambda run: seen.append("two"))
    trainer.fit(tiny_loader(), epochs=1)
    assert seen == ["one", "two"]


def test_objects_that_can_be_called_are_not_mistaken_for_each_other() -> None:
    trainer, seen = made(), []

    class Note:
        def __init__(self, word: str) -> None:
            self.word = word

        def __call__(self, run: Run) -> None:
            seen.append(self.word)

    def note(word: str, run: Run) -> None:
        seen.append(word)

    for word in ("a", "b"):
        trainer.on("after_epoch")(functools.partial(note, f"partial {word}"))
        trainer.on("after_epoch")(Note(f"object {word}"))
    trainer.fit(tiny_loader(), epochs=1)
    assert sorted(seen) == ["object a", "object b", "partial a", "partial b"]


def test_a_generator_function_is_held_around() -> None:
    trainer, seen = made(), []

    @trainer.on("around_train_epoch")
    def held(run: Run) -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    trainer.on("after_train_epoch")(lambda run: seen.append("after"))
    trainer.fit(tiny_loader(), epochs=1)
    assert seen == ["in", "out", "after"]


@pytest.mark.parametrize("wrong", ["after_epock", "on_epoch_end", "epoch", "", 3, None])
def test_a_point_that_is_none(wrong: Any) -> None:
    with pytest.raises(CallbackError, match="is no point"):
        made().on(wrong)


def test_the_nearest_point_is_named() -> None:
    with pytest.raises(CallbackError, match="'on_epoch_end' is no point; did you mean 'after_epoch'"):
        made().on("on_epoch_end")


@pytest.mark.parametrize(
    "wrong",
    [lambda: None, lambda run, other: None, 3, "text", None],
    ids=["no argument", "two arguments", "number", "text", "None"],
)
def test_what_cannot_be_played(wrong: Any) -> None:
    trainer = made()
    with pytest.raises(CallbackError):
        trainer.on("after_epoch")(wrong)
    assert trainer.callbacks == ()


def test_what_an_around_returns_is_checked() -> None:
    trainer = made()
    trainer.on("around_epoch")(lambda run: 3)
    with pytest.raises(TypeError, match="around_epoch returns a context manager or None, not int") as caught:
        trainer.fit(tiny_loader(), epochs=1)
    assert any("<lambda> at around_epoch" in note for note in caught.value.__notes__)


# Coming and going ----------------------------------------------------------------------------------------------------


class Seen(Callback):
    """Writes down where it plays, and whether it was told of its coming and its end."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.registered = self.closed = 0

    def after_register(self, run: Run) -> None:
        self.registered += 1

    def after_train_iter(self, run: Run) -> None:
        self.batches.append((run.epoch, run.batch_idx))

    def close(self) -> None:
        self.closed += 1


def test_added_between_runs() -> None:
    trainer, seen = made(), Seen()
    trainer.add(seen)
    trainer.fit(tiny_loader(), epochs=1)
    trainer.remove(seen)
    trainer.fit(tiny_loader(), epochs=1)
    assert seen.batches == [(0, 0), (0, 1), (0, 2)]
    assert (seen.registered, seen.closed) == (1, 1)


@pytest.mark.parametrize("point", ["before_train_iter", "after_forward", "after_iter"])
def test_added_in_a_running_fit(point: str) -> None:
    trainer, seen = made(), Seen()
    trainer.on(point)(lambda run: trainer.add(seen) if run.epoch == 0 and run.batch_idx == 0 else None)
    trainer.fit(tiny_loader(), epochs=2)
    assert seen.batches == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert (seen.registered, seen.closed) == (1, 1)


@pytest.mark.parametrize("point", ["before_train_iter", "after_forward", "after_iter"])
def test_removed_in_a_running_fit(point: str) -> None:
    seen = Seen()
    trainer = made(seen)
    trainer.on(point)(lambda run: trainer.remove(seen) if run.batch_idx == 1 and seen in trainer.callbacks else None)
    trainer.fit(tiny_loader(), epochs=2)
    assert seen.batches == [(0, 0), (0, 1)]
    assert seen.closed == 1, "what a run began with a callback it also ends"


def test_watching_from_the_middle_on_changes_no_bit() -> None:
    plain, watched = made(), made()
    watched.on("after_iter")(lambda run: watched.add(Recorder()) if run.batch_idx == 1 and run.epoch == 0 else None)
    for trainer in (plain, watched):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    assert plain.history.epochs == watched.history.epochs


def test_a_bad_callback_does_not_disturb_the_running_fit() -> None:
    trainer, refusals = made(Seen()), []

    @trainer.on("after_train_iter")
    def try_it(run: Run) -> None:
        with pytest.raises(CallbackError):
            trainer.add(Seen)  # type: ignore[arg-type]
        refusals.append(run.batch_idx)

    trainer.fit(tiny_loader(), epochs=1)
    assert refusals == [0, 1, 2]


def test_removing_what_is_not_there() -> None:
    with pytest.raises(ValueError, match="'Seen' is not among the callbacks"):
        made().remove(Seen())


# One run at a time ---------------------------------------------------------------------------------------------------


def test_one_instance_in_two_running_runs() -> None:
    shared = Seen()
    inner, outer = made(shared), made(shared)
    weights = [weight.clone() for weight in inner.model.parameters()]

    @outer.on("after_epoch")
    def nested(run: Run) -> None:
        with pytest.raises(CallbackError, match="Seen is playing in another run"):
            inner.fit(tiny_loader(), epochs=1)

    outer.fit(tiny_loader(), epochs=1)
    assert all(map(torch.equal, weights, inner.model.parameters()))
    assert (inner.clock.steps, len(inner.history)) == (0, 0)
    assert (shared.registered, shared.closed) == (1, 1), "the refused run neither began nor ended it"
    inner.fit(tiny_loader(), epochs=1)
    assert inner.clock.steps == 3


def test_an_instance_that_plays_elsewhere_cannot_be_added() -> None:
    shared = Seen()
    inner, outer = made(), made(shared)
    inner.on("before_train_iter")(lambda run: inner.add(shared) if run.batch_idx == 0 else None)

    @outer.on("after_train_epoch")
    def nested(run: Run) -> None:
        with pytest.raises(CallbackError, match="Seen is playing in another run"):
            inner.fit(tiny_loader(), epochs=1)
        assert shared.closed == 0, "it still plays in the outer run"

    outer.fit(tiny_loader(), epochs=1)
    assert shared.closed == 1


def test_a_refused_combination_leaves_a_trainer_that_works() -> None:
    first, second = Seen(), Recorder(points=["after_best"])
    first.monitor, second.monitor = "val/loss", "train/loss"
    trainer = made(first, second)
    with pytest.raises(CallbackError, match="several metrics could decide"):
        trainer.fit(tiny_loader(), tiny_loader(), epochs=1)
    trainer.add(Watch("val/loss"))
    trainer.fit(tiny_loader(), tiny_loader(), epochs=1)
    assert trainer.best is not None


@pytest.mark.parametrize("verb", ["fit", "validate", "predict"])
def test_a_running_trainer_is_not_started_again(verb: str) -> None:
    trainer = made()

    @trainer.on("after_epoch")
    def nested(run: Run) -> None:
        with pytest.raises(RuntimeError, match=r"already running.*run\.evaluate"):
            getattr(trainer, verb)(tiny_loader(), **({"epochs": 1} if verb == "fit" else {}))

    trainer.fit(tiny_loader(), epochs=2)
    assert trainer.clock.epochs == 2


def test_a_run_is_used_once_and_inside_its_with() -> None:
    trainer = made()
    run = trainer.run(epochs=1)
    with pytest.raises(RuntimeError, match="inside `with"):
        run.epochs()
    with run:
        for _ in run.epochs():
            for _ in run.train(tiny_loader()):
                run.train_step()
    with pytest.raises(RuntimeError, match="inside `with"):
        next(iter(run.validate(tiny_loader())))
    with pytest.raises(RuntimeError, match="used once"):
        run.__enter__()
    assert trainer.fit(tiny_loader(), epochs=1)["train/loss"]


def test_a_main_callback_can_be_exchanged() -> None:
    class Twice(MainCallback):
        def on_iter_loss(self, run: Run) -> None:
            super().on_iter_loss(run)
            run.loss = run.loss * 2

    trainer, twice = made(), Twice()
    once = trainer.validate(tiny_loader())["val/loss"]
    trainer.add(twice)
    assert trainer.validate(tiny_loader())["val/loss"] == pytest.approx(2 * once)
    trainer.remove(twice)
    assert trainer.validate(tiny_loader())["val/loss"] == once


def test_a_callback_added_during_a_nested_validation_plays_in_the_next_iteration() -> None:
    class Inside(Callback):
        def after_step(self, run: Run) -> None:
            batches.append(run.batch_idx)

    trainer, batches, inside = made(), [], Inside()
    trainer.on("after_val_iter")(lambda run: None if inside in trainer.callbacks else trainer.add(inside))
    trainer.fit(tiny_loader(48), tiny_loader(8), epochs=1, validate_every="2 steps")
    assert batches == [2, 3, 4, 5]


# A run that fails while it begins ------------------------------------------------------------------------------------


class Counts(Seen):
    """Has something to keep, so that the training of another model gives a warning."""

    def state_dict(self) -> dict[str, Any]:
        return {"registered": self.registered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.registered = state["registered"]


def fail_by_warning(trainer: Trainer, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(tiny_loader(), epochs=1)


def fail_by_callback(trainer: Trainer, folder: Path) -> None:
    trainer.on("before_run")(lambda run: run.nothing)
    trainer.fit(tiny_loader(), epochs=1)


def fail_by_resume(trainer: Trainer, folder: Path) -> None:
    other = nn.Linear(4, 3)
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    saving = Trainer(other, sgd, nn.CrossEntropyLoss(), callbacks=[Checkpoint(to=folder)], device="cpu")
    saving.fit(tiny_loader(), epochs=1)
    trainer.fit(tiny_loader(), epochs=2, resume=folder)


def fail_by_loader(trainer: Trainer, folder: Path) -> None:
    class Broken(DataLoader[Any]):
        def __iter__(self) -> Any:
            raise OSError("no such file")

    trainer.fit(Broken(TensorDataset(torch.zeros(4, 4))), epochs=1)


def forget(trainer: Trainer, folder: Path) -> None:
    trainer.run(epochs=1).__enter__()
    gc.collect()
    raise RuntimeError("the run was never left")


@pytest.mark.parametrize("begin", [fail_by_warning, fail_by_callback, fail_by_resume, fail_by_loader, forget])
@pytest.mark.filterwarnings("ignore:Counts took part in the training of another model")
def test_a_callback_is_free_after_a_run_that_could_not_begin(
    begin: Callable[[Trainer, Path], None], tmp_path: Path
) -> None:
    shared = Counts()
    first = made(shared)
    first.fit(tiny_loader(), epochs=1)
    second = made(shared)
    with pytest.raises((Exception, UserWarning)) as kept:  # the error, and with it the run, is kept
        begin(second, tmp_path)
    first.fit(tiny_loader(), epochs=1)
    assert first.clock.epochs == 2
    assert kept.value is not None


def test_a_warning_that_was_an_error_is_given_again() -> None:
    shared = Counts()
    made(shared).fit(tiny_loader(), epochs=1)
    second = made(shared)
    for _ in range(2):
        with pytest.raises(UserWarning, match="Counts took part in the training of another model"):
            fail_by_warning(second, Path())
    with pytest.warns(UserWarning, match="Counts took part in the training of another model"):
        second.fit(tiny_loader(), epochs=1)
