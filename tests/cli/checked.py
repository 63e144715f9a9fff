"""What the tests of ``cadenza check`` share."""

from __future__ import annotations

import textwrap

from cadenza.callback import BEHAVIOUR_NAMES, Callback
from cadenza.cli.commands.check import Finding, check_file

HEAD = "import cadenza\nfrom cadenza import Callback, MainCallback, Trainer\n"


def check(source: str) -> list[Finding]:
    return check_file(HEAD + textwrap.dedent(source), "mine.py")


def messages(source: str) -> list[str]:
    return [finding.message for finding in check(source)]


def player(point: str, body: str) -> str:
    """A callback that does ``body`` at ``point``, behaviours in a main callback."""
    base = "MainCallback" if point in BEHAVIOUR_NAMES else "Callback"
    lines = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    return f"class Mine({base}):\n    def {point}(self, run):\n{lines}\n"


def build(source: str) -> Callback:
    names: dict[str, type[Callback]] = {}
    exec(HEAD + source, names)
    return names["Mine"]()
