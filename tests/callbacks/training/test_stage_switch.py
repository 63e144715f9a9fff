"""StageSwitch: when the change is made, once, and again in a run that is resumed after its time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import cadenza
from cadenza.callbacks.training.stage_switch import StageSwitch
from cadenza.testing import check_callback, tiny_classifier, tiny_loader


class Note:
    """A change that writes down when it was made."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int, int]] = []

    def __call__(self, run: cadenza.Run) -> None:
        self.made.append((run.clock.epochs, run.clock.steps, run.clock.batches))


def trained(*callbacks: cadenza.Callback) -> cadenza.Trainer:
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


@pytest.mark.parametrize(
    ("at", "when"),
    [
        ("0 epochs", (0, 0, 0)),
        ("2 epochs", (2, 6, 6)),
        ("0 steps", (0, 0, 0)),
        ("4 steps", (1, 4, 4)),
        ("5 batches", (1, 5, 5)),
        ("25 samples", (1, 4, 4)),
    ],
)
def test_it_is_made_once_as_soon_as_the_clock_has_come_so_far(at: str, when: tuple[int, int, int]) -> None:
    note = Note()
    trained(StageSwitch(at, note)).fit(tiny_loader(20), epochs=4)
    assert note.made == [when]


def test_it_is_not_made_before_its_time() -> None:
    note = Note()
    trained(StageSwitch("3 epochs", note), StageSwitch("9 steps", note)).fit(tiny_loader(20), epochs=3)
    assert note.made == []


def test_steps_that_are_held_do_not_count() -> None:
    class Hold(cadenza.Callback):
        def before_train_iter(self, run: cadenza.Run) -> None:
            if run.batch_idx % 2 == 0:
                run.hold_step()

    note = Note()
    trained(Hold(), StageSwitch("3 steps", note)).fit(tiny_loader(32), epochs=3)
    assert note.made == [(1, 3, 6)]


def test_the_change_acts_from_there_on_as_in_a_loop_by_hand() -> None:
    def relax(run: cadenza.Run) -> None:
        run.criterion = nn.CrossEntropyLoss()
        run.optimizer.param_groups[0]["lr"] = 0.01

    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2)
    trainer = cadenza.Trainer(model, sgd, smooth, callbacks=[StageSwitch("2 epochs", relax)], device="cpu")
    trainer.fit(tiny_loader(20), epochs=4)

    other = tiny_classifier()
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    for epoch in range(4):
        criterion = smooth if epoch < 2 else nn.CrossEntropyLoss()
        sgd.param_groups[0]["lr"] = 0.1 if epoch < 2 else 0.01
        for inputs, targets in tiny_loader(20):
            criterion(other(inputs), targets).backward()
            sgd.step()
            sgd.zero_grad()
    assert torch.equal(model[0].weight, other[0].weight)


def test_a_new_train_loader_is_used_in_the_epoch_that_follows() -> None:
    def halve(run: cadenza.Run) -> None:
        run.train_loader = tiny_loader(8)

    trainer = trained(StageSwitch("1 epoch", halve))
    trainer.fit(tiny_loader(16), epochs=3)
    assert trainer.clock.batches == 2 + 1 + 1


@pytest.mark.parametrize("at", ["2 epochs", "5 steps"])
def test_a_resumed_run_that_starts_later_makes_it_again_before_it_trains(at: str) -> None:
    first_note = Note()
    first = trained(StageSwitch(at, first_note))
    first.fit(tiny_loader(20), epochs=3)
    assert len(first_note.made) == 1

    note, trace = Note(), []
    switch = StageSwitch(at, note)
    switch.load_state_dict(first.callbacks[0].state_dict())
    resumed = trained(switch)
    resumed.clock.load_state_dict(first.clock.state_dict())
    resumed.on("before_forward")(lambda run: trace.append(len(note.made)))
    resumed.fit(tiny_loader(20), epochs=2)
    assert note.made == [(3, 9, 9)]
    assert set(trace) == {1}


def test_each_later_fit_makes_it_again_at_its_beginning_and_another_trainer_in_its_time() -> None:
    note = Note()
    switch = StageSwitch("1 epoch", note)
    trainer = trained(switch)
    for _ in range(3):
        trainer.fit(tiny_loader(20), epochs=2)
    assert note.made == [(1, 3, 3), (2, 6, 6), (4, 12, 12)]
    trained(switch).fit(tiny_loader(20), epochs=2)
    assert note.made[3:] == [(1, 3, 3)]


def test_a_run_resumed_before_the_first_iteration_after_its_time_validates_without_it() -> None:
    """The change is due at 3 steps and made in the iteration after: a validation in between does not see it."""
    note = Note()
    switch = StageSwitch("3 steps", note)
    switch.load_state_dict({"made": False})
    seen: list[int] = []
    trainer = trained(switch)
    trainer.clock.steps = 3
    trainer.on("before_epoch")(lambda run: seen.append(len(note.made)))
    trainer.fit(tiny_loader(20), epochs=1)
    assert seen == [0]
    assert note.made == [(0, 3, 0)]


def test_a_change_that_failed_is_made_in_the_next_fit() -> None:
    made: list[int] = []

    def fail_once(run: cadenza.Run) -> None:
        made.append(run.epoch)
        if len(made) == 1:
            raise OSError("no such file")

    trainer = trained(StageSwitch("1 epoch", fail_once))
    with pytest.raises(OSError, match="no such file"):
        trainer.fit(tiny_loader(20), epochs=2)
    trainer.fit(tiny_loader(20), epochs=2)
    assert made == [1, 1]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="change must be a function that takes the run, not 'change'"):
        StageSwitch("1 epoch", "change")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a duration"):
        StageSwitch("soon", Note())


def test_explain_names_the_change() -> None:
    def switch_loss(run: cadenza.Run) -> None:
        del run

    assert StageSwitch("285 epochs", switch_loss).explain() == "switch_loss after 285 epochs"
    assert StageSwitch("1 step", Note()).explain() == "Note after 1 step"


@pytest.mark.parametrize("make", [lambda: StageSwitch("1 batch", Note())], ids=["batches"])
def test_it_behaves_as_a_callback_should(make: Any) -> None:
    check_callback(make)
