"""Writes what is made from the code: stubs, the points in the loop's docstring, and pages of tables and sources.

Run it with ``make generate`` after changing ``points.py``, ``loop.py``, imports or a ready callback; a test
compares the files with what this would write.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from functools import partial
from pathlib import Path

from cadenza.points import ITERATION, POINTS, SPAN, Kind, Point

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT)]

from callbacks_page import callbacks_page  # noqa: E402
from command_page import command_page  # noqa: E402
from dialect_tables import dialects_page, table  # noqa: E402
from figures import with_figures  # noqa: E402
from points_page import points_page  # noqa: E402
from rooms import import_table, picture, rooms_table  # noqa: E402
from tests.dialects.checklist import checklists  # noqa: E402

HEAD = '''\
"""A typed method for every point, so that editors complete them. Made from ``points.py`` by ``make generate``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadenza.run import Run
'''


def _method(point: Point) -> str:
    holds = point.kind is Kind.AROUND
    returns = "AbstractContextManager[Any] | Iterator[None] | None" if holds else "None"
    says = point.says[0].upper() + point.says[1:] + "."
    text = textwrap.wrap(says, 110)
    doc = (
        f'        """{text[0]}"""'
        if len(text) == 1
        else "\n".join(['        """' + text[0], *("        " + line for line in text[1:]), '        """'])
    )
    body = "\n        return None" if holds else ""
    return f"    def {point.name}(self, run: Run) -> {returns}:\n{doc}{body}\n"


def stubs() -> str:
    """The source of ``src/cadenza/_stubs.py``."""
    points = [point for point in POINTS.values() if point.kind is not Kind.BEHAVIOUR]
    body = "\n".join(_method(point) for point in points)
    says = "Every place at which a callback may play. None of them does anything by itself."
    return f'{HEAD}\n\nclass Stubs:\n    """{says}"""\n\n{body}'


def _before_and_after(stage: str, *, actions: bool) -> list[str]:
    """The points of an iteration at which most callbacks run: those of its actions, or those around them."""
    looked_at = (POINTS[name] for name in ITERATION[stage])
    wanted = [one for one in looked_at if one.kind in (Kind.BEFORE, Kind.AFTER) and SPAN[one.span].action is actions]
    return [one.name for one in wanted]


def _in_order(verb: str, points: list[str]) -> str:
    lines = textwrap.wrap(", ".join(points), 94)
    return "\n".join(f"    {verb if number == 0 else '':<20}{line}" for number, line in enumerate(lines))


def loop_source() -> str:
    """``src/cadenza/loop.py`` with the points of each verb in its docstring, in the order in which they run."""
    epoch = [point.name for point in POINTS.values() if point.span == "epoch" and point.kind is not Kind.AROUND]
    train = ["before_train_epoch", "for each batch " + ", ".join(_before_and_after("train", actions=False))]
    made = "\n".join(
        [
            _in_order("run.epochs()", [*epoch[:-1], "after_best", epoch[-1]]),
            _in_order("run.train()", [*train, "after_train_epoch"]),
            _in_order("run.train_step()", _before_and_after("train", actions=True)),
            _in_order("run.validate()", ["the same as run.train() with val in place of train"]),
            _in_order("run.eval_step()", _before_and_after("val", actions=True)),
        ]
    )
    source = (ROOT / "src/cadenza/loop.py").read_text(encoding="utf-8")
    return re.sub(
        r"(one epoch of ``fit``::\n\n).*?(\n\"\"\")", lambda found: found[1] + made + found[2], source, flags=re.S
    )


SHOWN = re.compile(r"<!-- from (\S+) -->\n```python\n.*?```\n", re.DOTALL)


def loop_page() -> str:
    """``docs/loop.md`` with the source that it shows as it is now."""

    def show(match: re.Match[str]) -> str:
        source = (ROOT / match[1]).read_text(encoding="utf-8")
        return f"<!-- from {match[1]} -->\n```python\n{source}```\n"

    page, shown = SHOWN.subn(show, (ROOT / "docs/loop.md").read_text(encoding="utf-8"))
    if not shown:
        raise ValueError("docs/loop.md shows no source: it needs a line such as <!-- from src/cadenza/loop.py -->")
    return page


def architecture_page() -> str:
    """``docs/architecture.md`` with its tables as the source is now."""
    made = {"rooms": rooms_table(), "imports": import_table()}

    def fill(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{made[match[1]]}\n<!-- end -->"

    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return re.sub(r"<!-- (rooms|imports) -->\n.*?<!-- end -->", fill, page, flags=re.DOTALL)


RECORDINGS = ROOT / "tests" / "dialects" / "recordings"


def dialects_and_checks() -> str:
    """``docs/dialects.md``: the tables of the dialects, the answers that differ, and the checklists."""
    parts = [dialects_page()]
    for path in sorted(RECORDINGS.glob("*.differences.json")):
        stem = path.name.split(".")[0]
        asked, differ = (json.loads(one.read_text(encoding="utf-8")) for one in (RECORDINGS / f"{stem}.json", path))
        parts.append(
            f"## Answers compared with the original: {stem}\n\n`tests/dialects/recordings/{stem}.py` asks the original "
            f"package and the dialect the same {len(asked)} questions; {len(asked) - len(differ)} answers are "
            "identical. The others:\n"
        )
        parts.append(table(("question", "difference, and why"), ((f"{one}", why) for one, why in differ.items())))
    for one in checklists():
        rows = ((row.text, row.state("native"), row.state("dialect")) for row in one.rows.values())
        held = sum(set(row.attempts) == {"native", "dialect"} for row in one.rows.values())
        parts.append(
            f"## What is promised: {one.title}\n\nEvery class, method, argument, hook and example of the document, "
            f"tried by running. {held} of {len(one.rows)} rows hold on both sides.\n"
        )
        parts.append(table(("promise", "natively", "in the dialect"), rows))
    return "\n".join(parts)


FILES = {
    "src/cadenza/_stubs.py": stubs,
    "src/cadenza/loop.py": loop_source,
    "docs/architecture.md": architecture_page,
    "docs/images/rooms.svg": picture,
    "docs/points.md": points_page,
    "docs/loop.md": loop_page,
    "docs/callbacks.md": callbacks_page,
    "docs/command-line.md": command_page,
    "docs/dialects.md": dialects_and_checks,
    "docs/performance.md": partial(with_figures, "docs/performance.md"),
    "docs/report.md": partial(with_figures, "docs/report.md"),
    "README.md": partial(with_figures, "README.md"),
}


if __name__ == "__main__":
    for path, make in FILES.items():
        (ROOT / path).write_text(make(), encoding="utf-8")
        print(f"wrote {path}")
