"""Sets seeds and deterministic mode, and reads what a run was set to, to compare runs without a recipe."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.explain import explain
from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


def check_seed(seed: object) -> int | None:
    """Refuses what can be no seed, when an experiment is made and not when it runs."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32):
        raise ValueError(f"a seed is a whole number from 0 to 2**32 - 1 or None, not {seed!r}")
    return seed


@contextlib.contextmanager
def deterministic(device: torch.device | str = "cpu") -> Iterator[None]:
    """Inside, torch uses algorithms that give the same bits each time, or raises where it has none.

    On CUDA, cuBLAS reads an environment variable when it is first used; since a library should not write the
    environment, it is asked for. Whatever was set before is set again afterwards.

    >>> with deterministic():
    ...     torch.are_deterministic_algorithms_enabled()
    True
    """
    if torch.device(device).type == "cuda" and "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
        raise RuntimeError(
            "deterministic training on CUDA needs the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8); "
            "set it before Python is started"
        )
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark


def settings_of(run: Run, callbacks: Iterable[Callback]) -> dict[str, Any]:
    """Model, optimizers, criterion, schedulers, data and callbacks, as nested dicts of plain values."""
    found: dict[str, Any] = {"model": _model(run), "device": str(run.device), "world_size": run.world_size}
    if run.criterion is not None:
        found["criterion"] = _kind(run.criterion)
    if run.optimizers:
        many = [_optimizer(optimizer) for optimizer in run.optimizers]
        found["optimizer"] = many[0] if len(many) == 1 else dict(enumerate(many))
    if run.schedulers:
        found["scheduler"] = ", ".join(_kind(scheduler) for scheduler in run.schedulers)
    found.update({name: value for name, value in _length(run).items() if value is not None})
    found["callbacks"] = {
        callback.name: callback.explain() or "yes"
        for callback in callbacks
        if type(callback) is not MainCallback and callback is not run.experiment
    }
    return found


def _kind(thing: Any) -> str:
    cls = thing if isinstance(thing, type) else type(thing)
    return getattr(thing, "__name__", cls.__name__)


def _model(run: Run) -> dict[str, Any]:
    parameters = list(run.module.parameters())
    return {
        "class": type(run.module).__name__,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trained": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    }


def _optimizer(optimizer: Any) -> dict[str, Any]:
    """Its class, and the options of its first group as they are at the beginning."""
    group = optimizer.param_groups[0]
    plain = {name: value for name, value in group.items() if isinstance(value, int | float | str | bool | tuple)}
    if isinstance(rate := group.get("lr"), Tensor):
        plain["lr"] = rate.item()  # once, before the training begins
    groups = {"groups": len(optimizer.param_groups)} if len(optimizer.param_groups) > 1 else {}
    return {"class": type(optimizer).__name__, **plain, **groups}


def _length(run: Run) -> dict[str, Any]:
    loader = run.train_loader
    try:
        batches: int | None = len(loader)
    except TypeError:
        batches = None
    return {
        "epochs": run.num_epochs,
        "steps": run.num_steps,
        "batch_size": getattr(loader, "batch_size", None),
        "batches": batches,
    }


def score_of(run: Run) -> dict[str, Any]:
    """The score of this run: its text, and for each point who plays there."""
    score = explain(run.plan)
    return {"text": str(score), "rows": [[point, who] for point, who, _ in score.rows]}
