"""Names for objects, so that a recipe can say ``early_stopping`` and mean a class."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cadenza.recipes.errors import UnknownName, did_you_mean, fold

Thing = TypeVar("Thing", bound=Callable[..., Any])
Table = Mapping[str, "str | Entry"]

KINDS = ("model", "loss", "optimizer", "scheduler", "dataset", "loader", "metric", "callback", "tracker")


@dataclass(frozen=True)
class Entry:
    """A registered object: itself, or where it is found when it is asked for. ``holds`` says which of its arguments
    are objects again, and of which kind."""

    name: str
    place: str | None = None
    thing: Any = None
    holds: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Any:
        """The object; its module is imported now, if it was not yet."""
        if self.place is None:
            return self.thing
        module, _, attribute = self.place.partition(":")
        return getattr(importlib.import_module(module), attribute)

    @property
    def path(self) -> str:
        """Where the object is defined, dotted: the form of ``_target_``."""
        if self.place is not None:
            return self.place.replace(":", ".")
        return f"{getattr(self.thing, '__module__', '')}.{getattr(self.thing, '__qualname__', '')}"


class Registry:
    """The names of one kind of object. Case and separators do not matter when a name is looked up.

    >>> metrics = Registry("metric")
    >>> @metrics.register
    ... def my_error(output, targets): ...
    >>> metrics["My-Error"].load() is my_error
    True
    """

    def __init__(self, kind: str, shipped: Callable[[], Table] | None = None) -> None:
        self.kind = kind
        self._shipped = shipped
        self._entries: dict[str, Entry] = {}

    def register(
        self, thing: Thing, name: str | None = None, *, replace: bool = False, holds: Mapping[str, str] | None = None
    ) -> Thing:
        """Adds an object under ``name``, or its own name in small letters with underscores."""
        if not callable(thing):
            raise TypeError(f"what is registered is a class or a function, not {type(thing).__name__}")
        name = snake(thing.__name__) if name is None else name
        if not isinstance(name, str) or not fold(name):
            raise TypeError(f"a name is a text with letters or digits, not {name!r}")
        old = self._table().get(fold(name))
        if old is not None and not replace and not _same(old, thing):
            raise ValueError(
                f"the {self.kind} {name!r} is taken by {old.path}; give {thing.__qualname__} another name: "
                f'@register("{self.kind}", name="...")'
            )
        self._entries[fold(name)] = Entry(name, thing=thing, holds=dict(holds or {}))
        return thing

    def __getitem__(self, name: str) -> Entry:
        entry = self._table().get(fold(name))
        if entry is None:
            raise UnknownName(f"there is no {self.kind} {name!r}{did_you_mean(name, self)}")
        return entry

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and fold(name) in self._table()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(entry.name for entry in self._table().values()))

    def __len__(self) -> int:
        return len(self._table())

    def entries(self) -> list[Entry]:
        return list(self._table().values())

    def _table(self) -> dict[str, Entry]:
        if self._shipped is not None:
            shipped, self._shipped = self._shipped, None
            for name, found in shipped().items():
                entry = found if isinstance(found, Entry) else Entry(name, place=found)
                self._entries.setdefault(fold(name), entry)
        return self._entries


def _same(old: Entry, thing: Any) -> bool:
    """Whether this is the registered object again: itself, or a top-level one whose file or cell was run anew."""
    if old.place is None and old.thing is thing:
        return True
    path = f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"
    if old.place is not None:
        return old.path == path or old.load() is thing
    return old.path == path and "<locals>" not in path and _file(old.thing) == _file(thing)


def _file(thing: Any) -> str | None:
    try:
        return inspect.getfile(thing)
    except (TypeError, OSError):
        return None


def snake(name: str) -> str:
    """A class name as a recipe writes it.

    >>> [snake(name) for name in ("EarlyStopping", "EMA", "LRFinder", "NaNGuard", "Conv2dNet")]
    ['early_stopping', 'ema', 'lr_finder', 'nan_guard', 'conv2d_net']
    """
    parts = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name.replace("NaN", "Nan"))
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", parts).replace("-", "_").replace(" ", "_").lower()
