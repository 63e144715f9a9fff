"""The page ``docs/points.md``, made from the table of points."""

from __future__ import annotations

from cadenza.cli.commands.points import points_outline
from cadenza.points import FIELDS, POINTS, REQUESTS, STAGES, Point

_HEAD = """# The points

Made from `src/cadenza/points.py` by `make generate`; a test compares. `cadenza points` prints the same table.

A run is a tree of spans. `before_x` and `after_x` look, change and ask; `around_x` returns a context manager that is
held for the whole span; `on_x` is the behaviour itself and belongs to the one `MainCallback`. The order at a span is
`before_x`, enter every `around_x`, the inside, leave them in reverse, `after_x`.
"""


def points_page() -> str:
    """The source of ``docs/points.md``."""
    parts = [_HEAD, "## The score\n", "```text", *(line for line, _ in points_outline()), "```\n", "## Every point\n"]
    parts += ["| point | what is true there | stages | fields alive | requests taken |", "|---|---|---|---|---|"]
    parts += [_row(point) for point in POINTS.values()]
    parts += ["", "## Fields with a life\n", "All other fields of `run` are always there.\n"]
    parts += ["| field | from | what it is |", "|---|---|---|"]
    parts += [
        f"| `{field.name}` | `{field.first}` to the end of the iteration | {field.says} |" for field in FIELDS.values()
    ]
    parts += ["", "## Requests\n", "| request | lands if made up to | in stages | what follows |", "|---|---|---|---|"]
    parts += [f"| `run.{r.name}()` | `{r.last}` | {', '.join(r.stages)} | {r.says} |" for r in REQUESTS.values()]
    return "\n".join(parts) + "\n"


def _row(point: Point) -> str:
    stages = "all" if point.stages == STAGES else ", ".join(point.stages)
    fields = ", ".join(f"`{name}`" for name in point.fields)
    taken = set().union(*point.requests.values()) - {"stop", "save"}
    requests = ", ".join(f"`{name}`" for name in REQUESTS if name in taken)
    return f"| `{point.name}` | {point.says} | {stages} | {fields} | {requests} |"
