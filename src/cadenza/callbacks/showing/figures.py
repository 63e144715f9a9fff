"""Figures that need no display: made without pyplot, and written whole."""

from __future__ import annotations

import io
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.foundation.arguments import file_format
from cadenza.foundation.whole_files import write_whole

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from cadenza.run import Run

FORMATS = ("png", "pdf", "svg")
_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""What would make two files of the same figure differ is left out."""

_WIDE = 1e4
"""An axis whose end is so many times its beginning has no room for labels between the powers of ten."""


def checked_format(path: str | os.PathLike[str] | None, format: str | None, who: str) -> str:
    """The format of the figures that ``path`` or ``format`` asks for; png if neither says."""
    if find_spec("matplotlib") is None:
        raise ImportError(f"{who} draws with matplotlib: pip install 'cadenza[plots]'")
    return file_format(who, path, format, FORMATS)


def new_figure(width: float, height: float, *, layout: str = "constrained") -> Figure:
    """A figure of so many inches whose labels are given the room that they need; with the layout "none" whoever draws
    it says how much."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)  # type: ignore[arg-type]


def fix_layout(
    figure: Figure, rows: int, columns: int, *, left: float, right: float, bottom: float, top: float
) -> None:
    """Gives every panel of a grid so many inches of room on its sides. To work out what its labels need takes more time
    than the drawing itself."""
    width, height = figure.get_size_inches()
    wide, high = width / columns - left - right, height / rows - bottom - top
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        bottom=bottom / height,
        top=1 - top / height,
        wspace=(left + right) / wide,
        hspace=(bottom + top) / high,
    )


def figure_bytes(figure: Figure, format: str) -> bytes:
    """The file of a figure. A letter that no font has is drawn as a box; that is no reason to end a training."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure.savefig(buffer, format=format, dpi=100, metadata=_METADATA.get(format, {}))
    return buffer.getvalue()


def write_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes ``figure`` in the format that the end of ``path`` names."""
    path = Path(path)
    write_whole(path, figure_bytes(figure, path.suffix.removeprefix(".").lower() or "png"))


def keep_figure(run: Run, who: str, figure: Figure, path: Path) -> None:
    """Writes the figure of a callback, and notes in ``run.store["plots"]`` where its latest one is."""
    write_figure(figure, path)
    key = f"{who} {run.loader_name}" if run.loader_name else who
    run.store.setdefault("plots", {})[key] = str(path)


def label_plainly(axis: Axis) -> None:
    """Labels a logarithmic axis with 0.05, 0.1, 0.2 in place of powers of ten, of which it often spans hardly one.
    Where it spans many, some of those are its labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    class Locator(LogLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            low, high = sorted((vmin, vmax))
            self.set_params(subs=(1.0, 2.0, 5.0) if low > 0 and high / low < _WIDE else (1.0,))
            return super().tick_values(vmin, vmax)

    axis.set_major_locator(Locator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def plain(text: object, longest: int = 60, tail: int = 0) -> str:
    """``text`` as it is drawn letter by letter: no formulas between dollar signs, not longer than ``longest``; of what
    is longer so many letters at the end are kept as ``tail`` says.

    >>> plain("price in $"), plain("a very long name of a metric", 12), plain("layer.number.12.weight", 14, tail=6)
    ('price in \\\\$', 'a very long…', 'layer.n…weight')
    """
    short = " ".join(str(text).split())
    if len(short) > longest:
        short = short[: longest - 1 - tail].rstrip() + "…" + short[len(short) - tail :].lstrip()
    return short.replace("$", r"\$")
