"""Draws the rooms of the source and who imports whom, from the imports themselves.

``make generate`` writes ``docs/images/rooms.svg`` and the tables of ``docs/architecture.md`` with it.
"""

from __future__ import annotations

import ast
from collections import Counter
from xml.sax.saxutils import escape

from house import ROWS, SOURCE, files, imports, place

WIDTH, BOX, GAP, HEIGHT, STEP = 980, 128, 16, 40, 92
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle; }
  .files { font-size: 11px; fill: #59636e; }
  rect { fill: #f6f8fa; stroke: #59636e; rx: 6; }
  path { fill: none; stroke: #0969da; stroke-opacity: .38; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .files { fill: #9198a1; }
    rect { fill: #212830; stroke: #9198a1; } path { stroke: #4493f8; stroke-opacity: .45; }
  }
"""


def room_of(module: str) -> str:
    return module.partition(".")[0]


def edges() -> Counter[tuple[str, str]]:
    """How many imports lead from one room to another when the library runs; imports for types alone do not count."""
    known = {room for row in ROWS for room in row}
    found: Counter[tuple[str, str]] = Counter()
    for module, imported in imports().items():
        for one in imported:
            pair = room_of(module), room_of(one.module)
            if not one.for_types and pair[0] != pair[1] and known.issuperset(pair):
                found[pair] += 1
    return found


def sizes() -> Counter[str]:
    return Counter(place(path).partition("/")[0].removesuffix(".py") for path in files())


def picture() -> str:
    """The rooms as boxes, those that know least at the top; a line is thicker where there are more imports."""
    where: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(ROWS):
        left = (WIDTH - len(row) * BOX - (len(row) - 1) * GAP) / 2
        for column, room in enumerate(row):
            where[room] = (left + column * (BOX + GAP), 16 + number * STEP)
    height = 32 + (len(ROWS) - 1) * STEP + HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The rooms of the source, and who imports whom</title>",
        f"<style>{_STYLE}</style>",
    ]
    for (one, other), count in sorted(edges().items()):
        if other != "foundation":  # every room may import it, and most do
            lines.append(_line(where[one], where[other], count))
    counted = sizes()
    for room, (x, y) in where.items():
        held = counted[room]
        said = f"{held} files" if held > 1 else "1 file"
        lines += [
            f'<rect x="{x:g}" y="{y:g}" width="{BOX}" height="{HEIGHT}"/>',
            f'<text x="{x + BOX / 2:g}" y="{y + 18:g}">{escape(room)}</text>',
            f'<text class="files" x="{x + BOX / 2:g}" y="{y + 33:g}">{said}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def _line(start: tuple[float, float], end: tuple[float, float], count: int) -> str:
    width = min(5.0, 0.8 + count / 12)
    if start[1] == end[1]:  # in one row, over the boxes between
        x, y, to = start[0] + BOX / 2, start[1], end[0] + BOX / 2
        way = f"M{x:g} {y:g} C{x:g} {y - 26:g} {to:g} {y - 26:g} {to:g} {y:g}"
    else:
        x, y, to, up = start[0] + BOX / 2, start[1], end[0] + BOX / 2, end[1] + HEIGHT
        way = f"M{x:g} {y:g} C{x:g} {y - 40:g} {to:g} {up + 40:g} {to:g} {up:g}"
    return f'<path d="{way}" stroke-width="{width:.1f}"/>'


def rooms_table() -> str:
    """One line for each room: what the first sentence of its docstring says."""
    lines = ["| room | files | what it is for |", "|---|--:|---|"]
    counted = sizes()
    for room in (room for row in ROWS for room in row):
        path = SOURCE / f"{room}.py"
        path = path if path.exists() else SOURCE / room / "__init__.py"
        first = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n\n")[0].split())
        lines.append(
            f"| `{room}{'.py' if path.stem == room else '/'}` | {counted[room]} | {first.replace('``', '`')} |"
        )
    return "\n".join(lines)


def import_table() -> str:
    """Who may import whom, as ``ROWS`` says it."""
    return "```text\n" + "\n".join("   ".join(row) for row in ROWS) + "\n```"
