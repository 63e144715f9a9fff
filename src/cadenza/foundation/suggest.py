"""Suggests the known name that is most like an unknown one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like ``name``, or None if none is at least ``cutoff`` like it (from 0 to 1).

    >>> nearest_name("trian", ["train", "val"]), nearest_name("fold", ["train", "val"])
    ('train', None)
    """
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def suggestion(near: str | None, otherwise: str = "") -> str:
    """The end of a sentence about an unknown name: ``"; did you mean 'train'?"``, or else ``otherwise``."""
    return f"; did you mean {near!r}?" if near else otherwise


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6) -> str:
    """The end of a sentence about a name that is not known.

    >>> "there is no stage 'trian'" + did_you_mean("trian", ["train", "val"], ".")
    "there is no stage 'trian'; did you mean 'train'?"
    """
    return suggestion(nearest_name(name, known, cutoff), otherwise)


def likeness(one: str, other: str) -> float:
    """How much two names are spelled alike, from 0 to 1."""
    return SequenceMatcher(None, one, other).ratio()
