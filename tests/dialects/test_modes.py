"""Callbacks of all four systems and a native one, in each mode: who is called how often."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cadenza import Callback as Native
from cadenza import Trainer
from cadenza.callbacks import Accumulate
from cadenza.dialects import aitoolbox, fastai, orca, supergradients
from cadenza.testing import tiny_loader

from .rooms import trainer_with

HOOKS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "orca": (orca.Callback, ("before_run", "after_train_iter", "after_val_iter", "after_pred_iter", "after_run")),
    "loop": (aitoolbox.AbstractCallback, ("on_after_gradient_update", "on_after_optimizer_step", "on_batch_end",
                                          "on_epoch_end", "on_train_end")),
    "sg": (supergradients.Callback, ("on_train_batch_gradient_step_end", "on_train_batch_end",
                                     "on_validation_batch_end", "on_test_batch_end", "on_training_end")),
    "fastai": (fastai.Callback, ("on_train_begin", "on_step_begin", "on_step_end", "on_batch_end", "on_train_end")),
    "native": (Native, ("after_step", "after_train_iter", "after_val_iter", "after_error", "after_run")),
}  # fmt: skip


def five(told: Counter[str], *more: Any) -> Trainer:
    def telling(system: str, hook: str) -> Any:
        def method(self: Any, *handed: Any, **kwargs: Any) -> None:
            told[f"{system}.{hook}"] += 1

        return method

    made = []
    for system, (base, hooks) in HOOKS.items():
        kind = type(system, (base,), {hook: telling(system, hook) for hook in hooks})
        made.append(kind(system) if system == "loop" else kind())
    return trainer_with(*made, *more)


def test_accumulation_fires_the_hooks_of_a_step_at_real_steps_alone() -> None:
    told: Counter[str] = Counter()
    five(told, Accumulate(2)).fit(tiny_loader(40, 8), tiny_loader(16, 8), epochs=1)
    steps = ["loop.on_after_optimizer_step", "sg.on_train_batch_gradient_step_end", "native.after_step"]
    batches = ["loop.on_after_gradient_update", "loop.on_batch_end", "sg.on_train_batch_end", "orca.after_train_iter"]
    assert [told[name] for name in steps] == [3, 3, 3]  # two, two, and the last one alone
    assert [told[name] for name in batches] == [5, 5, 5, 5]
    assert (told["fastai.on_step_begin"], told["fastai.on_step_end"]) == (3, 5)  # as its original calls the latter
    assert told["fastai.on_batch_end"] == 5 + 2  # those of validation, too
    assert told["orca.after_val_iter"] == told["sg.on_validation_batch_end"] == told["native.after_val_iter"] == 2
    ends = ["orca.after_run", "loop.on_train_end", "sg.on_training_end", "fastai.on_train_end", "native.after_run"]
    assert [told[name] for name in ends] == [1] * 5


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("validate", {"orca.after_val_iter": 2, "sg.on_validation_batch_end": 2, "fastai.on_train_begin": 1,
                      "fastai.on_batch_end": 2, "native.after_val_iter": 2, "native.after_run": 1}),
        ("test", {"sg.on_test_batch_end": 2, "native.after_run": 1}),
        ("predict", {"orca.after_pred_iter": 2, "fastai.on_batch_end": 2, "native.after_run": 1}),
    ],
)  # fmt: skip
def test_each_system_is_called_as_its_original_in_other_modes(mode: str, expected: dict[str, int]) -> None:
    told: Counter[str] = Counter()
    getattr(five(told), mode)(tiny_loader(16, 8))
    assert dict(told) == expected


class Ends(Native):
    """Raises, or asks for a stop, in the second batch."""

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    def after_train_iter(self, run: Any) -> None:
        if run.batch_idx == 1 and self.raises:
            raise ZeroDivisionError
        if run.batch_idx == 1:
            run.stop("enough")


def test_an_exception_reaches_the_ends_that_the_originals_guarantee() -> None:
    told: Counter[str] = Counter()
    with pytest.raises(ZeroDivisionError):
        five(told, Ends(raises=True)).fit(tiny_loader(24, 8), epochs=2)
    ends = ["orca.after_run", "loop.on_train_end", "sg.on_training_end", "fastai.on_train_end", "native.after_error"]
    assert [told[name] for name in ends] == [0, 0, 1, 1, 1]


def test_a_stop_within_an_epoch_reaches_all_ends() -> None:
    told: Counter[str] = Counter()
    five(told, Ends(raises=False)).fit(tiny_loader(24, 8), tiny_loader(16, 8), epochs=2)
    ends = ["orca.after_run", "loop.on_train_end", "sg.on_training_end", "fastai.on_train_end", "native.after_run"]
    assert [told[name] for name in ends] == [1] * 5
    assert told["loop.on_epoch_end"] == 1
    assert told["orca.after_train_iter"] == told["loop.on_batch_end"] == told["sg.on_train_batch_end"] == 2
    assert told["orca.after_val_iter"] == 0  # a native stop in mid-epoch leaves validation out
