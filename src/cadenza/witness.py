"""Two callbacks of a proof: one ends its process as ``kill -9`` does, one writes down what every batch left."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.comparison import tensors
from cadenza.points import POINTS, Kind

if TYPE_CHECKING:
    from cadenza.run import Run


ANYWHERE = [
    point.name
    for point in POINTS.values()
    if point.kind not in (Kind.AROUND, Kind.BEHAVIOUR) and point.name != "after_best"
]
"""Where "any" point is. Whoever plays ``after_best`` must know which metric that is, and not every training says so."""


@dataclass(frozen=True)
class Kill:
    """When a process is killed: at the ``count``-th time ``point`` is played ("any" is any point), or so many
    ``seconds`` after the first one."""

    point: str | None = None
    count: int = 1
    seconds: float | None = None

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"after {self.seconds:.3f} s"
        where = "point" if self.point == "any" else self.point
        return f"at the {self.count}. {where}"


class Killer(Callback):
    """Ends its own process as ``kill -9`` does."""

    order = Order.SAVE + 1000
    passive = True

    def __init__(self, kill: Kill) -> None:
        self.kill, self.left = kill, kill.count

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        if self.kill.point is None:
            return {"after_register": self.wait}
        return dict.fromkeys(ANYWHERE if self.kill.point == "any" else [self.kill.point], self.count)

    def wait(self, run: Run) -> None:
        timer = threading.Timer(self.kill.seconds or 0.0, die)
        timer.daemon = True
        timer.start()

    def count(self, run: Run) -> None:
        self.left -= 1
        if self.left == 0:
            die()


def die() -> None:
    """Ends this process at once, without a last word."""
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    os._exit(137)  # pragma: no cover


class Witness(Callback):
    """Writes after each iteration what every weight and every tensor of the optimizers is, as a checksum."""

    order = Order.SAVE + 999
    passive = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.points, self.since = 0, time.perf_counter()

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        return {**dict.fromkeys(ANYWHERE, self.count), "after_train_iter": self.look, "after_run": self.end}

    def count(self, run: Run) -> None:
        self.points += 1

    def look(self, run: Run) -> None:
        self.points += 1
        state = {"model": run.module.state_dict(), "optimizers": [o.state_dict() for o in run.optimizers]}
        sums = {name: hashlib.blake2b(_bytes(tensor), digest_size=8).hexdigest() for name, tensor in tensors(state)}
        with open(self.folder / "witness.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"batch": run.clock.batches, "step": run.clock.steps, "sums": sums}) + "\n")

    def end(self, run: Run) -> None:
        length = {"points": self.points, "seconds": time.perf_counter() - self.since}
        (self.folder / "length.json").write_text(json.dumps(length), encoding="utf-8")


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
