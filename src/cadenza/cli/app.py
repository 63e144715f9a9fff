"""The commands, put together. Each module in ``commands`` adds its own; importing them loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer

from cadenza.cli.commands import (
    ablate,
    certify,
    check,
    launch,
    points,
    predict,
    recipes,
    replay,
    runs,
    script,
    train,
    validate,
)
from cadenza.cli.terminal import invoke, typer_app

COMMANDS: dict[str, Callable[..., Any]] = {
    "train": train.train,
    "validate": validate.validate,
    "test": validate.measure_on_tests,
    "predict": predict.predict,
    "explain": points.explain,
    "points": points.points,
    "check": check.check,
    "recipes": recipes.recipes,
    "runs": runs.runs,
    "compare": runs.compare,
    "report": runs.report,
    "ablate": ablate.ablate,
    "replay": replay.replay,
    "launch": launch.launch,
    "script": script.script,
    "certify": certify.certify,
}
"""The commands by name, in the order in which ``--help`` lists them."""


def make_app() -> typer.Typer:
    return typer_app(COMMANDS, passes_on=("launch",))


def run(words: Sequence[str]) -> int:
    """Runs the command in ``words``; returns its exit code, 2 if it was called wrongly."""
    return invoke(make_app(), words)
