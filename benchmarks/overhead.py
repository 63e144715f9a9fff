"""What the loop costs against the plain hand-written one, on a model so small that nothing hides it.

    python benchmarks/overhead.py [--rounds 31] [--steps 1000]

Every figure is a ratio of runs that stand beside each other in one process; the table is printed and written to
``benchmarks/results/overhead.json``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from everyday import (
    DRAWN,
    fifteen_ratios,
    ledger_ratios,
    six_by_hand,
    six_callbacks,
    small_batches,
)
from measure import best_of, median_with_interval, paired_ratios, read, surroundings, table, timed, write
from peers_inline import peer_cases
from torch import nn

import cadenza
from cadenza.points import POINTS, Kind

BARS = {
    "no callbacks": 1.00,
    "ten callbacks at two points": 1.02,
    "own loop": 1.02,
    "every before and after": 1.04,
    "six that change and guard": 1.05,
    "fifteen of everyday use": 1.05,
}
BAR_DISPATCH, BAR_IMPORT, BAR_LEDGER = 4.0, 0.15, 1.01


class Idle(cadenza.Callback):
    def before_train_iter(self, run: cadenza.Run) -> None: ...

    def after_train_iter(self, run: cadenza.Run) -> None: ...


class Everywhere(cadenza.Callback):
    def plays(self) -> dict[str, Callable[[cadenza.Run], Any]]:
        wanted = (Kind.BEFORE, Kind.AFTER)
        return {name: self.nothing for name, point in POINTS.items() if point.kind in wanted}

    def nothing(self, run: cadenza.Run) -> None: ...


class DoesNothing(cadenza.MainCallback):
    """A step that does nothing, so that only the dispatch is left."""

    loss_of_all = torch.tensor(1.0)

    def on_iter_forward(self, run: cadenza.Run) -> None:
        run.output = run.loss = self.loss_of_all

    def on_iter_backward(self, run: cadenza.Run) -> None: ...

    def on_iter_step(self, run: cadenza.Run) -> None: ...

    def on_iter_zero_grad(self, run: cadenza.Run) -> None: ...


def parts() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(32, 16), torch.randint(0, 2, (32,))) for _ in range(steps)]


def hand_written(data: list[Any]) -> float:
    model, optimizer, criterion = parts()

    def train() -> None:
        for inputs, targets in data:
            output = model(inputs)
            loss = criterion(output, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return timed(train)


def fit(data: list[Any], callbacks: list[cadenza.Callback]) -> float:
    trainer = cadenza.Trainer(*parts(), callbacks=callbacks, device="cpu")
    return timed(lambda: trainer.fit(data, epochs=1))


def own_loop(data: list[Any]) -> float:
    trainer = cadenza.Trainer(*parts(), device="cpu")

    def train() -> None:
        with trainer.run(epochs=1) as run:
            for _ in run.epochs():
                for _ in run.train(data):
                    run.forward()
                    run.backward()
                    run.step()

    return timed(train)


def dispatch(steps: int) -> float:
    """Microseconds of a step that does nothing."""
    data = batches(1) * steps
    return best_of(lambda: fit(data, [DoesNothing()]), 9) / steps * 1e6


def import_share(times: int = 7) -> float:
    """How much longer it takes to have a Trainer than ``import torch`` does, as a share of the latter. (A bare ``import
    cadenza`` is next to nothing: its names are imported when they are used.)"""

    def seconds(statement: str) -> float:
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    pairs = [(seconds("import torch"), seconds("from cadenza import Trainer")) for _ in range(times)]
    return statistics.median(both / alone - 1 for alone, both in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--small-steps", type=int, default=300, help="batches an epoch of the small MLP")
    parser.add_argument("--only", choices=["everyday", "ledger"], help="these; what else was measured stays")
    parser.add_argument("--everyday-epochs", type=int, default=40, help="epochs of a training with the fifteen")
    parser.add_argument("--everyday-rounds", type=int, default=9, help="rounds of these, which are long")
    parser.add_argument("--ledger-rounds", type=int, default=200, help="stretches of 100 steps with the cost ledger")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"ratios": {}} if options.only is None else read("overhead")
    if options.only is None:
        ratios, references = tiny_ratios(options.steps, options.rounds)
        found |= {"hand_written_us": statistics.median(references) / options.steps * 1e6}
        found |= {"dispatch_us": dispatch(4000), "import_share": import_share()}
        found["ratios"] |= judged(ratios)
    if options.only != "ledger":
        found["ratios"] |= judged(everyday_ratios(options))
        found |= {"figure_s": statistics.median(DRAWN), "everyday": surroundings()}
    if options.only != "everyday":
        middle, low, high = median_with_interval(ledger_ratios(small_batches(300), options.ledger_rounds))
        found["ledger"] = {"ratio": middle, "interval": [low, high], "bar": BAR_LEDGER, **surroundings()}
    show(found)
    path = write("overhead", found)
    print(f"written to benchmarks/results/{path.name}")


def tiny_ratios(steps: int, rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """The bare costs, on a model so small that they cannot hide."""
    data = batches(steps)
    cases = {
        "no callbacks": lambda: fit(data, []),
        "ten callbacks at two points": lambda: fit(data, [Idle() for _ in range(10)]),
        "own loop": lambda: own_loop(data),
        "every before and after": lambda: fit(data, [Everywhere()]),
        **{name: (lambda case=case: case(parts, data)) for name, case in peer_cases().items()},
    }
    return paired_ratios(lambda: hand_written(data), cases, rounds)


def everyday_ratios(options: argparse.Namespace) -> dict[str, list[float]]:
    """Callbacks that do something, on a small model."""
    small = small_batches(options.small_steps)
    six = {"six that change and guard": partial(six_callbacks, small)}
    ratios, _ = paired_ratios(partial(six_by_hand, small), six, options.rounds)
    return ratios | fifteen_ratios(small, options.everyday_epochs, options.everyday_rounds)


def judged(ratios: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Medians with their intervals, beside what is aimed at."""
    found = {}
    for name, values in ratios.items():
        middle, low, high = median_with_interval(values)
        found[name] = {"ratio": middle, "interval": [low, high], "bar": BARS.get(name)}
    return found


def show(found: dict[str, Any]) -> None:
    rows = []
    for name, row in found["ratios"].items():
        low, high = row["interval"]
        bar = "" if row["bar"] is None else f"{row['bar']:.2f}"
        rows.append((name, f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}", bar))
    print(f"hand-written: {found['hand_written_us']:.0f} us a step\n")
    print(table(("case", "ratio", "95 % interval", "at most"), rows))
    print(f"\nbare dispatch: {found['dispatch_us']:.2f} us a step (at most {BAR_DISPATCH})")
    print(f"the figure of the history: {found['figure_s']:.2f} s, once at the end of a training")
    low, high = found["ledger"]["interval"]
    print(f"with the cost ledger: {found['ledger']['ratio']:.4f} ({low:.4f} to {high:.4f}, at most {BAR_LEDGER})")
    print(f"import beyond torch's: {found['import_share']:+.1%} (at most {BAR_IMPORT:.0%})")


if __name__ == "__main__":
    main()
