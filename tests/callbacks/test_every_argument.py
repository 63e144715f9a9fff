"""Whatever is given to a ready callback: it is refused by name when the callback is made, or it can be used."""

from __future__ import annotations

import inspect
import linecache
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cadenza
from cadenza import Callback, Trainer, When
from cadenza.callbacks import ClassificationResults, GradientClip, accuracy
from cadenza.callbacks.rates.timetable import Placing
from cadenza.callbacks.showing.notify_channels import Command, Mail, Webhook
from cadenza.testing import tiny_classifier, tiny_loader

from .test_every_callback import READY, SERVICES

SOURCE = Path(cadenza.__file__).parent
WRONG = [[], {}, object(), "text", "", -1, float("nan"), float("inf"), 0, None, True, 1.5, [object()], (1, 2), [[]]]
NEEDED: dict[str, Any] = {
    "n": 2,
    "gamma": 0.5,
    "size": 1,
    "milestones": [1],
    "function": lambda progress: 1.0,
    "source": {"weight": torch.zeros(1)},
    "task": "classification",
    "at": "1 epoch",
    "change": lambda run: None,
    "limit": "1 hour",
    "modules": "0",
    "metrics": {"accuracy": accuracy},
    "package": ClassificationResults(),
    "project": "digits",
    "name": "first",
}
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    ("WeightAverage", "best"): {"monitor": "val/loss"},
    ("WeightAverage", "monitor"): {"best": 2},
    ("EMA", "steps"): {"warmup": "exponential"},
    ("GradientClip", "log"): {"norm": 1.0},
    ("GradientClip", "norm_type"): {"norm": 1.0},
    ("Schedule", "torch"): {"cadence": "step"},
    ("ExportCheck", "path"): {"keep": True},
}
"""What one argument cannot be without."""


def parameters(cls: type[Callback]) -> list[str]:
    found = []
    for name, parameter in inspect.signature(cls).parameters.items():
        found += list(Placing.__annotations__) if parameter.kind is parameter.VAR_KEYWORD else [name]
    return found


def given(cls: type[Callback], name: str, value: object) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a callback, all right but for one."""
    known = inspect.signature(cls).parameters
    rest = {one: NEEDED[one] for one, its in known.items() if its.default is its.empty and one in NEEDED}
    if cls.__name__ == "Multiscale" and name not in ("scales", "between"):
        rest["scales"] = (1.0,)
    if cls.__name__ == "Schedule" and name not in ("function", "torch"):
        rest["function"] = NEEDED["function"]
    rest |= TOGETHER.get((cls.__name__, name), {})
    if name == "channels":
        return [value], rest
    return [Command(["true"])] if cls.__name__ == "Notify" else [], {**rest, name: value}


def said_by_us(error: BaseException) -> bool:
    """Whether it was raised on purpose: by a raise of this library, and no KeyError or the like."""
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = traceback.tb_frame.f_code.co_filename
    return Path(file).is_relative_to(SOURCE) and linecache.getline(file, traceback.tb_lineno).strip().startswith(
        "raise"
    )


def made(cls: type[Callback], name: str) -> Iterator[tuple[object, Callback | Exception]]:
    for wrong in WRONG:
        positional, named = given(cls, name, wrong)
        try:
            yield wrong, cls(*positional, **named)
        except Exception as error:
            yield wrong, error


@pytest.mark.parametrize("cls", READY.values(), ids=READY)
def test_what_is_refused_is_refused_by_name_with_what_is_right(cls: type[Callback]) -> None:
    for name in parameters(cls):
        refused = [(wrong, error) for wrong, error in made(cls, name) if isinstance(error, Exception)]
        assert refused, f"{name} takes anything"
        for wrong, error in refused:
            gives = f"{name}={wrong!r} gives {error!r}"
            assert said_by_us(error), gives
            assert isinstance(error, ValueError | TypeError), gives
            assert re.search(rf"\b{name}\b", str(error)), f"{gives}, which does not say which argument"
            assert repr(wrong) in str(error), f"{gives}, which does not say what was given"
            assert len(str(error)) > len(name) + len(repr(wrong)) + 12, f"{gives}, which does not say what is right"


PARTS: dict[Any, dict[str, Any]] = {
    Mail: {"host": "localhost", "sender": "me@here.org", "to": "you@there.org"},
    Webhook: {"url": "https://hooks.example.org"},
    Command: {"arguments": ["true"]},
    ClassificationResults: {},
    When: {"callback": GradientClip(1.0), "start": "1 epoch"},
}


@pytest.mark.parametrize("cls", PARTS)
def test_what_callbacks_are_made_of_refuses_by_name_too(cls: Any) -> None:
    for name in inspect.signature(cls).parameters:
        refused = []
        for wrong in WRONG:
            try:
                cls(**{**PARTS[cls], name: wrong})
            except Exception as error:
                refused.append((wrong, error))
        assert refused, f"{name} takes anything"
        for wrong, error in refused:
            assert said_by_us(error), f"{name}={wrong!r} gives {error!r}"
            assert re.search(rf"\b{name}\b", str(error), re.I), f"{name}={wrong!r} gives {error!r}"


DEAR = SERVICES | {"ExportCheck", "Experiment", "BatchSizeFinder"}
"""An export, a service or a search for each; their own tests have them play."""


@pytest.mark.parametrize("name", [name for name in READY if name not in DEAR])
def test_what_is_taken_can_be_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = inspect.signature(READY[name]).parameters
    for argument in parameters(READY[name]):
        usual = known[argument].default if argument in known else None
        for wrong, callback in made(READY[name], argument):
            if not isinstance(callback, Exception) and wrong is not usual:
                error = fitted(callback)
                ours = error is None or said_by_us(error)
                assert ours, f"{argument}={wrong!r} is taken, and gives {error!r} in a fit"


def fitted(callback: Callback) -> Exception | None:
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[callback], device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # to warn of such an argument is right
        try:
            trainer.fit(tiny_loader(8), tiny_loader(4), epochs=1)
        except Exception as error:
            return error
    return None
