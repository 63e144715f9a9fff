"""The score of a run as a picture: spans in spans, from top to bottom as they are played, and who plays where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cadenza.experiment.report.markup import text
from cadenza.points import EVENTS, MODES, POINTS, SPAN, STAGES, Kind

_SHARED = ("fetch", "iter")
_BETWEEN = re.compile(r", (?![^()]*\))")
"""Between two names, and not between the stages of one: ``Metrics (train, val), EMA``."""


def score_picture(score: Mapping[str, Any] | None, experiment: str = "", mode: str = "fit") -> str:
    """The picture for what ``explain`` said when the run began; nothing if that was not kept. The experiment, which
    plays under its own name, is called so."""
    if not score or not score.get("rows"):
        return ""
    players = {
        str(point): ["Experiment" if name == experiment else name for name in _BETWEEN.split(str(who))]
        for point, who in score["rows"]
        if who
    }
    events = "".join(_point(point, players) for point in EVENTS if point in players)
    heard = f'<div class="span events"><b>whenever it happens</b>{events}</div>' if events else ""
    return f'<div class="score">{_span("run", players, None, MODES.get(mode, ()))}{heard}</div>'


def _span(name: str, players: Mapping[str, list[str]], stage: str | None, stages: tuple[str, ...]) -> str:
    """A box for a span, if anybody plays in it; what all stages share is shown in the first of ``stages``."""
    span = SPAN[name]
    own = next((one for one in STAGES if name == f"{one}_epoch"), stage)
    before = "".join(_point(f"{kind}_{name}", players) for kind in ("before", "around"))
    behaviours = [point for point in POINTS.values() if point.kind is Kind.BEHAVIOUR and point.span == name]
    inside = "".join(_span(inner, players, own, stages) for inner in span.inside if _belongs(inner, name, own, stages))
    inside += "".join(_point(point.name, players, behaves=True) for point in behaviours if _mine(point.name, own))
    after = _point(f"after_{name}", players)
    if not (before or inside or after):
        return ""
    return f'<div class="span {"action" if span.action else ""}"><b>{text(name)}</b>{before}{inside}{after}</div>'


def _belongs(inner: str, outer: str, stage: str | None, stages: tuple[str, ...]) -> bool:
    """Whether a span is shown inside another: in a fit, stages lie in the epoch, and in other modes in the run."""
    if inner in _SHARED:
        return stage == stages[0]
    if inner.endswith("_iter"):
        return inner == f"{stage}_iter"
    if outer == "run":
        return inner == "epoch" if "train" in stages else inner == f"{stages[0]}_epoch"
    return True


def _mine(behaviour: str, stage: str | None) -> bool:
    """Whether a behaviour belongs to ``stage``: ``on_val_forward`` does not to training."""
    named = next((one for one in STAGES if behaviour.startswith(f"on_{one}_")), stage)
    return named == stage


def _point(point: str, players: Mapping[str, list[str]], *, behaves: bool = False) -> str:
    if point not in players:
        return ""
    chips = "".join(f"<i>{text(who)}</i>" for who in players[point])
    return f'<div class="point{" behaves" if behaves else ""}"><code>{text(point)}</code>{chips}</div>'
