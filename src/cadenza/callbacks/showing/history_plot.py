"""The course of a training in one picture."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from time import monotonic
from typing import TYPE_CHECKING, Any

from cadenza.callback import Callback, Order, infer_mode
from cadenza.callbacks.faults import Faults, place_for, tolerant
from cadenza.callbacks.showing.figures import (
    checked_format,
    fix_layout,
    keep_figure,
    label_plainly,
    new_figure,
    plain,
    write_figure,
)
from cadenza.callbacks.showing.plot_series import BATCHES, Family, Series, banded, families
from cadenza.foundation.arguments import one_of, text, texts
from cadenza.foundation.warn import warn
from cadenza.history import History, unknown_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cadenza.run import Run

_COLOURS = {"train": "C0", "val": "C1", "test": "C2", "": "C4"}
_LINES = ("-", "--", ":", "-.")
_MOST = 24
"""So many panels are drawn at most; who has more metrics chooses."""
_WIDE, _SHORT = 4.6, 26
"""The inches of a panel, and how many letters a name may have that needs no more room than there is."""
_SHARE = 0.02
"""The share of a run's time that drawing may take while it goes on; the end is always drawn."""


class HistoryPlot(Callback, Faults):
    """Draws all metrics of the history in one figure, with a panel for each: ``train/loss`` and ``val/loss`` share one,
    and so do all times in milliseconds and all rates.

    ![A figure with a panel for the loss and one for the accuracy](images/history_plot.png)

    The horizontal axis counts the epochs that were done; a validation within an epoch lies at its fraction. Metrics
    that were only logged in iterations lie over the steps; where those are many, a line of means runs in a band from
    least to greatest. The best value of the watched metric (without one: of ``val/loss``, else of ``train/loss``) is
    marked.

    ``path`` is the file (png, pdf or svg). Without it, the file is ``history.png`` in the plots of the run's
    experiment, else in the folder ``runs``; ``format`` chooses "pdf" or "svg" in place of "png" there. ``every`` is
    "epoch" to draw at the end of epochs (not of all, if drawing would take more than 2 % of the time) and of the
    fit, or "end" for the end of the fit alone; a fit that ends with an error is drawn too. ``metrics`` are names,
    or patterns such as ``"val/*"``, to draw only those; without it the first 24 panels are drawn. ``mark`` names
    another metric whose best value is marked. ``log_scale`` lists panels, such as ``["loss"]``, that get a
    logarithmic axis. With ``on_error="warn"`` a failure to draw or write switches it off with a warning; otherwise
    it ends the run. It reads what was logged from the device when it draws.

    ``plot_history(history)`` does the same with a history at hand.

    >>> import cadenza, tempfile, torch
    >>> from pathlib import Path
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot = HistoryPlot(Path(folder) / "curves.png", every="end")
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=[plot], device="cpu")
    ...     history = trainer.fit(tiny_loader(), tiny_loader(), epochs=2)
    ...     (Path(folder) / "curves.png").read_bytes()[1:4]
    b'PNG'
    """

    order = Order.REPORT
    ranks = "main"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        every: str = "epoch",
        format: str | None = None,
        metrics: Iterable[str] | None = None,
        mark: str | None = None,
        log_scale: Iterable[str] = (),
        on_error: str = "raise",
    ) -> None:
        self.format = checked_format(path, format, self.name)
        one_of(f"{self.name}: every", every, ("epoch", "end"))
        if mark is not None:
            text(f"{self.name}: mark", mark, "the name of a metric or None")
        self.path, self.every, self.mark = path, every, mark
        self.metrics = None if metrics is None else _names(metrics, f"{self.name}: metrics")
        self.log_scale = _names(log_scale, f"{self.name}: log_scale")
        self._check_on_error(on_error)
        self._drawn, self._due = -1, 0.0

    def explain(self) -> str:
        when = "after each epoch" if self.every == "epoch" else "at the end"
        return f"draws {'all metrics' if self.metrics is None else ', '.join(self.metrics)} {when} ({self.format})"

    def after_register(self, run: Run) -> None:
        self._drawn, self._due = -1, 0.0

    @tolerant
    def after_epoch(self, run: Run) -> None:
        if self.every == "epoch" and monotonic() >= self._due:
            began = monotonic()
            self._draw(run)
            self._due = monotonic() + (monotonic() - began) / _SHARE

    @tolerant
    def after_run(self, run: Run) -> None:
        if run.mode == "fit":
            self._draw(run)
            self._warn_of_unknown(run.history)

    def after_error(self, run: Run) -> None:
        if run.mode == "fit" and not self._is_off(run):
            try:
                self._draw(run)
            except Exception as error:  # after a failure of the device its values cannot be read any more
                warn(f"{self.name} could not draw the last epochs: {error}")

    def _draw(self, run: Run) -> None:
        measured = sum(len(row) for row in run.history.rows)
        if measured == self._drawn:
            return
        watch = run.watch if self.mark is None else None
        mark, mode = (watch.name, watch.mode) if watch is not None else (self.mark, None)
        figure = plot_history(run.history, metrics=self.metrics, mark=mark, mode=mode, log_scale=self.log_scale)
        if figure is not None:
            keep_figure(run, self.name, figure, place_for(run, self.path, f"history.{self.format}", plot=True))
            self._drawn = measured

    def _warn_of_unknown(self, history: History) -> None:
        for name in (*(self.metrics or ()), *([self.mark] if self.mark else [])):
            if len(history) and not any(fnmatchcase(known, name) for known in history.names()):
                known_ones = unknown_metric(name, history.names())
                warn(f"{self.name} was to draw it, but there is {known_ones}")


def _names(names: Iterable[str], what: str) -> tuple[str, ...]:
    return tuple(texts(what, names, "a list of names", least=0))


# The figure ---------------------------------------------------------------------------------------------------------


def plot_history(
    history: History,
    path: str | os.PathLike[str] | None = None,
    *,
    metrics: Sequence[str] | None = None,
    mark: str | None = None,
    mode: str | None = None,
    log_scale: Sequence[str] = (),
) -> Figure | None:
    """A matplotlib figure of ``history``, written to ``path`` if there is one; None if there is nothing to draw.

    ``mode`` says which value of the metric ``mark`` is the best, "min" or "max"; without it its name decides.
    """
    found = families(history, metrics)
    if not found:
        return None
    shown = found[:_MOST]
    columns = min(3, math.ceil(math.sqrt(len(shown))))
    rows = math.ceil(len(shown) / columns)
    entries = max(len(family.series) for family in shown) + 1
    fixed = all(_is_short(family) for family in shown) and len(found) == len(shown)
    size = _WIDE * columns, (2.6 + 0.2 * entries) * rows
    figure = new_figure(*size, layout="none" if fixed else "constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    if fixed:
        fix_layout(figure, rows, columns, left=1.05, right=0.12, bottom=0.5, top=0.12 + 0.18 * entries)
    best = _best_of(found, mark, mode)
    for axes, family in zip(grid, shown, strict=False):
        _draw_family(axes, family, "log" if family.name in (*log_scale, "per second") else "linear", best)
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    if len(found) > len(shown):
        figure.supxlabel(f"{len(found) - len(shown)} more are not drawn; metrics=[...] chooses", fontsize="small")
    if path is not None:
        write_figure(figure, path)
    return figure


def _best_of(found: list[Family], mark: str | None, mode: str | None) -> tuple[Family, Series, float, float] | None:
    """The marked metric, its place and value."""
    by_name = {series.name: (family, series) for family in found for series in family.series}
    names = (mark,) if mark is not None else ("val/loss", "train/loss")
    for name in names:
        if name in by_name and (best := by_name[name][1].best(mode or infer_mode(name))) is not None:
            return (*by_name[name], *best)
    return None


def _draw_family(axes: Axes, family: Family, scale: str, best: tuple[Family, Series, float, float] | None) -> None:
    from matplotlib.ticker import MaxNLocator

    alike: dict[str, int] = {}
    for series in sorted(family.series, key=lambda series: list(_COLOURS).index(_stage(series.name))):
        stage = _stage(series.name)
        _draw_series(axes, series, _COLOURS[stage], _LINES[alike.setdefault(stage, 0) % len(_LINES)])
        alike[stage] += 1
    if best is not None and best[0].unit == family.unit:
        _, series, x, y = best
        axes.axvline(x, color="gray", linewidth=0.8, linestyle="--", zorder=0)
        if best[0] is family:
            place = f"after {x:.4g} {family.unit}"
            axes.plot([x], [y], "*", color="black", markersize=11, label=plain(f"best {series.name} {y:.4g} {place}"))
    axes.set(xlabel=f"{family.unit} done", ylabel=plain(family.name, 40), yscale=scale)
    if scale == "log":
        label_plainly(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.yaxis.set_offset_position("right")  # away from the legend
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", frameon=False)  # above, so it hides nothing


def _is_short(family: Family) -> bool:
    """Whether its words fit into a panel whose place is known beforehand."""
    return all(series.name.isascii() and len(series.name) <= _SHORT for series in family.series)


def _stage(name: str) -> str:
    stage = name.split("/")[0]
    return stage if stage in _COLOURS else ""


def _draw_series(axes: Axes, series: Series, colour: str, line: str) -> None:
    means, low, high = banded(series)
    finite = [y if math.isfinite(y) else math.nan for y in means.y]
    inside = series.name.endswith(BATCHES)
    style: dict[str, Any] = {"color": colour, "linestyle": line, "label": plain(series.name)}
    style |= {"alpha": 0.4, "linewidth": 0.8} if inside else {}
    axes.plot(means.x, finite, marker="o" if len(finite) <= 30 and not inside else "", markersize=3.5, **style)
    if means is not series:
        axes.fill_between(means.x, low, high, color=colour, alpha=0.15, linewidth=0)
    lost = [x for x, y in zip(series.x, series.y, strict=True) if not math.isfinite(y)]
    if lost:  # NaN has no height: it is shown on the axis
        foot = axes.get_xaxis_transform()
        axes.plot(lost, [0.02] * len(lost), "x", color=colour, transform=foot, label=plain(f"{series.name} not finite"))
