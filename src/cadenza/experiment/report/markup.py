"""Pieces of a page. Whatever comes from a run is escaped here, and nowhere else."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


def text(value: Any) -> str:
    """``value`` as text that a page shows and does not run.

    >>> text("<script>")
    '&lt;script&gt;'
    """
    return html.escape(shown(value), quote=True)


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def duration(seconds: float) -> str:
    """A stretch of time in its two largest units.

    >>> duration(0.25), duration(75), duration(3 * 3600 + 120)
    ('0.2 s', '1 min 15 s', '3 h 2 min')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def section(title: str, body: str, anchor: str) -> str:
    """A part of the page with a heading; nothing if it is empty."""
    return f'<section id="{anchor}"><h2>{text(title)}</h2>{body}</section>' if body else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], classes: str = "") -> str:
    """A table of cells that are markup already."""
    top = "".join(f"<th>{text(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    inner = f"<thead><tr>{top}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="scroll"><table class="{classes}">{inner}</table></div>'


def pairs(rows: Iterable[tuple[str, Any]]) -> str:
    """Names and values, one pair a line."""
    lines = "".join(f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in rows)
    return f'<div class="scroll"><table class="pairs"><tbody>{lines}</tbody></table></div>' if lines else ""


def folded(title: str, body: str) -> str:
    return f"<details><summary>{text(title)}</summary>{body}</details>" if body else ""


def data(name: str, content: Any) -> str:
    """A block of JSON that no browser takes for anything else."""
    packed = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{packed}</script>'
