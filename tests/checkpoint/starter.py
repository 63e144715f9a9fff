"""Starts trainings, each in a process of its own, without the seconds in which torch is loaded.

A program, not a test: for every line that it reads it forks, and writes how the child ended. The child trains in a
session of its own and ends as any program does, so its exit code is the one that a shell would see.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # an optimizer imports it, which takes longer than a small training
import trainings

import cadenza.callbacks
import cadenza.checkpoint  # noqa: F401
from cadenza import Callback, Order
from cadenza.execution.recorded import compiled


class Send(Callback):
    """Sends its own process, or the group of it, a signal at the ``count``-th time ``place`` is played."""

    order = Order.PREPARE

    def __init__(self, place: str, number: str, count: int, group: bool) -> None:
        self.place, self.number, self.left, self.group = place, getattr(signal, number), count, group

    def plays(self) -> dict[str, Any]:
        return {"after_register": self.wait} if self.place == "compile" else {self.place: self.play}

    def wait(self, run: Any) -> None:
        compile_graph = compiled.compile_graph

        def warned(graph: Any, inputs: Any) -> Any:
            self.send()
            return compile_graph(graph, inputs)

        compiled.compile_graph = warned

    def play(self, run: Any) -> None:
        """At the end of an iteration only in validation, else only outside of it."""
        if (run.stage == "val") == (self.place == "after_iter"):
            self.send()

    def send(self) -> None:
        self.left -= 1
        if self.left == 0:
            (os.killpg if self.group else os.kill)(os.getpgid(0) if self.group else os.getpid(), self.number)


def train(order: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    folder = Path(order["folder"])
    said = os.open(f"{folder}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    getattr(trainings, order["name"])(folder, [] if order["send"] is None else [Send(*order["send"])])


if __name__ == "__main__":
    gc.freeze()  # a child that ends would look through all of torch for what can be freed, and copy it
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.setsid()
            sys.stdin.close()
            train(json.loads(line))
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
