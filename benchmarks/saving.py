"""One process: what a checkpoint of a model with AdamW holds, how long training waits for it, how long it is written.

python benchmarks/saving.py [--millions 8] [--rounds 7] [--write]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from typing import Any

import torch
from measure import write
from torch import nn

from cadenza.checkpoint import Shelf, Writer


def saves(millions: int, rounds: int) -> dict[str, Any]:
    """Saves a model and what AdamW keeps for it; the first save, which makes the memory for the copy, is left out."""
    torch.set_num_threads(1)
    side = round((millions * 1e6) ** 0.5)
    model = nn.Linear(side, side, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, side)).sum().backward()
    optimizer.step()
    kept = optimizer.state[model.weight]
    state = {"model": {"weight": model.weight.detach()}, "optimizer": {name: kept[name] for name in sorted(kept)}}
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Shelf(folder), keep_last=1)
        outcomes = []
        for number in range(rounds):
            writer.save(f"step={number}", state)
            outcomes += writer.wait()
        writer.close()
    copying, writing = ([getattr(one, name) for one in outcomes[1:]] for name in ("copying", "writing"))
    size = outcomes[-1].size
    return {
        "parameters": side * side,
        "bytes a parameter": size / side**2,
        "GB/s copied": size / statistics.median(copying) / 1e9,
        "GB/s written": size / statistics.median(writing) / 1e9,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--millions", type=int, default=8)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--write", action="store_true", help="write benchmarks/results/saving.json")
    given = arguments.parse_args()
    found = saves(given.millions, given.rounds)
    for name, value in found.items():
        print(f"{name:28} {value:.4g}")
    if given.write:
        write("saving", found)


if __name__ == "__main__":
    main()
