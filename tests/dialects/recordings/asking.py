"""Asks a package questions and writes its answers down.

A script beside this one holds the questions for one system: functions under ``@question("name")`` that return
numbers, texts, lists, dicts or tensors. Run with the real package it writes the recording::

    python fastai_v1.py fastai_v1.json

and with the dialect installed, unchanged, the answers that are compared with it.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch

QUESTIONS: dict[str, Callable[[], Any]] = {}


def question(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Keeps a function as a question; its name must be new."""

    def keep(ask: Callable[[], Any]) -> Callable[[], Any]:
        if name in QUESTIONS:
            raise ValueError(f"the question {name!r} is asked twice")
        QUESTIONS[name] = ask
        return ask

    return keep


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it; floats keep seven digits."""
    if isinstance(value, bool | str | int) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return f"<{type(value).__name__}>"


def answer(ask: Callable[[], Any]) -> Any:
    """What ``ask`` returns in an empty folder, or the kind of error that it raises."""
    here = os.getcwd()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                return plain(ask())
        except Exception as error:
            return {"raises": type(error).__name__}
        finally:
            os.chdir(here)


def main() -> None:
    """Writes the answers to the file that the command line names, all or those of some questions."""
    path, *names = sys.argv[1:]
    path = os.path.abspath(path)
    found = {name: answer(ask) for name, ask in QUESTIONS.items() if not names or name in names}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")
