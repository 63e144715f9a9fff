"""What a run plays in which something is asked, or raised, at some places.

A small model of its own: it knows the tables of ``points.py`` and the rules of the design, and nothing of how the
engine works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.engine.scenarios import Oops

from cadenza.points import BEHAVIOURS, POINTS, SPAN

PASSES = {"fit": ("train", "val", "test"), "validate": ("val",), "test": ("test",), "predict": ("pred",)}
EPOCHS, BATCHES = 2, 2
FROM_BACKWARD = {"backward", "step", "zero_grad"}
TAKES_AWAY = {
    "skip_batch": {"forward", "loss", *FROM_BACKWARD},
    "skip_backward": FROM_BACKWARD,
    "skip_step": {"step"},
    "hold_step": {"step", "zero_grad"},
    "skip_zero_grad": {"zero_grad"},
}
ONLY_IN_FIT = {"save", "skip_validation"}


class Place(NamedTuple):
    """The ``time``-th time that ``point`` is played in ``stage``; ``leaving``: on the way out of an around."""

    mode: str
    stage: str | None
    point: str
    time: int = 0
    leaving: bool = False


class Deed(NamedTuple):
    """What is asked at a place; if nothing is, an exception is raised there."""

    place: Place
    requests: tuple[str, ...] = ()


def is_met(request: str, place: Place) -> bool:
    """Whether the table says that ``request`` can be met at ``place``."""
    if request in ONLY_IN_FIT and place.mode != "fit":
        return False
    # On the way out of an around, what may still be asked is what after_x may ask.
    point = place.point.replace("around_", "after_") if place.leaving else place.point
    return POINTS[point].takes(request, place.stage)


class Prediction:
    """Plays a whole run in which ``deeds`` are done."""

    def __init__(self, mode: str, *deeds: Deed) -> None:
        self.mode, self.deeds = mode, deeds
        self.trace: list[str] = []
        self.skips: list[set[str]] = []
        self.finished: set[str] = set()
        self.asked: set[str] = set()
        self.stage: str | None = None
        self.held = False
        self.batches = self.steps = self.epochs = 0
        self.seen: Counter[tuple[str | None, str, bool]] = Counter()
        self.play()

    # Points and spans

    def act(self, point: str, leaving: bool = False) -> None:
        place = Place(self.mode, self.stage, point, self.seen[self.stage, point, leaving], leaving)
        self.seen[self.stage, point, leaving] += 1
        for deed in self.deeds:
            if deed.place == place:
                if not deed.requests:
                    raise Oops
                self.asked.update(request for request in deed.requests if is_met(request, place))

    def point(self, name: str) -> None:
        self.trace.append(name)
        if name == f"after_{self.stage}_iter":
            self.skips.append(self.finished)
        self.act(name)

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        self.trace.append(f"enter_{name}")
        try:
            self.act(f"around_{name}")
            yield
            self.act(f"around_{name}", leaving=True)
        except Oops:
            self.trace.append(f"exit_{name} Oops")
            raise
        self.trace.append(f"exit_{name}")

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        self.point(f"before_{name}")
        with self.around(name):
            yield
        self.point(f"after_{name}")

    # The run

    def play(self) -> None:
        try:
            self.point("after_register")
            self.point("after_launch")
            with self.span("run"):
                if self.mode == "fit":
                    self.fit()
                else:
                    self.go_over(PASSES[self.mode][0])
            self.save_if_asked()
        except Oops:
            self.trace.append("after_error")
        self.trace.append("close")

    def fit(self) -> None:
        while self.epochs < EPOCHS and "stop" not in self.asked:
            self.point("before_epoch")
            with self.around("epoch"):
                trained = self.go_over("train")
                self.go_over("val")
                self.go_over("test")
                if "stop" not in self.asked:
                    self.point("on_lr_adjust")
            self.epochs += trained
            self.point("after_epoch")
            self.asked -= {"skip_validation"}
            self.save_if_asked()

    def go_over(self, stage: str) -> bool:
        """One pass; whether all of it was played, or as much as was asked for."""
        if "stop" in self.asked or (stage == "val" and "skip_validation" in self.asked):
            return False
        self.stage = stage
        with self.span(f"{stage}_epoch"):
            done = self.play_batches(stage)
        self.stage = None
        self.asked -= {"end_epoch", *TAKES_AWAY}
        return done

    def play_batches(self, stage: str) -> bool:
        for index in range(BATCHES + 1):
            if self.asked & {"end_epoch", "stop"}:
                return "end_epoch" in self.asked
            with self.span("fetch"):
                pass
            if index < BATCHES:
                self.iteration(stage, is_last=index == BATCHES - 1)
        return True

    def iteration(self, stage: str, is_last: bool) -> None:
        self.finished = set()
        with self.span("iter"), self.span(f"{stage}_iter"):
            for action in SPAN[f"{stage}_iter"].inside:
                self.action(action, stage)
            if stage == "train":
                self.end_of_window(is_last or "end_epoch" in self.asked)
                self.batches += 1
        self.asked -= set(TAKES_AWAY)
        if stage == "train":
            self.save_if_asked()

    def end_of_window(self, is_last: bool) -> None:
        """Gradients that are held at the end of the epoch are stepped, whatever became of this batch."""
        if "backward" not in self.finished:
            self.held = "hold_step" in self.asked and "skip_step" not in self.asked
        if self.held and is_last and "stop" not in self.asked:
            self.held = False
            self.finished -= {"step", "zero_grad"}
            self.asked -= {"skip_batch", "skip_backward", "hold_step"}
            self.action("step", "train")
            self.action("zero_grad", "train")

    def action(self, name: str, stage: str) -> None:
        if not self.is_away(name):
            self.point(f"before_{name}")
        if self.is_away(name):
            self.finished.add(name)
            return
        with self.around(name):
            for behaviour in BEHAVIOURS:
                if behaviour.span == name and stage in behaviour.stages:
                    self.point(behaviour.name)
            self.steps += name == "step"
        self.point(f"after_{name}")

    def is_away(self, action: str) -> bool:
        asked = self.asked & set(TAKES_AWAY)
        if "skip_step" in asked:
            asked -= {"hold_step"}  # the whole window is dropped
        return any(action in TAKES_AWAY[request] for request in asked)

    def save_if_asked(self) -> None:
        if "save" in self.asked:
            self.asked.remove("save")
            self.trace.append("save")
