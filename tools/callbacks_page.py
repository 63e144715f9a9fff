"""The page ``docs/callbacks.md``, made from the docstrings of the ready callbacks."""

from __future__ import annotations

import inspect
import re

import cadenza.callbacks
import cadenza.experiment
from cadenza.callback import Callback, Order
from cadenza.callbacks import Schedule
from cadenza.experiment import Tracker

_HEAD = """# Ready callbacks

Made from the docstrings by `make generate`; a test compares, and runs every example. Import them from
`cadenza.callbacks`, and those that keep the record of a run, at the end, from `cadenza.experiment`. Where an idea makes
sense in a loop of your own, it is there as a plain function too.

"""

_CHANGING, _RATES = "Changing the training", "Learning rates and batch sizes"
_GUARDING, _MEASURING, _SHOWING = "Guarding and stopping", "Measuring", "Showing and reporting"
_KEEPING = "Keeping the record of a run"
_GROUPS = (_CHANGING, _RATES, _GUARDING, _MEASURING, _SHOWING, _KEEPING)
_PLACES = {
    "AllPredictionsSame": _GUARDING,
    "BatchSizeFinder": _RATES,
    "EarlyStopping": _GUARDING,
    "HangWatch": _GUARDING,
    "LRFinder": _RATES,
    "NaNGuard": _GUARDING,
    "PreciseBatchNorm": _CHANGING,
    "TimeLimit": _GUARDING,
    "WeightAverage": _CHANGING,
}
"""Where a callback stands if its order in a run does not say it."""


def callbacks_page() -> str:
    """The source of ``docs/callbacks.md``."""
    classes = ready_callbacks()
    groups = {title: [cls for cls in classes if _group(cls) == title] for title in _GROUPS}
    parts = [_HEAD]
    for title, members in groups.items():
        if members:
            rows = [f"| [`{cls.__name__}`](#{cls.__name__.lower()}) | {_first_sentence(cls)} |" for cls in members]
            parts.append("\n".join([f"**{title}**\n", "| callback | what it does |", "|---|---|", *rows]) + "\n\n")
    for title, members in groups.items():
        if members:
            parts.append(f"## {title}\n\n" + "\n".join(_section(cls) for cls in members) + "\n")
    return "".join(parts).rstrip() + "\n"


def ready_callbacks() -> list[type[Callback]]:
    """Every callback that the packages export, by name; ``Tracker`` is there to derive from."""
    packages = (cadenza.callbacks, cadenza.experiment)
    exported = [getattr(package, name) for package in packages for name in package.__all__]
    found = [thing for thing in exported if inspect.isclass(thing) and issubclass(thing, Callback)]
    found.remove(Tracker)
    return sorted(found, key=lambda cls: cls.__name__)


def _group(cls: type[Callback]) -> str:
    if cls.__module__.startswith("cadenza.experiment"):
        return _KEEPING
    if issubclass(cls, Schedule):
        return _RATES
    by_order = _CHANGING if cls.order < Order.MEASURE else _MEASURING if cls.order < Order.REPORT else _SHOWING
    return _PLACES.get(cls.__name__, by_order)


def _first_sentence(cls: type[Callback]) -> str:
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0].replace("``", "`").replace("|", "\\|")


def _section(cls: type[Callback]) -> str:
    signature = re.sub(r"'([^']*?)'(?=[,)])", r'"\1"', _signature(cls))
    return f"### {cls.__name__}\n\n```text\n{signature}\n```\n\n{_markdown(inspect.cleandoc(cls.__doc__ or ''))}\n"


def _signature(cls: type[Callback]) -> str:
    parameters = inspect.signature(cls).parameters.values()
    words: list[str] = []
    for parameter in parameters:
        shown = parameter.replace(annotation=parameter.empty)
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words and not any("*" in word for word in words):
            words.append("*")
        words.append(str(shown))
    return f"{cls.__name__}({', '.join(words)})"


def _markdown(doc: str) -> str:
    """A docstring with its doctests as blocks of their own."""
    lines, inside = [], False
    for line in doc.splitlines():
        if line.startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line if inside else line.replace("``", "`"))
    return "\n".join([*lines, "```"] if inside else lines) + "\n"
