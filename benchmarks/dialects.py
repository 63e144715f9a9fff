"""What a foreign callback costs over a native one, for each call of a hook.

Run it with ``python benchmarks/dialects.py``. Twenty callbacks that do nothing are called at two points of every
training iteration, natively and in each dialect, over a loop whose model does next to nothing. The difference to one
callback, divided by the calls, is the figure; the best of several rounds, since other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import cadenza

COUNT, HOOKS, BATCHES = 20, 2, 1500


def native() -> Any:
    class Mine(cadenza.Callback):
        def before_train_iter(self, run: Any) -> None: ...
        def after_train_iter(self, run: Any) -> None: ...

    return Mine()


def orca() -> Any:
    from cadenza.dialects.orca import Callback

    class Mine(Callback):
        def before_train_iter(self, runner: Any) -> None: ...
        def after_train_iter(self, runner: Any) -> None: ...

    return Mine()


def fastai() -> Any:
    from cadenza.dialects.fastai import Callback

    class Mine(Callback):
        def on_batch_begin(self, **kwargs: Any) -> None: ...
        def on_batch_end(self, **kwargs: Any) -> None: ...

    return Mine()


def aitoolbox() -> Any:
    from cadenza.dialects.aitoolbox import AbstractCallback

    class Mine(AbstractCallback):
        def __init__(self) -> None:
            super().__init__("mine")

        def on_batch_begin(self) -> None: ...
        def on_batch_end(self) -> None: ...

    return Mine()


def supergradients() -> Any:
    from cadenza.dialects.supergradients import Callback

    class Mine(Callback):
        def on_train_batch_start(self, context: Any) -> None: ...
        def on_train_batch_end(self, context: Any) -> None: ...

    return Mine()


MAKERS: dict[str, Callable[[], Any]] = {
    "native": native,
    "orca": orca,
    "aitoolbox": aitoolbox,
    "supergradients": supergradients,
    "fastai": fastai,
}
BOUND = {"fastai": 5.0}
"""Microseconds a call over native; 2 where nothing else is said."""


def trainer_with(callbacks: list[Any]) -> cadenza.Trainer:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return cadenza.Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def seconds(trainer: cadenza.Trainer, batches: list[Any]) -> float:
    start = time.thread_time()  # what this thread used: others on the machine do not count
    trainer.fit(batches, epochs=1)
    return time.thread_time() - start


def measure(rounds: int) -> dict[str, float]:
    """Microseconds for each call of a hook, by dialect, as the difference of twenty callbacks and one."""
    batches = [[torch.randn(4, 2), torch.zeros(4).long()] for _ in range(BATCHES)]
    names = {name: maker for name, maker in MAKERS.items() if name == "native" or name in cadenza_dialects()}
    best: dict[tuple[str, int], float] = {}
    trainers = {
        (name, n): trainer_with([maker() for _ in range(n)]) for name, maker in names.items() for n in (1, COUNT)
    }
    for _ in range(rounds):
        for key, trainer in trainers.items():  # one after the other, so that a slow minute hits all alike
            best[key] = min(best.get(key, float("inf")), seconds(trainer, batches))
    calls = (COUNT - 1) * HOOKS * BATCHES
    return {name: (best[name, COUNT] - best[name, 1]) / calls * 1e6 for name in names}


def cadenza_dialects() -> tuple[str, ...]:
    from cadenza.dialects import NAMES

    return NAMES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="where to write the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.rounds)
    print(f"{'':<16}{'µs a call':>10}{'over native':>13}{'at most':>9}")
    for name, cost in found.items():
        bound = "" if name == "native" else f"{BOUND.get(name, 2.0):.0f}"
        print(f"{name:<16}{cost:>10.2f}{cost - found['native']:>13.2f}{bound:>9}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({name: round(cost, 3) for name, cost in found.items()}, file, indent=1)


if __name__ == "__main__":
    main()
