"""Files made from the table of points are up to date, and the table agrees with itself and with the classes."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cadenza import Callback, MainCallback, Run
from cadenza._stubs import Stubs
from cadenza.points import (
    BEHAVIOURS,
    EVENTS,
    FIELDS,
    ITERATION,
    MODES,
    POINTS,
    REQUESTS,
    SPAN,
    SPANS,
    STAGES,
    Kind,
)
from cadenza.registration.suggestions import FOREIGN, looks_like_a_point, nearest

ROOT = Path(__file__).resolve().parents[1]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()


def formatted(source: str) -> str:
    """As the formatter of this repository writes it."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "src/cadenza/_stubs.py", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout


@pytest.mark.parametrize("path", GENERATOR.FILES)
def test_what_is_written_is_what_would_be_written(path: str) -> None:
    made = GENERATOR.FILES[path]()
    expected = formatted(made) if path.endswith(".py") else made
    assert (ROOT / path).read_text(encoding="utf-8") == expected, "run `make generate`"


# The table and the classes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, point in POINTS.items() if point.kind is not Kind.BEHAVIOUR])
def test_every_point_has_a_stub_that_says_what_is_true(name: str) -> None:
    stub = vars(Stubs)[name]
    assert list(inspect.signature(stub).parameters) == ["self", "run"]
    said = " ".join((stub.__doc__ or "").split())
    assert POINTS[name].says.lower() in said.lower()
    assert stub(Callback(), None) is None


def test_no_stub_is_left_over() -> None:
    stubs = [name for name, member in vars(Stubs).items() if inspect.isfunction(member)]
    assert stubs == [name for name, point in POINTS.items() if point.kind is not Kind.BEHAVIOUR]


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
def test_the_main_callback_has_every_behaviour(behaviour: object) -> None:
    name = behaviour.name  # type: ignore[attr-defined]
    assert inspect.isfunction(vars(MainCallback)[name])
    assert POINTS[name].kind is Kind.BEHAVIOUR
    assert not hasattr(Callback, name)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_run_has_every_request(request_name: str) -> None:
    assert callable(getattr(Run, request_name))


@pytest.mark.parametrize("field", FIELDS)
def test_a_run_has_every_field(field: str) -> None:
    assert hasattr(Run, field)
    assert FIELDS[field].first in POINTS


def test_a_callback_without_methods_plays_nowhere() -> None:
    assert Callback().plays() == {}
    assert MainCallback().plays() == {}


# The table in itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", SPANS, ids=lambda span: span.name)
def test_every_span_has_three_places_in_order(span: object) -> None:
    names = [f"{kind}_{span.name}" for kind in ("before", "around", "after")]  # type: ignore[attr-defined]
    order = list(POINTS)
    places = [order.index(name) for name in names]
    assert places == sorted(places)
    for name, kind in zip(names, (Kind.BEFORE, Kind.AROUND, Kind.AFTER), strict=True):
        assert POINTS[name].kind is kind
        assert POINTS[name].span == span.name  # type: ignore[attr-defined]


def test_spans_form_a_tree_whose_leaves_are_actions_and_the_fetch() -> None:
    assert len(SPAN) == len(SPANS)
    for span in SPANS:
        assert set(span.inside) <= SPAN.keys()
        assert bool(span.inside) != (span.action or span.name == "fetch")

    def reach(name: str) -> set[str]:
        return {name}.union(*(reach(inner) for inner in SPAN[name].inside))

    assert reach("run") == SPAN.keys()


def test_every_point_says_something_and_has_its_own_name() -> None:
    for name, point in POINTS.items():
        assert point.name == name
        assert point.says
        assert set(point.stages) <= set(STAGES)
        assert set(point.fields) <= FIELDS.keys()
        assert looks_like_a_point(name)
        assert nearest(name) == name
    assert {name for name, point in POINTS.items() if point.kind is Kind.EVENT} == EVENTS.keys()


def test_one_epoch_is_in_the_order_of_the_design() -> None:
    expected = [
        *("before_run", "before_epoch", "before_train_epoch", "before_fetch", "after_fetch"),
        *("before_iter", "before_train_iter", "before_forward", "on_train_forward", "on_iter_forward", "after_forward"),
        *("before_loss", "on_iter_loss", "after_loss", "before_backward", "on_iter_backward", "after_backward"),
        *("before_step", "on_iter_step", "after_step", "before_zero_grad", "on_iter_zero_grad", "after_zero_grad"),
        *("after_train_iter", "after_train_epoch", "on_lr_adjust", "after_epoch", "after_run"),
    ]
    assert [name for name in POINTS if name in expected] == expected
    ends = [
        "after_train_epoch",
        "before_val_epoch",
        "after_val_epoch",
        "before_test_epoch",
        "on_lr_adjust",
        "after_epoch",
    ]
    assert [name for name in POINTS if name in ends] == ends
    assert list(POINTS).index("after_run") == len(POINTS) - len(EVENTS) - 1


def test_names_from_elsewhere_are_no_points_and_lead_to_points() -> None:
    assert not FOREIGN.keys() & POINTS.keys()
    assert set(FOREIGN.values()) <= POINTS.keys()
    assert all(nearest(name) == FOREIGN[name] for name in FOREIGN)


def test_modes_and_stages() -> None:
    assert set(MODES) == {"fit", "validate", "test", "predict"}
    assert {stage for stages in MODES.values() for stage in stages} == set(STAGES)
    assert ITERATION.keys() == set(STAGES)
    assert "before_backward" not in ITERATION["val"]
    assert "before_loss" not in ITERATION["pred"]


FIELD_LIVES = {
    "before_fetch": set(),
    "after_fetch": {"batch", "batch_idx", "inputs", "targets"},
    "before_iter": {"batch", "batch_idx", "inputs", "targets", "skipped"},
    "before_forward": {"batch", "batch_idx", "inputs", "targets", "skipped"},
    "after_forward": {"batch", "batch_idx", "inputs", "targets", "skipped", "output"},
    "after_loss": set(FIELDS),
    "after_iter": set(FIELDS),
    "before_epoch": set(),
    "after_run": set(),
}


@pytest.mark.parametrize("point", FIELD_LIVES)
def test_the_lives_of_fields(point: str) -> None:
    assert set(POINTS[point].fields) == FIELD_LIVES[point]


LAST_PLACES = {
    "skip_batch": "before_backward",
    "skip_backward": "before_backward",
    "skip_step": "before_step",
    "hold_step": "after_backward",
    "skip_zero_grad": "before_zero_grad",
}


@pytest.mark.parametrize("request_name", LAST_PLACES)
def test_requests_are_taken_up_to_their_last_place_and_not_later(request_name: str) -> None:
    order, last = ITERATION["train"], LAST_PLACES[request_name]
    assert REQUESTS[request_name].last == last
    taken = [POINTS[name].takes(request_name, "train") for name in order]
    place = order.index(last)
    assert all(taken[: place + 1])
    assert not any(taken[place + 1 :])


@pytest.mark.parametrize("stage", STAGES)
def test_what_may_be_asked_in_each_stage(stage: str) -> None:
    asked = {name for name in REQUESTS for point in ITERATION[stage] if POINTS[point].takes(name, stage)}
    everywhere = {"skip_batch", "end_epoch", "save", "stop"}
    assert asked == (set(REQUESTS) if stage == "train" else everywhere)
