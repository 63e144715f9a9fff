"""Names checkpoints, ranks them by their metric, and chooses which to delete."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Metas = Mapping[str, Mapping[str, Any]]
"""For each checkpoint what was noted about it, the oldest first."""


def ranked(metas: Metas) -> list[str]:
    """The checkpoints that were measured, the best first; of equal ones the newer first.

    The newest that was measured says by which metric (``monitor``) and which way (``mode``); those that were measured
    by another, and those whose ``value`` is NaN, do not take part.

    >>> losses = {"a": 0.5, "b": 0.1, "c": float("nan"), "d": 0.3}
    >>> ranked({name: {"monitor": "val/loss", "mode": "min", "value": value} for name, value in losses.items()})
    ['b', 'd', 'a']
    """
    measured = {name: meta for name, meta in metas.items() if _is_measured(meta)}
    if not measured:
        return []
    newest = list(measured.values())[-1]
    same = [name for name, meta in measured.items() if meta.get("monitor") == newest.get("monitor")]
    sign = -1.0 if newest["mode"] == "max" else 1.0
    newest_first = same[::-1]
    return sorted(newest_first, key=lambda name: sign * float(measured[name]["value"]))


def _is_measured(meta: Mapping[str, Any]) -> bool:
    value = meta.get("value")
    number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    return number and meta.get("mode") in ("min", "max")


def surplus(metas: Metas, keep_last: int | None, keep_best: int) -> list[str]:
    """The checkpoints to delete, the oldest first. The newest is never among them.

    >>> metas = {name: {"value": value, "mode": "min"} for name, value in zip("abcd", (0.1, 0.4, 0.3, 0.2))}
    >>> surplus(metas, keep_last=1, keep_best=1)
    ['b', 'c']
    """
    check_counts(keep_last, keep_best)
    names: Sequence[str] = list(metas)
    if keep_last is None:
        return []
    kept = {*names[-keep_last:], *ranked(metas)[:keep_best]}
    return [name for name in names if name not in kept]


def check_counts(keep_last: int | None, keep_best: int) -> None:
    """Refuses counts that would keep nothing."""
    if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
        raise ValueError(f"keep_last is at least 1, or None to keep all, not {keep_last!r}")
    if type(keep_best) is not int or keep_best < 0:
        raise ValueError(f"keep_best is a whole number from 0 on, not {keep_best!r}")


def name_of(epoch: int, step: int, monitor: str, value: float | None) -> str:
    """What a checkpoint is called. Of the metric's name only what every store takes is left, and not too much of it.

    >>> name_of(3, 120, "val/top 5", 0.8125)
    'epoch=3-step=120-val_top_5=0.8125'
    """
    measured = "" if value is None else f"-{re.sub('[^A-Za-z0-9._+-]+', '_', monitor)[:80]}={value:.4g}"
    return f"epoch={epoch}-step={step}{measured}"
