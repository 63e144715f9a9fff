"""Shared by the benchmarks: paired rounds, medians with intervals, where they were measured."""

from __future__ import annotations

import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent / "results"


def paired_ratios(
    reference: Callable[[], float], cases: Mapping[str, Callable[[], float]], rounds: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of each case against the reference runs before and after it, ``rounds`` times, in shuffled order."""
    ratios: dict[str, list[float]] = {name: [] for name in cases}
    references: list[float] = []
    order = random.Random(0)
    reference()
    for case in cases.values():
        case()
    for _ in range(rounds):
        names = list(cases)
        order.shuffle(names)
        before = reference()
        for name in names:
            seconds = cases[name]()
            after = reference()
            ratios[name].append(seconds / ((before + after) / 2))
            references.append(before)
            before = after
    return ratios, references


def median_with_interval(values: list[float], resamples: int = 2000) -> tuple[float, float, float]:
    """The median and its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples))
    return statistics.median(values), medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]


def best_of(function: Callable[[], float], times: int) -> float:
    return min(function() for _ in range(times))


def timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def surroundings() -> dict[str, Any]:
    """Date, hardware and versions."""
    packages = ("torch", "pytorch-lightning", "pytorch-ignite", "transformers", "accelerate", "numpy")
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version for name in packages if (version := _version(name))},
        "command": _command(),
    }


def _command() -> str:
    """The command of this run, without the folders of this machine."""
    words, given = ["python", "benchmarks/" + Path(sys.argv[0]).name], iter(sys.argv[1:])
    for word in given:
        if word in ("--out", "--folder"):
            next(given, None)
        else:
            words.append(word)
    return " ".join(words)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write(name: str, results: Mapping[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**surroundings(), **results}, indent=2) + "\n")
    return path


def read(name: str) -> dict[str, Any]:
    """What was written last."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
