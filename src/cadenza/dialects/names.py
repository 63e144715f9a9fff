"""The dialects that there are, each loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module

from cadenza.dialects.table import Dialect, nearest
from cadenza.foundation.suggest import suggestion

NAMES = ("orca", "aitoolbox", "supergradients", "fastai")
"""Every dialect by name. Its package has the same name and holds a ``DIALECT``."""


def dialect(name: str) -> Dialect:
    """The dialect called ``name``.

    >>> dialect("orca").original
    'Orca (bigdl-orca 2.4.0)'
    """
    if name not in NAMES:
        hint = suggestion(nearest(str(name), NAMES), ".")
        raise ValueError(f"there is no dialect {name!r}{hint} There are: {', '.join(NAMES)}")
    found = import_module(f"cadenza.dialects.{name}").DIALECT
    assert isinstance(found, Dialect)
    return found
