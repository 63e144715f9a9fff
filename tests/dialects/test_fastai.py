"""fastai's events: order, keywords, what is returned, flags, `_order`, and what is injected."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from cadenza import CallbackError
from cadenza.dialects.fastai import DIALECT, Callback
from cadenza.testing import tiny_classifier, tiny_loader

from .documents import trace
from .rooms import same, trainer_with, weights

BLOG_ONLY = {"on_loss_end", "on_step_begin"}
EVENTS = [row.name for row in DIALECT.hooks if row.points and row.name not in BLOG_ONLY]


def recorder(told: list[Any], answers: dict[str, Any] | None = None, names: list[str] | None = None) -> Any:
    """A callback that overrides every event of the original, tells, and returns what ``answers`` has for it."""

    def event(name: str) -> Any:
        def method(self: Any, **kwargs: Any) -> Any:
            told.append((name, kwargs))
            answer = (answers or {}).get(name)
            return answer(kwargs) if callable(answer) else answer

        return method

    kind = type("Recorder", (Callback,), {name: event(name) for name in (names or EVENTS)})
    return kind()


def names_of(told: list[Any]) -> list[str]:
    return [name for name, _ in told]


def flagged(told: list[Any]) -> list[str]:
    """As the recording writes it: the event, and which kind of batch the flag says."""
    return [name + ({True: " train", False: " valid"}.get(values.get("train"), "")) for name, values in told]


def test_the_trace_of_the_original_line_by_line() -> None:
    told: list[Any] = []
    trainer_with(recorder(told)).fit(tiny_loader(), tiny_loader(), epochs=2)
    assert flagged(told) == trace("fastai1-fit-validate.txt")


def test_the_keywords_of_the_original_line_by_line() -> None:
    told: list[Any] = []
    trainer_with(recorder(told)).fit(tiny_loader(), tiny_loader(), epochs=2)
    first: dict[str, list[str]] = {}
    for name, values in told:
        first.setdefault(name, sorted(values))
    assert [f"{name}: {' '.join(keys)}" for name, keys in first.items()] == trace("fastai1-keywords.txt")
    for name, keys in first.items():
        row = DIALECT.hook(name)
        assert row is not None
        assert set(row.arguments) == set(keys), name


def test_hooks_are_told_the_values_that_fastai_tells_them() -> None:
    told: list[Any] = []
    trainer = trainer_with(recorder(told))
    trainer.fit(tiny_loader(16), tiny_loader(8), epochs=2)
    ends = [values for name, values in told if name == "on_batch_end"]
    assert [(v["epoch"], v["iteration"], v["num_batch"], v["train"]) for v in ends] == [
        *((0, 0, 0, True), (0, 1, 1, True), (0, 2, 2, False)),
        *((1, 2, 0, True), (1, 3, 1, True), (1, 4, 2, False)),
    ]
    assert [values["last_metrics"] for name, values in told if name == "on_epoch_end"] == [
        [value] for value in trainer.history["val/loss"]
    ]
    assert told[-1][1]["exception"] is False
    assert all(values["n_epochs"] == 2 for _, values in told)
    assert not ends[0]["last_loss"].requires_grad
    told.clear()
    trainer.fit(tiny_loader(8), epochs=1)  # numbers begin anew in each fit
    assert [(v["epoch"], v["iteration"]) for name, v in told if name == "on_batch_end"] == [(0, 0)]
    assert [v["last_metrics"] for name, v in told if name == "on_epoch_end"] == [[None]]


def test_the_smooth_loss() -> None:
    told: list[Any] = []
    trainer_with(recorder(told)).fit(tiny_loader(), epochs=1)
    moving, expected = 0.0, []
    backward = [values for name, values in told if name == "on_backward_begin"]
    for count, values in enumerate(backward, start=1):
        moving = 0.98 * moving + 0.02 * values["last_loss"].item()
        expected.append(moving / (1 - 0.98**count))
    assert [float(values["smooth_loss"]) for values in backward] == pytest.approx(expected, rel=1e-4)


def test_validate_and_predict() -> None:
    told: list[Any] = []
    trainer = trainer_with(recorder(told))
    trainer.validate(tiny_loader(8))
    assert flagged(told) == [
        *("on_train_begin", "on_epoch_begin"),
        *("on_batch_begin valid", "on_loss_begin valid", "on_batch_end valid", "on_epoch_end valid"),
    ]
    told.clear()
    trainer.predict(tiny_loader(8))
    assert names_of(told) == ["on_batch_begin", "on_loss_begin", "on_batch_end"]


def test_test_batches_are_not_shown() -> None:
    told: list[Any] = []
    trainer_with(recorder(told)).fit(tiny_loader(8), epochs=1, test_loaders=tiny_loader(8))
    assert names_of(told).count("on_batch_begin") == 1


def test_on_train_end_is_called_after_an_exception_with_it() -> None:
    told: list[Any] = []

    def fail(values: Any) -> None:
        raise ZeroDivisionError("planned")

    with pytest.raises(ZeroDivisionError):
        trainer_with(recorder(told, {"on_backward_end": fail})).fit(tiny_loader(), epochs=1)
    assert names_of(told)[-2:] == ["on_backward_end", "on_train_end"]
    assert isinstance(told[-1][1]["exception"], ZeroDivisionError)


# Order and registration ----------------------------------------------------------------------------------------------


def test_order_is_ascending_and_stable() -> None:
    told: list[str] = []

    def named(name: str, order: int) -> Any:
        return type(name, (Callback,), {"_order": order, "on_batch_begin": lambda self, **kwargs: told.append(name)})()

    callbacks = [named("a5", 5), named("b5", 5), named("first", -30), named("last", 999), named("zero", 0)]
    trainer_with(*callbacks).fit(tiny_loader(8), epochs=1)
    assert told == ["first", "zero", "a5", "b5", "last"]


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("on_batch_strat", lambda self, **kwargs: None, "fastai: there is no hook 'on_batch_strat' here; the nearest"),
        ("on_validate_begin", lambda self, **kwargs: None, "fastai: there is no hook 'on_validate_begin'"),
        ("on_batch_begin", lambda self, last_output: None, "wants 'last_output', which the state does not have there"),
        ("on_epoch_end", lambda self, x, /, **kwargs: None, "is called with keywords; 'x' cannot be one"),
    ],
)
def test_what_is_refused(name: str, method: Any, message: str) -> None:
    with pytest.raises(CallbackError, match=message):
        trainer_with(type("Mine", (Callback,), {name: method})())


def test_the_order_must_be_a_number() -> None:
    with pytest.raises(CallbackError, match="_order is a whole number"):
        trainer_with(type("Mine", (Callback,), {"_order": "first"})())


# The blog ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "batches", "steps", "unchanged"),
    [
        ("on_epoch_begin", 0, 0, True),
        ("on_batch_begin", 3, 0, True),
        ("on_loss_end", 3, 0, True),
        ("on_step_begin", 3, 0, True),
        ("on_step_end", 3, 3, False),
    ],
)
def test_a_plain_skip(event: str, batches: int, steps: int, unchanged: bool) -> None:
    kind = type("Skips", (Callback,), {event: lambda self: True})
    trainer = trainer_with(kind())
    before = weights(trainer.model)
    trainer.fit(tiny_loader(), epochs=1)
    assert (trainer.clock.batches, trainer.clock.steps) == (batches, steps)
    assert same(before, weights(trainer.model)) is unchanged


def test_a_skip_from_step_end_keeps_the_gradients() -> None:
    trainer = trainer_with(type("Skips", (Callback,), {"on_step_end": lambda self: True})())
    trainer.fit(tiny_loader(8), epochs=1)
    assert next(trainer.model.parameters()).grad is not None


def test_a_skip_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a skip from on_backward_end means nothing; it does from on_epoch_begin"):
        trainer_with(type("Skips", (Callback,), {"on_backward_end": lambda self: True})()).fit(tiny_loader(8), epochs=1)


@pytest.mark.parametrize("hook", ["on_batch_end", "on_epoch_end"])
def test_a_skip_after_the_last_action_has_no_effect_as_in_the_loop_of_the_blog(hook: str) -> None:
    trainer, plain = trainer_with(type("Skips", (Callback,), {hook: lambda self: True})()), trainer_with()
    for one in (trainer, plain):
        one.fit(tiny_loader(), epochs=2)
    assert same(weights(trainer.model), weights(plain.model))


def test_on_step_end_of_the_blog_is_called_although_its_step_was_skipped() -> None:
    told: list[str] = []
    space = {
        "on_step_begin": lambda self: told.append("begin") or True,
        "on_step_end": lambda self: told.append("end"),
        "on_batch_end": lambda self: told.append("batch"),
    }
    trainer_with(type("Skips", (Callback,), space)()).fit(tiny_loader(8), epochs=1)
    assert told == ["begin", "end", "batch"]


def test_model_and_optimizer_are_injected_and_a_model_can_be_replaced() -> None:
    seen: list[Any] = []

    class Wrap(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module, self.calls = module, 0

        def forward(self, inputs: Any) -> Any:
            self.calls += 1
            return self.module(inputs)

    class Replaces(Callback):
        def on_train_begin(self, **kwargs: Any) -> None:
            seen.append(self.model)
            self.model = Wrap(self.model)
            self.optimizer.lr = 0.5

        def on_train_end(self, **kwargs: Any) -> None:
            seen.append(self.model.calls)

    trainer = trainer_with(Replaces())
    for _ in range(2):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert seen == [trainer.model, 4, trainer.model, 4]
    assert isinstance(trainer.model, nn.Sequential)
    assert trainer._training.optimizers[0].param_groups[0]["lr"] == 0.5


def test_a_callback_with_a_model_of_its_own_keeps_it() -> None:
    teacher = tiny_classifier(seed=7)

    class Teaches(Callback):
        def __init__(self) -> None:
            self.model = teacher

        def on_train_begin(self, **kwargs: Any) -> None:
            assert self.model is teacher
            self.model = tiny_classifier(seed=8)

    trainer = trainer_with(Teaches())
    plain = trainer_with()
    for one in (trainer, plain):
        one.fit(tiny_loader(), epochs=1)
    assert same(weights(trainer.model), weights(plain.model))
    with pytest.raises(AttributeError, match=r"self\.model is there while a run goes on"):
        Callback().model
    with pytest.raises(AttributeError, match="an optimizer has lr, mom, beta and wd to set, not 'learning_rate'"):
        trainer_with(type("Sets", (Callback,), {"on_train_begin": sets_wrong})()).fit(tiny_loader(8), epochs=1)


def sets_wrong(self: Any, **kwargs: Any) -> None:
    self.optimizer.learning_rate = 1.0


def test_state_and_representation() -> None:
    class Counts(Callback):
        state_in_checkpoint = True
        not_min = ("big",)

        def __init__(self) -> None:
            self.count, self.big = 3, "much"

    one = Counts()
    trainer = trainer_with(one)
    assert one.get_state() == {"count": 3}
    assert one.get_state(minimal=False) == {"count": 3, "big": "much"}
    assert repr(one) == "Counts\ncount: 3, big: much"
    assert trainer.callbacks[1].state_dict() == {"count": 3}
    other = Counts()
    trainer_with(other).callbacks[1].load_state_dict({"count": 9})
    assert other.count == 9


def test_the_progress_bar_writes_and_does_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    def write(values: Any) -> None:
        values["pbar"].write("hello")
        with pytest.raises(AttributeError, match="pbar has write"):
            values["pbar"].child

    trainer_with(recorder([], {"on_train_begin": write})).fit(tiny_loader(8), epochs=1)
    assert capsys.readouterr().out == "hello\n"
