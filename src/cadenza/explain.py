"""The score of a trainer as text and as a table: every point, who plays there, in which order."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from cadenza.execution.recorded.why_not import words
from cadenza.points import POINTS, SPAN, STAGES, Kind, Point

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.plan import Plan


class Score(str):
    """Text that a notebook shows as a table."""

    rows: list[tuple[str, str, str]]

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td><code>{html.escape(point)}</code></td><td>{html.escape(who)}</td><td>{html.escape(says)}</td></tr>"
            for point, who, says in self.rows
        )
        return f"<table><tr><th>point</th><th>who plays</th><th>what is true there</th></tr>{cells}</table>"


def explain(plan: Plan) -> Score:
    """The score of ``plan``. Points that nobody plays are left out of the text and kept in the table."""
    rows = [(point.name, ", ".join(_players(plan, point)), point.says) for point in POINTS.values()]
    played = [(name, who) for name, who, _ in rows if who]
    width = max((len(name) + _depth(name) for name, _ in played), default=0)
    lines = ["Callbacks, in the order in which they play:"]
    lines += [f"  {_about(callback)}" for callback in plan.callbacks]
    if plan.watch is not None:
        better = "lower" if plan.watch.mode == "min" else "higher"
        lines.append(f"Watched: {plan.watch.name}, {better} is better (said by {plan.watch.who})")
    run = plan.executor.run
    if run.schedulers:
        names = ", ".join(type(one).__name__ for one in run.schedulers)
        when = "after each step" if plan.lr_every == "iter" else "once an epoch"
        lines.append(f"Learning rate: {names}, stepped {when}")
    lines += words(plan)
    lines += ["", "The score (points that nobody plays are left out):"]
    lines += [f"  {' ' * _depth(name)}{name:<{width - _depth(name)}}  {who}" for name, who in played]
    score = Score("\n".join(lines))
    score.rows = rows
    return score


def _players(plan: Plan, point: Point) -> list[str]:
    if point.kind is Kind.BEHAVIOUR:
        return [plan.main.name]
    stages = point.stages if point.span in ("fetch", "iter", "forward", "loss") else ()
    names = []
    for callback in plan.callbacks_at(point.name):
        only = (
            ""
            if callback.stages is None or not stages
            else f" ({', '.join(s for s in STAGES if s in callback.stages)})"
        )
        names.append((callback._label or callback.name) + only)
    return names


def _about(callback: Callback) -> str:
    ranks = (
        callback.ranks if isinstance(callback.ranks, str) else "ranks " + ", ".join(map(str, sorted(callback.ranks)))
    )
    parts = [f"order {int(callback.order)}", f"on {ranks}" if ranks != "all" else "on all ranks"]
    if callback.owns:
        parts.append("owns " + ", ".join(sorted(callback.owns)))
    if callback.explain():
        parts.append(callback.explain())
    return f"{(callback._label or callback.name)}: {'; '.join(parts)}"


def _depth(name: str) -> int:
    """How deep in the tree of spans a point stands, two blanks a level."""
    span, depth = POINTS[name].span, 0
    while span and (parent := next((s.name for s in SPAN.values() if span in s.inside), None)):
        span, depth = parent, depth + 2
    return depth
