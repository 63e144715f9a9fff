"""What holds for every ready callback. The list is found, so a new one is tested the day it is added."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import cadenza.callbacks
import cadenza.experiment
from cadenza import Callback, CallbackError, MainCallback
from cadenza.callbacks.showing.notify_channels import Command
from cadenza.distributed.agreement.compare_setup import described
from cadenza.registration.checks import check_callback as check_registration
from cadenza.testing import check_callback

PAGE = Path(__file__).resolve().parents[2] / "docs" / "callbacks.md"


PACKAGES = (cadenza.callbacks, cadenza.experiment)


def modules() -> list[str]:
    return [
        found.name for package in PACKAGES for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]


def defined() -> dict[str, type[Callback]]:
    """Every callback with a public name that is defined anywhere in the packages."""
    found = {}
    for name in modules():
        module = importlib.import_module(name)
        for cls in vars(module).values():
            if inspect.isclass(cls) and issubclass(cls, Callback) and cls.__module__ == module.__name__:
                found[cls.__name__] = cls
    return {name: cls for name, cls in sorted(found.items()) if not name.startswith("_")}


BASES = {"Mixing", "Tracker"}
"""Defined for others to derive from."""
EXPORTED = {name for package in PACKAGES for name in package.__all__}
READY = {name: cls for name, cls in defined().items() if name in EXPORTED - BASES}


def test_whatever_is_defined_is_exported() -> None:
    assert READY
    assert set(defined()) - BASES == set(READY)


DEAR = {"ConfusionMatrix", "ExportCheck", "GradientPlot"}
"""An export takes most of a second, a picture a tenth, and this makes hundreds; their own tests hold them under
accumulation, skip, stop and error."""
SERVICES = {"MLflow", "Trackio", "WandB"}
"""Each run starts a service or a database; ``tests/experiment`` holds them under stop and error, and what they are made
of, Tracker, is checked with CSV and TensorBoard."""
CHECKED = [
    pytest.param(cls, marks=pytest.mark.long if name in DEAR else (), id=name)
    for name, cls in READY.items()
    if name not in SERVICES
]


@pytest.mark.parametrize("cls", CHECKED)
def test_it_behaves_as_a_callback_should(cls: type[Callback], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    check_callback(cls.example)


@pytest.mark.parametrize("cls", READY.values(), ids=READY)
def test_it_says_what_it_does_with_an_example(cls: type[Callback]) -> None:
    examples = doctest.DocTestParser().get_examples(cls.__doc__ or "")
    assert any(cls.__name__ in example.source for example in examples)
    assert f"### {cls.__name__}\n" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("cls", READY.values(), ids=READY)
def test_it_knows_no_other_callback_by_holding_it(cls: type[Callback]) -> None:
    assert not isinstance(cls.example(), MainCallback)
    one, two = cls.example(), cls.example()
    assert one is not two
    check_registration(one)


@pytest.mark.parametrize("cls", READY.values(), ids=READY)
def test_two_alike_are_alike_to_other_ranks(cls: type[Callback]) -> None:
    one, two = cls.example(), cls.example()
    assert described(one) == described(two)
    assert set(described(one)[1]) == {*(cls.same_on_ranks or ()), "asks", "agree"}


@pytest.mark.parametrize("cls", READY.values(), ids=READY)
def test_an_argument_that_does_not_exist_is_refused(cls: type[Callback]) -> None:
    with pytest.raises(TypeError):
        cls(no_such_argument=1)


NEEDED = {"monitor": "val/loss", "size": 1, "milestones": [1], "task": "classification"}
NUMBERS = [
    pytest.param(cls, name, id=f"{cls.__name__}.{name}")
    for cls in READY.values()
    for name, parameter in inspect.signature(cls).parameters.items()
    if parameter.annotation in ("float", "float | None")
]


@pytest.mark.parametrize("wrong", ["text", float("nan"), True, [1.0]], ids=repr)
@pytest.mark.parametrize(("cls", "name"), NUMBERS)
def test_a_number_that_is_none_is_refused_by_name(cls: type[Callback], name: str, wrong: object) -> None:
    parameters = inspect.signature(cls).parameters
    given = {one: value for one, value in NEEDED.items() if one in parameters}
    if cls.__name__ == "GradientClip" and name == "norm_type":
        given["norm"] = 1.0
    channels = [Command(["true"])] if cls.__name__ == "Notify" else []
    with pytest.raises((ValueError, TypeError), match=name) as caught:
        cls(*channels, **{**given, name: wrong})
    assert repr(wrong) in str(caught.value)


def test_a_class_in_place_of_an_instance_is_refused_for_all() -> None:
    for cls in READY.values():
        with pytest.raises(CallbackError, match=cls.__name__):
            check_registration(cls)
