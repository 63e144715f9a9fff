"""Tables for people, as lines of text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from cadenza.callbacks.faults import warn


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns of equal width under a head, the first ``left`` of them to the left and the others to the right.

    >>> print(text_table(["layer", "size"], [["first", "8"], ["second", "1,024"]]))
    layer    size
    -------------
    first       8
    second  1,024
    """
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([line(head), rule, *map(line, rows)])


def tell(who: str, text: str, stream: TextIO | None = None) -> None:
    """Writes ``text`` to ``stream`` or standard output. One that is closed or gone does not stop a training."""
    output = sys.stdout if stream is None else stream
    try:
        if output is not None:  # there is none under pythonw
            output.write(f"{text}\n")
            output.flush()
    except (OSError, ValueError) as error:  # the latter if it is closed, or cannot show a character
        warn(f"{who} could not show its table: {error!r}")
