"""The page that shows several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cadenza.callback import infer_mode
from cadenza.callbacks.showing.plot_series import family_of
from cadenza.experiment.records import Record
from cadenza.experiment.report.markup import folded, section, table, text
from cadenza.experiment.report.run_curves import section_of
from cadenza.experiment.report.run_sections import environment, happened, result
from cadenza.experiment.runs import compare_records


def several_runs(records: Sequence[Record], charts: dict[str, str]) -> str:
    """Results, curves, what was set differently, metrics."""
    found = compare_records(records)
    names = [f"[{index + 1}]" for index in range(len(records))]
    listed = "".join(
        f'<li><span class="swatch" data-run="{index}"></span><b>[{index + 1}]</b> {text(record.label)} '
        f'<span class="badge {text(record.state)}">{text(record.state)}</span><br>{text(result(record))}</li>'
        for index, record in enumerate(records)
    )
    differing = _rows(found.settings) if found.settings else []
    each = "".join(
        folded(f"[{index + 1}] {record.label}", happened(record) + environment(record))
        for index, record in enumerate(records)
    )
    parts = [
        f'<h1>{len(records)} runs</h1><ol class="runs">{listed}</ol>',
        section("Curves", charts["curves"], "curves"),
        section("Learning rate", charts["rate"], "rate"),
        section("Metrics", table(["best of each", *names], _metrics(found.metrics), "numbers"), "metrics"),
        section(
            "Set differently",
            table(["", *names], differing, "diff") if differing else '<p class="note">Nothing.</p>',
            "recipe",
        ),
        section("Facts", table(["", *names], _rows(found.facts), "diff"), "facts"),
        section("Throughput", charts["speed"], "speed"),
        section("Each run", each, "each"),
    ]
    return "".join(parts)


def _rows(rows: Sequence[tuple[str, list[Any]]]) -> list[list[str]]:
    return [[text(name), *(text(value) for value in values)] for name, values in rows]


def _metrics(rows: Sequence[tuple[str, list[Any]]]) -> list[list[str]]:
    """The best of each line is marked."""
    lines = []
    for name, values in rows:
        finite = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
        counts = len(finite) > 1 and section_of(family_of(name)) == "curves"
        best = None if not counts else min(finite) if infer_mode(name) == "min" else max(finite)
        lines.append([text(name), *(f"<b>{text(v)}</b>" if v == best and v is not None else text(v) for v in values)])
    return lines
