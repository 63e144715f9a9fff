"""Orca's checkpoint files: a dictionary of states, on a disk or behind any path that fsspec knows."""

from __future__ import annotations

import os
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cadenza.foundation.whole_files import write_whole

__all__ = [
    "exists", "get_remote_file_to_local", "is_file", "is_local_path", "listdir", "makedirs", "put_local_file_to_remote",
]  # fmt: skip

if TYPE_CHECKING:
    from cadenza.engine.trainer_state import Training


def state_of(training: Training, *, weights_only: bool = False) -> dict[str, Any]:
    """What a checkpoint of Orca holds."""
    state: dict[str, Any] = {"epoch": training.clock.epochs, "models": [training.module.state_dict()]}
    if not weights_only:
        state["optimizers"] = [optimizer.state_dict() for optimizer in training.optimizers]
        if training.schedulers:
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
    """Writes a file whole or not at all."""
    torch.save(state, content := BytesIO())
    if is_local_path(path):
        write_whole(Path(path), content.getvalue())
    else:
        with import_module("fsspec").open(os.fspath(path), "wb") as file:
            file.write(content.getvalue())


def load_file(path: str | os.PathLike[str]) -> Any:
    """Reads tensors and plain values; no pickle is executed."""
    with import_module("fsspec").open(os.fspath(path), "rb") as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def reach(path: str | os.PathLike[str]) -> Any:
    """The file system behind ``path``."""
    return import_module("fsspec").core.url_to_fs(os.fspath(path))[0]


def _asks(method: str) -> Any:
    return lambda path: getattr(reach(path), method)(os.fspath(path))


remove_file, exists, is_file, makedirs = (_asks(method) for method in ("rm", "exists", "isfile", "makedirs"))


def listdir(path: str) -> list[str]:
    return sorted(os.path.basename(name.rstrip("/")) for name in reach(path).ls(path, detail=False))


def is_local_path(path: str | os.PathLike[str]) -> bool:
    return "://" not in os.fspath(path)


def put_local_file_to_remote(local_path: str, remote_path: str) -> None:
    reach(remote_path).put(local_path, remote_path)


def get_remote_file_to_local(remote_path: str, local_path: str) -> None:
    reach(remote_path).get(remote_path, local_path)
