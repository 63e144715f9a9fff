"""What is wrong with a recipe, in one message."""

from __future__ import annotations

from collections.abc import Iterable

from cadenza.foundation.suggest import nearest_name, suggestion


class RecipeError(ValueError):
    """Something in a recipe, or on the command line around it, cannot be used. Nothing has been built."""


class UnknownName(RecipeError):
    """A name that is not registered."""


def fold(name: str) -> str:
    """A name without case and separators, as names are compared.

    >>> fold("Early-Stopping") == fold("early_stopping") == fold("EarlyStopping")
    True
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like ``name``.

    >>> nearest("erly_stoping", ["ema", "early_stopping"])
    'early_stopping'
    """
    by_fold = {fold(one): one for one in known}
    near = nearest_name(fold(name), by_fold, 0.5)
    return None if near is None else by_fold[near]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``"; did you mean 'ema'?"``, or all names if none is near."""
    known = list(known)
    near = nearest(name, known)
    if near is not None:
        return suggestion(near)
    if otherwise:
        return f"; {otherwise}"
    return f"; there is {', '.join(sorted(known)[:12])}" + (", …" if len(known) > 12 else "") if known else ""
