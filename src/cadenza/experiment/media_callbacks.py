"""Images, figures, histograms, texts and files that a callback wants to be seen."""

from __future__ import annotations

import os
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.experiment.media import Media, Medium, bins
from cadenza.experiment.secrets import masked_text

if TYPE_CHECKING:
    from cadenza.run import Run


class Showing:
    """What is shown is kept in the folder and goes to all trackers. In other processes than the main one nothing is."""

    _media: Media | None = None
    _run: weakref.ref[Run] | None = None

    def image(self, name: str, image: Tensor, step: int | None = None) -> None:
        """Keeps an image of shape (H, W), (C, H, W) or (H, W, C) as a PNG in ``plots``; floats go from 0 to 1."""
        if media := self._open_media():
            media.show(media.image(name, image, self._step(step)))

    def figure(self, name: str, figure: Any, step: int | None = None) -> None:
        """Keeps a matplotlib figure as a PNG in ``plots``."""
        if media := self._open_media():
            media.show(media.figure(name, figure, self._step(step)))

    def histogram(self, name: str, values: Any, step: int | None = None) -> None:
        """Counts values, a tensor or a list, in 64 bins. This waits for the device."""
        if media := self._open_media():
            media.show(Medium("histogram", name, self._step(step), bins(values)))

    def text(self, name: str, text: str, step: int | None = None) -> None:
        if media := self._open_media():
            media.show(Medium("text", name, self._step(step), masked_text(str(text))))

    def artifact(self, file: str | os.PathLike[str], name: str | None = None) -> None:
        """Keeps a file that belongs to the run: a copy of it, if it lies elsewhere."""
        if media := self._open_media():
            path = Path(file)
            media.show(media.artifact(name or path.name, path, self._step(None)))

    def reader(self) -> deque[Medium]:
        """A queue of everything that is shown from now on, for a tracker."""
        return deque() if self._media is None else self._media.reader()

    def _step(self, step: int | None) -> int:
        run = self._run() if self._run is not None else None
        return step if step is not None else 0 if run is None else run.clock.steps

    def _open_media(self) -> Media | None:
        run = self._run() if self._run is not None else None
        if run is None:
            raise RuntimeError("an experiment shows things while a run goes on: from a callback, by run.experiment")
        return self._media
