"""``check``: what a run would refuse, found in the text of a file."""

from __future__ import annotations

import sys
import tokenize
from pathlib import Path
from typing import Annotated

import typer


def check(files: Annotated[list[Path], typer.Argument(metavar="FILE", help="A file of Python; one or more.")]) -> int:
    """Find mistakes in callbacks without running them.

    Found are misspelt points, wrong signatures and fields read where they are not.

    The exit code is 0 if nothing was found, 1 if something was, 2 if a file could not be read; the others are checked
    all the same.
    """
    from cadenza.cli.checking.findings import check_file

    findings, unread = 0, 0
    for path in files:
        try:
            with tokenize.open(path) as file:  # in the encoding that the file names, as Python itself reads it
                source = file.read()
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            unread += 1
            print(f"cadenza check: {path}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
            continue
        for finding in check_file(source, str(path)):
            findings += 1
            typer.echo(str(finding))
    if unread < len(files):
        typer.echo(f"{findings} found" if findings else "nothing found")
    return 2 if unread else 1 if findings else 0
