"""Objects from what a recipe says of them: a name, ``{name: arguments}``, ``{_target_: path, ...}`` or the object."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from cadenza.dialects.supergradients.registry import find


def build(kind: str, said: Any, **more: Any) -> Any:
    """What ``said`` means, made with its arguments and with ``more``. An object is returned as it is.

    >>> from cadenza.dialects.supergradients.early_stop import EarlyStop
    >>> build("callback", {"EarlyStop": {"phase": "TRAIN_EPOCH_END", "monitor": "loss"}}).monitor
    'loss'
    """
    if isinstance(said, str):
        return find(kind, said)(**more)
    if isinstance(said, Mapping):
        if "_target_" in said:
            return located(str(said["_target_"]))(**{**_without(said, "_target_"), **more})
        if len(said) != 1:
            names = ", ".join(map(str, said))
            raise ValueError(f"supergradients: a {kind} is said as {{name: arguments}} with one name, not {names}")
        name, arguments = next(iter(said.items()))
        return find(kind, str(name))(**{**dict(arguments or {}), **more})
    return said


def located(path: str) -> Any:
    """What a dotted path leads to."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _without(said: Mapping[Any, Any], key: str) -> dict[str, Any]:
    return {str(name): value for name, value in said.items() if name != key}
