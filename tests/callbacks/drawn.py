"""What tests of pictures share: a small fit, callbacks that act at a point, and a look at what a figure shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from cadenza import Callback, Trainer
from cadenza.testing import tiny_classifier, tiny_loader


def trainer_with(*callbacks: Callback, model: nn.Module | None = None, **options: Any) -> Trainer:
    model = tiny_classifier() if model is None else model
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", **options)


def fitted(*callbacks: Callback, epochs: int = 2, val: bool = True, **options: Any) -> Trainer:
    trainer = trainer_with(*callbacks, **options)
    trainer.fit(tiny_loader(), tiny_loader(20, seed=1) if val else None, epochs=epochs)
    return trainer


class Act(Callback):
    """Does something once at one point."""

    order = 10_000

    def __init__(self, point: str, act: Callable[[Any], Any]) -> None:
        self.point, self.act, self.left = point, act, 1

    def plays(self) -> dict[str, Callable[[Any], Any]]:
        return {self.point: self.play}

    def play(self, run: Any) -> None:
        if self.left:
            self.left -= 1
            self.act(run)


class Oops(Exception):
    """Raised on purpose."""


def oops(run: Any) -> None:
    raise Oops


def rendered(figure: Figure) -> Any:
    """The pixels of the figure, height by width by 4."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.buffer_rgba()


def size_of(path: Any) -> tuple[int, int]:
    """Width and height of a picture in a file."""
    with Image.open(path) as image:
        return image.size


def texts(figure: Figure) -> list[str]:
    """All words that the figure shows."""
    from matplotlib.text import Text

    rendered(figure)
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return [text.get_text() for text in found]


def assert_nothing_is_cut(figure: Figure) -> None:
    """Every word lies inside of the figure."""
    from matplotlib.text import Text

    rendered(figure)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    whole = figure.bbox
    ticks = {
        id(label)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not axes.axison or not axis.get_view_interval().min() <= tick.get_loc() <= axis.get_view_interval().max()
        for label in (tick.label1, tick.label2)
    }  # labels of ticks outside of the axes are not drawn
    for text in figure.findobj(Text):
        hidden = not text.get_visible() or not text.get_text().strip() or id(text) in ticks or text.get_clip_on()
        if hidden or (text.axes is not None and not text.axes.axison and text not in _kept_without_axis(text.axes)):
            continue
        box = text.get_window_extent(renderer)
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1
        assert inside, f"{text.get_text()!r} is cut: {box} of {whole}"


def _kept_without_axis(axes: Any) -> list[Any]:
    return [axes.title, *axes.texts]
