"""The gradients of each layer in a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from cadenza.callback import Callback, Order
from cadenza.callbacks.faults import Faults, tolerant
from cadenza.callbacks.folders import place_for
from cadenza.callbacks.measuring.gradient_spread import Measured, Spread, measure_gradients
from cadenza.callbacks.showing.figures import (
    checked_format,
    keep_figure,
    label_plainly,
    new_figure,
    plain,
    write_figure,
)
from cadenza.foundation.arguments import one_of, texts, whole
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cadenza.run import Run

_MOST = 60
"""So many layers are drawn at most, chosen evenly; who has more names those to see."""


class GradientPlot(Callback, Faults):
    """Draws how the gradients of each layer are spread, once an epoch: layers that learn nothing, or far too much,
    stand out.

    ![A row for each layer with a box from small to large gradients](images/gradient_plot.png)

    It measures just before an optimizer step, when gradients exist: unscaled, over the whole accumulation window, and
    clipped if somebody clips. What it measures stays on the device and is read when the pass over the training data
    ends, so the step does not wait; but it looks inside the step, so a fused step is opened. What was drawn last is in
    ``run.store["gradient_plot"]``.

    ``step`` is the number of that step in each epoch, from 0; an epoch with fewer steps has no picture. ``kind`` is
    "box" (the magnitudes of each layer on a logarithmic axis: the box holds the middle half, the line nine tenths, the
    cross is the largest; zeros are left out and told in per cent) or "histogram" (a panel for each layer, with how
    often which value occurs). ``layers`` are names of parameters or patterns such as ``"*.weight"``; without it all
    are drawn, or 60 of them chosen evenly. ``path`` is the file (png, pdf or svg); ``{epoch}`` in it is filled in.
    Without it, the files are ``gradients-{epoch}.png`` in the plots of the run's experiment, else in the folder
    ``runs``; ``format`` chooses "pdf" or "svg" there. With ``on_error="warn"`` a failure switches it off with a
    warning; otherwise it ends the run.

    ``plot_gradients(model.named_parameters())`` does the same in a loop of your own.

    >>> import cadenza, os, tempfile, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot = GradientPlot(os.path.join(folder, "{epoch}.png"), layers=["*.weight"])
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=[plot], device="cpu")
    ...     history = trainer.fit(tiny_loader(), epochs=2)
    ...     sorted(os.listdir(folder))
    ['000.png', '001.png']
    """

    order = Order.REPORT
    ranks = "main"
    stages = frozenset({"train"})
    passive = True

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        step: int = 0,
        kind: str = "box",
        layers: Iterable[str] | None = None,
        format: str | None = None,
        on_error: str = "raise",
    ) -> None:
        self.format = checked_format(path, format, self.name)
        whole(f"{self.name}: step", step, 0, "is")
        one_of(f"{self.name}: kind", kind, ("box", "histogram"))
        self.path, self.step, self.kind = path, step, kind
        meant = 'a list of names or patterns such as ["*.weight"], or None'
        self.layers = None if layers is None else tuple(texts(f"{self.name}: layers", layers, meant))
        self._check_on_error(on_error)
        self._forget()
        self._warned = False

    def _forget(self) -> None:
        self._measured: list[Measured] = []
        self._steps = 0
        self._at = 0

    def explain(self) -> str:
        which = "all layers" if self.layers is None else ", ".join(self.layers)
        return f"draws {which} at step {self.step} of each epoch ({self.kind}, {self.format})"

    # Points ---------------------------------------------------------------------------------------------------------

    def before_train_epoch(self, run: Run) -> None:
        self._forget()

    @tolerant
    def before_step(self, run: Run) -> None:
        if self._steps == self.step:
            self._measured, self._at = measure_gradients(self._chosen(run)), run.clock.steps
        self._steps += 1

    @tolerant
    def after_train_epoch(self, run: Run) -> None:
        if self._measured:
            spreads = run.store["gradient_plot"] = [measured.read() for measured in self._measured]
            figure = draw_spreads(spreads, self.kind, f"gradients at step {self._at} (epoch {run.epoch + 1})")
            path = place_for(run, self.path, f"gradients-{{epoch}}.{self.format}", plot=True)
            keep_figure(run, self.name, figure, path)
        elif not self._warned and run.stop_reason is None:
            self._warned = True
            had = f"it had {self._steps} that could be looked into"
            warn(f"{self.name}: epoch {run.epoch + 1} has no step {self.step} with gradients, {had}")
        self._forget()

    def close(self) -> None:
        self._forget()

    def _chosen(self, run: Run) -> list[tuple[str, Any]]:
        named = [(name, parameter) for name, parameter in run.module.named_parameters() if parameter.requires_grad]
        if self.layers is None:
            return named
        chosen = [pair for pair in named if any(fnmatchcase(pair[0], pattern) for pattern in self.layers)]
        if not chosen:
            names = ", ".join(name for name, _ in named[:20])
            raise ValueError(f"{self.name}: no parameter is called {' or '.join(self.layers)}; there are {names}")
        return chosen


# The figure ---------------------------------------------------------------------------------------------------------


def plot_gradients(
    named_parameters: Iterable[tuple[str, Any]], path: str | os.PathLike[str] | None = None, *, kind: str = "box"
) -> Figure:
    """A matplotlib figure of the gradients that the parameters have now, written to ``path`` if there is one."""
    spreads = [measured.read() for measured in measure_gradients(named_parameters)]
    if not spreads:
        raise ValueError("no parameter has a gradient; plot_gradients belongs between backward() and zero_grad()")
    figure = draw_spreads(spreads, kind, "gradients")
    if path is not None:
        write_figure(figure, path)
    return figure


def draw_spreads(spreads: Sequence[Spread], kind: str, title: str) -> Figure:
    """The figure: a row for each layer, or a panel with its histogram."""
    shown = [spreads[index * len(spreads) // _MOST] for index in range(_MOST)] if len(spreads) > _MOST else spreads
    if len(shown) < len(spreads):
        title += f", {len(shown)} of {len(spreads)} layers"
    return _boxes(shown, title) if kind == "box" else _histograms(shown, title)


def _boxes(spreads: Sequence[Spread], title: str) -> Figure:
    figure = new_figure(7, 1.4 + 0.28 * len(spreads))
    axes = figure.subplots()
    rows = {row: spread for row, spread in enumerate(spreads) if not spread.not_finite and spread.largest > 0}
    if rows:
        _draw_boxes(axes, list(rows), list(rows.values()))
    axes.set(xlabel="magnitude of the gradient", ylabel="layer", ylim=(len(spreads) - 0.4, -0.6))
    axes.set_yticks(range(len(spreads)), [plain(spread.name, 40, tail=20) for spread in spreads], fontsize="small")
    axes.set_title(plain(title, 100), fontsize="medium")
    axes.grid(axis="x", alpha=0.3)
    for row, spread in enumerate(spreads):  # right of each row what a logarithmic axis cannot show
        colour = "C3" if spread.not_finite or spread.zeros == spread.count else "0.4"
        place: dict[str, Any] = {
            "transform": axes.get_yaxis_transform(),
            "va": "center",
            "fontsize": "small",
            "color": colour,
        }
        axes.text(1.01, row, remark(spread), **place)
    if rows:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    return figure


def _draw_boxes(axes: Axes, rows: list[int], spreads: list[Spread]) -> None:
    largest = [spread.largest for spread in spreads]
    sizes = [size for spread in spreads for size in (*spread.quantiles, spread.largest) if size > 0]
    floor = min(sizes)
    axes.set(xscale="log", xlim=(floor / 1.5, max(sizes) * 1.5))
    label_plainly(axes.xaxis)
    columns = zip(*(spread.quantiles for spread in spreads), strict=True)
    low, first, middle, third, high = ([max(value, floor) for value in column] for column in columns)
    widths = [right - left for left, right in zip(first, third, strict=True)]
    axes.barh(rows, widths, 0.6, first, color="C0", alpha=0.45, linewidth=0, label="middle half")
    axes.hlines(rows, low, high, color="C0", linewidth=1, label="nine tenths")
    axes.vlines(middle, [row - 0.3 for row in rows], [row + 0.3 for row in rows], color="C0", label="median")
    axes.plot(largest, rows, "x", color="C3", markersize=5, label="largest")


def remark(spread: Spread) -> str:
    """What is special about the gradients of a layer, in words."""
    if spread.not_finite:
        return f"{spread.not_finite} not finite"
    if spread.zeros == spread.count:
        return "all zero"
    share = 100 * spread.zeros / spread.count
    return "" if not spread.zeros else f"{share:.0f}% zero" if share >= 1 else "<1% zero"


def _histograms(spreads: Sequence[Spread], title: str) -> Figure:
    columns = min(4, math.ceil(math.sqrt(len(spreads))))
    rows = math.ceil(len(spreads) / columns)
    figure = new_figure(3 * columns, 2.1 * rows + 0.4)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, spread in zip(grid, spreads, strict=False):
        _draw_histogram(axes, spread)
    for axes in grid[len(spreads) :]:
        axes.set_axis_off()
    figure.suptitle(plain(title, 100), fontsize="medium")
    return figure


def _draw_histogram(axes: Axes, spread: Spread) -> None:
    width = (spread.greatest - spread.least) / len(spread.bins)
    if width > 0:
        lefts = [spread.least + index * width for index in range(len(spread.bins))]
        axes.bar(lefts, spread.bins, width, align="edge", color="C0")
    elif math.isfinite(spread.least):  # all are the same
        axes.bar([spread.least], [spread.count], abs(spread.least) / 20 or 0.05, color="C0")
        axes.set_xlim(spread.least - (abs(spread.least) or 1), spread.least + (abs(spread.least) or 1))
    axes.set_title(plain(spread.name, 30, tail=15), fontsize="small")
    axes.set(yscale="log", ylim=(0.5, 2 * spread.count), xlabel="gradient", ylabel="count")
    label_plainly(axes.yaxis)
    axes.text(0.98, 0.95, remark(spread), transform=axes.transAxes, ha="right", va="top", fontsize="small")
    axes.locator_params(axis="x", nbins=4)
    axes.ticklabel_format(axis="x", scilimits=(-2, 3))  # 0.00025 beside 0.00050 would run into it
    axes.grid(alpha=0.3)
