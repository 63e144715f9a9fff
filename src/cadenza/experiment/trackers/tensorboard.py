"""TensorBoard."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cadenza.experiment.media import png_size
from cadenza.experiment.trackers.import_tracker import need
from cadenza.experiment.trackers.tracker import Opening, Tracker, metrics_of
from cadenza.foundation.arguments import path as path_or_none


class TensorBoard(Tracker):
    """Writes event files for TensorBoard to ``tensorboard`` in the folder of the run's experiment, or to ``path``.

    Metrics lie over the steps. Images, plots (PNG), histograms, texts and hyper-parameters are written too; of other
    files the place is. A resumed run goes on in the same folder, and TensorBoard hides what is past the checkpoint.
    Look at all runs with ``tensorboard --logdir runs``. It needs the package tensorboard.

    >>> import cadenza, tempfile, torch
    >>> from cadenza.experiment import Experiment
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as root:
    ...     experiment = Experiment("digits", "first", root)
    ...     callbacks = [TensorBoard()]
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=callbacks, experiment=experiment, device="cpu")
    ...     history = trainer.fit(tiny_loader(), epochs=2)
    ...     [file.name.split(".")[0] for file in experiment.tensorboard.iterdir()]
    ['events']
    """

    collects = True

    def __init__(self, path: str | os.PathLike[str] | None = None, *, rows: str = "all") -> None:
        need("tensorboard", self.name)
        super().__init__(rows=rows)
        self.path = path_or_none(f"{self.name}: path", path)
        self._folder = Path()
        self._writer: Any = None

    def prepare(self) -> None:
        import torch.utils.tensorboard  # noqa: F401

    def start(self, opening: Opening) -> None:
        self._folder = Path(self.path) if self.path is not None else opening.folder / "tensorboard"
        self._writer = _open(self._folder, self.purge_step)

    def log(self, row: dict[str, Any]) -> None:
        step = row.get("step", 0)
        with self._writing() as writer:
            for name, value in metrics_of(row).items():
                writer.add_scalar(name, value, step, walltime=self.called_at)

    def image(self, name: str, file: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        content = Path(file).read_bytes()
        try:
            width, height = png_size(content)
        except ValueError:
            self.text(name, f"the plot is in {file}", step)
            return
        picture = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
        with self._writing() as writer:
            writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, image=picture)]), step)

    def histogram(self, name: str, bins: Mapping[str, Any], step: int) -> None:
        edges = bins["edges"]
        with self._writing() as writer:
            writer.add_histogram_raw(
                name,
                min=edges[0],
                max=edges[-1],
                num=bins["count"],
                sum=bins["sum"],
                sum_squares=bins["squares"],
                bucket_limits=edges[1:],
                bucket_counts=bins["counts"],
                global_step=step,
            )

    def text(self, name: str, text: str, step: int) -> None:
        with self._writing() as writer:
            writer.add_text(name, text, step)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.summary import hparams

        plain = {name: value if isinstance(value, bool | int | float) else str(value) for name, value in values.items()}
        with self._writing() as writer:
            for part in hparams(plain, {}):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(part)

    def artifact(self, name: str, file: str) -> None:
        self.text(f"artifact/{name}", file, 0)

    def resume(self, step: int, rows: int) -> None:
        """What is at the first step that is sent again is hidden too; what was there before is written again."""
        for row in self.last_rows:
            self.log(row)
        self.text("resumed", f"resumed at step {step}", step)

    def flush(self) -> None:
        with self._writing() as writer:
            writer.flush()

    def finish(self, state: str) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        """The writer. One that failed has lost the thread that writes, so that the next call gets another."""
        if self._writer is None:
            self._writer = _open(self._folder)
        try:
            yield self._writer
        except Exception:
            self._writer = None
            raise


def _open(folder: Path, purge_step: int | None = None) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    # TensorBoard reads files in the order of their names, which begin with the second and end with a counter: the tenth
    # file of a process would be read before the ninth of the same second, and what it resumes would be lost.
    while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
        time.sleep(0.05)
    return SummaryWriter(str(folder), purge_step=purge_step)
