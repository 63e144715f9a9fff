"""Orca's context calls, so that scripts run: there is no cluster to start, so they do nothing but say so in the log."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["OrcaContext", "init_orca_context", "stop_orca_context"]
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
