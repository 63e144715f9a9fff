"""Numbers and tables for people, as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from cadenza.foundation.warn import warn


def number(value: float) -> str:
    """Four significant digits, trailing zeros kept so that lines stay aligned; of large numbers all before the point.

    >>> number(0.98333), number(0.5), number(1234.5), number(16310.2), number(2e17), number(float("nan"))
    ('0.9833', '0.5000', '1234', '16,310', '2.000e+17', 'nan')
    """
    if 10_000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:#.4g}".rstrip(".")


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
