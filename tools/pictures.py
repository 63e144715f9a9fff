"""Draws the pictures of docs/images that callbacks make, each by a real training of a few seconds.

``python tools/pictures.py`` draws all of them, ``python tools/pictures.py history_plot`` only the named ones.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer, Watch
from cadenza.callbacks.measuring.confusion import ConfusionMatrix
from cadenza.callbacks.measuring.metrics import Metrics
from cadenza.callbacks.measuring.per_sample import accuracy
from cadenza.callbacks.rates.lr_finder import find_lr
from cadenza.callbacks.showing.gradient_plot import GradientPlot
from cadenza.callbacks.showing.history_plot import HistoryPlot
from cadenza.callbacks.showing.visualize import Visualize

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
LARGEST = 60_000
Draw = Callable[[Path], Any]


# Data and models ----------------------------------------------------------------------------------------------------


def digits() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Handwritten digits, normalised, for training and validation."""
    images, targets = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    data = TensorDataset((images.float().reshape(-1, 1, 8, 8) / 16 - 0.3) / 0.37, targets)
    train, val = torch.utils.data.random_split(data, [1400, 397], torch.Generator().manual_seed(0))
    return DataLoader(train, 64, shuffle=True), DataLoader(val, 64)


def classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


def shapes(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images with a disc (class 1) and a square (class 2), the class of each pixel, and a box for each of both."""
    generator = torch.Generator().manual_seed(seed)
    size = 48
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    images = torch.rand(count, 3, size, size, generator=generator) * 0.25
    masks, boxes = torch.zeros(count, size, size, dtype=torch.long), torch.zeros(count, 2, 4)
    for index in range(count):
        centres = torch.randint(9, size - 9, (2, 2), generator=generator)
        radii = torch.randint(5, 9, (2,), generator=generator)
        for kind, ((row, column), radius) in enumerate(zip(centres.tolist(), radii.tolist(), strict=True)):
            far = torch.stack([(rows - row).abs(), (columns - column).abs()]).float()
            inside = far.norm(dim=0) <= radius if kind == 0 else far.amax(0) <= radius
            masks[index][inside] = kind + 1
            boxes[index, kind] = torch.tensor([column - radius, row - radius, column + radius + 1, row + radius + 1])
            images[index, :, inside] += torch.tensor([[0.6, 0.6, 0.6], [0.1, 0.4, 0.7]])[kind, :, None]
    return images.clamp(0, 1), masks, boxes


def trainer(model: nn.Module, loss: Any, *callbacks: Callback, lr: float = 3e-3) -> Trainer:
    return Trainer(model, torch.optim.Adam(model.parameters(), lr=lr), loss, callbacks=callbacks, device="cpu")


# The pictures: each function writes the file that it is given -------------------------------------------------------


def history_plot(path: Path) -> None:
    metrics = Metrics({"accuracy": accuracy}, stages={"train", "val"})
    plot = HistoryPlot(path, every="end", log_scale=["loss"])
    trainer(classifier(), nn.CrossEntropyLoss(), Watch("val/loss"), metrics, plot).fit(*digits(), epochs=15)


def gradient_plot(path: Path) -> None:
    trainer(classifier(), nn.CrossEntropyLoss(), GradientPlot(path)).fit(*digits(), epochs=2)


def confusion_matrix(path: Path) -> None:
    confusion = ConfusionMatrix([str(digit) for digit in range(10)], path=path)
    trainer(classifier(), nn.CrossEntropyLoss(), confusion).fit(*digits(), epochs=2)


def visualize_classification(path: Path) -> None:
    show = Visualize("classification", 12, mean=0.3, std=0.37, path=path)
    trainer(classifier(), nn.CrossEntropyLoss(), show).fit(*digits(), epochs=1)


def visualize_detection(path: Path) -> None:
    """One box and one score for each of the two kinds of shapes, regressed from the whole image."""

    def decode(output: Tensor) -> list[dict[str, Tensor]]:
        boxes, scores = output[..., :4] * 48, output[..., 4].sigmoid()
        labels = torch.tensor([0, 1])
        return [{"boxes": b, "labels": labels, "scores": s} for b, s in zip(boxes, scores, strict=True)]

    def true(targets: Tensor) -> list[dict[str, Tensor]]:
        return [{"boxes": boxes * 48, "labels": torch.tensor([0, 1])} for boxes in targets]

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        off = (output[..., :4] - targets).abs().mean(-1)
        return off.mean() + 0.02 * nn.functional.binary_cross_entropy_with_logits(output[..., 4], (off < 0.06).float())

    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 64), nn.ReLU(), nn.Linear(64, 10), nn.Unflatten(1, (2, 5)),
    )  # fmt: skip
    images, _, boxes = shapes(800, seed=1)
    data = DataLoader(TensorDataset(images[:768], boxes[:768] / 48), 32, shuffle=True)
    val = DataLoader(TensorDataset(images[768:], boxes[768:] / 48), 32)
    show = Visualize("detection", 4, classes=["disc", "square"], decode=decode, decode_targets=true, path=path)
    trainer(model, loss, show).fit(data, val, epochs=14)


def visualize_segmentation(path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    images, masks, _ = shapes(96, seed=2)
    train = DataLoader(TensorDataset(images[:64], masks[:64]), 16, shuffle=True)
    val = DataLoader(TensorDataset(images[64:], masks[64:]), 16)
    show = Visualize("segmentation", 4, classes=["ground", "disc", "square"], path=path)
    trainer(model, nn.CrossEntropyLoss(), show, lr=1e-2).fit(train, val, epochs=24)


def lr_finder(path: Path) -> None:
    train, _ = digits()
    find_lr(trainer(classifier(), nn.CrossEntropyLoss()), train, start=1e-5, end=1.0).plot(path)


PICTURES: dict[str, Draw] = {
    draw.__name__: draw
    for draw in (
        history_plot,
        gradient_plot,
        confusion_matrix,
        visualize_classification,
        visualize_detection,
        visualize_segmentation,
        lr_finder,
    )
}
"""What can be drawn. A callback with a picture of its own adds a function of the path here."""


def smaller(path: Path) -> bytes:
    """The picture with at most 256 colours, which is what a plot has."""
    buffer = io.BytesIO()
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        raise SystemExit(f"no picture is called {', '.join(unknown)}; there are {', '.join(PICTURES)}")
    torch.set_num_threads(1)
    for name in names or PICTURES:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            drawn = Path(folder) / f"{name}.png"
            PICTURES[name](drawn)
            content = smaller(drawn)
        if len(content) > LARGEST:
            raise SystemExit(f"{name}.png has {len(content)} bytes, more than {LARGEST}: draw less, or smaller")
        (FOLDER / f"{name}.png").write_bytes(content)
        print(f"{name}.png: {len(content)} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
