"""A run in which something is asked, or raised, at some places, played by the library; and how it differs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from tests.engine.prediction import BATCHES, EPOCHS, Deed, Prediction
from tests.engine.scenarios import Held, Oops, RecordingMain, batches, frozen_model, make_trainer

from cadenza import Callback
from cadenza.points import POINTS, STAGES, Kind
from cadenza.testing import Recorder

UNPREDICTED = ("after_log", "after_best", "before_save")  # no matter of requests; see the traces
DATA = batches(BATCHES)


class Saver(Callback):
    """Stands for whoever writes checkpoints: writes down when it is told to save, and when it is closed."""

    owns = {"save"}

    def __init__(self, trace: list[str]) -> None:
        self.trace = trace
        self.skips: list[set[str]] = []

    def plays(self) -> dict[str, Callable[[Any], None]]:
        return {f"after_{stage}_iter": lambda run: self.skips.append(set(run.skipped)) for stage in STAGES}

    def save(self, run: Any) -> None:
        self.trace.append("save")

    def close(self) -> None:
        self.trace.append("close")


class Actor(Callback):
    """Does one deed, or raises ``error``."""

    def __init__(self, deed: Deed, error: type[BaseException] = Oops) -> None:
        self.place, self.requests = deed
        self.error = error
        self.times = 0
        self.acted = False
        self.refused: list[str] = []

    def plays(self) -> dict[str, Callable[[Any], Any]]:
        return {} if POINTS[self.place.point].kind is Kind.BEHAVIOUR else {self.place.point: self.play}

    def play(self, run: Any) -> Any:
        if run.stage != self.place.stage:
            return None
        self.times += 1
        if self.times - 1 != self.place.time:
            return None
        return Held(lambda error: self.act(run)) if self.place.leaving else self.act(run)

    def act(self, run: Any) -> None:
        self.acted = True
        if not self.requests:
            raise self.error
        for request in self.requests:
            try:
                getattr(run, request)()
            except RuntimeError:
                self.refused.append(request)


class Played:
    """The run of a prediction, played by the library."""

    def __init__(self, mode: str, *deeds: Deed, error: type[BaseException] = Oops) -> None:
        points = [point for point in POINTS.values() if point.kind is not Kind.BEHAVIOUR]
        recorder = Recorder([point.name for point in points if point.name not in UNPREDICTED])
        self.trace = recorder.trace
        self.later = Recorder(recorder.points)
        self.actors, self.saver = [Actor(deed, error) for deed in deeds], Saver(self.trace)
        main = RecordingMain(self.trace, self.behave)
        callbacks = (recorder, main, self.saver, *self.actors, self.later)
        self.trainer = make_trainer(*callbacks, model=frozen_model())
        self.error: BaseException | None = None
        try:
            self.play(mode)
        except (error, RuntimeError) as raised:
            self.error = raised
        clock = self.trainer.clock
        self.clock = (clock.batches, clock.steps, clock.epochs)

    def behave(self, name: str, run: Any) -> None:
        for actor in self.actors:
            if actor.place.point == name:
                actor.play(run)

    def play(self, mode: str) -> None:
        if mode == "fit":
            self.trainer.fit(DATA, DATA, test_loaders=DATA, epochs=EPOCHS)
        else:
            getattr(self.trainer, mode)(DATA)


def difference(played: Played, expected: Prediction) -> str | None:
    """In words, what is first not as it should be."""
    was, wanted = played.trace, expected.trace
    if was != wanted:
        line = next(i for i, (a, b) in enumerate(zip_longest(was, wanted)) if a != b)
        after = " ".join(wanted[max(0, line - 3) : line])
        return f"line {line} after {after}: {was[line : line + 3]}, predicted {wanted[line : line + 3]}"
    if played.saver.skips != expected.skips:
        return f"run.skipped: {played.saver.skips}, predicted {expected.skips}"
    counted = (expected.batches, expected.steps, expected.epochs)
    return None if played.clock == counted else f"clock: {played.clock}, predicted {counted}"
