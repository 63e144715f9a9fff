"""Where the files of an experiment are, by AIToolbox's layout."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cadenza.callbacks.folders import write_whole


def experiment_folder(root: str, project: str, experiment: str, timestamp: str) -> Path:
    """The folder of one experiment.

    >>> experiment_folder("results", "digits", "cnn", "2024-01-31_12-00-00").parts
    ('results', 'digits', 'cnn_2024-01-31_12-00-00')
    """
    return Path(root).expanduser() / project / f"{experiment}_{timestamp}"


def folder_of(callback: Any) -> Path:
    """The folder in which an experiment callback writes: that of ``run.experiment`` if there is one, else by layout."""
    loop = callback.train_loop_obj
    experiment = getattr(loop.run, "experiment", None)
    if experiment is not None and getattr(experiment, "folder", None) is not None:
        return Path(experiment.folder)
    details = (callback.local_model_result_folder_path, callback.project_name, callback.experiment_name)
    if None in details:
        raise AttributeError(
            f"aitoolbox: {callback.callback_name} does not know its experiment; give it project_name, experiment_name "
            "and local_model_result_folder_path, or use TrainLoopCheckpoint"
        )
    root, project, name = (str(one) for one in details)
    return experiment_folder(root, project, name, loop.experiment_timestamp)


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a dict of tensors and plain values as ``torch.load(path, weights_only=True)`` reads it; whole or not at
    all."""
    refuse_objects(state, path.name)
    content = io.BytesIO()
    torch.save(dict(state), content)
    write_whole(path, content.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Reads what ``save_state`` wrote. Nothing in the file is executed."""
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def refuse_objects(value: Any, where: str) -> None:
    """Refuses what could only be written by pickling an object, and names its place."""
    if value is None or isinstance(value, Tensor | str | int | float | bool):
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            refuse_objects(inner, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            refuse_objects(inner, f"{where}[{number}]")
    else:
        raise TypeError(
            f"aitoolbox: {where} is a {type(value).__name__}; a checkpoint holds tensors, numbers, texts, and lists "
            "and dicts of them, so that nobody who loads it executes anything"
        )


def write_hyperparameters(folder: Path, hyperparams: Mapping[str, Any] | None) -> None:
    """The hyper-parameters as lines to read."""
    if hyperparams:
        lines = [f"{name}:\t{value}" for name, value in hyperparams.items()]
        write_whole(folder / "hyperparams_list.txt", ("\n".join(lines) + "\n").encode())


def write_sources(folder: Path, script: str | None, source_dirs: tuple[str, ...]) -> None:
    """A copy of the script that trains, and the folders of its sources in one archive."""
    if script is not None and Path(script).is_file():
        write_whole(folder / Path(script).name, Path(script).read_bytes())
    if source_dirs:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for source in (Path(one).expanduser() for one in source_dirs):
                for file in sorted(one for one in source.rglob("*") if one.is_file()):
                    archive.write(file, Path(source.name) / file.relative_to(source))
        write_whole(folder / "source_code.zip", content.getvalue())


def write_json(path: Path, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=2, default=str).encode())
