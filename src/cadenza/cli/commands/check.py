"""``check``: finds in the text of a file what a run would refuse, without importing or running anything."""

from __future__ import annotations

import ast
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cadenza.cli.checking.names import Names
    from cadenza.cli.checking.shapes import Remark

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def check(files: Annotated[list[Path], typer.Argument(metavar="FILE", help="A file of Python; one or more.")]) -> int:
    """Find mistakes in callbacks without running them.

    Found are misspelt points, wrong signatures and fields read where they are not.

    The exit code is 0 if nothing was found, 1 if something was, 2 if a file could not be read; the others are checked
    all the same.
    """
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


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong, and where. Lines and columns count from 1."""

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


def check_file(source: str, path: str) -> list[Finding]:
    """Everything that is wrong with the callbacks in ``source``, in the order of the text.

    >>> for finding in check_file('''
    ... from cadenza import Callback
    ... class Mine(Callback):
    ...     def after_epoch(self, run):
    ...         print(run.loss)
    ... ''', "mine.py"): print(finding.line, finding.column)
    5 15
    """
    source = source.removeprefix("\ufeff")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape sequence is not ours to tell
            tree = ast.parse(source)
    except SyntaxError as error:
        return [
            Finding(path, error.lineno or 1, max(error.offset or 1, 1), f"this is not Python {_VERSION}: {error.msg}")
        ]
    except (ValueError, RecursionError, MemoryError) as error:
        return [
            Finding(path, 1, 1, f"this cannot be read as Python {_VERSION}: {str(error) or 'it is nested too deeply'}")
        ]
    lines = re.split(r"\r\n|\r|\n", source)
    return sorted({_finding(path, lines, node, message) for node, message in _remarks(tree)})


def _remarks(tree: ast.Module) -> Iterator[Remark]:
    """What each part of the room ``checking`` has to say."""
    from cadenza.cli.checking.classes import families
    from cadenza.cli.checking.lives import Lives, check_loops, players
    from cadenza.cli.checking.names import Names, set_by_the_file
    from cadenza.cli.checking.registrations import check_callbacks_given, check_declarations
    from cadenza.cli.checking.shapes import check_classes, check_given
    from cadenza.cli.checking.trainers import given_functions

    names = Names(tree)
    classes = families(names)
    given = list(given_functions(names))
    own = set_by_the_file(names)
    yield from check_classes(classes)
    yield from check_declarations(classes)
    yield from check_callbacks_given(names, classes)
    for one in given:
        yield from check_given(one)
    yield from Lives(list(players(names, classes, given)), _adjusts_lr_in_iterations(names), own).remarks()
    yield from check_loops(names, own)


def _adjusts_lr_in_iterations(names: Names) -> bool:
    """Whether some ``lr_every`` or ``scheduler_every`` of the file is anything but ``"epoch"``: then on_lr_adjust plays
    in an iteration."""
    for node in names.all(ast.keyword, ast.Assign, ast.AnnAssign):
        match node:
            case ast.keyword(arg="lr_every" | "scheduler_every", value=value):
                pass
            case ast.Assign(targets=[ast.Name(id="lr_every") | ast.Attribute(attr="lr_every")], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id="lr_every") | ast.Attribute(attr="lr_every"), value=value):
                pass
            case _:
                continue
        if not (isinstance(value, ast.Constant) and value.value in ("epoch", None)):
            return True
    return False


def _finding(path: str, lines: list[str], node: ast.AST, message: str) -> Finding:
    line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    before = lines[line - 1].encode()[:offset] if line <= len(lines) else b""  # Python counts bytes, an editor letters
    return Finding(path, line, len(before.decode(errors="ignore")) + 1, message)
