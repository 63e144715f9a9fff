"""A command in several processes: what each of them does, and what is shown of it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from cadenza.cli.errors import UsageError

_RAY_ONLY = ("address", "storage", "restarts")


def launched(words: Sequence[str], workers: int, on: str, options: dict[str, Any]) -> int:
    """Runs the command in all processes; returns the exit code of rank 0, whose output alone is shown."""
    from cadenza.distributed import launch
    from cadenza.distributed.launchers import ENGINES

    if words[0] != "train":
        raise UsageError(f"launch starts train, not {words[0]!r}: cadenza launch --workers 2 train digits")
    if on not in ENGINES:
        raise UsageError(f"--on is one of {', '.join(ENGINES)}, not {on!r}")
    foreign = [name for name in _RAY_ONLY if name in options]
    if foreign and on != "ray":
        raise UsageError(f"--{foreign[0]} is for --on ray, not for {on}")
    code, said = launch(taking_part, list(words), on == "local", workers=workers, on=on, **options)
    sys.stdout.write(said)
    return int(code)


def taking_part(words: list[str], live: bool) -> tuple[int, str]:
    """One process: rank 0 writes to the terminal if it is there to see, else its output is kept and comes back."""
    from cadenza.cli.app import run
    from cadenza.distributed.world import World

    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) and "--resume" not in words:
        words = [*words, "--resume"]
    if live and World.detect().is_main:
        return run(words), ""
    with contextlib.redirect_stdout(io.StringIO()) as kept:
        code = run(words)
    return code, kept.getvalue()
