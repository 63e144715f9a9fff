"""The metric that decides which epoch is best, by SuperGradients' name and by ours."""

from __future__ import annotations

from collections.abc import Iterable

from cadenza.dialects.table import nearest


def watched_name(said: str, losses: list[str], metrics: Iterable[str]) -> str:
    """The name under which the run logs what ``metric_to_watch`` says; case and separators do not matter.

    >>> watched_name("crossentropyloss", ["CrossEntropyLoss"], [])
    'val/loss'
    >>> watched_name("accuracy", ["CrossEntropyLoss"], ["Accuracy"])
    'val/Accuracy'
    """
    known = [*losses, *metrics]
    found = next((name for name in known if _plain(name) == _plain(said)), None)
    if found is None:
        near = nearest(said, known)
        hint = f"; did you mean {near!r}?" if near else "."
        raise ValueError(f"supergradients: metric_to_watch is {said!r}{hint} There are {', '.join(known)}")
    if found in losses:
        return "val/loss" if len(losses) == 1 else f"val/{found}"
    return f"val/{found}"


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
