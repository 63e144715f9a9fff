"""``cadenza``: the commands."""

from __future__ import annotations

import argparse
import sys
import tokenize
from collections.abc import Sequence
from pathlib import Path

from cadenza import __version__
from cadenza.cli.check import check_file
from cadenza.cli.replaying import replay_file
from cadenza.cli.score import points_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="cadenza", description="PyTorch training as a score of named points.")
    parser.add_argument("--version", action="version", version=f"cadenza {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("points", help="print every point, in order, and what is true there")
    check = commands.add_parser(
        "check", help="find misspelt points, wrong signatures and fields read where they are not"
    )
    check.add_argument("files", nargs="+", type=Path, metavar="FILE")
    replay = commands.add_parser(
        "replay", help="play the step again at which NaNGuard found a NaN, and say whose it is"
    )
    replay.add_argument("file", type=Path, metavar="FILE")
    replay.add_argument(
        "--trainer",
        required=True,
        metavar="file.py:function",
        help="a function without arguments that makes the trainer",
    )
    options = parser.parse_args(arguments)
    if options.command == "points":
        print(points_text())
        return 0
    if options.command == "replay":
        return _replay(options.file, options.trainer)
    return _check(options.files)


def _replay(file: Path, place: str) -> int:
    try:
        print(replay_file(file, place))
    except (ValueError, ImportError) as error:
        print(f"cadenza replay: {error}", file=sys.stderr)
        return 1
    return 0


def _check(files: Sequence[Path]) -> int:
    """0: nothing found, 1: something, 2: a file could not be read; the others are checked all the same."""
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
            print(finding)
    print(f"{findings} found" if findings else "nothing found")
    return 2 if unread else 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
