"""One line a epoch in a file."""

from __future__ import annotations

import os
import time
from typing import IO, TYPE_CHECKING, Any

from cadenza.dialects.fastai.recorder import LearnerCallback, format_time

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["CSVLogger"]


class CSVLogger(LearnerCallback):
    """Writes ``<path>/<filename>.csv``: a heading and one line for each epoch, on the disk when the epoch ends."""

    def __init__(self, learn: Learner, filename: str = "history", append: bool = False) -> None:
        super().__init__(learn)
        self.path, self.append = learn.path / f"{filename}.csv", append
        self.file: IO[str] | None = None

    def on_train_begin(self, **kwargs: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self.append and self.path.exists()
        self.file = self.path.open("a" if self.append else "w", encoding="utf-8")
        if not whole:
            self.file.write(",".join(self.learn.recorder.names) + "\n")

    def on_epoch_end(self, epoch: int, smooth_loss: Any, last_metrics: Any, **kwargs: Any) -> None:
        if self.file is None:
            return
        values = [str(epoch), *("" if one is None else f"{float(one):.6f}" for one in (smooth_loss, *last_metrics))]
        if self.learn.add_time:
            values.append(format_time(time.time() - self.learn.recorder.start_epoch))
        self.file.write(",".join(values) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def on_train_end(self, **kwargs: Any) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def read_logged_file(self) -> Any:
        """The lines as a pandas table."""
        from importlib import import_module

        return import_module("pandas").read_csv(self.path)
