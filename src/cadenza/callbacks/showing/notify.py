"""Telling a person that a training ended, failed or got better."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cadenza.callback import Callback, Order, without
from cadenza.callbacks.showing.notify_channels import Channel, Command, Mail, Message, Webhook, failure
from cadenza.foundation.arguments import is_number, some_of, text
from cadenza.foundation.background import Background
from cadenza.foundation.text_table import number
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run

__all__ = ["Command", "Mail", "Notify", "Webhook"]
log = logging.getLogger("cadenza")
EVENTS = ("end", "error", "best")
_LARGEST = 10_000_000
"""Files are attached as long as they are not larger than this together."""


class Notify(Callback):
    """Tells you by mail, webhook or a command that a fit ended, failed, or reached a new best value.

    The message says how far the fit came, why it stopped, the latest metrics and the best one; for an error its type,
    its words and where it was raised. A mail:

        Subject: digits: the training ended

        12 epochs, 264 steps, 0:00:41
        best val/loss 0.1026 (epoch 10, step 242)
        train/loss 0.04712
        val/loss 0.1103

    Messages are sent in the background, one after the other, and at the end of the run it waits for them for at most
    ``timeout`` seconds, which is also the limit for each. A failure never stops a training: the first one of a run is a
    warning, at the end of the epoch or of the run; all are told to the logger ``cadenza`` at its level DEBUG.
    Passwords, tokens and the addresses of webhooks are neither printed nor stored.

    ``channels`` are ``Mail(host, sender, to, ...)``, ``Webhook(url)`` and ``Command([program, argument, ...])``, from
    ``cadenza.callbacks.showing.notify_channels``. ``on`` are the events: "end" (in order, also when it was stopped
    early), "error" (any exception but that of the interrupt key) and "best" (the watched metric improved; told at the
    end of the epoch). ``title`` names the training; without it, it is the project and name of the run's experiment,
    else the class of the model. ``attach`` is True to attach the plots that callbacks such as ``HistoryPlot`` made, a
    list of files to attach those, or False. Only mails have attachments.

    >>> import cadenza, sys, tempfile, torch
    >>> from pathlib import Path
    >>> from cadenza.callbacks.showing.notify_channels import Command
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     said = Path(folder) / "said"
    ...     write = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    ...     tell = Command([sys.executable, "-c", write, str(said), "{title}"])
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=[Notify(tell, title="digits")], device="cpu")
    ...     history = trainer.fit(tiny_loader(), epochs=1)
    ...     said.read_text()
    'digits: the training ended'
    """

    order = Order.SAVE + 100
    """After those who draw and save, so that their files are there."""
    ranks = "main"

    def __init__(
        self,
        *channels: Channel,
        on: Iterable[str] = ("end", "error"),
        title: str | None = None,
        attach: bool | Iterable[str | os.PathLike[str]] = True,
        timeout: float = 10.0,
    ) -> None:
        if not channels or not all(callable(getattr(channel, "send", None)) for channel in channels):
            needed = "Mail(...), Webhook(...) or Command([...])"
            raise TypeError(f"{self.name}: channels are at least one of {needed}, not {', '.join(map(repr, channels))}")
        self.on = some_of(f"{self.name}: on", on, EVENTS)
        if title is not None:
            text(f"{self.name}: title", title, "a text that names the training, or None")
        if not is_number(timeout) or not 0 < timeout <= 600:
            raise ValueError(f"{self.name}: timeout is a number of seconds above 0 and at most 600, not {timeout!r}")
        self.channels, self.title, self.timeout = channels, title, float(timeout)
        self.attach = attach if isinstance(attach, bool) else _paths(f"{self.name}: attach", attach)
        self._outbox: Background | None = None
        self._improved = self._warned = False
        self._failed: list[str] = []

    @classmethod
    def example(cls) -> Self:
        return cls(Command(["true"]))

    def explain(self) -> str:
        return f"on {', '.join(event for event in EVENTS if event in self.on)}: {', '.join(map(repr, self.channels))}"

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """Who is not to tell of the best does not make the run decide what that is."""
        return without(super().plays(), Notify, *(() if "best" in self.on else ("after_best",)))

    # Points ---------------------------------------------------------------------------------------------------------

    def after_register(self, run: Run) -> None:
        self._improved = self._warned = False
        self._failed = []
        if "best" in self.on and run.mode == "fit" and run.watch is None:
            raise ValueError(f'{self.name} is to tell of the best, but nobody says of what: add Watch("val/loss")')

    def after_best(self, run: Run) -> None:
        self._improved = True

    def after_epoch(self, run: Run) -> None:
        if self._improved and "best" in self.on and run.best is not None:
            self._tell(run, "best", f"new best {run.best.name} {number(run.best.value)}")
        self._improved = False
        self._tell_failure()

    def after_run(self, run: Run) -> None:
        if "end" in self.on and run.mode == "fit":
            self._tell(run, "end", "the training ended")

    def after_error(self, run: Run) -> None:
        if "error" in self.on and not isinstance(run.error, KeyboardInterrupt):
            self._tell(run, "error", f"the training failed: {type(run.error).__name__}")

    def close(self) -> None:
        outbox, self._outbox = self._outbox, None
        if outbox is not None and not outbox.finish(self.timeout):
            self._warn(f"its messages were not sent within {self.timeout:g} seconds and are given up")
        self._tell_failure()

    # Sending --------------------------------------------------------------------------------------------------------

    def _tell(self, run: Run, event: str, what: str) -> None:
        try:
            message = self._message(run, event, what)
        except Exception as error:  # after a failure of the device its values cannot be read any more
            message = Message(event, self._titled(run, what), f"nothing more is known: {type(error).__name__}")
        if self._outbox is None:
            self._outbox = Background("notify")
        for channel in self.channels:
            self._outbox.post(lambda channel=channel: self._send(channel, message))  # type: ignore[misc]

    def _send(self, channel: Channel, message: Message) -> None:
        try:
            channel.send(message, self.timeout)
        except Exception as error:
            self._warn(f"{channel!r} failed: {failure(channel, error)}")

    def _warn(self, why: str) -> None:
        """Notes a failure, in whatever thread; the first one of a run is told where it is heard."""
        said = f"{self.name}: {why}; the run goes on"
        log.debug("%s", said)
        self._failed.append(said)

    def _tell_failure(self) -> None:
        if self._failed and not self._warned:
            self._warned = True
            warn(self._failed[0])

    # What is told ---------------------------------------------------------------------------------------------------

    def _titled(self, run: Run, what: str) -> str:
        experiment = run.experiment
        named = hasattr(experiment, "project") and hasattr(experiment, "name")
        name = self.title or (f"{experiment.project}/{experiment.name}" if named else type(run.module).__name__)
        return " ".join(f"{name}: {what}".split())

    def _message(self, run: Run, event: str, what: str) -> Message:
        files, left_out = self._files(run)
        metrics = dict(run.metrics)  # this waits for the device, once a message
        lines = [f"{run.clock.epochs} epochs, {run.clock.steps} steps, {timedelta(seconds=round(run.clock.seconds))}"]
        if event == "error" and run.error is not None:
            lines = [*(line.rstrip() for line in traceback.format_exception_only(run.error)), *lines]
        if run.stop_reason is not None:
            lines.append(f"stopped: {run.stop_reason}")
        if run.best is not None:
            best = run.best
            lines.append(f"best {best.name} {number(best.value)} (epoch {best.epoch + 1}, step {best.step})")
        lines += [f"{name} {number(value)}" for name, value in metrics.items()]
        lines += [f"not attached: {name}" for name in left_out]
        if hasattr(run.experiment, "folder"):
            lines.append(f"in {run.experiment.folder}")
        return Message(event, self._titled(run, what), "\n".join(lines), metrics, tuple(files))

    def _files(self, run: Run) -> tuple[list[tuple[str, bytes]], list[str]]:
        """The files to attach, and the names of those that are gone or too large."""
        if isinstance(self.attach, bool):
            paths = [Path(path) for path in run.store.get("plots", {}).values()] if self.attach else []
        else:
            paths = self.attach
        files: list[tuple[str, bytes]] = []
        left_out, size = [], 0
        for path in paths:
            try:
                content = path.read_bytes() if size + path.stat().st_size <= _LARGEST else None
            except OSError:
                content = None
            if content is None:
                left_out.append(path.name)
            else:
                size += len(content)
                files.append((path.name, content))
        return files, left_out


def _paths(name: str, files: Any) -> list[Path]:
    one = isinstance(files, str | Mapping) or not isinstance(files, Iterable)
    found = [] if one else list(files)
    if one or not all(isinstance(file, str | os.PathLike) and os.fspath(file) for file in found):
        raise TypeError(f"{name} is True, False or a list of files, not {files!r}")
    return [Path(file) for file in found]
