"""What a foreign callback is handed: an object with the foreign names, over the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from cadenza.dialects.table import Attribute, Dialect

if TYPE_CHECKING:
    from cadenza.run import Run


class Facade:
    """Carries the attributes of one dialect: those with a ``field`` read it from the run, the others are properties
    and methods that a subclass defines. Reading anything else raises and names the nearest. The user may set attributes
    of their own; setting a known one raises if it would have no effect.

    >>> shown = Dialect("sample", "Sample 1.0", "state", (), (Attribute("step", "clock.steps"),))
    >>> class State(Facade, dialect=shown): ...
    >>> State().steps
    Traceback (most recent call last):
    AttributeError: sample: there is no attribute 'steps' here; the nearest is 'step'
    """

    dialect: ClassVar[Dialect]
    _kept_names: ClassVar[frozenset[str]] = frozenset()
    """Attributes that the facade keeps by itself, by ``vars(self)``: setting one would be undone or not be seen."""
    _replaceable: ClassVar[frozenset[str]] = frozenset()
    """Functions that a user may replace."""
    _offered: ClassVar[tuple[str, ...]] = ()
    """What it has besides the rows, such as the methods of a front door: names to come to for who misspells one."""
    run: Run

    def __init_subclass__(cls, dialect: Dialect | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if dialect is None:
            return
        cls.dialect = dialect
        for row in dialect.attributes:
            if row.field and not hasattr(cls, row.name):
                setattr(cls, row.name, property(_reader(row), _refuser(row)))

    def __getattr__(self, name: str) -> Any:
        own = getattr(type(self), name, None)
        if isinstance(own, property) and own.fget is not None:
            return own.fget(self)  # it raised an AttributeError that says more than this could; so it does again
        if name == "run":
            raise AttributeError(f"{self.dialect.name}: {self.dialect.handed} belongs to a run, and none has begun")
        if name.startswith("__"):
            raise AttributeError(name)
        known = next((row for row in self.dialect.attributes if row.name == name), None)
        if known is not None:
            says = f": {known.says}" if known.says else ""
            raise AttributeError(f"{self.dialect.name}: {self.dialect.handed}.{name} is not there now{says}", name=name)
        names = [*self._offered, *self.dialect.attribute_names()]
        raise AttributeError(self.dialect.not_carried(name, "attribute", names), name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._kept_names:
            self._check_settable(name, None)
        if not (name in vars(self) or name.startswith("_") or name == "run"):
            own = getattr(type(self), name, None)
            if name in self.dialect.refused and not hasattr(type(self), name):
                raise AttributeError(self.dialect.not_carried(name, "attribute", ()), name=name)
            if isinstance(own, property) or inspect.isfunction(own):
                self._check_settable(name, own)
        object.__setattr__(self, name, value)

    def _check_settable(self, name: str, own: Any) -> None:
        where = f"{self.dialect.name}: {self.dialect.handed}.{name}"
        if name in self._kept_names:
            raise AttributeError(f"{where} is kept by the loop; setting it would change nothing", name=name)
        if isinstance(own, property) and own.fset is None:
            raise AttributeError(f"{where} is read alone; setting it would change nothing", name=name)
        if inspect.isfunction(own) and name not in self._replaceable:
            raise AttributeError(f"{where} is a method; it is called, not set", name=name)


class FrontDoor(type):
    """The kind of a dialect's front door (``Trainer``, ``Estimator``): what it or its class does not have is refused
    with the dialect's name and the nearest thing that it has."""

    dialect: Dialect

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        kind = f"attribute of {cls.__name__}"
        offered = [own for base in cls.__mro__ for own in vars(base) if not own.startswith("_")]
        raise AttributeError(cls.dialect.not_carried(name, kind, offered), name=name)


def _reader(row: Attribute) -> Callable[[Facade], Any]:
    read = attrgetter(row.field)
    return lambda facade: read(facade.run)


def _refuser(row: Attribute) -> Callable[[Facade, Any], None]:
    def refuse(facade: Facade, value: Any) -> None:
        says = f" ({row.says})" if row.says else ""
        raise AttributeError(
            f"{facade.dialect.name}: {row.name} is read from the run{says}; setting it would change nothing"
        )

    return refuse
