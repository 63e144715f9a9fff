"""The names that fastai's star imports bring along: modules, types, and stand-ins for what is not carried."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from cadenza.dialects.fastai.table import DIALECT, STAR, ZOO


class Absent:
    """Stands for a name that is not carried; any use raises."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self.__dict__["__name__"]
        raise ImportError(f"fastai: {name} is not carried: {DIALECT.refused.get(name, ZOO)}", name=name)

    __call__ = __getitem__ = __iter__ = __mro_entries__ = _refuse

    def __instancecheck__(self, one: object) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


def brought() -> dict[str, Any]:
    """All these names and what they mean."""
    found: dict[str, Any] = dict.fromkeys(STAR["types"], Any) | {name: Absent(name) for name in STAR["absent"]}
    for one in STAR["modules"]:
        name, _, path = one.rpartition("=")
        if find_spec(path.split(".")[0]) is not None:
            found[name or path] = import_module(path)
    for path, names in STAR["names"].items():
        there = find_spec(path.split(".")[0]) is not None
        found |= {name: getattr(import_module(path), name) if there else Absent(name) for name in names}
    return found


__all__ = list(brought())
ELSEWHERE = {name: Absent(name) for name in STAR["elsewhere"]}
globals().update(brought())
