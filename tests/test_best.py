"""One watched metric decides what is best; ``after_best`` is played when it improves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Best, Callback, CallbackError, MainCallback, Run, Trainer, Watch
from cadenza.callback import infer_mode
from cadenza.testing import Recorder, tiny_classifier, tiny_loader


class Scores(Callback):
    """Logs ``values`` as ``name``, one after each validation, and writes down when the best is told."""

    def __init__(self, values: list[float], name: str = "val/score") -> None:
        self.values, self.metric = iter(values), name
        self.told: list[Best] = []

    def after_val_epoch(self, run: Run) -> None:
        run.log(self.metric, next(self.values))

    def after_best(self, run: Run) -> None:
        assert run.best is not None
        self.told.append(run.best)


def made(*callbacks: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def told(values: list[float], watch: Watch, name: str = "val/score") -> list[tuple[float, int]]:
    scores = Scores(values, name)
    trainer = made(scores, watch)
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=len(values))
    assert trainer.best == (scores.told[-1] if scores.told else None)
    return [(best.value, best.epoch) for best in scores.told]


NAN = float("nan")


def test_higher_or_lower_by_the_name_or_as_said() -> None:
    values = [0.5, 0.7, 0.7, 0.4, 0.9]
    assert told(values, Watch("val/score")) == [(0.5, 0), (0.7, 1), (0.9, 4)]
    assert told(values, Watch("val/score", mode="min")) == [(0.5, 0), (0.4, 3)]
    assert told(values, Watch("val/my_error"), "val/my_error") == [(0.5, 0), (0.4, 3)]


def test_a_value_that_is_no_number_is_never_the_best() -> None:
    assert told([NAN, 0.5, NAN, 0.6], Watch("val/score")) == [(0.5, 1), (0.6, 3)]


def test_the_best_says_where_it_was_reached() -> None:
    scores = Scores([1.0, 2.0])
    made(scores, Watch("val/score")).fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert scores.told == [Best("val/score", 1.0, 0, 3), Best("val/score", 2.0, 1, 6)]


def test_the_best_is_kept_over_fits() -> None:
    scores = Scores([3.0, 2.0, 4.0])
    trainer = made(scores, Watch("val/score"))
    for _ in range(3):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert [(best.value, best.epoch) for best in scores.told] == [(3.0, 0), (4.0, 2)]


def test_it_is_played_after_the_learning_rate_and_before_the_end_of_the_epoch() -> None:
    recorder = Recorder(points=["after_val_epoch", "after_best", "after_epoch"])
    made(recorder, Watch("val/loss")).fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert recorder.trace == ["after_val_epoch", "after_best", "after_epoch"]


def test_validation_in_between_can_be_the_best() -> None:
    scores = Scores([1.0, 3.0, 2.0])
    trainer = made(scores, Watch("val/score"))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1, validate_every="1 step")
    assert [(best.value, best.step) for best in scores.told] == [(1.0, 1), (3.0, 2)]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("every", ["1 epoch", "1 step"])
def test_one_of_several_loaders_is_watched(order: tuple[str, str], every: str) -> None:
    loaders = {name: tiny_loader(8, seed=ord(name)) for name in order}
    trainer = made(Watch("val/a/loss"))
    history = trainer.fit(tiny_loader(), loaders, epochs=1, validate_every=every)
    assert trainer.best is not None
    assert trainer.best.value == min(history["val/a/loss"])


def test_the_one_monitor_of_the_callbacks_is_watched() -> None:
    class Stops(Callback):
        monitor = "val/loss"

    recorder = Recorder(points=["after_best"])
    trainer = made(Stops(), Stops(), recorder)
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert recorder.trace == ["after_best"]
    assert trainer.best is not None
    assert trainer.best.name == "val/loss"


def monitoring(monitor: str, mode: str | None = None) -> Callback:
    return type("Stops", (Callback,), {"monitor": monitor, "mode": mode})()


@pytest.mark.parametrize(
    "pair",
    [(("val/loss", None), ("train/loss", None)), (("val/loss", "min"), ("val/loss", "max"))],
    ids=["names", "modes"],
)
def test_several_monitors_are_refused_if_somebody_listens(pair: Any) -> None:
    callbacks = [monitoring(*one) for one in pair]
    trainer = made(*callbacks, Recorder(points=["after_best"]))
    with pytest.raises(CallbackError, match=r'several metrics could decide what is best: .*add Watch\("val/loss"\)'):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert trainer.clock.steps == 0
    trainer.add(Watch("val/loss"))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert trainer.best is not None


def test_several_monitors_are_fine_if_nobody_listens() -> None:
    trainer = made(monitoring("val/loss"), monitoring("train/loss"))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert trainer.best is None


def test_two_watches_and_wrong_modes_are_refused() -> None:
    with pytest.raises(CallbackError, match="2 Watch callbacks"):
        made(Watch("val/loss"), Watch("train/loss")).fit(tiny_loader(), tiny_loader(8), epochs=1)
    with pytest.raises(ValueError, match='mode is "min" or "max", not \'lower\''):
        Watch("val/loss", mode="lower")


@pytest.mark.parametrize("monitor", [3, None, ""])
def test_what_is_watched_is_a_text(monitor: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="metric"):
        Watch(monitor)


def test_a_misspelt_metric_is_an_error_as_soon_as_it_can_be_known() -> None:
    """Before the fit, unless a callback of the user's could log it: ``tests/registration/test_monitors.py``."""
    trainer = made(Watch("val/los"), Recorder(points=["after_best"]))
    with pytest.raises(KeyError, match="Watch watches it, but there is no metric 'val/los'; did you mean 'val/loss'"):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=3)
    assert trainer.clock.epochs == 1  # it could still have been logged at after_epoch


@pytest.mark.filterwarnings("ignore:.*this fit has no val_loader")
def test_a_stage_that_never_came_is_a_warning_at_the_end() -> None:
    with pytest.warns(UserWarning, match="Watch watches no metric 'val/loss'"):
        made(Watch("val/loss"), Recorder(points=["after_best"])).fit(tiny_loader(), epochs=1)


def test_a_stop_before_the_first_validation_does_not_make_a_metric_unknown() -> None:
    trainer = made(Watch("val/loss"))
    trainer.on("after_train_epoch")(lambda run: run.stop("enough"))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert (trainer.clock.epochs, "val/loss" in trainer.history) == (1, False)


@pytest.mark.filterwarnings("ignore:.*this fit has no val_loader")
def test_each_metric_that_was_followed_and_never_came_is_told() -> None:
    """Also where several are followed, so that none of them is the watched one."""
    with pytest.warns(UserWarning, match="watches no metric 'val/loss'") as told:
        made(monitoring("train/loss"), monitoring("val/loss")).fit(tiny_loader(), epochs=1)
    assert [one.filename for one in told if "watches no metric" in str(one.message)] == [__file__]


def test_without_a_watched_metric_there_is_no_best() -> None:
    trainer = made(Recorder(points=["after_best"]))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert trainer.best is None
    assert trainer.callbacks[0].trace == []


@pytest.mark.parametrize(
    "name",
    [
        "val/loss",
        "val/near/loss",
        "train/mse",
        "val/top1_error",
        "val/rmse",
        "wer",
        "val/focal_loss",
        "val/loss2",
        "val.mape",
        "fid",
    ],
)
def test_lower_is_better(name: str) -> None:
    assert infer_mode(name) == "min"


@pytest.mark.parametrize("name", ["val/accuracy", "val/f1", "val/auc", "val/map_50", "reward"])
def test_higher_is_better(name: str) -> None:
    assert infer_mode(name) == "max"


def test_a_plateau_schedule_follows_one_metric_and_only_when_it_is_new() -> None:
    """With validation every second epoch it must neither get the training loss nor the same value twice."""
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: list[float] = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics: Any, epoch: Any = None) -> None:
            given.append(metrics)
            super().step(metrics)

    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=Plateau(optimizer), device="cpu")
    history = trainer.fit(tiny_loader(), tiny_loader(8), epochs=4, validate_every="2 epochs")
    assert given == history["val/loss"]


def test_a_plateau_schedule_cannot_follow_a_metric_of_epochs_in_each_iteration() -> None:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    main = MainCallback(lr_every="iter")
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=schedule, callbacks=[main], device="cpu")
    with pytest.raises((CallbackError, KeyError, ValueError), match="ReduceLROnPlateau"):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
