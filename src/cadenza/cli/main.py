"""``cadenza``: runs one command and says how it ended, by its exit code."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence

OK, ERROR, USAGE, INTERRUPTED = 0, 1, 2, 130
_EXTRA = {"typer", "click", "rich", "hydra", "omegaconf", "yaml", "antlr4"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 143 after SIGTERM."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if _wants_traceback(words):
        return _main([word for word in words if word != "--traceback"], wanted=True)
    whole, warnings.formatwarning = warnings.formatwarning, _one_line
    try:
        return _main(words, wanted=False)
    finally:
        warnings.formatwarning = whole


def _main(words: list[str], *, wanted: bool) -> int:
    """``wanted`` is whether an error is shown with its traceback."""
    try:
        from cadenza.cli.app import run

        return run(words)
    except KeyboardInterrupt as error:
        print(f"cadenza: interrupted{f': {error}' if str(error) else ''}", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:
        return _ended(error)
    except Exception as error:
        if wanted:
            traceback.print_exc()
        else:
            print(_one_message(error), file=sys.stderr)
        return _code(error)


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning without the line of code that gave it."""
    return f"cadenza: warning: {message}\n"


def _wants_traceback(words: Sequence[str]) -> bool:
    before = words[: words.index("--")] if "--" in words else words
    return "--traceback" in before


def _ended(error: SystemExit) -> int:
    """The code of a run that saved itself and ended, or of whatever else left so."""
    said = str(error)
    if said and said != str(error.code):
        print(f"cadenza: {said}", file=sys.stderr)
    return error.code if isinstance(error.code, int) else OK if error.code is None else ERROR


def _code(error: Exception) -> int:
    names = {cls.__name__ for cls in type(error).__mro__}
    return USAGE if names & {"OverrideError", "UsageError"} else ERROR


def _one_message(error: Exception) -> str:
    """What a user reads: for mistakes in recipes and commands the message alone, for anything else its kind too."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _EXTRA:
        return f"cadenza: the command line needs {error.name}: pip install 'cadenza[cli]'"
    said = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split("\n"))
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"RecipeError", "CommandError", "FolderError", "CheckpointError"}:
        return f"cadenza: {said}"
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"cadenza: {type(error).__name__}: {said}{notes} (--traceback shows where)"


if __name__ == "__main__":
    sys.exit(main())
