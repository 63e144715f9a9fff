"""The adapter that all dialects share, shown on a small dialect of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from cadenza import Callback as Native
from cadenza import CallbackError, Order, Trainer, not_a_point
from cadenza.dialects import dialect
from cadenza.dialects.adapter import Adapter, Foreign, Section
from cadenza.dialects.facade import Facade
from cadenza.dialects.table import Ask, Attribute, Dialect, Hook
from cadenza.testing import tiny_classifier, tiny_loader

SAMPLE = Dialect(
    name="sample",
    original="Sample 1.0",
    handed="state",
    hooks=(
        Hook("on_start", ("before_run",), "Only in fit.", ("state",), modes=("fit",)),
        Hook("on_batch", ("before_train_iter", "before_val_iter"), "", ("state",), calls="on_any"),
        Hook("on_any", (), "", ("state",)),
        Hook("on_finish", ("after_run",), "", ()),
    ),
    attributes=(Attribute("step", "clock.batches", "Counted from 0."), Attribute("halt", "")),
    requests=(Ask("state.halt()", ("stop",)),),
    refused={"on_quantize": "quantisation is not carried", "cloud": "nothing is uploaded"},
    prefixes=("on_",),
)


class State(Facade, dialect=SAMPLE):
    def halt(self) -> None:
        self.run.stop("sample")


class SampleSection(Section):
    dialect = SAMPLE
    facade_class = State


class SampleAdapter(Adapter):
    def order_of(self, foreign: Any) -> int:
        return int(getattr(foreign, "place", 0))


class Sample(Foreign):
    __dialect_base__ = True
    dialect = SAMPLE
    section_class = SampleSection
    adapter_class = SampleAdapter
    place: ClassVar[int] = 0

    def on_start(self, state: State) -> None: ...
    def on_batch(self, state: State) -> None:
        self.on_any(state)

    def on_any(self, state: State) -> None: ...
    def on_finish(self) -> None: ...


def trainer_with(*callbacks: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")


class Told(Sample):
    def __init__(self, told: list[str], name: str, place: int = 0) -> None:
        self.told, self.label, self.place = told, name, place  # type: ignore[misc]

    def on_start(self, state: State) -> None:
        self.told.append(f"{self.label} start")

    def on_any(self, state: State) -> None:
        self.told.append(f"{self.label} {state.step}")

    def on_finish(self) -> None:
        self.told.append(f"{self.label} finish")


class ToldNative(Native):
    def __init__(self, told: list[str], order: int = Order.UPDATE) -> None:
        self.told, self.order = told, order

    def before_train_iter(self, run: Any) -> None:
        self.told.append("native")


def test_hooks_are_called_at_their_points_and_by_delegation() -> None:
    told: list[str] = []
    trainer_with(Told(told, "a")).fit(tiny_loader(16), tiny_loader(8), epochs=1)
    assert told == ["a start", "a 0", "a 1", "a 2", "a finish"]  # the last is the batch of validation


def test_a_hook_plays_only_in_its_modes() -> None:
    told: list[str] = []
    trainer = trainer_with(Told(told, "a"))
    trainer.validate(tiny_loader(8))
    assert told == ["a 0", "a finish"]


def test_order_is_counted_from_that_of_native_callbacks_with_ties_in_list_order() -> None:
    told: list[str] = []
    callbacks = [Told(told, "late", 5), ToldNative(told), Told(told, "tie"), Told(told, "early", -5)]
    trainer_with(*callbacks).fit(tiny_loader(8), epochs=1)
    assert [line for line in told if not line.endswith(("start", "finish"))] == ["early 0", "native", "tie 0", "late 0"]


def test_the_given_list_is_left_alone_and_callbacks_are_added_and_removed() -> None:
    told: list[str] = []
    given: list[Any] = [Told(told, "a")]
    trainer = trainer_with(*given)
    assert len(given) == 1
    second = Told(told, "b")
    trainer.add(second)
    assert len([one for one in trainer.callbacks if isinstance(one, Section)]) == 1
    trainer.remove(given[0])
    trainer.fit(tiny_loader(8), epochs=1)
    assert told == ["b start", "b 0", "b finish"]
    with pytest.raises(CallbackError, match="stands twice"):
        trainer.add(second)
    with pytest.raises(ValueError, match="not among the callbacks"):
        trainer.remove(given[0])


def test_all_callbacks_of_a_dialect_are_handed_one_object() -> None:
    seen: list[State] = []

    class Keep(Sample):
        def on_start(self, state: State) -> None:
            seen.append(state)

    trainer = trainer_with(Keep(), Keep())
    trainer.fit(tiny_loader(8), epochs=1)
    trainer.fit(tiny_loader(8), epochs=1)
    assert len(seen) == 4
    assert len({id(state) for state in seen}) == 1
    other = trainer_with(Keep())
    other.fit(tiny_loader(8), epochs=1)
    assert seen[-1] is not seen[0]


def test_a_request_becomes_ours() -> None:
    class Halt(Sample):
        def on_any(self, state: State) -> None:
            state.halt()

    trainer = trainer_with(Halt())
    trainer.fit(tiny_loader(), epochs=3)
    assert (trainer.clock.batches, trainer.clock.epochs) == (1, 0)


def test_an_error_names_the_foreign_class_and_the_point() -> None:
    class Broken(Sample):
        def on_start(self, state: State) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        trainer_with(Broken()).fit(tiny_loader(8), epochs=1)
    assert any("Broken at before_run" in note for note in caught.value.__notes__)


# What is refused -----------------------------------------------------------------------------------------------------


class Misspelt(Sample):
    def on_strat(self, state: State) -> None: ...


class NotCarried(Sample):
    def on_quantize(self, state: State) -> None: ...


class WrongSignature(Sample):
    def on_start(self) -> None: ...  # type: ignore[override]


class Near(Sample):
    def onn_finish(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Misspelt, r"sample: there is no hook 'on_strat' here; the nearest is 'on_start' \(Misspelt.on_strat\)"),
        (NotCarried, "sample: on_quantize is not carried: quantisation is not carried"),
        (WrongSignature, r"sample: WrongSignature.on_start\(\).* is called as on_start\(state\)"),
        (Near, "sample: there is no hook 'onn_finish' here; the nearest is 'on_finish'"),
    ],
)
def test_what_would_be_ignored_is_refused_at_registration(kind: type[Sample], message: str) -> None:
    with pytest.raises(CallbackError, match=message):
        trainer_with(kind())
    with pytest.raises(CallbackError, match=message):
        trainer_with().add(kind())  # type: ignore[arg-type]


def test_a_helper_that_is_marked_passes() -> None:
    class Helper(Sample):
        @not_a_point
        def on_hit(self) -> None: ...

    trainer = trainer_with(Helper())
    assert any(getattr(one, "foreign", None).__class__ is Helper for one in trainer.callbacks)


def test_a_class_in_place_of_an_instance_is_refused() -> None:
    with pytest.raises(CallbackError, match="is a class; put an instance"):
        trainer_with(Told)


def attribute_error(act: Any) -> str:
    said: list[str] = []

    class Reads(Sample):
        def on_start(self, state: State) -> None:
            with pytest.raises(AttributeError) as caught:
                act(state)
            said.append(str(caught.value))

    trainer_with(Reads()).fit(tiny_loader(8), epochs=1)
    return said[0]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda state: state.steps, "sample: there is no attribute 'steps' here; the nearest is 'step'"),
        (lambda state: state.cloud, "sample: cloud is not carried: nothing is uploaded"),
        (lambda state: setattr(state, "step", 1), "sample: step is read from the run (Counted from 0.)"),
        (lambda state: setattr(state, "cloud", 1), "sample: cloud is not carried"),
    ],
)
def test_an_attribute_that_is_not_carried_raises(act: Any, message: str) -> None:
    assert attribute_error(act).startswith(message)


def test_attributes_of_the_users_own_stay() -> None:
    seen = []

    class Own(Sample):
        def on_start(self, state: State) -> None:
            state.colour, state.steps = "red", 7

        def on_any(self, state: State) -> None:
            seen.append((state.colour, state.steps))

    trainer_with(Own()).fit(tiny_loader(8), epochs=1)
    assert seen == [("red", 7)]


@pytest.mark.parametrize(
    ("system", "written", "meant"),
    [
        ("supergradients", "on_test_begin", "on_test_start"),
        ("supergradients", "on_validation_begin", "on_validation_loader_start"),
        ("supergradients", "on_epoch_start", "on_train_loader_start"),
        ("supergradients", "on_after_backward", "on_train_batch_backward_end"),
        ("orca", "on_validation_epoch_end", "after_val_epoch"),
        ("orca", "on_test_start", "before_val_epoch"),
        ("orca", "on_train_batch_strat", "before_train_iter"),
        ("fastai", "on_train_start", "on_train_begin"),
        ("fastai", "on_before_backward", "on_backward_begin"),
        ("aitoolbox", "on_fit_end", "on_train_end"),
        ("aitoolbox", "on_validation_start", "on_epoch_begin"),
    ],
)
def test_the_nearest_hook_is_chosen_by_meaning(system: str, written: str, meant: str) -> None:
    assert dialect(system).nearest_hook(written) == meant


def test_rows_that_name_no_point_or_request_are_refused() -> None:
    with pytest.raises(ValueError, match="names 'before_lunch', which is no point"):
        Hook("on_x", ("before_lunch",))
    with pytest.raises(ValueError, match="names 'pause', which is no request"):
        Ask("x", ("pause",))


def test_state_is_that_of_the_foreign_object() -> None:
    class Counts(Sample):
        def __init__(self) -> None:
            self.count = 0

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    one, two = Counts(), Counts()
    one.count = 7
    saved = trainer_with(one).callbacks[1].state_dict()
    trainer_with(two).callbacks[1].load_state_dict(saved)
    assert two.count == 7
