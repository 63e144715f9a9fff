"""Where things are in the folder of a run."""

from __future__ import annotations

from pathlib import Path


class Places:
    """The paths of an experiment. They exist once a run has begun."""

    _folder: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder of the run; it is made when the run begins."""
        if self._folder is None:
            raise AttributeError("this experiment has no folder yet: it is made when a run begins")
        return self._folder

    @property
    def has_folder(self) -> bool:
        return self._folder is not None

    @property
    def id(self) -> str:
        """The name of the folder: the time and a few random letters."""
        return self.folder.name

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def plots(self) -> Path:
        return self.folder / "plots"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def log_file(self) -> Path:
        return self.folder / "log.txt"

    @property
    def report_file(self) -> Path:
        return self.folder / "report.html"
