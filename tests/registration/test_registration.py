"""Whatever would be silently ignored is refused at registration, with class, method and nearest valid name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback, CallbackError, MainCallback, Trainer, When, not_a_point
from cadenza.points import POINTS
from cadenza.registration.suggestions import FOREIGN
from cadenza.testing import Recorder, tiny_classifier


def made(*callbacks: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def callback_with(base: type = Callback, **members: Any) -> Any:
    """An instance of a class ``Mine`` with these methods and attributes."""
    return type("Mine", (base,), members)()


def refused(callback: Any, *words: str) -> str:
    """It is refused when the trainer is made and when it is added, in the same words."""
    with pytest.raises(CallbackError) as first:
        made(callback)
    trainer = made()
    with pytest.raises(CallbackError) as second:
        trainer.add(callback)
    assert trainer.callbacks == ()
    assert str(first.value) == str(second.value)
    for word in words:
        assert word in str(first.value)
    return str(first.value)


def plain(self: Any, run: Any) -> None:
    """A method that any point can have."""


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("after_epock", "after_epoch"),
        ("before_trian_iter", "before_train_iter"),
        ("around_fwd", "around_forward"),
        ("on_iter_los", "on_iter_loss"),
        ("after_validation_epoch", "after_val_epoch"),
    ],
)
def test_a_name_that_looks_like_a_point(wrong: str, near: str) -> None:
    refused(callback_with(**{wrong: plain}), f"Mine.{wrong}", "looks like a point and is none", near, "not_a_point")


@pytest.mark.parametrize("foreign", sorted(FOREIGN))
def test_names_from_elsewhere_are_translated(foreign: str) -> None:
    refused(callback_with(**{foreign: plain}), f"Mine.{foreign}", f"did you mean {FOREIGN[foreign]}?")


def test_a_name_far_from_all_says_where_to_look() -> None:
    refused(callback_with(on_zzzzzzzz=plain), "Mine.on_zzzzzzzz", "cadenza points")


def test_a_helper_can_be_marked() -> None:
    callback = callback_with(on_hit=not_a_point(lambda self, target, force: None), after_epoch=plain)
    assert made(callback).callbacks == (callback,)


def test_what_cannot_be_called_is_no_method() -> None:
    callback = callback_with(on_gpu=True, after_hours="late", on_call=property(lambda self: 1))
    assert made(callback).callbacks == (callback,)


@pytest.mark.parametrize("value", [3, None, "late", property(lambda self: 1)], ids=["3", "None", "text", "property"])
def test_a_point_that_cannot_be_called(value: Any) -> None:
    refused(callback_with(after_epoch=value), "Mine.after_epoch is ", "cannot be called", "def after_epoch(self, run)")


def test_a_state_that_would_never_be_taken_back() -> None:
    refused(callback_with(state_dict=lambda self: {"n": 1}), "Mine.state_dict", "load_state_dict(self, state)")


def test_misspelt_methods_of_bases_and_mixins_are_seen() -> None:
    class Base(Callback):
        def after_epock(self, run: Any) -> None: ...

    class Mixin:
        def before_stp(self, run: Any) -> None: ...

    refused(type("Mine", (Base,), {})(), "Base.after_epock", "after_epoch")
    refused(type("Mine", (Mixin, Callback), {})(), "Mixin.before_stp", "before_step")


def test_a_mixin_that_comes_too_late_to_be_played() -> None:
    class Mixin:
        def after_epoch(self, run: Any) -> None: ...

    refused(type("Mine", (Callback, Mixin), {})(), "after_epoch", "Mixin")


def test_a_point_set_on_the_instance_is_played_or_refused() -> None:
    class Mine(Callback):
        def __init__(self, act: Callable[[Any], None]) -> None:
            self.after_epoch = act  # type: ignore[method-assign]

    seen: list[int] = []
    try:
        trainer = made(Mine(lambda run: seen.append(run.epoch)))
    except CallbackError:
        return
    trainer.fit([(torch.zeros(1, 4), torch.zeros(1).long())], epochs=1)
    assert seen == [0]


def test_a_callback_inside_when_is_checked_too() -> None:
    refused(When(callback_with(after_epock=plain), every="2 steps"), "Mine.after_epock", "after_epoch")
    refused(When(callback_with(after_epoch=lambda self: None), every="2 steps"), "Mine.after_epoch", "run")


# Signatures ----------------------------------------------------------------------------------------------------------


async def asynchronous(self: Any, run: Any) -> None: ...


def generator(self: Any, run: Any) -> Iterator[None]:
    yield


SIGNATURES: dict[str, Any] = {
    "no run": lambda self: None,
    "two more": lambda self, run, other: None,
    "by keyword only": lambda self, *, run: None,
    "asynchronous": asynchronous,
    "yields": generator,
    "static without run": staticmethod(lambda: None),
    "class method without run": classmethod(lambda cls: None),
}


@pytest.mark.parametrize("form", SIGNATURES)
def test_wrong_signatures_are_refused_with_the_right_one(form: str) -> None:
    text = refused(callback_with(after_epoch=SIGNATURES[form]), "Mine.after_epoch")
    assert {"asynchronous": "asynchronous", "yields": "around_"}.get(form, "def after_epoch(self, run)") in text


GOOD: dict[str, Any] = {
    "plain": plain,
    "with a default": lambda self, run, more=1: None,
    "with rest": lambda self, *args, **kwargs: None,
    "static": staticmethod(lambda run: None),
    "class method": classmethod(lambda cls, run: None),
    "wrapped": functools.wraps(plain)(lambda *args: None),
    "other name": lambda this, r: None,
}


@pytest.mark.parametrize("form", GOOD)
def test_signatures_that_work(form: str) -> None:
    trainer = made(callback_with(after_epoch=GOOD[form]))
    trainer.fit([(torch.zeros(1, 4), torch.zeros(1).long())], epochs=1)
    assert trainer.clock.epochs == 1


def test_every_point_takes_a_method_of_its_name() -> None:
    behaviours = {name for name in POINTS if name.startswith("on_")}
    callback = callback_with(**{name: plain for name in POINTS if name not in behaviours})
    assert set(callback.plays()) == POINTS.keys() - behaviours
    made(callback, callback_with(MainCallback, **dict.fromkeys(behaviours, plain)))


# What is in the list -------------------------------------------------------------------------------------------------


def test_a_class_in_place_of_an_instance() -> None:
    refused(Recorder, "Recorder is a class", "Recorder()")


@pytest.mark.parametrize(
    "wrong",
    [plain, lambda run: None, 3, "after_epoch", None],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_what_is_no_callback(wrong: Any) -> None:
    text = refused(wrong, "is not a callback", "cadenza.Callback")
    assert ("trainer.on" in text) == callable(wrong)


def test_a_scheduler_among_the_callbacks_is_told_its_place() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    refused(torch.optim.lr_scheduler.StepLR(optimizer, 1), "is not a callback", "Trainer(..., scheduler=...)")


def test_one_instance_twice() -> None:
    recorder = Recorder()
    with pytest.raises(CallbackError, match="Recorder stands twice"):
        made(recorder, recorder)


def test_one_instance_beside_itself_in_a_window() -> None:
    recorder = Recorder()
    with pytest.raises(CallbackError, match=r"Recorder.*twice"):
        made(recorder, When(recorder, every="2 steps"))


def test_the_list_is_never_changed() -> None:
    callbacks: list[Callback] = [callback_with(order=500), callback_with(order=0)]
    before = list(callbacks)
    model = tiny_classifier()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), callbacks=callbacks)
    trainer.add(Recorder())
    assert callbacks == before
    callbacks.clear()
    assert len(trainer.callbacks) == 3


@dataclass
class Counter(Callback):
    """A callback as a dataclass, which compares by value and has no hash."""

    times: int = 0

    def after_epoch(self, run: Any) -> None:
        self.times += 1


def test_callbacks_may_be_dataclasses_and_equal_to_each_other() -> None:
    one, two = Counter(), Counter()
    trainer = made(one, two)
    trainer.fit([(torch.zeros(1, 4), torch.zeros(1).long())], epochs=2)
    assert (one.times, two.times) == (2, 2)
    trainer.remove(two)
    assert trainer.callbacks[0] is one


# Owners and declarations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [name for name in POINTS if name.startswith("on_")])
def test_a_behaviour_belongs_to_the_main_callback(behaviour: str) -> None:
    refused(callback_with(**{behaviour: plain}), f"Mine.{behaviour}", "MainCallback")


def test_a_function_at_a_behaviour_would_never_be_called() -> None:
    for behaviour in (name for name in POINTS if name.startswith("on_")):
        with pytest.raises(CallbackError, match="MainCallback"):
            made().on(behaviour)(lambda run: None)
    refused(callback_with(plays=lambda self: {"on_iter_loss": plain}), "on_iter_loss", "MainCallback")


def test_two_owners_of_the_behaviours() -> None:
    one, two = callback_with(MainCallback, name="First"), callback_with(MainCallback, name="Second")
    with pytest.raises(CallbackError, match="First and Second both own the behaviours"):
        made(one, two)


@pytest.mark.parametrize(("one", "two"), [("lr", "lr"), ("lr", "lr[1]"), ("lr[0]", "lr"), ("lr[0]", "lr[0]")])
def test_two_owners_of_one_thing(one: str, two: str) -> None:
    first, second = callback_with(owns={one}, name="First"), callback_with(owns={two}, name="Second")
    with pytest.raises(CallbackError, match="First and Second both own"):
        made(first, second)
    trainer = made(first)
    with pytest.raises(CallbackError, match="First and Second both own"):
        trainer.add(second)
    assert trainer.callbacks == (first,)


def test_owners_of_different_things() -> None:
    owners = [callback_with(owns=owned) for owned in ({"lr[0]"}, {"lr[1]"}, {"lrs", "weights"})]
    assert made(*owners).callbacks == tuple(owners)


def test_two_states_under_one_name() -> None:
    def stateful(**more: Any) -> Any:
        return callback_with(state_dict=lambda self: {"a": 1}, load_state_dict=lambda self, state: None, **more)

    with pytest.raises(CallbackError, match=r"under the name 'Mine'.*\.name"):
        made(stateful(), stateful())
    made(stateful(), stateful(name="Other"), callback_with())


def test_two_states_under_one_name_that_are_empty_yet() -> None:
    """An average that begins with the first epoch would overwrite the other in every checkpoint."""

    def empty(**more: Any) -> Any:
        return callback_with(state_dict=lambda self: {}, load_state_dict=lambda self, state: None, **more)

    with pytest.raises(CallbackError, match=r"under the name 'Mine'.*\.name"):
        made(empty(), empty())
    with pytest.raises(CallbackError, match="keep their state under the name"):
        made(When(empty(), every="1 epoch"), When(empty(), every="1 epoch"))
    made(empty(), empty(name="Other"), When(callback_with(), every="1 epoch"), When(callback_with(), every="1 epoch"))


WRONG_DECLARATIONS = [
    ("order", "first"),
    ("order", 1.5),
    ("stages", "train"),
    ("stages", {"training"}),
    ("stages", set()),
    ("owns", "lr"),
    ("owns", ["lr"]),
    ("ranks", "rank0"),
    ("ranks", [0]),
    ("ranks", {"main"}),
    ("asks", {"skip_everything"}),
    ("asks", "skip_batch"),
    ("agree", "most"),
    ("mode", "lower"),
    ("monitor", 3),
    ("name", 3),
    ("name", ""),
]


@pytest.mark.parametrize(("what", "value"), WRONG_DECLARATIONS)
def test_wrong_declarations_are_refused_with_what_they_must_be(what: str, value: Any) -> None:
    refused(callback_with(**{what: value}), f".{what} = {value!r}", "it must be")


def test_when_the_learning_rate_is_set() -> None:
    refused(MainCallback(lr_every="batch"), "MainCallback.lr_every = 'batch'", '"epoch" or "iter"')
