"""Whether a trainer becomes slower from one fit to the next: the processor time of each of many short fits.

Each fit is an epoch of three batches, with a validation of three. Printed is the median of the first, a middle and the
last tenth.

    python benchmarks/fits.py --fits 1000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks import EMA, Accumulate, Checkpoint, EarlyStopping, HistoryFile, LRMonitor
from cadenza.testing import tiny_classifier, tiny_loader

KINDS: dict[str, Callable[[Path], list[Callback]]] = {
    "no callbacks": lambda folder: [],
    "EMA, EarlyStopping, LRMonitor, Accumulate": lambda folder: [
        EMA(0.9),
        EarlyStopping("val/loss", patience=None, threshold=-1.0),
        LRMonitor(),
        Accumulate(2),
    ],
    "HistoryFile": lambda folder: [HistoryFile(folder / "history.csv")],
    "Checkpoint": lambda folder: [Checkpoint(to=folder / "saved", background=False)],
}


def seconds_of_fits(callbacks: list[Callback], fits: int) -> list[float]:
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
    loader, found = tiny_loader(), []
    for _ in range(fits):
        began = time.process_time()
        trainer.fit(loader, loader, epochs=1)
        found.append(time.process_time() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    seconds_of_fits([], 20)
    for name, make in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = [1e3 * one for one in seconds_of_fits(make(Path(folder)), given.fits)]
        tenth = max(1, given.fits // 10)
        medians = [statistics.median(found[at : at + tenth]) for at in (0, given.fits // 2, given.fits - tenth)]
        print(f"{name}: {medians[0]:.1f}, {medians[1]:.1f}, {medians[2]:.1f} ms")


if __name__ == "__main__":
    main()
