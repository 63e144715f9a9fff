"""The checks that Orca's callbacks use: an error is logged with what to do about it, and raised."""

# ruff: noqa: N802, N803, N816 (the original's names)
from __future__ import annotations

import logging

__all__ = ["invalidInputError", "invalidOperationError", "logging", "outputUserMessage"]
log = logging.getLogger("cadenza.dialects.orca")


def outputUserMessage(errMsg: str, fixMsg: str | None = None) -> None:
    log.error("%s%s", errMsg, f"; {fixMsg}" if fixMsg else "")


def invalidOperationError(
    condition: object, errMsg: str, fixMsg: str | None = None, cause: BaseException | None = None
) -> None:
    """Raises ``cause``, or a RuntimeError, unless ``condition`` holds."""
    if not condition:
        outputUserMessage(errMsg, fixMsg)
        raise cause or RuntimeError(errMsg)


invalidInputError = invalidOperationError
