"""Where the files of a run go, and how they get there whole."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cadenza.run import Run

DEFAULT = "runs"
"""The folder for the files of a run that has no experiment."""


def place_for(run: Run, path: str | os.PathLike[str] | None, name: str, *, plot: bool = False) -> Path:
    """The file to write: ``path`` if it was chosen, else ``name`` in the folder of the experiment, else in ``runs``.

    ``{epoch}``, ``{step}``, ``{stage}`` and ``{loader}`` in it are filled in. A pass over a loader that has a name adds
    that name to the file's, so that several loaders do not overwrite each other.
    """
    experiment = run.experiment
    folder = getattr(experiment, "folder", None)
    if path is not None:
        chosen = Path(path)
    elif isinstance(folder, str | os.PathLike):
        plots = getattr(experiment, "plots", None)
        own = plots if isinstance(plots, str | os.PathLike) else Path(folder) / "plots"
        chosen = Path(own if plot else folder) / name
    else:
        chosen = Path(DEFAULT) / name
    return filled(chosen, run.epoch, run.clock.steps, run.stage, run.loader_name)


def filled(path: Path, epoch: int, step: int, stage: str | None = None, loader: str | None = None) -> Path:
    """``path`` with its places filled in.

    >>> filled(Path("grads-{epoch}.png"), epoch=7, step=120).name
    'grads-007.png'
    >>> filled(Path("{stage}.png"), epoch=7, step=120, stage="val", loader="night").name
    'val-night.png'
    """
    text = str(path)
    safe = re.sub(r"[^\w.-]+", "_", loader) if loader else ""
    if safe and "{loader}" not in text:
        text = str(path.with_name(f"{path.stem}-{safe}{path.suffix}"))
    values = {"{epoch}": f"{epoch:03d}", "{step}": f"{step:06d}", "{stage}": stage or "", "{loader}": safe}
    for place, value in values.items():
        text = text.replace(place, value)
    return Path(text)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that there is at any time either the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
