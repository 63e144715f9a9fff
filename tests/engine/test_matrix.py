"""Each request, and an exception, at each point: the library plays what ``prediction.py`` says."""

from __future__ import annotations

import re
from functools import cache

import pytest
from tests.engine.played import DATA, Played, difference
from tests.engine.prediction import EPOCHS, PASSES, Deed, Place, Prediction, is_met
from tests.engine.scenarios import Oops, flags, frozen_model, torch_modes

from cadenza.points import REQUESTS


def places(*, leaving: bool) -> list[Place]:
    """Every place of every mode, once."""
    return [
        Place(mode, stage, point, 0, leaving)
        for mode in PASSES
        for stage, point, on_the_way_out in Prediction(mode).seen
        if on_the_way_out == leaving
    ]


EVERYWHERE = places(leaving=False) + places(leaving=True)


def name_of(place: Place) -> str:
    return f"{place.mode}-{place.stage or 'between'}-{place.point}{'-leaving' if place.leaving else ''}"


def times_of(place: Place) -> range:
    """The first batch, the last one, and for a fetch the one that finds the end."""
    played = Prediction(place.mode).seen[place.stage, place.point, place.leaving]
    return range(min(played, 3 if place.point.endswith("fetch") else 2))


def mismatches(place: Place) -> dict[str, str]:
    """What goes wrong at this place, by request. Those that cannot be met are asked together: none may do anything."""
    wrong = {}
    met = [(request,) for request in REQUESTS if is_met(request, place)]
    unmet = tuple(request for request in REQUESTS if not is_met(request, place))
    for time in times_of(place):
        for requests in [*met, unmet] if unmet else met:
            told = mismatch(Deed(place._replace(time=time), requests), refused=requests is unmet)
            if told is not None:
                wrong[f"{' '.join(requests)}, time {time}"] = told
    return wrong


def mismatch(deed: Deed, refused: bool) -> str | None:
    played = Played(deed.place.mode, deed)
    if played.actors[0].refused != (list(deed.requests) if refused else []):
        return f"refused: {played.actors[0].refused}"
    if not played.actors[0].acted or played.later.trace != common(played.trace):
        return "not everybody played there"
    return difference(played, Prediction(deed.place.mode, deed))


def common(trace: list[str]) -> list[str]:
    """The part of the trace that somebody who plays later sees too."""
    return [line for line in trace if line not in ("save", "close") and not line.startswith("on_")]


@pytest.mark.parametrize("place", EVERYWHERE, ids=name_of)
def test_each_request_does_what_the_table_says(place):
    assert mismatches(place) == {}


@cache
def failed(place: Place) -> Played:
    return Played(place.mode, Deed(place))


@pytest.mark.parametrize("place", EVERYWHERE, ids=name_of)
def test_an_exception_ends_everything_in_order(place):
    before = torch_modes()
    assert difference(failed(place), Prediction(place.mode, Deed(place))) is None
    assert isinstance(failed(place).error, Oops)
    assert torch_modes() == before
    assert flags(failed(place).trainer.model) == flags(frozen_model())


@pytest.mark.parametrize("place", EVERYWHERE, ids=name_of)
def test_the_note_names_callback_and_point(place):
    assert is_named(place, failed(place).error)


def is_named(place: Place, error: BaseException) -> bool:
    """Whether the one note on ``error`` names the callback that raised it, and the point."""
    behaviour = place.point.startswith("on_")
    point = f"on_{place.stage}_forward" if place.point == "on_iter_forward" else place.point  # which calls the other
    words = {"RecordingMain" if behaviour else "Actor", point}
    notes = getattr(error, "__notes__", [])
    return [words <= set(re.split(r"[\s.]", note)) for note in notes] == [True]


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
def test_an_error_that_means_something_to_generators_is_one_like_others(kind):
    """The loops are generators, in which Python replaces a StopIteration and takes a GeneratorExit for a break."""
    wrong = {}
    for place in EVERYWHERE:
        played = Played(place.mode, Deed(place), error=kind)
        error = played.error
        if not isinstance(error, kind) and not (isinstance(error, RuntimeError) and isinstance(error.__cause__, kind)):
            wrong[name_of(place)] = f"raised {error!r}"
        elif not is_named(place, error):
            wrong[name_of(place)] = f"notes {getattr(error, '__notes__', [])}"
        elif played.trace[-1] != "close" or "after_error" not in played.trace[-3:]:
            wrong[name_of(place)] = f"ended by {played.trace[-3:]}"
    assert wrong == {}


WITHOUT_LAUNCH = [line for line in Prediction("fit").trace if line != "after_launch"]


@pytest.mark.parametrize("place", [place for place in EVERYWHERE if place.mode == "fit"], ids=name_of)
def test_a_fit_after_an_exception_is_a_fit(place):
    played = Played(place.mode, Deed(place))
    epochs = played.trainer.clock.epochs
    played.trace.clear()
    played.trainer.fit(DATA, DATA, test_loaders=DATA, epochs=EPOCHS)
    assert [line for line in played.trace if line != "after_launch"] == WITHOUT_LAUNCH
    assert played.trainer.clock.epochs == epochs + EPOCHS
