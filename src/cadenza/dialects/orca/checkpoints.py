"""Orca's checkpoint files: a dictionary of states, on a disk or behind any path that fsspec knows."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cadenza.training import Training


def state_of(training: Training, *, weights_only: bool = False) -> dict[str, Any]:
    """What a checkpoint of Orca holds."""
    state: dict[str, Any] = {"epoch": training.clock.epochs, "models": [training.module.state_dict()]}
    if not weights_only:
        state["optimizers"] = [optimizer.state_dict() for optimizer in training.optimizers]
        state["schedulers"] = [scheduler.state_dict() for scheduler in training.schedulers]
    return state


def take_state(training: Training, state: dict[str, Any]) -> None:
    """Takes back what ``state_of`` gave; without optimizers and schedulers, those stay as they are."""
    training.clock.epochs = state["epoch"]
    training.module.load_state_dict(state["models"][0])
    for own, saved in ((training.optimizers, "optimizers"), (training.schedulers, "schedulers")):
        for one, its in zip(own, state.get(saved, ()), strict=False):
            one.load_state_dict(its)


def save_file(path: str | os.PathLike[str], state: Any) -> None:
    """Writes to a new file beside ``path`` and then puts it there, so that a crash leaves no half."""
    if _is_remote(path):
        with _open(path, "wb") as file:
            torch.save(state, file)
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, part := target.with_name(target.name + ".part"))
    os.replace(part, target)


def load_file(path: str | os.PathLike[str]) -> Any:
    """Reads tensors and plain values; no pickle is executed."""
    with _open(path, "rb") as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def remove_file(path: str | os.PathLike[str]) -> None:
    if _is_remote(path):
        filesystem, inside = import_module("fsspec").core.url_to_fs(os.fspath(path))
        filesystem.rm(inside, recursive=True)
    else:
        Path(path).unlink()


def _is_remote(path: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(path)


def _open(path: str | os.PathLike[str], mode: str) -> AbstractContextManager[Any]:
    if _is_remote(path):
        remote: AbstractContextManager[Any] = import_module("fsspec").open(os.fspath(path), mode)
        return remote
    return open(path, mode)
