"""Each request, and an exception, at each point: the library plays what ``prediction.py`` says."""

from __future__ import annotations

from functools import cache
from itertools import zip_longest
from typing import Any

import pytest

from cadenza import Callback
from cadenza.points import POINTS, REQUESTS, STAGES, Kind
from cadenza.testing import Recorder

from .prediction import BATCHES, EPOCHS, PASSES, Place, Prediction, is_met
from .scenarios import Held, Oops, RecordingMain, batches, flags, frozen_model, make_trainer, torch_modes

UNPREDICTED = ("after_log", "after_best")  # what is logged is no matter of requests; see the traces
DATA = batches(BATCHES)


class Saver(Callback):
    """Stands for whoever writes checkpoints: writes down when it is told to save, and when it is closed."""

    owns = {"save"}

    def __init__(self, trace: list[str]) -> None:
        self.trace = trace
        self.skips: list[set[str]] = []

    def plays(self):
        return {f"after_{stage}_iter": lambda run: self.skips.append(set(run.skipped)) for stage in STAGES}

    def save(self, run) -> None:
        self.trace.append("save")

    def close(self) -> None:
        self.trace.append("close")


class Actor(Callback):
    """Asks or raises at one place."""

    def __init__(self, place: Place, requests: tuple[str, ...]) -> None:
        self.place, self.requests = place, requests
        self.times = 0
        self.acted = False
        self.refused: list[str] = []

    def plays(self):
        return {} if POINTS[self.place.point].kind is Kind.BEHAVIOUR else {self.place.point: self.play}

    def behave(self, name: str, run) -> None:
        if name == self.place.point:
            self.play(run)

    def play(self, run) -> Any:
        if run.stage != self.place.stage:
            return None
        self.times += 1
        if self.times - 1 != self.place.time:
            return None
        return Held(lambda error: self.act(run)) if self.place.leaving else self.act(run)

    def act(self, run) -> None:
        self.acted = True
        if not self.requests:
            raise Oops
        for request in self.requests:
            try:
                getattr(run, request)()
            except RuntimeError:
                self.refused.append(request)


class Played:
    """The run of a prediction, played by the library."""

    def __init__(self, place: Place, requests: tuple[str, ...] = ()) -> None:
        points = [point for point in POINTS.values() if point.kind is not Kind.BEHAVIOUR]
        self.recorder = Recorder([point.name for point in points if point.name not in UNPREDICTED])
        self.trace = self.recorder.trace
        self.later = Recorder(self.recorder.points)
        self.actor, self.saver = Actor(place, requests), Saver(self.trace)
        main = RecordingMain(self.trace, self.actor.behave)
        self.trainer = make_trainer(self.recorder, main, self.saver, self.actor, self.later, model=frozen_model())
        self.error: BaseException | None = None
        try:
            self.play(place.mode)
        except Oops as error:
            self.error = error
        clock = self.trainer.clock
        self.outcome = {
            "trace": list(self.trace),
            "skipped": self.saver.skips,
            "clock": (clock.batches, clock.steps, clock.epochs),
        }

    def play(self, mode: str) -> None:
        if mode == "fit":
            self.trainer.fit(DATA, DATA, test_loaders=DATA, epochs=EPOCHS)
        else:
            getattr(self.trainer, mode)(DATA)


def difference(played: Played, expected: Prediction) -> str | None:
    """In words, what is first not as it should be."""
    was, wanted = played.outcome["trace"], expected.trace
    if was != wanted:
        line = next(i for i, (a, b) in enumerate(zip_longest(was, wanted)) if a != b)
        after = " ".join(wanted[max(0, line - 3) : line])
        return f"line {line} after {after}: {was[line : line + 3]}, predicted {wanted[line : line + 3]}"
    if played.outcome["skipped"] != expected.skips:
        return f"run.skipped: {played.outcome['skipped']}, predicted {expected.skips}"
    counted = (expected.batches, expected.steps, expected.epochs)
    return None if played.outcome["clock"] == counted else f"clock: {played.outcome['clock']}, predicted {counted}"


def places(*, leaving: bool) -> list[Place]:
    """Every place of every mode, once."""
    found = []
    for mode in PASSES:
        for stage, point, on_the_way_out in Prediction(mode).seen:
            if on_the_way_out == leaving:
                found.append(Place(mode, stage, point, 0, leaving))
    return found


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
            here = place._replace(time=time)
            played = Played(here, requests)
            told = difference(played, Prediction(place.mode, here, requests))
            if not played.actor.acted or played.later.trace != common(played):
                told = "not everybody played there"
            if played.actor.refused != (list(unmet) if requests is unmet else []):
                told = f"refused: {played.actor.refused}"
            if told is not None:
                wrong[f"{' '.join(requests)}, time {time}"] = told
    return wrong


def common(played: Played) -> list[str]:
    """The part of the trace that somebody who plays later sees too."""
    return [line for line in played.trace if line not in ("save", "close") and not line.startswith("on_")]


@pytest.mark.parametrize("place", places(leaving=False), ids=name_of)
def test_each_request_does_what_the_table_says(place):
    assert mismatches(place) == {}


@pytest.mark.parametrize("place", places(leaving=True), ids=name_of)
def test_each_request_on_the_way_out_of_an_around(place):
    assert mismatches(place) == {}


@cache
def failed(place: Place) -> Played:
    return Played(place)


EVERYWHERE = places(leaving=False) + places(leaving=True)


@pytest.mark.parametrize("place", EVERYWHERE, ids=name_of)
def test_an_exception_ends_everything_in_order(place):
    before = torch_modes()
    assert difference(failed(place), Prediction(place.mode, place)) is None
    assert isinstance(failed(place).error, Oops)
    assert torch_modes() == before
    assert flags(failed(place).trainer.model) == flags(frozen_model())


@pytest.mark.parametrize("place", EVERYWHERE, ids=name_of)
def test_the_note_names_callback_and_point(place):
    behaviour = place.point.startswith("on_")
    point = f"on_{place.stage}_forward" if place.point == "on_iter_forward" else place.point  # which calls the other
    words = ("RecordingMain" if behaviour else "Actor", f" {point} ")
    assert [all(word in note for word in words) for note in failed(place).error.__notes__] == [True]


@pytest.mark.parametrize("place", [place for place in EVERYWHERE if place.mode == "fit"], ids=name_of)
def test_a_fit_after_an_exception_is_a_fit(place):
    played = failed(place)
    epochs = played.trainer.clock.epochs
    played.trace.clear()
    played.trainer.fit(DATA, DATA, test_loaders=DATA, epochs=EPOCHS)
    assert [line for line in played.trace if line != "after_launch"] == WITHOUT_LAUNCH
    assert played.trainer.clock.epochs == epochs + EPOCHS


WITHOUT_LAUNCH = [line for line in Prediction("fit").trace if line != "after_launch"]
