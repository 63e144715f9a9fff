"""Where the files of an experiment are, by AIToolbox's layout."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cadenza.callbacks.showing.figures import new_figure, write_figure
from cadenza.checkpoint.backends.remote import Remote
from cadenza.foundation.tree import leaves
from cadenza.foundation.whole_files import write_whole

CLOUDS = dict.fromkeys(("s3", "aws_s3", "aws"), "s3") | dict.fromkeys(("gcs", "google_storage", "google storage"), "gs")


def experiment_folder(details: Any, timestamp: str) -> Path:
    """The folder of one experiment, of which ``details`` has the root, the project and the name.

    >>> from types import SimpleNamespace
    >>> digits = SimpleNamespace(local_model_result_folder_path="all", project_name="digits", experiment_name="cnn")
    >>> experiment_folder(digits, "2024-01-31_12-00-00").parts
    ('all', 'digits', 'cnn_2024-01-31_12-00-00')
    """
    root = Path(str(details.local_model_result_folder_path)).expanduser()
    return root / str(details.project_name) / f"{details.experiment_name}_{timestamp}"


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
    return experiment_folder(callback, loop.experiment_timestamp)


def upload(callback: Any, *paths: Path, into: Path | None = None) -> None:
    """Sends files to the bucket of ``callback``, if it has a cloud, under the names that they have below the root of
    all projects; with ``into`` as if they were in that folder."""
    scheme = CLOUDS.get(callback.cloud_save_mode)
    if scheme is None:
        return
    bucket = Remote("/".join(filter(None, (f"{scheme}://{callback.bucket_name}", callback.cloud_dir_prefix))))
    root = folder_of(callback).parent.parent
    for path in paths:
        bucket.write((into or path.parent).relative_to(root).as_posix(), path.name, [path.read_bytes()])


def check_cloud(mode: str | None) -> None:
    if mode not in (*CLOUDS, "local", None):
        raise ValueError(f"aitoolbox: cloud_save_mode is {', '.join(map(repr, CLOUDS))}, 'local' or None, not {mode!r}")


def draw(path: Path, panels: Mapping[str, Callable[[Any], Any]]) -> Path:
    """Writes a figure with one panel for each function, which is called with its axes."""
    figure = new_figure(6.0, 3.0 * len(panels))
    for (name, plot), axes in zip(panels.items(), figure.subplots(len(panels), squeeze=False)[:, 0], strict=True):
        plot(axes)
        axes.set_title(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_figure(figure, path)
    return path


def draw_history(history: Any, place: Path, file_format: str) -> list[Path]:
    """Draws the metrics that have more than one value, each in a file in the folder ``place``; as pdf all in one file
    of that name. Returns the files."""
    panels = {
        name: lambda axes, values=values: axes.plot([float(value) for value in values])
        for name, values in history.items()
        if len(values) > 1
    }
    if file_format != "pdf":
        return [draw(place / f"{name.replace('/', '_')}.{file_format}", {name: plot}) for name, plot in panels.items()]
    return [draw(place.with_name(f"{place.name}.pdf"), panels)] if panels else []


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a dict of tensors and plain values as ``torch.load(path, weights_only=True)`` reads it; whole or not at
    all."""
    refuse_objects(state, path.name)
    content = io.BytesIO()
    torch.save(dict(state), content)
    write_whole(path, content.getvalue())


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """What can be written of a scheduler's state: functions are made anew by its constructor."""
    plain = (int, float, str, list, tuple, dict, type(None))
    return {name: one for name, one in state.items() if isinstance(one, plain) and name != "lr_lambdas"}


def load_state(path: Path) -> dict[str, Any]:
    """Reads what ``save_state`` wrote. Nothing in the file is executed."""
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def refuse_objects(value: Any, where: str) -> None:
    """Refuses what could only be written by pickling an object, and names its place."""
    for path, leaf in leaves(value):
        if leaf is not None and not isinstance(leaf, Tensor | str | int | float | bool):
            raise TypeError(
                f"aitoolbox: {where}{''.join(f'[{key!r}]' for key in path)} is a {type(leaf).__name__}; a checkpoint "
                "holds tensors, numbers, texts, and lists and dicts of them, so that nobody who loads it executes "
                "anything"
            )


def describe(
    folder: Path, hyperparams: Mapping[str, Any], script: str | None, source_dirs: Sequence[str]
) -> list[Path]:
    """Writes the hyper-parameters as lines to read, a copy of the script that trains, and the folders of its sources in
    one archive; returns the files."""
    lines = "".join(f"{name}:\t{value}\n" for name, value in hyperparams.items())
    written = {"hyperparams_list.txt": lines.encode()} if lines else {}
    if script is not None and Path(script).is_file():
        written[Path(script).name] = Path(script).read_bytes()
    if source_dirs:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for source in (Path(one).expanduser() for one in source_dirs):
                for file in sorted(one for one in source.rglob("*") if one.is_file()):
                    archive.write(file, Path(source.name) / file.relative_to(source))
        written["source_code.zip"] = content.getvalue()
    for name, data in written.items():
        write_whole(folder / name, data)
    return [folder / name for name in written]
