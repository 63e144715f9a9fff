"""When ``Checkpoint`` saves, what is kept and how it is called, and what callbacks are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback, MainCallback
from cadenza.callbacks import Checkpoint, EarlyStopping
from cadenza.checkpoint import Shelf, load_weights
from cadenza.checkpoint.format.manifest import check_name
from cadenza.checkpoint.naming import name_of

from .saving import BATCHES, Break, Oops, loader, trainer, values


def names(folder: Path) -> list[str]:
    return [name.partition("-")[2] for name in Shelf(folder).names()]


# When ---------------------------------------------------------------------------------------------------------------


def test_every_epoch_and_the_end_is_not_saved_twice(tmp_path: Path) -> None:
    trainer(Checkpoint("1 epoch", keep_last=9, to=tmp_path)).fit(loader(), epochs=3)
    assert names(tmp_path) == ["epoch=1-step=5", "epoch=2-step=10", "epoch=3-step=15"]
    assert Shelf(tmp_path).read("last").state["ended"] == ""


def test_every_so_many_epochs_without_a_final_one(tmp_path: Path) -> None:
    trainer(Checkpoint("2 epochs", keep_last=9, final=False, to=tmp_path)).fit(loader(), epochs=5)
    assert names(tmp_path) == ["epoch=2-step=10", "epoch=4-step=20"]


def test_every_so_many_steps(tmp_path: Path) -> None:
    trainer(Checkpoint("4 steps", keep_last=9, to=tmp_path)).fit(loader(), epochs=2)
    assert names(tmp_path) == ["epoch=0-step=4", "epoch=1-step=8", "epoch=2-step=10"]


def test_every_so_much_time(tmp_path: Path) -> None:
    """The clock is set forward by an hour in the third and the sixth iteration."""

    class Later(Callback):
        def before_step(self, run: Any) -> None:
            if run.clock.batches in (2, 5):
                run.clock._elapsed += 3600

    trainer(Later(), Checkpoint("10 minutes", keep_last=9, final=False, to=tmp_path)).fit(loader(), epochs=2)
    assert names(tmp_path) == ["epoch=0-step=3", "epoch=1-step=6"]


def test_only_when_asked(tmp_path: Path) -> None:
    class Ask(Callback):
        def after_train_iter(self, run: Any) -> None:
            if run.clock.steps in (2, 3):
                run.save()

    trainer(Ask(), Checkpoint(None, keep_last=9, final=False, to=tmp_path)).fit(loader(), epochs=1)
    assert names(tmp_path) == ["epoch=0-step=2", "epoch=0-step=3"]


def test_what_is_asked_for_in_a_validation_is_saved_when_the_epoch_ends(tmp_path: Path) -> None:
    class Ask(Callback):
        def after_val_iter(self, run: Any) -> None:
            run.save()

    trainer(Ask(), Checkpoint(None, keep_last=9, final=False, to=tmp_path)).fit(loader(), loader(), epochs=2)
    assert names(tmp_path) == ["epoch=1-step=5", "epoch=2-step=10"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": "3 batches"}, "epochs, steps or time"),
        ({"every": "runs/first"}, "is not a duration.*; a folder is given as to='runs/first'"),
        ({"every": "3 stepss"}, "unit 'stepss' is unknown; use [^;]*$"),
        ({"keep_last": 0}, "keep_last must be a whole number of at least 1"),
        ({"keep_best": True}, "keep_best"),
        ({"mode": "lowest"}, '"min" or "max"'),
        ({"on_failure": "ignore"}, '"warn" or "raise"'),
        ({"grace": "3 steps"}, "grace is a time"),
        ({"signals": ["TERM"]}, "SIGTERM"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Checkpoint(**options)


# What is kept, and under which names --------------------------------------------------------------------------------


class Score(Callback):
    """Logs one value after another at the end of each epoch."""

    def __init__(self, name: str, values: list[float]) -> None:
        self.metric, self.values = name, values

    def after_val_epoch(self, run: Any) -> None:
        run.log(self.metric, self.values[run.epoch])


@pytest.mark.parametrize(
    ("mode", "best"), [("min", "epoch=2-step=10-val_score=0.1"), ("max", "epoch=1-step=5-val_score=0.9")]
)
def test_the_newest_and_the_best_are_kept_and_found(mode: str, best: str, tmp_path: Path) -> None:
    saving = Checkpoint(keep_last=1, keep_best=1, monitor="val/score", mode=mode, to=tmp_path)
    trainer(Score("val/score", [0.9, 0.1, 0.5, 0.6]), saving).fit(loader(), loader(), epochs=4)
    assert names(tmp_path) == [best, "epoch=4-step=20-val_score=0.6"]
    assert Shelf(tmp_path).read("best").name.endswith(best)
    assert Shelf(tmp_path).read("last").meta["epoch"] == 4
    assert load_weights(tmp_path, "best").keys() == load_weights(tmp_path).keys()


def test_the_watched_metric_decides_if_none_is_named(tmp_path: Path) -> None:
    watching = EarlyStopping("val/score", mode="max", patience=9)
    callbacks = Score("val/score", [0.2, 0.8, 0.4]), watching, Checkpoint(keep_last=1, keep_best=1, to=tmp_path)
    trainer(*callbacks).fit(loader(), loader(), epochs=3)
    assert names(tmp_path) == ["epoch=2-step=10-val_score=0.8", "epoch=3-step=15-val_score=0.4"]


def test_a_value_belongs_to_the_weights_that_were_measured(tmp_path: Path) -> None:
    """In mid-epoch the validation of the epoch before says nothing about the weights of now."""
    saving = Checkpoint("2 steps", keep_last=1, keep_best=1, monitor="val/score", mode="min", to=tmp_path)
    trainer(Score("val/score", [0.5, 0.1, 0.7]), saving).fit(loader(), loader(), epochs=3)
    assert values(tmp_path) == {"epoch=2-step=10-val_score=0.1": 0.1, "epoch=3-step=15-val_score=0.7": 0.7}


def test_what_was_measured_in_mid_epoch_counts(tmp_path: Path) -> None:
    losses = {}

    class Look(Callback):
        def after_val_epoch(self, run: Any) -> None:
            losses[run.clock.steps] = run.metrics["val/loss"]

    saving = Checkpoint(None, keep_last=9, keep_best=1, monitor="val/loss", final=False, to=tmp_path)
    trainer(Look(), saving).fit(loader(), loader(), epochs=2, validate_every="3 steps")
    best = min(losses, key=lambda step: losses[step])
    assert len(losses) == 3
    assert Shelf(tmp_path).read("best").meta["step"] == best
    assert Shelf(tmp_path).read("best").meta["value"] == losses[best]


def test_what_is_better_than_all_before_is_saved_also_after_a_resume(tmp_path: Path) -> None:
    scores = [0.5, 0.3, 0.4, 0.2, 0.6]

    def made(*more: Callback) -> Any:
        saving = Checkpoint("100 epochs", keep_last=1, keep_best=3, monitor="val/score", mode="min", to=tmp_path)
        return trainer(Score("val/score", scores), saving, *more)

    with pytest.raises(Oops):
        made(Break("after_train_epoch", 3)).fit(loader(), loader(), epochs=5)
    made().fit(loader(), loader(), epochs=5, resume="auto")
    assert list(values(tmp_path).values()) == [0.5, 0.3, 0.2, 0.6]


def test_a_value_that_is_no_number_is_no_best(tmp_path: Path) -> None:
    saving = Checkpoint(keep_last=1, keep_best=1, monitor="val/score", mode="min", to=tmp_path)
    trainer(Score("val/score", [0.5, float("nan"), float("inf")]), saving).fit(loader(), loader(), epochs=3)
    assert names(tmp_path) == ["epoch=1-step=5-val_score=0.5", "epoch=3-step=15-val_score=inf"]


@pytest.mark.parametrize(
    "metric", ["val/top 5", "val/größe: 1=0.5", "a\\b|c?*", "../../up", "x" * 300, "val/=", "日本"]
)
def test_a_metric_may_be_called_anything(metric: str, tmp_path: Path) -> None:
    saving = Checkpoint(keep_best=1, monitor=metric, mode="min", to=tmp_path / "saved", on_failure="raise")
    trainer(Score(metric, [0.25]), saving).fit(loader(), loader(), epochs=1)
    (name,) = names(tmp_path / "saved")
    assert name.startswith("epoch=1-step=5-")
    assert name.endswith("=0.25")
    check_name(name_of(10**9, 10**12, metric, -1.2345e-300))
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


# What callbacks are told --------------------------------------------------------------------------------------------


class Listener(Callback):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def before_save(self, run: Any) -> None:
        self.told.append("before")

    def after_save(self, run: Any) -> None:
        self.told.append(run.saved)

    def after_load(self, run: Any) -> None:
        self.told.append(("loaded", run.clock.steps, run.module[0].weight.detach().clone()))


@pytest.mark.parametrize("background", [False, True])
def test_callbacks_hear_of_every_commit_in_order(background: bool, tmp_path: Path) -> None:
    listener = Listener()
    trainer(listener, Checkpoint("2 steps", keep_last=9, background=background, to=tmp_path)).fit(loader(), epochs=2)
    assert [told for told in listener.told if told != "before"] == Shelf(tmp_path).names()
    assert listener.told.count("before") == 6
    assert listener.told[0] == "before"
    assert all(listener.told.index(name) >= 2 * number - 1 for number, name in enumerate(Shelf(tmp_path).names(), 1))


def test_after_load_is_played_once_with_everything_in_place(tmp_path: Path) -> None:
    with pytest.raises(Oops):
        trainer(Checkpoint("2 steps", to=tmp_path), Break("after_step", 4)).fit(loader(), epochs=2)
    listener = Listener()
    trainer(listener, Checkpoint(keep_last=9, to=tmp_path)).fit(loader(), epochs=2, resume="auto")
    loaded = [told for told in listener.told if isinstance(told, tuple)]
    assert [told[:2] for told in loaded] == [("loaded", 2)]
    assert torch.equal(loaded[0][2], Shelf(tmp_path).read("epoch=0-step=2").state["model"]["0.weight"])


def test_it_says_what_it_does_in_the_score() -> None:
    text = str(trainer(Checkpoint("500 steps", keep_best=3, monitor="val/accuracy")).explain())
    assert "every 500 steps, keeps 2 newest and 3 best by val/accuracy (max)" in text


def test_a_behaviour_of_ones_own_with_open_gradients_is_saved_whole(tmp_path: Path) -> None:
    class Main(MainCallback):
        def on_iter_loss(self, run: Any) -> None:
            run.loss = nn.functional.cross_entropy(run.output, run.targets)

    trainer(Main(), Checkpoint(to=tmp_path)).fit(loader(), epochs=1)
    assert Shelf(tmp_path).read("last").state["clock"]["batches"] == BATCHES
