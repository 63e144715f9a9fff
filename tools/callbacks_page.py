"""The page ``docs/callbacks.md``, made from the docstrings of the ready callbacks."""

from __future__ import annotations

import inspect
import re

import cadenza.callbacks
import cadenza.experiment
from cadenza.callback import Callback
from cadenza.experiment import Tracker

_HEAD = """# Ready callbacks

Made from the docstrings by `make generate`; a test compares, and runs every example. Import them from
`cadenza.callbacks`, and those that keep the record of a run, at the end, from `cadenza.experiment`. Where an idea makes
sense in a loop of your own, it is there as a plain function too.

"""

_TITLES = {
    "callbacks.training": "Changing the training",
    "callbacks.rates": "Learning rates and batch sizes",
    "callbacks.guards": "Guarding and stopping",
    "callbacks.measuring": "Measuring the model",
    "callbacks.profiling": "Measuring time and memory",
    "callbacks.showing": "Showing and reporting",
    "callbacks.checkpoint": "Saving and resuming",
    "experiment": "Keeping the record of a run",
}
"""The heading for each folder of callbacks, in the order of the page."""


def callbacks_page() -> str:
    """The source of ``docs/callbacks.md``."""
    classes = ready_callbacks()
    groups = {title: [cls for cls in classes if _group(cls) == title] for title in _TITLES.values()}
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
    module = cls.__module__.removeprefix("cadenza.")
    return next(title for folder, title in _TITLES.items() if f"{module}.".startswith(f"{folder}."))


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
