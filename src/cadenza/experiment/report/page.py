"""The report as one file that opens from disk: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from cadenza.experiment.records import Record, RunName, read_run
from cadenza.experiment.report.markup import data, text
from cadenza.experiment.report.run_curves import axes, panels
from cadenza.experiment.report.run_sections import one_run
from cadenza.experiment.report.side_by_side import several_runs
from cadenza.foundation.whole_files import write_whole

_CONTROLS = """<div class="controls"><label>horizontal <select id="axis"><option value="step">steps</option>
<option value="epoch">epochs</option><option value="seconds">time</option></select></label>
<label>smoothing <input id="smooth" type="range" min="0" max="0.99" step="0.01" value="0"> <output>0</output></label>
<label><input id="log" type="checkbox"> logarithmic</label>
<span class="note">drag to zoom, double-click to go back</span></div>"""


def write_report(runs: RunName | Sequence[RunName], path: RunName | None = None) -> Path:
    """Writes the report of one run, or the comparison of several, and returns its place.

    ``runs`` are folders of runs. Without ``path`` the report of one run is ``report.html`` in its folder, and a
    comparison is ``comparison.html`` in the current directory. There is the old file or the new one, never a part.
    """
    folders = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    if not folders:
        raise ValueError("a report needs at least one folder of a run")
    records = [read_run(folder) for folder in folders]
    default = records[0].folder / "report.html" if len(records) == 1 else Path("comparison.html")
    target = Path(path) if path is not None else default
    write_whole(target, page(records).encode())
    return target


def page(records: Sequence[Record]) -> str:
    """The source of the page."""
    drawn = panels(records)
    charts = {name: _places(drawn, name) for name in ("curves", "rate", "speed")}
    if charts["curves"]:
        charts["curves"] = _CONTROLS + charts["curves"]
    body = one_run(records[0], charts) if len(records) == 1 else several_runs(records, charts)
    title = records[0].label if len(records) == 1 else f"{len(records)} runs"
    labels = [record.folder.name if len(records) == 1 else f"[{index + 1}]" for index, record in enumerate(records)]
    content = {"panels": drawn, "axes": axes(records), "runs": labels}
    scripts = [_asset("vendor/uPlot.iife.min.js"), _asset("report/assets/report.js")]
    style = _asset("vendor/uPlot.min.css") + _asset("report/assets/report.css")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{text(title)}</title><style>{style}</style></head>",
            f'<body><button id="theme" title="light or dark">◐</button><main>{body}</main>',
            data("data", content),
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>\n",
        ]
    )


def _places(drawn: list[dict[str, object]], name: str) -> str:
    """An empty box for each panel of a section; the script draws into it when it comes into view."""
    boxes = [
        f'<div class="panel" data-panel="{index}"><h3>{text(panel["title"])}</h3><div class="chart"></div></div>'
        for index, panel in enumerate(drawn)
        if panel["section"] == name
    ]
    return f'<div class="panels">{"".join(boxes)}</div>' if boxes else ""


def _asset(name: str) -> str:
    content = files("cadenza.experiment").joinpath(*name.split("/")).read_text(encoding="utf-8")
    if "</script" in content:
        raise ValueError(f"{name} cannot stand in a page: it would end its own script")
    return content


def _policy(scripts: Sequence[str]) -> str:
    """Only these very scripts run, and nothing is fetched: a browser holds to it even if something were not escaped."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"
