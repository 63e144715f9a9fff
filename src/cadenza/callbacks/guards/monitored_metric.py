"""The metric that a callback monitors: whether it was measured in this epoch, and whether it exists at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cadenza.history import Row, unknown_metric
from cadenza.points import STAGES

if TYPE_CHECKING:
    from cadenza.run import Run


def newest_row(run: Run, name: str) -> Row | None:
    """The last row of this epoch that holds the metric: a value of an earlier epoch is no new one."""
    for row in reversed(run.history.rows):
        if row.at.get("epoch") != run.epoch:
            return None
        if name in row:
            return row
    return None


def refuse_unknown(run: Run, name: str, who: str) -> None:
    """Raises if the metric does not exist although its stage was played."""
    if name in run.metrics:
        return
    stage = name.split("/")[0]
    if stage in STAGES:
        was_played = any(other.startswith(f"{stage}/") for other in run.metrics)
    else:  # whoever logs it may do so when validation has been played
        was_played = run.val_loader is None or any(other.startswith("val/") for other in run.metrics)
    if was_played:
        raise KeyError(f"{who}, but there is {unknown_metric(name, run.metrics)}")
