"""EarlyStopping: which check stops the fit, what counts as a check, and that its count survives."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings

import pytest
import torch
from tests.callbacks.saving import Break, Oops
from torch import nn

from cadenza import Callback, Order, Trainer, Watch, When
from cadenza.callbacks import Checkpoint
from cadenza.callbacks.guards.early_stopping import EarlyStopping, Patience
from cadenza.testing import Recorder, tiny_classifier, tiny_loader

pytestmark = pytest.mark.filterwarnings("ignore:.*The run is stopped:UserWarning")

NAN, INF = math.nan, math.inf


class Teller(Callback):
    """Logs the next of ``values`` whenever a validation has ended."""

    order = Order.MEASURE

    def __init__(self, values, name="val/score", point="after_val_epoch"):
        self.values, self.metric, self.point = iter(values), name, point

    def plays(self):
        return {self.point: lambda run: run.log(self.metric, torch.tensor(next(self.values)))}


def make_trainer(*callbacks, scheduler=None):
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = None if scheduler is None else scheduler(sgd)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), scheduler=given, callbacks=list(callbacks), device="cpu")


def epochs_of(values, stopping, **fit):
    """How many epochs are trained if validation measures ``values``, and why it ended."""
    trainer = make_trainer(Teller(values), stopping, Watch("train/loss"), told := Told())
    trainer.fit(tiny_loader(), tiny_loader(), epochs=len(values), **fit)
    return trainer.clock.epochs, told.reason


class Told(Callback):
    """Keeps the reason of the stop."""

    reason = None

    def after_run(self, run):
        self.reason = run.stop_reason


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([5.0, 4.0, 6.0, 6.0, 1.0], {"patience": 1}, 3),
        ([5.0, 4.0, 6.0, 6.0, 1.0], {"patience": 2}, 4),
        ([5.0, 4.0, 6.0, 3.0, 6.0, 6.0, 6.0], {"patience": 2}, 6),  # an improvement begins the count anew
        ([5.0, 5.0, 5.0, 5.0], {"patience": 2}, 3),  # equal is not better
        ([5.0, 4.5, 4.0, 3.5], {"patience": 2, "min_delta": 0.5}, 4),  # 4.5 is better by 0.5 and not by more; 4.0 is
        ([5.0, 4.9, 4.8, 4.7], {"patience": 3, "min_delta": 0.5}, 4),  # compared with the best, not with the last
        ([5.0, 4.9, 4.4, 4.3], {"patience": 2, "min_delta": 0.5}, 4),
        ([1.0, 2.0, 1.5, 1.5], {"patience": 2, "mode": "max"}, 4),
        ([5.0, 4.0, 3.0, 2.0], {"patience": 1, "threshold": 3.0}, 4),  # reaching it is not being better than it
        ([0.5, 0.9, 0.91, 1.0], {"patience": 1, "threshold": 0.9, "mode": "max"}, 3),
        ([5.0, 9.0, 9.0, 9.0, 1.0], {"patience": None, "divergence": 8.0}, 2),
        ([5.0, 9.0, 5.0, 9.0, 9.0], {"patience": None, "divergence": 8.0, "divergence_patience": 2}, 5),
        ([5.0, 8.0, 8.0, 8.0], {"patience": None, "divergence": 8.0}, 4),  # at the limit is not beyond it
        ([5.0, NAN, 1.0], {"patience": 5}, 2),
        ([5.0, -INF, 1.0], {"patience": 5}, 2),
        ([5.0, NAN, -INF, 1.0], {"patience": 2, "check_finite": False}, 3),
        ([NAN, NAN, 1.0], {"patience": 2, "check_finite": False}, 2),
        ([5.0, 6.0, 7.0, 8.0], {"patience": None}, 4),
    ],
)
def test_it_stops_at_the_epoch_that_the_rules_name(values, options, expected):
    stopping = EarlyStopping("val/score", **{"mode": "min", **options})
    assert epochs_of(values, stopping)[0] == expected


@pytest.mark.parametrize(
    ("values", "options", "told"),
    [
        ([5.0, NAN], {}, True),
        ([5.0, INF], {}, True),
        ([5.0, 9.0], {"divergence": 8.0}, True),
        ([5.0, 9.0, 9.0], {"divergence": 8.0, "divergence_patience": 2}, True),
        ([5.0, 6.0, 7.0], {"patience": 2}, False),
        ([5.0, NAN, NAN], {"patience": 2, "check_finite": False}, False),
        ([5.0, 2.0], {"threshold": 3.0}, False),
    ],
)
def test_an_end_because_something_is_wrong_is_warned_of(values, options, told):
    with warnings.catch_warnings(record=True, action="always") as heard:
        reason = epochs_of(values, EarlyStopping("val/score", mode="min", **options))[1]
    assert reason is not None
    assert [str(one.message) for one in heard] == ([f"{reason}. The run is stopped"] if told else [])


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ([5.0, 6.0, 7.5], {"patience": 2}, ["val/score", "2 checks", "7.5", "best was 5", "epoch 1, step 3"]),
        ([5.0, 4.75], {"patience": 1, "min_delta": 0.5}, ["more than 0.5"]),
        ([5.0, 2.0], {"threshold": 3.0}, ["val/score is 2", "better than 3", "good enough"]),
        ([5.0, 20.0], {"divergence": 10.0}, ["is 20", "worse than 10"]),
        ([NAN], {}, ["val/score is nan", "not finite"]),
    ],
)
def test_the_reason_says_the_numbers(values, options, words):
    reason = epochs_of(values, EarlyStopping("val/score", mode="min", **options))[1]
    assert reason.startswith("EarlyStopping: ")
    assert [word for word in words if word not in reason] == []


def test_the_mode_is_inferred_from_the_name_and_shown():
    assert epochs_of([1.0, 2.0, 1.0], EarlyStopping("val/score", patience=1))[0] == 3  # higher is better
    told = make_trainer(EarlyStopping("val/loss", min_delta=0.25, threshold=0.5, divergence=9)).explain()
    for words in ("lower is better, inferred from its name", "check 3 in a row", "0.25", "better than 0.5", "than 9"):
        assert words in told
    assert "inferred" not in make_trainer(EarlyStopping("val/loss", mode="max")).explain()


def test_only_newly_measured_values_are_checks():
    """Validation in every second epoch: the epochs in between use up no patience."""
    stopping = EarlyStopping("val/score", patience=2, mode="min")
    trainer = make_trainer(Teller([5.0, 6.0, 7.0, 8.0]), stopping)
    trainer.fit(tiny_loader(), tiny_loader(), epochs=8, validate_every="2 epochs")
    assert trainer.clock.epochs == 6
    assert stopping.bad == 2


def test_validation_in_mid_epoch_is_checked_when_it_ends():
    """Eight batches an epoch, validated after each second step: values at steps 2, 4 and 6 of one epoch."""
    stopping = EarlyStopping("val/score", patience=2, mode="min")
    trainer = make_trainer(Teller([5.0, 6.0, 7.0, 8.0]), stopping, told := Told())
    trainer.fit(tiny_loader(64), tiny_loader(), epochs=3, validate_every="2 steps")
    assert (trainer.clock.steps, trainer.clock.epochs) == (6, 0)
    assert "step 6" not in told.reason  # that is where it stopped; the best was at step 2
    assert "step 2" in told.reason
    assert stopping.bad == 2  # not counted once more at the end of the epoch


def test_a_value_logged_in_each_iteration_is_checked_once_an_epoch():
    class Each(Callback):
        def after_train_iter(self, run):
            run.log("train/speed", 1.0)

    trainer = make_trainer(Each(), EarlyStopping("train/speed", patience=2))
    trainer.fit(tiny_loader(), tiny_loader(), epochs=9)
    assert trainer.clock.epochs == 3


def test_a_value_logged_at_the_end_of_the_epoch_is_seen_in_that_epoch():
    trainer = make_trainer(Teller([1.0, 1.0, 1.0], "score", "after_epoch"), EarlyStopping("score", patience=1))
    trainer.fit(tiny_loader(), epochs=3)
    assert trainer.clock.epochs == 2


def test_named_loaders_in_mid_epoch():
    stopping = EarlyStopping("val/b/loss", patience=1, min_delta=100)
    trainer = make_trainer(stopping, Watch("train/loss"))
    trainer.fit(tiny_loader(48), {"a": tiny_loader(), "b": tiny_loader()}, epochs=1, validate_every="2 steps")
    assert trainer.clock.steps == 4


def test_an_epoch_that_was_cut_short_is_no_check():
    class Cut(Callback):
        def after_train_iter(self, run):
            if run.epoch == 1:
                run.stop("enough")

    stopping = EarlyStopping("train/loss", patience=1, min_delta=100)
    make_trainer(stopping, Cut()).fit(tiny_loader(), epochs=3)
    assert stopping.bad == 0


def test_the_stop_leaves_what_a_fit_of_that_many_epochs_leaves():
    """Weights, learning rate and tests of the last epoch are all there."""

    def decay(sgd):
        return torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)

    stopped = make_trainer(Teller([1.0, 2.0, 3.0]), EarlyStopping("val/score", patience=1, mode="min"), scheduler=decay)
    plain = make_trainer(scheduler=decay)
    stopped.fit(tiny_loader(), tiny_loader(), epochs=3, test_loaders=tiny_loader())
    plain.fit(tiny_loader(), tiny_loader(), epochs=2, test_loaders=tiny_loader())
    for one, other in zip(stopped.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert stopped.history["test/loss"] == plain.history["test/loss"]
    assert stopped._training.schedulers[0].get_last_lr() == plain._training.schedulers[0].get_last_lr()


@pytest.mark.parametrize("watch", [(), (Watch("train/loss"),)])
@pytest.mark.parametrize(("monitor", "near"), [("val/los", "val/loss"), ("train/lsos", "train/loss"), ("loss", None)])
def test_an_unknown_monitor_is_an_error_that_names_the_nearest(monitor, near, watch):
    trainer = make_trainer(EarlyStopping(monitor), *watch, Recorder(points=["after_best"]))  # which may log anything
    with pytest.raises(KeyError, match="Known: train/loss, val/loss") as caught:
        trainer.fit(tiny_loader(), tiny_loader(), epochs=3)
    assert trainer.clock.epochs <= 1
    if near:
        assert f"did you mean '{near}'?" in str(caught.value)


def test_a_stage_that_was_not_played_yet_is_no_error():
    trainer = make_trainer(EarlyStopping("val/loss", patience=1))
    trainer.fit(tiny_loader(), tiny_loader(), epochs=2, validate_every="2 epochs")
    assert trainer.clock.epochs == 2


def test_the_monitor_decides_what_is_best():
    best = []

    class Keeper(Callback):
        def after_best(self, run):
            best.append((run.best.name, run.best.value, run.best.epoch))

    trainer = make_trainer(Teller([5.0, 4.0, 6.0]), EarlyStopping("val/score", mode="min"), Keeper())
    trainer.fit(tiny_loader(), tiny_loader(), epochs=3)
    assert best == [("val/score", 5.0, 0), ("val/score", 4.0, 1)]


def test_a_second_fit_has_the_whole_patience_and_the_old_best():
    stopping = EarlyStopping("val/score", patience=2, mode="min")
    trainer = make_trainer(Teller([5.0, 6.0, 6.0, 5.5, 5.5, 4.0]), stopping)
    trainer.fit(tiny_loader(), tiny_loader(), epochs=9)
    assert trainer.clock.epochs == 3
    trainer.fit(tiny_loader(), tiny_loader(), epochs=9)
    assert trainer.clock.epochs == 5
    assert stopping.best == 5.0


def test_a_second_fit_goes_on_counting_if_the_first_was_not_stopped():
    stopping = EarlyStopping("val/score", patience=3, mode="min")
    trainer = make_trainer(Teller([5.0, 6.0, 6.0, 6.0, 6.0]), stopping)
    trainer.fit(tiny_loader(), tiny_loader(), epochs=2)
    trainer.fit(tiny_loader(), tiny_loader(), epochs=9)
    assert trainer.clock.epochs == 4


VALUES = [5.0, 4.0, 6.0, 9.0, 6.0, 6.0, 6.0]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_state_saved_in_mid_training_goes_on_as_if_never_interrupted(cut):
    """Model, optimizer and callback into fresh objects after ``cut`` epochs: the same end, bit for bit."""

    def stopping():
        return EarlyStopping("val/score", patience=4, mode="min", divergence=8.0, divergence_patience=2)

    whole = make_trainer(Teller(VALUES), stopping())
    whole.fit(tiny_loader(), tiny_loader(), epochs=9)
    first = make_trainer(Teller(VALUES), kept := stopping())
    first.fit(tiny_loader(), tiny_loader(), epochs=cut)
    second = make_trainer(Teller(VALUES[cut:]), fresh := stopping())
    second.model.load_state_dict(first.model.state_dict())
    second._training.optimizers[0].load_state_dict(copy.deepcopy(first._training.optimizers[0].state_dict()))
    fresh.load_state_dict(copy.deepcopy(kept.state_dict()))
    second.fit(tiny_loader(), tiny_loader(), epochs=9)
    assert cut + second.clock.epochs == whole.clock.epochs == 6
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_check_in_mid_epoch_counts_once_if_the_run_is_broken_off_after_it(tmp_path):
    def checked(*more):
        stopping, model = EarlyStopping("val/loss", patience=50), tiny_classifier()
        callbacks = [stopping, Checkpoint("1 step", to=tmp_path, background=False), *more]
        values = []
        stopping.check = lambda value, at="": values.append(at)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", seed=1)
        with contextlib.suppress(Oops):
            trainer.fit(tiny_loader(40), tiny_loader(), epochs=2, validate_every="3 steps", resume="auto")
        return values

    first = checked(Break("after_train_iter", 5))
    assert first == ["epoch 1, step 3"]
    assert checked() == ["epoch 2, step 6", "epoch 2, step 9"]


def test_whoever_saves_at_the_end_of_the_epoch_sees_this_check_counted():
    counts = []

    class Saver(Callback):
        order = Order.SAVE

        def after_epoch(self, run):
            counts.append(stopping.state_dict()["bad"])

    stopping = EarlyStopping("val/score", mode="min")
    make_trainer(Saver(), Teller([5.0, 6.0, 7.0]), stopping).fit(tiny_loader(), tiny_loader(), epochs=3)
    assert counts == [0, 1, 2]


def test_under_when_only_the_epochs_of_the_window_are_checked():
    stopping = EarlyStopping("val/score", patience=1, mode="min")
    trainer = make_trainer(Teller([5.0, 6.0, 7.0, 8.0]), When(stopping, start="2 epochs"))
    trainer.fit(tiny_loader(), tiny_loader(), epochs=4)
    assert trainer.clock.epochs == 4  # 7 is the first that is seen, 8 the first bad one
    assert stopping.bad == 1


def test_validate_alone_is_no_check():
    stopping = EarlyStopping("val/loss")
    make_trainer(stopping).validate(tiny_loader())
    assert stopping.best is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"patience": 0}, "at least 1"),
        ({"patience": True}, "at least 1"),
        ({"min_delta": -1}, "at least 0"),
        ({"min_delta": NAN}, "at least 0"),
        ({"mode": "up"}, '"min" or "max"'),
        ({"monitor": ""}, "names a metric"),
        ({"divergence_patience": 0}, "at least 1"),
        ({"divergence_patience": None}, "at least 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        EarlyStopping(**arguments)


def test_patience_in_a_loop_of_ones_own():
    patience = Patience(2, mode="max", min_delta=0.25)
    assert [patience.spent(value) for value in (1.0, 1.25, 1.5, 1.75, NAN, 1.75)] == [False] * 4 + [True, True]
    assert (patience.best, patience.bad) == (1.5, 3)
