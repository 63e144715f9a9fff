"""What all commands share with the terminal: words are read by typer, errors are messages, text is as wide as it is.

A file or a pipe has no width, so there every line stays whole.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import typer


class CommandError(Exception):
    """A command cannot do what was asked, for a reason that fits into one message."""


class UsageError(CommandError):
    """A command was called wrongly."""


def _version(wanted: bool) -> None:
    if wanted:
        from cadenza import __version__

        typer.echo(f"cadenza {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Say the version."),
    traceback: bool = typer.Option(False, "--traceback", help="Show the traceback of an error; may stand anywhere."),
) -> None:
    """PyTorch training as a score of named points."""


class _Interrupted(BaseException):
    """Ctrl-C on its way through typer, which forgets what a KeyboardInterrupt says."""


def _heeding(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def heeded(*given: Any, **named: Any) -> Any:
        try:
            return command(*given, **named)
        except KeyboardInterrupt as error:
            raise _Interrupted(*error.args) from error

    return heeded


def typer_app(commands: Mapping[str, Callable[..., Any]], passes_on: Sequence[str] = ()) -> typer.Typer:
    """The commands by name. Those in ``passes_on`` leave the options behind their first argument to it."""
    app = typer.Typer(no_args_is_help=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(_options)
    rest = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    for name, command in commands.items():
        app.command(name, context_settings=rest if name in passes_on else None)(_heeding(command))
    return app


def invoke(app: typer.Typer, words: Sequence[str]) -> int:
    """Runs the command in ``words``; returns its exit code, 2 if it was called wrongly."""
    command = typer.main.get_command(app)
    family: list[Any] = list(typer.BadParameter.__mro__)  # UsageError and ClickException of the click that typer uses
    usage_error, wrong = family[1], family[2]
    try:
        ended = command.main(args=list(words), prog_name="cadenza", standalone_mode=False)
    except usage_error as error:
        context = getattr(error, "ctx", None)
        if context is not None:
            print(context.get_usage(), file=sys.stderr)
        print(f"cadenza: {error.format_message()}{_hint(error)}", file=sys.stderr)
        return 2
    except wrong as error:
        print(f"cadenza: {error.format_message()}", file=sys.stderr)
        return 1
    except _Interrupted as error:
        raise KeyboardInterrupt(*error.args) from error
    except typer.Abort:
        raise KeyboardInterrupt from None
    if ended == 130:  # what some versions of typer make of Ctrl-C
        raise KeyboardInterrupt
    return ended if isinstance(ended, int) else 0


def _hint(error: Any) -> str:
    """What somebody probably looks for who named no command, or wrote ``--epochs 3``."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    if hasattr(command, "commands"):
        return " `cadenza --help` lists them all"
    if hasattr(error, "option_name") and any(one.name == "overrides" for one in getattr(command, "params", ())):
        return "; a recipe is changed by key=value, such as fit.epochs=3"
    return ""


# Width --------------------------------------------------------------------------------------------------------------

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
