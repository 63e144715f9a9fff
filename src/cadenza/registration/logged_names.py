"""Which metrics a fit will log, as far as that can be known before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from cadenza.callback import Callback
from cadenza.foundation.suggest import nearest_name, suggestion
from cadenza.points import STAGES

_OURS = tuple(f"cadenza.{room}" for room in ("callback", "main_callback", "when", "experiment", "distributed"))


class LoggedNames:
    """The names that a fit with these callbacks may log. What a callback of the user's logs is not known.

    >>> names = LoggedNames([], {"train": None, "val": {"clean": [], "noisy": []}})
    >>> names.names
    ['train/loss', 'val/clean/loss', 'val/noisy/loss']
    >>> names.problem("train/los")
    "which nothing in this fit logs; did you mean 'train/loss'? It logs train/loss, val/clean/loss, val/noisy/loss"
    """

    def __init__(self, callbacks: Iterable[Callback], loaders: Mapping[str, Any]) -> None:
        self.stages = tuple(loaders)
        prefixes = [prefix for stage, loader in loaders.items() for prefix in _prefixes(stage, loader)]
        said = [_logged_by(callback, prefixes) for callback in callbacks]
        self.names = sorted({f"{prefix}loss" for prefix in prefixes}.union(*(one for one in said if one is not None)))
        """Names, and patterns with a star."""
        self.all_known = None not in said

    def problem(self, name: str) -> str:
        """What is wrong with following ``name``; nothing if it may be logged."""
        if not self.all_known or any(fnmatchcase(name, pattern) for pattern in self.names):
            return ""
        shown = [one for one in self.names if one.removesuffix("/*") not in self.names or not one.endswith("/*")]
        near = nearest_name(name, [one for one in shown if "*" not in one], 0.4)
        return f"which nothing in this fit logs{suggestion(near, '.')} It logs {', '.join(shown)}"

    def missing_stage(self, name: str) -> str:
        """The stage that ``name`` belongs to, if this fit has no loader for it."""
        stage, slash, _ = name.partition("/")
        measured = any(fnmatchcase(name, pattern) for pattern in self.names)
        return stage if slash and stage in STAGES and stage not in self.stages and not measured else ""


def _prefixes(stage: str, loader: Any) -> list[str]:
    return [f"{stage}/{name}/" for name in loader] if isinstance(loader, Mapping) else [f"{stage}/"]


def _logged_by(callback: Callback, prefixes: Sequence[str]) -> Iterable[str] | None:
    inner = getattr(callback, "callback", None)
    if isinstance(inner, Callback):
        return _logged_by(inner, prefixes)
    return callback._logs(prefixes) if type(callback).__module__.startswith(_OURS) else None
