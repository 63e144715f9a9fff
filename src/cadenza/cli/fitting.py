"""What a command shows, as wide as the terminal; a file or a pipe has no width, so there every line stays whole."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

_LEAST = 20
"""A column that is narrower is not worth keeping to."""


def terminal_width() -> int | None:
    """The columns of the terminal that standard output is, as ``COLUMNS`` or the terminal itself says; else None."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None


def fitted(text: str, width: int | None) -> str:
    """``text`` with no line longer than ``width``, if its words allow it. What is over goes below its own column.

    >>> print(fitted("after_fetch   the batch is set, if there is one", 36))
    after_fetch   the batch is set, if
                  there is one
    >>> print(fitted("  Progress: on main; plain lines, since this is no terminal", 36))
      Progress: on main; plain lines,
          since this is no terminal
    """
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _folded(line, width))


def _folded(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    column = re.match(r" *\S+ {2,}", line)
    begins = column.end() if column else 0
    if column is None or width - begins < _LEAST:
        begins = len(line) - len(line.lstrip()) + 4
    return textwrap.wrap(line, width, subsequent_indent=" " * begins, break_long_words=False, break_on_hyphens=False)
