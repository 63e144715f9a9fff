"""How a dialect is written down: rows that say what a foreign name means here, each difference with a sentence.

The adapter plays by these rows, registration refuses by them, and ``docs/dialects.md`` shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cadenza.foundation.suggest import likeness, nearest_name
from cadenza.points import MODES, POINTS, REQUESTS

EVERY_MODE = tuple(MODES)


@dataclass(frozen=True)
class Hook:
    """A foreign method and the points at which it is called.

    ``arguments`` are what it is called with. ``calls`` is another hook that its default body calls, so that a class
    which overrides only that one is played too. ``modes`` limits it to some of fit, validate, test and predict. A hook
    without points is never called by the loop itself: other hooks or the dialect's own code call it. ``says`` is empty
    if the hook means exactly what the point means.
    """

    name: str
    points: tuple[str, ...]
    says: str = ""
    arguments: tuple[str, ...] = ()
    calls: str | None = None
    modes: tuple[str, ...] = EVERY_MODE

    def __post_init__(self) -> None:
        _refuse_unknown(self.name, self.points, POINTS, "point")
        _refuse_unknown(self.name, self.modes, MODES, "mode")


@dataclass(frozen=True)
class Attribute:
    """A foreign attribute or method of what a callback is handed. ``field`` is the path on ``run`` that it reads,
    such as ``clock.epochs``; it is empty if the facade has a property or a method of its own for it."""

    name: str
    field: str = ""
    says: str = ""


@dataclass(frozen=True)
class Ask:
    """A foreign way to ask, as one writes it there, and the requests that it becomes."""

    name: str
    requests: tuple[str, ...]
    says: str = ""

    def __post_init__(self) -> None:
        _refuse_unknown(self.name, self.requests, REQUESTS, "request")


@dataclass(frozen=True)
class Dialect:
    """One foreign callback system: its tables, and where its names were imported from.

    ``handed`` is what callbacks are handed, in words for messages. ``prefixes`` tell which methods are meant to be
    hooks. ``refused`` holds names of that system which are not carried, each with one sentence. ``modules`` maps
    original import paths to modules of this package; ``real`` are the packages that must not be there for ``install``.
    ``names`` is a module whose names can be imported from every path, as from modules that star-import each other;
    ``stars`` says what a star import of a path brings, if not everything.

    >>> hooks = (Hook("on_start", ("before_run",), arguments=("state",)),)
    >>> sample = Dialect("sample", "Sample 1.0", "state", hooks, prefixes=("on_",))
    >>> sample.nearest_hook("on_strat"), sample.looks_like_a_hook("on_finish")
    ('on_start', True)
    """

    name: str
    original: str
    handed: str
    hooks: tuple[Hook, ...]
    attributes: tuple[Attribute, ...] = ()
    requests: tuple[Ask, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    real: tuple[str, ...] = ()
    names: str = ""
    stars: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The version of the original whose behaviour this dialect has: the number in ``original``."""
        found = re.search(r"\d+(\.\d+)+", self.original)
        return found[0] if found else "0"

    def hook(self, name: str) -> Hook | None:
        return next((row for row in self.hooks if row.name == name), None)

    def looks_like_a_hook(self, name: str) -> bool:
        """Whether a method of this name is meant to be called by the loop."""
        if name.startswith("_"):
            return False
        names = [row.name for row in self.hooks]
        return name.startswith(self.prefixes) or nearest_name(name, names, 0.88) is not None

    def nearest_hook(self, name: str) -> str | None:
        """The hook that means what ``name`` says, by its words: a stage without a span is a whole pass."""
        meant = _meanings(name)

        def fitness(hook: str) -> tuple[int, float]:
            means = _meanings(hook)
            return len(meant & means) - len(meant ^ means), likeness(name, hook)

        return max((row.name for row in self.hooks), key=fitness, default=None)

    def attribute_names(self) -> list[str]:
        return [row.name for row in self.attributes]

    def not_carried(self, name: str, kind: str, names: Iterable[str] = ()) -> str:
        """What to say of ``name``: its own sentence if it is refused on purpose, else the nearest of ``names``, or of
        the hooks if it is one."""
        if name in self.refused:
            return f"{self.name}: {name} is not carried: {self.refused[name]}"
        near = self.nearest_hook(name) if kind == "hook" else nearest(name, names)
        return f"{self.name}: there is no {kind} {name!r} here" + (f"; the nearest is {near!r}" if near else "")


def nearest(name: str, names: Iterable[str], cutoff: float = 0.4) -> str | None:
    """The one of ``names`` that somebody who wrote ``name`` most likely meant: what is spelt much like it, or else what
    its first words are, or else what is spelt a little like it.

    >>> nearest("fit_distributed", ["fit", "train_history"]), nearest("train_histroy", ["train", "train_history"])
    ('fit', 'train_history')
    """
    known = list(names)
    found = nearest_name(name, known, max(cutoff, 0.6))
    if found is None and cutoff < 0.6:
        found = next((one for one in known if name.startswith(f"{one}_")), None) or nearest_name(name, known, cutoff)
    return found


_WORDS = {
    "start": "before", "begin": "before", "before": "before", "end": "after", "finish": "after", "after": "after",
    "batch": "iter", "iter": "iter", "iteration": "iter", "epoch": "epoch", "loader": "epoch",
    "run": "run", "fit": "run", "training": "run", "train": "train", "test": "test", "pred": "pred", "predict": "pred",
    "val": "val", "valid": "val", "validation": "val", "evaluate": "val",
}  # fmt: skip


def _meanings(name: str) -> set[str]:
    """What the words of a hook's name say.

    >>> sorted(_meanings("on_validation_strat"))
    ['before', 'epoch', 'measures', 'val']
    """
    words = [word for word in name.split("_") if word not in ("", "on")]
    found = {_WORDS.get(nearest(word, _WORDS, cutoff=0.75) or "", word) for word in words}
    if found & {"before", "after"} and found <= {"before", "after", "train", "val", "test", "pred"}:
        found.add("epoch" if found & {"val", "test", "pred"} else "run")
    if found & {"val", "test"}:
        found.add("measures")
    return found


def _refuse_unknown(row: str, names: Iterable[str], known: Mapping[str, object], kind: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"the row {row!r} names {name!r}, which is no {kind}")
