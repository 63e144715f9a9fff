"""``script``: runs a script that was written for another system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.terminal import CommandError, UsageError


def script(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Its arguments; options stand after --.")
    ] = None,
    dialect: Annotated[str, typer.Option("--dialect", help="The system it was written for, such as orca.")] = "",
) -> None:
    """Run a script of another system without a change.

    The systems are Orca, AIToolbox, SuperGradients and fastai v1.
    """
    from cadenza.dialects import NAMES, run_script

    if not dialect:
        known = ", ".join(NAMES)
        raise UsageError(
            f"say which system the script was written for: cadenza script --dialect {NAMES[0]} {file} (the dialects "
            f"are {known}); a script that imports only cadenza is run by python {file}"
        )
    if dialect not in NAMES:
        raise UsageError(f"--dialect is one of {', '.join(NAMES)}, not {dialect!r}")
    if not file.is_file():
        raise CommandError(f"there is no script {file}")
    run_script(dialect, file, arguments or ())
