"""Errors of the command line itself."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot do what was asked, for a reason that fits into one message."""


class UsageError(CommandError):
    """A command was called wrongly."""
