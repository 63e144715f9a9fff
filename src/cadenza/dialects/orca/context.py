"""Orca's context calls, so that scripts run, and the checks that its callbacks use.

There is no cluster to start, so the calls do nothing but say so in the log. A check that fails is logged with what to
do about it, and raised.
"""

# ruff: noqa: N802, N803, N816 (the original's names)

from __future__ import annotations

import logging
from typing import Any

__all__ = [
    "OrcaContext", "init_orca_context", "invalidInputError", "invalidOperationError", "logging", "outputUserMessage",
    "stop_orca_context",
]  # fmt: skip
log = logging.getLogger("cadenza.dialects.orca")


class OrcaContext:
    """Settings of the original that mean nothing here."""

    log_output = False


def init_orca_context(cluster_mode: str = "local", **options: Any) -> OrcaContext:
    """Nothing is started here: an Estimator starts its workers when it needs them. Only local modes are carried."""
    if not cluster_mode.startswith("local"):
        raise ValueError(
            f"orca: cluster_mode {cluster_mode!r} is not carried; start the script on the cluster itself (torchrun, "
            "SLURM), or use the backends ray and spark of Estimator.from_torch, which join what is running"
        )
    if options:
        log.info("init_orca_context: %s have no meaning here", ", ".join(sorted(options)))
    return OrcaContext()


def stop_orca_context() -> None:
    """The other half."""


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
