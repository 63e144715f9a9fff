"""What a run shows besides numbers: images, figures, histograms, texts and files."""

from __future__ import annotations

import io
import re
import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cadenza.experiment.jsonl_file import LinesFile, Trouble, WaitingLines
from cadenza.experiment.png import png_bytes
from cadenza.foundation.whole_files import whole_file, write_whole

KINDS = ("image", "figure", "histogram", "text", "artifact")
_BINS = 64


@dataclass(frozen=True)
class Medium:
    """One thing that was shown: of a histogram its bins, of a text the text, of everything else the file."""

    kind: str
    name: str
    step: int
    value: Any

    def as_dict(self) -> dict[str, Any]:
        value = str(self.value) if isinstance(self.value, Path) else self.value
        return {"kind": self.kind, "name": self.name, "step": self.step, "value": value}


class Media:
    """Keeps what is shown in the folder of a run, and hands it to everybody who reads along. A file that cannot be
    written is left out."""

    def __init__(self, folder: Path, plots: Path, trouble: Trouble) -> None:
        self.folder, self.plots, self.trouble = folder, plots, trouble
        self.readers: list[deque[Medium]] = []
        self._lines: WaitingLines | None = None

    def reader(self) -> deque[Medium]:
        """A queue into which everything is put that is shown from now on."""
        queue: deque[Medium] = deque()
        self.readers.append(queue)
        return queue

    def show(self, medium: Medium) -> None:
        if isinstance(medium.value, Path) and not medium.value.is_file():
            return
        if self._lines is None:
            self._lines = WaitingLines(LinesFile(self.folder / "media.jsonl"), self.trouble)
        self._lines.append([medium.as_dict()])
        for queue in self.readers:
            queue.append(medium)

    def close(self) -> None:
        """Writes what could not be written earlier."""
        if self._lines is not None:
            self._lines.append()

    def image(self, name: str, image: Tensor, step: int) -> Medium:
        path, content = self.plots / f"{file_name(name)}-{step:06d}.png", png_bytes(image)
        with self.trouble.noting():
            write_whole(path, content)
        return Medium("image", name, step, path)

    def figure(self, name: str, figure: Any, step: int) -> Medium:
        """``figure`` is a matplotlib figure, or anything else with ``savefig``."""
        if not hasattr(figure, "savefig"):
            raise TypeError(f"{name!r}: a figure has savefig(), as those of matplotlib have; {figure!r} has not")
        path, content = self.plots / f"{file_name(name)}-{step:06d}.png", io.BytesIO()
        figure.savefig(content, format="png")
        with self.trouble.noting():
            write_whole(path, content.getvalue())
        return Medium("figure", name, step, path)

    def artifact(self, name: str, file: Path, step: int) -> Medium:
        """A copy of ``file`` in the folder, unless it is there already."""
        if not file.is_file():
            raise FileNotFoundError(f"{name!r}: there is no file {file}")
        if not file.resolve().is_relative_to(self.folder.resolve()):
            target = self.folder / "artifacts" / file.name
            with self.trouble.noting():
                target.parent.mkdir(exist_ok=True)
                copy_whole(file, target)
            file = target
        return Medium("artifact", name, step, file)


def copy_whole(file: Path, target: Path) -> None:
    """Copies a file so that ``target`` is never a part of it."""
    with whole_file(target) as unfinished:
        shutil.copyfile(file, unfinished)


def file_name(name: str) -> str:
    """A name of something as a name of a file.

    >>> file_name("val/worst images")
    'val-worst_images'
    """
    return re.sub(r"[^\w.-]+", "_", name.replace("/", "-")).strip("._") or "unnamed"


def bins(values: Any) -> dict[str, Any]:
    """A histogram: ``counts`` between ``edges``, the number of values, their sum and that of their squares.

    >>> bins(torch.tensor([0.0, 1.0, 1.0]))["counts"][0], bins([0.0, 1.0, 1.0])["counts"][-1]
    (1, 2)
    """
    flat = torch.as_tensor(values).detach().flatten().to("cpu", torch.float64)  # a histogram is asked for: it waits
    flat = flat[torch.isfinite(flat)]
    if not flat.numel():
        return {"edges": [0.0, 1.0], "counts": [0], "count": 0, "sum": 0.0, "squares": 0.0}
    low, high = flat.min().item(), flat.max().item()
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(flat, _BINS, low, high).long().tolist()
    edges = torch.linspace(low, high, _BINS + 1, dtype=torch.float64).tolist()
    found = {"edges": edges, "counts": counts, "count": flat.numel()}
    return {**found, "sum": flat.sum().item(), "squares": flat.square().sum().item()}
