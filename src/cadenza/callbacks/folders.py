"""Where the files of a run go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cadenza.foundation.whole_files import filled

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
