"""Two callbacks of a certificate: ``Killer`` interrupts its own process, ``Witness`` records what every batch left."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.certify.compare import tensors
from cadenza.foundation.arguments import among
from cadenza.points import POINTS, Kind

if TYPE_CHECKING:
    from cadenza.run import Run


ANYWHERE = [
    point.name
    for point in POINTS.values()
    if point.kind not in (Kind.AROUND, Kind.BEHAVIOUR) and point.name != "after_best"
]
"""The points that "any" means. A callback at ``after_best`` needs a watched metric, which not every training has."""
AROUND = [point.name for point in POINTS.values() if point.kind is Kind.AROUND]
BY = ("SIGKILL", "SIGTERM", "SIGINT", "exception")


class Interruption(Exception):
    """Raised by a ``Kill`` whose ``by`` is "exception"."""


@dataclass(frozen=True)
class Kill:
    """Interrupts a training at the ``count``-th time ``point`` ("any" is any point) runs, or after so many ``seconds``.

    ``by`` is "SIGKILL", "SIGTERM", "SIGINT", or "exception", which is raised at a point; there "any" includes entering
    and leaving ``around_*`` points. A kill at a point happens in the process ``rank``. With ``group`` the signal goes
    to all processes of the training, as Ctrl-C in a terminal does.
    """

    point: str | None = None
    count: int = 1
    seconds: float | None = None
    by: str = "SIGKILL"
    rank: int = 0
    group: bool = False

    def __post_init__(self) -> None:
        among("Kill: by", self.by, BY)
        if (self.point is None) == (self.seconds is None) or (self.by == "exception" and self.point is None):
            raise ValueError("Kill needs a point or seconds, and an exception needs a point")

    def __str__(self) -> str:
        where = "point" if self.point == "any" else self.point
        when = f"after {self.seconds:.3f} s" if self.point is None else f"at {where} {self.count}"
        rank = f" of rank {self.rank}" if self.rank else ""
        return f"{self.by}{' to the group' if self.group else ''} {when}{rank}"

    def send(self, process: int) -> None:
        """Sends the signal to ``process``, or to the group that it leads."""
        number = getattr(signal, self.by, signal.SIGTERM)  # Windows has no SIGKILL; there SIGTERM ends at once
        if self.group and hasattr(os, "killpg"):
            os.killpg(os.getpgid(process), number)
        else:
            os.kill(process, number)


class Killer(Callback):
    """Interrupts its own process at a point, and records where in the file ``notes / "struck"``."""

    order = Order.SAVE + 1000
    passive = True

    def __init__(self, kill: Kill, notes: Path) -> None:
        self.kill, self.notes, self.left = kill, notes, kill.count

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        if self.kill.point != "any":
            names = [] if self.kill.point is None else [self.kill.point]
        else:
            names = [*ANYWHERE, *AROUND] if self.kill.by == "exception" else ANYWHERE
        return {name: self.around if name in AROUND else self.count for name in names}

    def around(self, run: Run) -> Iterator[None]:
        self.count(run)
        yield
        self.count(run)

    def count(self, run: Run) -> None:
        if run.rank != self.kill.rank:
            return
        self.left -= 1
        if self.left == 0:
            (self.notes / "struck").write_text(f"batch {run.clock.batches}", encoding="utf-8")
            self.strike()

    def strike(self) -> None:
        if self.kill.by == "exception":
            raise Interruption("an exception drawn by certify")
        self.kill.send(os.getpid())
        if self.kill.by == "SIGKILL":
            threading.Event().wait()  # the signal may take a moment; nothing more may happen in this process


class Witness(Callback):
    """Writes after each iteration a checksum of every weight and every tensor of the optimizers."""

    order = Order.SAVE + 999
    passive = True
    ranks = "main"

    def __init__(self, notes: Path) -> None:
        self.notes, self.points = notes, 0

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        return {**dict.fromkeys(ANYWHERE, self.count), "after_train_iter": self.look, "after_run": self.end}

    def count(self, run: Run) -> None:
        self.points += 1

    def look(self, run: Run) -> None:
        self.points += 1
        state = {"model": run.module.state_dict(), "optimizers": [o.state_dict() for o in run.optimizers]}
        sums = {name: hashlib.blake2b(_bytes(tensor), digest_size=8).hexdigest() for name, tensor in tensors(state)}
        with open(self.notes / "witness.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"batch": run.clock.batches, "step": run.clock.steps, "sums": sums}) + "\n")

    def end(self, run: Run) -> None:
        self.points += 1
        (self.notes / "points").write_text(str(self.points), encoding="utf-8")


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
