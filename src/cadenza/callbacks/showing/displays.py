"""Where progress is shown: a live line in a terminal or a notebook, plain lines anywhere else."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from cadenza.foundation.text_table import number

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

NAMES = ("auto", "rich", "plain", "notebook", None)
_PACKAGES = {"rich": "rich", "notebook": "IPython"}
"""What a display needs. The extra that installs it has the name of the display."""
_NARROWEST_BAR, _WIDEST_BAR = 8, 32
_LIVE = 0.125
"""Seconds between two updates of a live line: eight a second, so that a line that stays need not wait for its turn."""


@dataclass(frozen=True)
class Standing:
    """How far a pass has come.

    >>> Standing("epoch 3/10", "train", done=120, total=938, rate=85.31, loss=0.21344).text
    'epoch 3/10  train  120/938  85.3 batches/s  loss 0.2134'
    """

    head: str
    stage: str
    done: int
    total: int | None = None
    rate: float | None = None
    loss: float | None = None

    @property
    def left(self) -> str:
        return f"{self.head}  {self.stage}" if self.head else self.stage

    @property
    def right(self) -> str:
        parts = []
        if self.done:
            parts.append(str(self.done) if self.total is None else f"{self.done}/{self.total}")
        if self.rate is not None:
            parts.append(f"{self.rate:.1f} batches/s")
        if self.loss is not None:
            parts.append(f"loss {number(self.loss)}")
        return "  ".join(parts)

    @property
    def text(self) -> str:
        return f"{self.left}  {self.right}".rstrip()


# Which one ----------------------------------------------------------------------------------------------------------


def check(display: str | None) -> None:
    """Refuses a display that does not exist or whose package is missing, before a training begins."""
    if display not in NAMES:
        raise ValueError(f'display is "auto", "rich", "plain", "notebook" or None, not {display!r}')
    package = _PACKAGES.get(display or "")
    if package and find_spec(package) is None:
        install = f"pip install 'cadenza[{display}]'"
        raise ImportError(f'display="{display}" needs {package}: {install}, or use display="auto"')


def choose(display: str | None, stream: TextIO | None) -> tuple[str | None, str]:
    """The display for this process and the reason for it, in words."""
    if display != "auto":
        return display, "as asked"
    if stream is None and in_notebook():
        return "notebook", "since this is a notebook"
    output = sys.stdout if stream is None else stream
    if output is None:
        return None, "since there is no stdout"
    if getattr(output, "closed", False):
        return None, "since the output is closed"
    if not is_terminal(output):
        return "plain", "since the output is not a terminal"
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return "plain", "since CI is set"
    if os.environ.get("TERM") in ("dumb", "unknown"):
        return "plain", "since the terminal cannot move its cursor"
    if find_spec("rich") is None:
        return "plain", "since rich is not installed"
    return "rich", "since the output is a terminal"


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code. Whoever runs in one has imported IPython already."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):  # nothing there, closed, or gone
        return False


def open_display(kind: str, stream: TextIO | None) -> Display:
    """Opens the display that ``choose`` named. Nothing is written yet."""
    if kind == "notebook":
        return Notebook()
    output = sys.stdout if stream is None else stream
    return Terminal(output) if kind == "rich" else PlainLines(output)


# The displays -------------------------------------------------------------------------------------------------------


class Display(Protocol):
    """Shows how far a pass has come, at most once in ``interval`` seconds, and lines that stay."""

    interval: float

    def show(self, standing: Standing) -> None: ...

    def lines(self, texts: list[str]) -> None: ...

    def close(self) -> None: ...


class PlainLines:
    """Whole lines without colour or carriage return, for files, pipes and CI."""

    interval = 30.0

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, standing: Standing) -> None:
        self.lines([standing.text])

    def lines(self, texts: list[str]) -> None:
        self.stream.write("".join(encodable(text, self.stream) + "\n" for text in texts))
        self.stream.flush()

    def close(self) -> None:
        pass


class Terminal:
    """A live line with a bar at the bottom of the terminal. Without a thread: it is drawn when it is told to."""

    interval = _LIVE

    def __init__(self, stream: TextIO) -> None:
        from rich.live import Live

        self.stream = stream
        self.console = _console(stream)
        self.live = Live(
            console=self.console,
            auto_refresh=False,
            transient=True,
            # What others print must appear above the live line; what goes to a file must go on going there.
            redirect_stdout=is_terminal(sys.stdout),
            redirect_stderr=is_terminal(sys.stderr),
        )

    def show(self, standing: Standing) -> None:
        if not self.live.is_started:
            self.live.start()
        self.live.update(self._row(standing), refresh=True)

    def _row(self, standing: Standing) -> RenderableType:
        """One line, however narrow the terminal: first the bar is left out, then the rate, then the text is cut."""
        from rich.cells import cell_len
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        overflow: Any = "crop" if self.console.options.ascii_only else "ellipsis"
        if cell_len(standing.text) > self.console.width:
            standing = replace(standing, rate=None)
        left, right = (
            Text(encodable(text, self.stream), style) for text, style in ((standing.left, "bold"), (standing.right, ""))
        )
        room = self.console.width - left.cell_len - right.cell_len - 4
        if standing.total is None or room < _NARROWEST_BAR:
            return Text.assemble(left, "  ", right, no_wrap=True, overflow=overflow)
        row = Table.grid(padding=(0, 2))
        row.add_row(left, ProgressBar(standing.total, standing.done, width=min(room, _WIDEST_BAR)), right)
        return row

    def lines(self, texts: list[str]) -> None:
        if self.live.is_started:
            self.live.update("", refresh=True)  # what it shows belongs to what has just ended
        # soft_wrap leaves the line whole: the terminal wraps it, and it can be copied as one.
        text = encodable("\n".join(texts), self.stream)
        self.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        self.live.stop()


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class PatientConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would exit the process, and with it the training

    return PatientConsole(file=stream)


class Notebook:
    """A live line below the cell. It becomes the line of its epoch, and the next epoch gets a new one."""

    interval = _LIVE

    def __init__(self) -> None:
        self._display = importlib.import_module("IPython.display").display
        self._handle: Any = None

    def show(self, standing: Standing) -> None:
        self._put(standing.text)

    def lines(self, texts: list[str]) -> None:
        for text in texts:
            self._put(text)
            self._handle = None

    def _put(self, text: str) -> None:
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        self._handle = None


def encodable(text: str, stream: Any) -> str:
    """``text`` with a question mark for whatever the encoding of ``stream`` does not know."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
