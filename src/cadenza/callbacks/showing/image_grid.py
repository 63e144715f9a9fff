"""Images with what was predicted and what is true drawn on them, side by side in one figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callbacks.showing.figures import new_figure, plain
from cadenza.callbacks.showing.predictions import Boxes, Label, Mask

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIGHT, WRONG, FOUND = "#1a7f37", "#c62828", "#e67700"
_MOST_BOXES = 50


@dataclass(frozen=True)
class Sample:
    """One image as the model got it, what the model said, and what is true, if that is known."""

    image: Tensor
    predicted: Any
    true: Any = None


@dataclass(frozen=True)
class Look:
    """How samples are shown: names of the classes, how inputs were normalised, and what is left out."""

    classes: Sequence[str] | None = None
    mean: Any = None
    std: Any = None
    threshold: float = 0.5
    background: int | None = 0
    ignore: int = 255

    def name(self, label: Tensor | int) -> str:
        index = int(label)
        if self.classes is None:
            return plain(index, 18)
        if not 0 <= index < len(self.classes):
            named = ", ".join(self.classes)
            raise ValueError(f"there is a class {index}, but classes has the names of {len(self.classes)}: {named}")
        return plain(self.classes[index], 18)

    def shown(self, image: Tensor) -> Tensor:
        """The image as it was before it was normalised: (H, W) grey or (H, W, 3) colour, from 0 to 1."""
        pixels = image.float() / 255 if image.dtype == torch.uint8 else image.float()
        if self.mean is not None or self.std is not None:
            pixels = pixels * self._row(self.std, 1.0, pixels) + self._row(self.mean, 0.0, pixels)
        elif pixels.numel() and (pixels.min() < 0 or pixels.max() > 1):  # nobody said how: from darkest to brightest
            pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp(min=1e-12)
        pixels = pixels.nan_to_num(0.0).clamp(0, 1)
        return pixels[:3].permute(1, 2, 0) if pixels.size(0) in (3, 4) else pixels.mean(0)

    def _row(self, values: Any, default: float, pixels: Tensor) -> Tensor:
        row = torch.as_tensor(default if values is None else values, dtype=torch.float32).flatten()
        if row.numel() not in (1, pixels.size(0)):
            raise ValueError(f"mean and std have {row.numel()} numbers, but the images have {pixels.size(0)} channels")
        return row.reshape(-1, 1, 1)


def draw_samples(samples: Sequence[Sample], look: Look, title: str = "") -> Figure:
    """The figure for ``samples`` whose predictions are of one kind: ``Label``, ``Boxes`` or ``Mask``."""
    draw, side, wide = _WAYS[type(samples[0].predicted)]
    wide = wide if samples[0].true is not None else 1
    across = columns_for(len(samples), most=int(12 / side / wide))
    rows, columns = math.ceil(len(samples) / across), across * wide
    heights = [sample.image.size(-2) / max(sample.image.size(-1), 1) for sample in samples]
    figure = new_figure(side * columns + 0.2, (side * min(max(heights), 2.0) + 0.4) * rows + 0.6)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid:
        axes.set_axis_off()
    for index, sample in enumerate(samples):
        draw(grid[index * wide : (index + 1) * wide], sample, look)
    if title:
        figure.suptitle(plain(title, 80), fontsize="medium")
    _legend(figure, samples, look)
    return figure


def columns_for(count: int, most: int) -> int:
    """So many columns that the grid is about square and has few empty places.

    >>> [columns_for(count, most=8) for count in (1, 4, 7, 10, 16)]
    [1, 2, 4, 5, 4]
    """
    least = min(math.ceil(math.sqrt(count)), most)
    return min(range(least, min(2 * least, most, count) + 1), key=lambda columns: -count % columns)


def _show(axes: Axes, sample: Sample, look: Look) -> tuple[int, int]:
    pixels = look.shown(sample.image)
    height, width = pixels.shape[:2]
    extent = (0.0, float(width), float(height), 0.0)
    axes.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest", extent=extent)
    return height, width


# The three ways -----------------------------------------------------------------------------------------------------


def _draw_label(cells: Sequence[Axes], sample: Sample, look: Look) -> None:
    """The predicted class above the image, green if it is right; else red, with the true one."""
    axes = cells[0]
    _show(axes, sample, look)
    predicted: Label = sample.predicted
    said = look.name(predicted.label)
    if predicted.score is not None:
        said += f" ({float(predicted.score):.0%})"
    if sample.true is None:
        axes.set_title(said, fontsize="small")
        return
    right = int(predicted.label) == int(sample.true.label)
    below = "" if right else f"\nis {look.name(sample.true.label)}"
    axes.set_title(said + below, fontsize="small", color=RIGHT if right else WRONG)


def _draw_boxes(cells: Sequence[Axes], sample: Sample, look: Look) -> None:
    axes = cells[0]
    size = _show(axes, sample, look)
    predicted: Boxes = sample.predicted
    kept = len(predicted.boxes)
    if sample.true is not None:
        for box, label in zip(sample.true.boxes.tolist(), sample.true.labels.tolist(), strict=True):
            _box(axes, box, look.name(label), RIGHT, "--", size, at_foot=True)
    scores: list[Any] = [None] * kept if predicted.scores is None else predicted.scores.tolist()
    sure = [row for row in range(kept) if scores[row] is None or scores[row] >= look.threshold][:_MOST_BOXES]
    for row in sure:
        score = "" if scores[row] is None else f" {scores[row]:.2f}"
        _box(axes, predicted.boxes[row].tolist(), look.name(predicted.labels[row]) + score, FOUND, "-", size)
    there = "" if sample.true is None else f", {len(sample.true.boxes)} true"
    axes.set_title(f"{len(sure)} predicted{there}", fontsize="small")
    axes.set(xlim=(0, size[1]), ylim=(size[0], 0))


def _box(
    axes: Axes, box: list[float], text: str, colour: str, line: str, size: tuple[int, int], *, at_foot: bool = False
) -> None:
    from matplotlib.patches import Rectangle

    left, top, right, bottom = box
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, linestyle=line))
    x, y = min(max(left, 0), size[1]), min(max(bottom if at_foot else top, 0), size[0])
    inside = "bottom" if at_foot else "top"
    patch = {"facecolor": colour, "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    axes.text(x, y, text, fontsize=6.5, color="white", va=inside, clip_on=True, bbox=patch)


def _draw_mask(cells: Sequence[Axes], sample: Sample, look: Look) -> None:
    """The image twice: with the predicted mask, and with the true one."""
    masks = [sample.predicted.mask] + ([] if sample.true is None else [sample.true.mask])
    share = _share_right(masks[0], masks[1], look) if len(masks) == 2 else None
    titles = ["predicted" if share is None else f"predicted, {share:.1%} right", "true"]
    for axes, mask, title in zip(cells, masks, titles, strict=False):
        height, width = _show(axes, sample, look)
        axes.imshow(_painted(mask, look), interpolation="nearest", extent=(0, width, height, 0))
        axes.set_title(title, fontsize="small")


def _share_right(predicted: Tensor, true: Tensor, look: Look) -> float | None:
    """The share of the pixels that count whose class is right."""
    if predicted.shape != true.shape:
        return None
    counted = (true >= 0) & (true != look.ignore)
    return float((predicted == true)[counted].float().mean()) if bool(counted.any()) else None


def _painted(mask: Tensor, look: Look) -> Any:
    """Red, green, blue and how much of it, for each pixel; nothing on the background and on what is ignored."""
    colours = torch.zeros(*mask.shape, 4)
    for label in _labels_in(mask, look):
        colours[mask == label] = torch.tensor([*_colour(label), 0.55], dtype=colours.dtype)
    return colours.numpy()


def _labels_in(mask: Tensor, look: Look) -> list[int]:
    return [
        label for label in torch.unique(mask).tolist() if label >= 0 and label not in (look.background, look.ignore)
    ]


def _colour(label: int) -> tuple[float, float, float]:
    from matplotlib import colormaps

    red, green, blue, _ = map(float, colormaps["tab20"]((2 * label + label // 10) % 20))
    return red, green, blue


def _legend(figure: Figure, samples: Sequence[Sample], look: Look) -> None:
    from matplotlib.patches import Patch

    handles = []
    if isinstance(samples[0].predicted, Boxes):
        handles = [Patch(fill=False, edgecolor=FOUND, label="predicted")]
        if samples[0].true is not None:
            handles.append(Patch(fill=False, edgecolor=RIGHT, linestyle="--", label="true"))
    elif isinstance(samples[0].predicted, Mask):
        masks = [one.mask for sample in samples for one in (sample.predicted, sample.true) if one is not None]
        labels = sorted({label for mask in masks for label in _labels_in(mask, look)})[:20]
        handles = [Patch(color=_colour(label), alpha=0.55, label=look.name(label)) for label in labels]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5), fontsize="small")


_WAYS: dict[type, tuple[Any, float, int]] = {
    Label: (_draw_label, 1.5, 1),
    Boxes: (_draw_boxes, 2.8, 1),
    Mask: (_draw_mask, 2.0, 2),
}
"""For each kind of prediction how it is drawn, how wide an image is in inches, and how many cells it takes."""
