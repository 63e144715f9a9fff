"""The score: every named point of a run, in the order in which it is played.

This table is the only place where points are written down. The stubs of ``Callback``, ``docs/points.md``,
``cadenza points``, the checks at registration, the static check and the recorder are all made from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

STAGES = ("train", "val", "test", "pred")
MODES = {"fit": ("train", "val", "test"), "validate": ("val",), "test": ("test",), "predict": ("pred",)}


class Kind(StrEnum):
    """What a method at a point is for."""

    BEFORE = "before"
    AROUND = "around"
    AFTER = "after"
    BEHAVIOUR = "on"
    EVENT = "event"


@dataclass(frozen=True)
class Span:
    """A stretch of the run that begins and ends. An action is a leaf that has a behaviour inside."""

    name: str
    before: str
    after: str
    inside: tuple[str, ...] = ()
    action: bool = False
    stages: tuple[str, ...] = STAGES


@dataclass(frozen=True)
class Behaviour:
    """What happens inside an action. Exactly one callback, the main one, owns it."""

    name: str
    span: str
    says: str
    stages: tuple[str, ...] = STAGES


@dataclass(frozen=True)
class Field:
    """Something on ``run`` that exists only for a while: from ``first`` to the end of the iteration."""

    name: str
    first: str
    says: str


@dataclass(frozen=True)
class Request:
    """Something a callback may ask of the loop, and the last place at which it can still be met."""

    name: str
    last: str
    says: str
    scope: str
    stages: tuple[str, ...] = ("train",)


@dataclass(frozen=True)
class Point:
    """One place in the score."""

    name: str
    kind: Kind
    span: str
    says: str
    stages: tuple[str, ...]
    fields: tuple[str, ...] = field(default=())
    requests: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False, hash=False)

    def takes(self, request: str, stage: str | None) -> bool:
        """Whether ``request`` may be made at this point while ``stage`` plays (None: between stages)."""
        return request in self.requests.get(stage or "", frozenset())


def _stage_spans(stage: str, what: str, actions: tuple[str, ...]) -> tuple[Span, Span]:
    epoch = Span(
        f"{stage}_epoch",
        before=f"a pass over {what} begins; its metrics of the last pass are cleared",
        after=f"the pass over {what} ended; its means are in run.metrics, the weights are as they are",
        inside=("fetch", "iter"),
        stages=(stage,),
    )
    iteration = Span(
        f"{stage}_iter",
        before="the batch is on the device",
        after="this batch is done, also when parts of it were skipped (run.skipped)",
        inside=actions,
        stages=(stage,),
    )
    return epoch, iteration


_STAGE_SPANS = {
    "train": _stage_spans("train", "the training data", ("forward", "loss", "backward", "step", "zero_grad")),
    "val": _stage_spans("val", "a validation loader", ("forward", "loss")),
    "test": _stage_spans("test", "a test loader", ("forward", "loss")),
    "pred": _stage_spans("pred", "the data to predict", ("forward",)),
}

SPANS: tuple[Span, ...] = (
    Span(
        "run",
        before="fit, validate, test or predict begins (run.mode says which); nothing has been read yet",
        after="the run ended in order; it does not fire after an exception",
        inside=("epoch", *(f"{stage}_epoch" for stage in STAGES)),
    ),
    Span(
        "epoch",
        before="one epoch of fit begins",
        after="training, validation and the learning rate of this epoch are done; the epoch counts on the clock",
        inside=("train_epoch", "val_epoch", "test_epoch"),
        stages=("train",),
    ),
    *(spans[0] for spans in _STAGE_SPANS.values()),
    Span(
        "fetch",
        before="the loop is about to wait for the next batch",
        after="run.batch is set; at the end of the loader there is none",
    ),
    Span(
        "iter",
        before="one batch of any stage begins",
        after="one batch of any stage is done; its fields are deleted after this point",
        inside=tuple(f"{stage}_iter" for stage in STAGES),
    ),
    *(spans[1] for spans in _STAGE_SPANS.values()),
    Span("forward", before="the model is about to be called", after="run.output is set", action=True),
    Span(
        "loss",
        before="the loss is about to be computed",
        after="run.loss is set, unweighted and unscaled",
        action=True,
        stages=("train", "val", "test"),
    ),
    Span(
        "backward",
        before="gradients are about to be computed from run.loss",
        after="gradients are there, added to those of held batches",
        action=True,
        stages=("train",),
    ),
    Span(
        "step",
        before="gradients are unscaled; the optimizer is about to step",
        after="the weights changed and clock.steps counted it; gradients can still be read",
        action=True,
        stages=("train",),
    ),
    Span(
        "zero_grad",
        before="gradients are about to be cleared",
        after="gradients are gone",
        action=True,
        stages=("train",),
    ),
)

BEHAVIOURS: tuple[Behaviour, ...] = (
    *(
        Behaviour(f"on_{stage}_forward", "forward", "computes run.output; by default calls on_iter_forward", (stage,))
        for stage in STAGES
    ),
    Behaviour("on_iter_forward", "forward", "computes run.output from run.batch; may set run.loss as well"),
    Behaviour(
        "on_iter_loss",
        "loss",
        "computes run.loss; not called if the forward already set it",
        ("train", "val", "test"),
    ),
    Behaviour("on_iter_backward", "backward", "calls backward() on run.loss, here weighted and scaled", ("train",)),
    Behaviour("on_iter_step", "step", "steps the optimizers", ("train",)),
    Behaviour("on_iter_zero_grad", "zero_grad", "clears the gradients", ("train",)),
    Behaviour(
        "on_lr_adjust",
        "epoch",
        'steps the schedulers, once an epoch after validation; after each step with Trainer(scheduler_every="step")',
        ("train",),
    ),
)

EVENTS: dict[str, str] = {
    "after_register": "this callback joined a run; called on it alone, before before_run",
    "after_launch": "this process started its first run",
    "before_save": "state is about to be collected for a checkpoint",
    "after_save": "a checkpoint was committed; fired on the main thread at the next safe point",
    "after_load": "a checkpoint was loaded into this run",
    "after_log": "a row of metrics is complete; run.row holds it",
    "after_best": "the watched metric improved; run.best says to what",
    "after_error": "the run is ending with run.error; the fields of the iteration are still there",
}

FIELDS: dict[str, Field] = {
    f.name: f
    for f in (
        Field("batch", "after_fetch", "what the loader gave, on the device"),
        Field("batch_idx", "after_fetch", "its number in this pass, from 0"),
        Field("inputs", "after_fetch", "the part of the batch that the model gets; assigning it changes the batch"),
        Field("targets", "after_fetch", "the part of the batch that the loss gets; assigning it changes the batch"),
        Field("skipped", "before_iter", "the actions of this iteration that were asked away"),
        Field("output", "after_forward", "what the model returned"),
        Field("loss", "after_loss", "the loss of this batch, with its graph"),
    )
}

REQUESTS: dict[str, Request] = {
    r.name: r
    for r in (
        Request("skip_batch", "before_backward", "no further action of this iteration", "iter", STAGES),
        Request("skip_backward", "before_backward", "no backward, step and zero_grad in this iteration", "iter"),
        Request("skip_step", "before_step", "no step; the gradients are dropped", "iter"),
        Request("hold_step", "after_backward", "no step yet; the gradients are kept for the next batch", "iter"),
        Request("skip_zero_grad", "before_zero_grad", "the gradients stay", "iter"),
        Request("end_epoch", "after_iter", "no further fetch in this pass; what follows it goes on", "pass", STAGES),
        Request("skip_validation", "after_train_epoch", "no validation in this epoch", "epoch"),
        Request("save", "after_run", "a checkpoint at the next safe point", "run", STAGES),
        Request("stop", "after_run", "this iteration finishes, then the run ends", "run", STAGES),
    )
}


def _span_points(span: Span) -> Iterator[tuple[str, Kind, str, str, tuple[str, ...]]]:
    yield f"before_{span.name}", Kind.BEFORE, span.name, span.before, span.stages
    yield (
        f"around_{span.name}",
        Kind.AROUND,
        span.name,
        "returns a context manager that is held for the whole span",
        span.stages,
    )
    for behaviour in BEHAVIOURS:
        if behaviour.span == span.name and behaviour.name != "on_lr_adjust":
            yield behaviour.name, Kind.BEHAVIOUR, span.name, behaviour.says, behaviour.stages


def _timeline(span: Span, stage: str | None = None) -> Iterator[tuple[str, Kind, str, str, tuple[str, ...]]]:
    """The points of ``span`` in the order in which they are played; with ``stage``, only those of that stage."""
    yield from (row for row in _span_points(span) if stage is None or stage in row[4])
    for name in span.inside:
        inner = SPAN[name]
        if stage is None or stage in inner.stages:
            yield from _timeline(inner, stage)
    if span.name == "epoch":
        lr = next(b for b in BEHAVIOURS if b.name == "on_lr_adjust")
        yield lr.name, Kind.BEHAVIOUR, "epoch", lr.says, lr.stages
    yield f"after_{span.name}", Kind.AFTER, span.name, span.after, span.stages


SPAN: dict[str, Span] = {span.name: span for span in SPANS}

ITERATION: dict[str, tuple[str, ...]] = {
    stage: tuple(row[0] for name in ("fetch", "iter") for row in _timeline(SPAN[name], stage)) for stage in STAGES
}
"""For each stage the points of one iteration, from ``before_fetch`` to ``after_iter``."""


def _fields_alive(point: str) -> tuple[str, ...]:
    """Fields that exist at ``point`` in at least one stage."""
    alive = []
    for name, life in FIELDS.items():
        for order in ITERATION.values():
            if point in order and life.first in order and order.index(point) >= order.index(life.first):
                alive.append(name)
                break
    return tuple(alive)


def _last_place(request: Request, stage: str) -> str:
    """The last point of ``stage``'s iteration at which ``request`` can still be met."""
    order = ITERATION[stage]
    if request.last in order:
        return request.last
    return [point for point in order if point.startswith("before_") and SPAN[point[7:]].action][-1]


def _requests_taken(point: str, stages: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """For each stage ("" between stages) the requests that may be made at ``point``."""
    begins = {f"{kind}_{span}": span for kind in ("before", "around") for span in SPAN if span.endswith("epoch")}
    taken: dict[str, frozenset[str]] = {}
    for stage in ("", *stages):
        names = {"stop", "save"}
        if begins.get(point) == (f"{stage}_epoch" if stage else "epoch"):
            names.add("end_epoch")
        if stage == "train" or (not stage and begins.get(point) == "epoch"):
            names.add("skip_validation")
        order = ITERATION.get(stage, ())
        names |= {
            request.name
            for request in REQUESTS.values()
            if request.scope in ("iter", "pass") and stage in request.stages and point in order
            if order.index(point) <= order.index(_last_place(request, stage))
        }
        taken[stage] = frozenset(names)
    return taken


def _build() -> dict[str, Point]:
    rows = list(_timeline(SPAN["run"]))
    names = [row[0] for row in rows]
    table: dict[str, Point] = {}
    for position, (name, kind, span, says, stages) in enumerate(rows):
        if name in names[:position]:
            continue  # fetch, iter and the actions stand in every stage
        table[name] = Point(name, kind, span, says, stages, _fields_alive(name), _requests_taken(name, stages))
    for name, says in EVENTS.items():
        if name in table:
            raise ValueError(f"the event {name} has the name of a point")
        alive = tuple(FIELDS) if name in ("after_error", "after_log", "after_best") else ()
        table[name] = Point(name, Kind.EVENT, "", says, STAGES, alive, _requests_taken(name, STAGES))
    return table


POINTS: dict[str, Point] = _build()
"""Every point by name, in the order of the score."""
