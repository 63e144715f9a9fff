"""The metric that decides which epoch is best, by SuperGradients' name and by ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cadenza.dialects.table import nearest
from cadenza.foundation.suggest import suggestion


def watched_name(said: str, losses: list[str], metrics: Mapping[str, Any]) -> str:
    """The name under which the run logs what ``metric_to_watch`` says: a loss, a metric, or a part of one. Case and
    separators do not matter.

    >>> watched_name("crossentropyloss", ["CrossEntropyLoss"], {})
    'val/loss'
    >>> watched_name("accuracy", ["CrossEntropyLoss"], {"Accuracy": None})
    'val/Accuracy'
    """
    known = [*losses, *(part for name, one in metrics.items() for part in getattr(one, "component_names", [name]))]
    if len(losses) == 1 and (part := re.fullmatch(rf"{plainly(losses[0])}loss(\d+)", plainly(said))):
        return f"val/{losses[0]}/loss_{part[1]}"  # of a loss whose parts have no names
    found = next((name for name in known if plainly(name) == plainly(said)), None)
    if found is None:
        hint = suggestion(nearest(said, known), ".")
        raise ValueError(f"supergradients: metric_to_watch is {said!r}{hint} There are {', '.join(known)}")
    if found in losses:
        return "val/loss" if len(losses) == 1 else f"val/{found}"
    return f"val/{found}"


def plainly(name: object) -> str:
    """A name without case and separators."""
    return "".join(letter for letter in str(name).lower() if letter.isalnum())
