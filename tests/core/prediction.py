"""What a run plays in which one thing is asked, or raised, at one place.

A small model of its own: it knows the tables of ``points.py`` and the rules of the design, and nothing of how the
engine works.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Any, NamedTuple

from cadenza.points import BEHAVIOURS, POINTS, SPAN

from .scenarios import Oops

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


def is_met(request: str, place: Place) -> bool:
    """Whether the table says that ``request`` can be met at ``place``."""
    if request in ONLY_IN_FIT and place.mode != "fit":
        return False
    # On the way out of an around, what may still be asked is what after_x may ask.
    point = place.point.replace("around_", "after_") if place.leaving else place.point
    return POINTS[point].takes(request, place.stage)


class Prediction:
    """Plays a whole run in which one thing is asked, or raised, at one place."""

    def __init__(self, mode: str, place: Place | None = None, requests: tuple[str, ...] = ()) -> None:
        self.mode, self.place, self.requests = mode, place, requests
        self.trace: list[str] = []
        self.skips: list[set[str]] = []
        self.finished: set[str] = set()
        self.asked: set[str] = set()
        self.stage: str | None = None
        self.failed = False
        self.batches = self.steps = self.epochs = 0
        self.seen: Counter[tuple[str | None, str, bool]] = Counter()
        self.play()

    # Acting at the place

    def act(self, point: str, leaving: bool = False) -> None:
        time = self.seen[self.stage, point, leaving]
        self.seen[self.stage, point, leaving] += 1
        if self.place is None or (self.stage, point, time, leaving) != self.place[1:]:
            return
        if not self.requests:
            raise Oops
        self.asked.update(request for request in self.requests if is_met(request, self.place))

    def point(self, name: str) -> None:
        self.trace.append(name)
        if name == f"after_{self.stage}_iter":
            self.skips.append(self.finished)
        self.act(name)

    @contextmanager
    def around(self, name: str) -> Any:
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
    def span(self, name: str) -> Any:
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
                self.play_inside()
            self.save_if_asked()
        except Oops:
            self.failed = True
            self.trace.append("after_error")
        self.trace.append("close")

    def play_inside(self) -> None:
        if self.mode != "fit":
            self.go_over(PASSES[self.mode][0])
            return
        while self.epochs < EPOCHS and "stop" not in self.asked:
            with self.span("epoch"):
                trained = self.go_over("train")
                self.go_over("val")
                self.go_over("test")
                if "stop" not in self.asked:
                    self.point("on_lr_adjust")
                self.epochs += trained
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
        skipped: set[str] = set()
        with self.span("iter"), self.span(f"{stage}_iter"):
            for action in SPAN[f"{stage}_iter"].inside:
                self.action(action, stage, skipped)
            if "hold_step" in self.asked and is_last:
                self.asked.remove("hold_step")
                skipped -= {"step", "zero_grad"}
                self.action("step", stage, skipped)
                self.action("zero_grad", stage, skipped)
            self.batches += stage == "train"
            self.finished = skipped
        self.asked -= set(TAKES_AWAY)
        if stage == "train":
            self.save_if_asked()

    def action(self, name: str, stage: str, skipped: set[str]) -> None:
        if not self.is_away(name):
            self.point(f"before_{name}")
        if self.is_away(name):
            skipped.add(name)
            return
        with self.around(name):
            for behaviour in BEHAVIOURS:
                if behaviour.span == name and stage in behaviour.stages:
                    self.point(behaviour.name)
            self.steps += name == "step"
        self.point(f"after_{name}")

    def is_away(self, action: str) -> bool:
        return any(action in TAKES_AWAY[request] for request in self.asked & set(TAKES_AWAY))

    def save_if_asked(self) -> None:
        if "save" in self.asked:
            self.asked.remove("save")
            self.trace.append("save")
