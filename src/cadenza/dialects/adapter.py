"""The one adapter through which callbacks of other systems play.

A dialect is declared, not programmed:

1. **Tables** (``table.py``). A ``Hook`` row for each foreign method: the points at which it is called, with what,
   which other hook its default body calls, and a sentence if it differs from the native meaning. An ``Attribute`` row
   for each thing that callbacks read from what they are handed, an ``Ask`` row for each way to ask. ``refused`` names
   what that system has and we do not carry, with one sentence each. All in one ``Dialect``.
2. **A facade** (``facade.py``): ``class Runner(Facade, dialect=ORCA)``. Rows with a ``field`` become properties by
   themselves; the rest are properties and methods of the class. Setters turn into requests: ``runner.stop = True``.
3. **A section**: ``class OrcaSection(Section)`` with ``facade_class = Runner``. One for each dialect and trainer, made
   when its first callback joins; it holds the facade and plays before all callbacks of its dialect, whatever their
   order, so it is the place for bookkeeping that is done once for all of them (``bookkeeping()``). ``members`` are the
   adapters in the order in which they play, so that it can call a hook on all of them.
4. **Base classes** for users: ``class Callback(Foreign)`` with ``dialect``, ``section_class`` and, where hooks are
   called in a way of their own, ``adapter_class``. The default body of a hook that ``calls`` another one calls it.

**Order.** ``order_of(foreign)`` is 0 unless the dialect has an order of its own; it is counted from ``Order.UPDATE``,
so foreign callbacks stand among native ones of the default order, ties in list order. **Checks** happen when a
callback joins a trainer: a method that looks like a hook and is none, a hook that is not carried, a wrong signature.
Base classes of a dialect say ``__dialect_base__ = True`` in their body: what they define counts as not overridden.
**State**: a foreign object with ``state_dict`` and ``load_state_dict`` is saved and restored by them.

An object joins a trainer by its method ``__cadenza_callbacks__``; the core knows nothing else of dialects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from cadenza.callback import Callback, Order, in_turn
from cadenza.dialects.facade import Facade
from cadenza.dialects.table import Dialect, Hook
from cadenza.registration.checks import CallbackError

if TYPE_CHECKING:
    from cadenza.run import Run

Player: TypeAlias = "Callable[[Run], Any]"


class Foreign:
    """The root of the base classes that a dialect offers. Its instances go into ``cadenza.Trainer(callbacks=[...])``
    as they are."""

    dialect: ClassVar[Dialect]
    section_class: ClassVar[type[Section]]
    adapter_class: ClassVar[type[Adapter]]

    def __cadenza_callbacks__(self, others: Sequence[Callback]) -> list[Callback]:
        """The native callbacks that play for this object; ``others`` are those that the trainer has already."""
        kind = type(self)
        known = next((one for one in others if isinstance(one, Section) and one.dialect is kind.dialect), None)
        section = known or kind.section_class()
        adapter = kind.adapter_for(self)(self, section)
        adapter.name = free_name(adapter.name, [one.name for one in others])
        return [adapter] if known else [section, adapter]

    @classmethod
    def adapter_for(cls, foreign: Foreign) -> type[Adapter]:
        """Which adapter plays for ``foreign``."""
        return cls.adapter_class


class Section(Callback):
    """What the callbacks of one dialect in one trainer share. It plays before all of them."""

    order = Order.PREPARE - 1000
    passive = True
    dialect: ClassVar[Dialect]
    facade_class: ClassVar[type[Facade]]

    def __init__(self) -> None:
        self.name = f"{self.dialect.name} callbacks"
        self.facade = self.facade_class()
        self.run: Run

    @property
    def is_open(self) -> bool:
        """Whether a run goes on in which this section plays."""
        return "run" in vars(self) and self.run.is_open

    @property
    def members(self) -> list[Adapter]:
        """The callbacks of this dialect, in the order in which they play."""
        return [one for one in self.run.callbacks if isinstance(one, Adapter) and one.section is self]

    def plays(self) -> dict[str, Player]:
        return {"after_register": self.join, **self.bookkeeping()}

    def bookkeeping(self) -> dict[str, Player]:
        """What is done once for all callbacks of this dialect, by point."""
        return {}

    def join(self, run: Run) -> None:
        """A run begins: what callbacks are handed stands for it from now on."""
        self.run = self.facade.run = run


class Adapter(Callback):
    """Plays a foreign callback: calls its hooks at the points that the dialect's rows say."""

    def __init__(self, foreign: Foreign, section: Section) -> None:
        self.foreign, self.section = foreign, section
        self.dialect = foreign.dialect
        self.name = type(foreign).__name__
        check_foreign(foreign, self)
        self.order = Order.UPDATE + self.order_of(foreign)
        for declared in ("asks", "agree", "ranks"):
            if hasattr(foreign, declared):
                setattr(self, declared, getattr(foreign, declared))

    def order_of(self, foreign: Foreign) -> int:
        """The place among callbacks, counted from that of native ones by default."""
        return 0

    def plays(self) -> dict[str, Player]:
        played: dict[str, Player] = {}
        for row in self.dialect.hooks:
            if not self.implements(row):
                continue
            for point in self.points_of(row):
                player = self.limited(row, point, self.player(row, point))
                played[point] = in_turn(played.get(point), player)
        return played

    def points_of(self, row: Hook) -> tuple[str, ...]:
        """The points at which this adapter itself calls the hook; at others of the row the section may."""
        return row.points

    def implements(self, row: Hook) -> bool:
        """Whether calling this hook does something: the class overrides it, or one that its default body calls."""
        if overridden(self.foreign, row.name):
            return True
        called = self.dialect.hook(row.calls) if row.calls else None
        return called is not None and self.implements(called)

    def player(self, row: Hook, point: str) -> Player:
        """How this hook is called at ``point``: with what the section holds for its callbacks."""
        method, facade = getattr(self.foreign, row.name), self.section.facade
        if row.arguments:
            return lambda run: method(facade)
        return lambda run: method()

    def limited(self, row: Hook, point: str, player: Player) -> Player:
        """Only in the modes of the row, where the point itself is played in others too."""
        modes = row.modes
        if len(modes) == 4:
            return player
        return lambda run: player(run) if run.mode in modes else None

    def check_signature(self, where: str, row: Hook, function: Callable[..., Any]) -> None:
        """Refuses a hook that cannot be called as the dialect calls it."""
        try:
            signature = inspect.signature(function)
            signature.bind(*row.arguments)
        except TypeError:
            wanted = ", ".join(row.arguments)
            raise CallbackError(f"{self.dialect.name}: {where}{signature} is called as {row.name}({wanted})") from None
        except ValueError:
            return  # a builtin without a signature

    def state_dict(self) -> dict[str, Any]:
        save = getattr(self.foreign, "state_dict", None)
        return dict(save()) if callable(save) else {}

    def _keeps_state(self) -> bool:
        return bool(self.state_dict())  # of foreign callbacks nothing more is known

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load = getattr(self.foreign, "load_state_dict", None)
        if callable(load):
            load(state)


def free_name(name: str, taken: Sequence[str]) -> str:
    """``name``, with a number if it is taken: two callbacks of one class keep their states apart.

    >>> free_name("Stop", ["Stop", "Stop 2"])
    'Stop 3'
    """
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name} {number}"
    return free


def overridden(foreign: Foreign, name: str) -> bool:
    """Whether ``foreign`` has a method ``name`` of its own, not the one of the dialect's base classes."""
    if name in vars(foreign):
        return True
    for owner in type(foreign).__mro__:
        if name in vars(owner):
            return not vars(owner).get("__dialect_base__", False)
    return False


def check_foreign(foreign: Foreign, adapter: Adapter) -> None:
    """Refuses what would be ignored: methods that look like hooks and are none, hooks that cannot be called."""
    dialect = foreign.dialect
    for owner in type(foreign).__mro__:
        if vars(owner).get("__dialect_base__", False) or owner is object:
            continue
        for name, member in vars(owner).items():
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if inspect.isfunction(function) and not hasattr(function, "__cadenza_no_point__"):
                _check_method(dialect, owner, name)
    for row in dialect.hooks:
        if overridden(foreign, row.name):
            adapter.check_signature(f"{type(foreign).__name__}.{row.name}", row, getattr(foreign, row.name))


def _check_method(dialect: Dialect, owner: type, name: str) -> None:
    if dialect.hook(name) is None and dialect.looks_like_a_hook(name):
        why = dialect.not_carried(name, "hook")
        raise CallbackError(
            f"{why} ({owner.__name__}.{name}). If it is a helper of yours, mark it with @cadenza.not_a_point"
        )


Foreign.adapter_class = Adapter
