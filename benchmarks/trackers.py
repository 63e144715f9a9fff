"""Runs whose tracker is down, against the same run without a tracker.

Each step takes about 20 ms, the time of which the processor rests, as it does while a device works. The packages are
imported before. In each round every kind of run is made once, in an order that changes; a ratio is that of two runs of
one round.

    python benchmarks/trackers.py --rounds 7
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import cadenza
from cadenza import Callback
from cadenza.experiment import Experiment, MLflow
from cadenza.experiment.jsonl_file import read_lines
from cadenza.run import Run


class Work(Callback):
    """Lets each step take as long as one on a device, and logs its loss."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_loss(self, run: Run) -> None:
        time.sleep(self.seconds)
        run.log("train/loss", run.loss)


def trained(root: Path, steps: int, seconds: float, address: str | None) -> tuple[float, float, int]:
    """The seconds of the loop, those of the whole fit, and how many rows stayed in the outbox."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    ends: list[float] = []
    experiment = Experiment("benchmark", "down", root, report=False)
    callbacks = [Work(seconds), *([] if address is None else [MLflow(address)])]
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = cadenza.Trainer(
        model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, experiment=experiment, device="cpu"
    )
    trainer.on("before_train_epoch")(lambda run: ends.append(time.perf_counter()))
    trainer.on("after_epoch")(lambda run: ends.append(time.perf_counter()))
    data = [(torch.randn(4, 8), torch.randint(0, 4, (4,))) for _ in range(steps // 4)]
    began = time.perf_counter()
    trainer.fit(data, epochs=4)
    whole = time.perf_counter() - began
    rows = sum(call.get("what") == "log" for call in read_lines(experiment.folder / "unsent-mlflow.jsonl"))
    return ends[-1] - ends[0], whole, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.02)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    MLflow().prepare()
    with socket.socket() as refusing, socket.socket() as silent, tempfile.TemporaryDirectory() as folder:
        refusing.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen(128)
        address: Callable[[socket.socket], str] = lambda one: f"http://127.0.0.1:{one.getsockname()[1]}"  # noqa: E731
        kinds = {"no tracker": None, "refused": address(refusing), "silent": address(silent)}
        measured: dict[str, list[tuple[float, float, int]]] = {name: [] for name in kinds}
        trained(Path(folder), 20, given.seconds, None)
        for number in range(given.rounds):
            names = list(kinds)
            for name in names[number % 3 :] + names[: number % 3]:
                measured[name].append(trained(Path(folder), given.steps, given.seconds, kinds[name]))
    plain = [loop for loop, _, _ in measured["no tracker"]]
    print(f"{given.steps} steps, {given.rounds} rounds; without a tracker {statistics.median(plain):.3f} s")
    for name in ("refused", "silent"):
        ratios = [one[0] / base for one, base in zip(measured[name], plain, strict=True)]
        after = statistics.median(whole - loop for loop, whole, _ in measured[name])
        rows = {one[2] for one in measured[name]}
        print(
            f"{name}: ratio {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f}), "
            f"{after:.2f} s before and after the loop, rows in the outbox {sorted(rows)}"
        )


if __name__ == "__main__":
    main()
