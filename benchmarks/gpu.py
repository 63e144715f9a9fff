"""Captured steps against the eager loop one would write by hand, on a CUDA device.

    python benchmarks/gpu.py [--rounds 11] [--only "tiny MLP"] [--execution auto] [--out FOLDER]

Both train the same model with AdamW on batches that are on the device, clip gradients, keep an average of the weights,
follow a cosine schedule per step, and read the loss every 50 steps; Cadenza shows its progress and stops early on top.
Epochs of both stand beside each other in one process. Needs torch and a GPU, nothing else; Lightning and the Trainer of
transformers are measured beside them where they are installed. Writes ``benchmarks/results/gpu.json``.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import torch
from gpu_models import CUDA, Case, cases
from gpu_peers import peers
from measure import median_with_interval, surroundings, table
from torch import nn

import cadenza
from cadenza.callbacks import EMA, CosineSchedule, EarlyStopping, GradientClip, Precision, Progress

RATE, NORM, DECAY = 1e-3, 1.0, 0.999


def parts(case: Case) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = case.model().to(CUDA)
    return model, torch.optim.AdamW(model.parameters(), lr=RATE), nn.CrossEntropyLoss()


def by_hand(case: Case, data: list[Any], epochs: int) -> Iterator[None]:
    """The loop as one would write it; yields after every epoch."""
    model, optimizer, criterion = parts(case)
    weights = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]
    buffers = list(model.buffers())
    kept = [buffer.clone() for buffer in buffers]
    step, total = 0, epochs * len(data)
    for _ in range(epochs):
        for inputs, targets in data:
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 + math.cos(math.pi * step / total)) / 2
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=case.bf16):
                loss = criterion(model(inputs), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, NORM)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                torch._foreach_lerp_(average, weights, 1 - DECAY)
                if buffers:
                    torch._foreach_copy_(kept, buffers)
            step += 1
            if step % 50 == 0:
                loss.item()
        yield


def with_cadenza(case: Case, data: list[Any], epochs: int, execution: Any, told: list[str]) -> Iterator[None]:
    callbacks = [
        GradientClip(norm=NORM),
        EMA(DECAY),
        CosineSchedule(),
        Progress("plain", stream=io.StringIO()),
        EarlyStopping("train/loss", patience=epochs),
        *([Precision("bf16")] if case.bf16 else []),
    ]
    trainer = cadenza.Trainer(*parts(case), callbacks=callbacks, device=CUDA, execution=execution)

    @trainer.on("after_train_iter")
    def read(run: cadenza.Run) -> None:
        if run.clock.steps % 50 == 0:
            run.loss.item()

    with trainer.run(epochs=epochs) as run:
        for _ in run.epochs():
            for _ in run.train(data):
                run.train_step()
            told[:] = trainer._training.told
            yield


def timed(epoch: Iterator[None]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    next(epoch)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def memory(train: Callable[[], Iterator[None]]) -> float:
    """MB that are reserved at most in an epoch."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    epoch = train()
    next(epoch)
    peak = torch.cuda.max_memory_reserved() - before
    epoch.close()
    return peak / 2**20


def measure_case(case: Case, rounds: int, execution: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    data = [case.batch() for _ in range(case.steps)]
    told: list[str] = []
    hand = by_hand(case, data, rounds + 3)
    ours = with_cadenza(case, data, rounds + 3, execution, told)
    first = [timed(hand), timed(ours)]
    timed(hand), timed(ours)
    pairs = [(timed(hand), timed(ours)) for _ in range(rounds)]
    hand.close()
    ours.close()
    factors = [by / mine for by, mine in pairs]
    middle, low, high = median_with_interval(factors)
    times = [statistics.median(one) / case.steps * 1e6 for one in zip(*pairs, strict=True)]
    result = {
        "factor": middle,
        "interval": [low, high],
        "aim": case.aim,
        "by_hand_us": times[0],
        "cadenza_us": times[1],
        "first_epoch_s": first,
        "memory_mb": [
            memory(lambda: by_hand(case, data, 2)),
            memory(lambda: with_cadenza(case, data, 2, execution, told)),
        ],
        "told": list(told),
        "rounds": rounds,
    }
    for name, peer in peers().items():
        result[name] = peer(case, parts, data) / case.steps * 1e6
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--execution", default="auto")
    parser.add_argument("--fused", choices=["yes", "no", "own"], default="own")
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--name", default="gpu")
    options = parser.parse_args()
    fused = {"yes": True, "no": False, "own": None}[options.fused]
    execution = cadenza.Execution(options.execution, fused=fused)
    rows, results = [], {}
    for case in cases():
        if options.only and case.name not in options.only:
            continue
        result = results[case.name] = measure_case(case, options.rounds, execution)
        low, high = result["interval"]
        row = (
            case.name,
            f"{result['by_hand_us']:.0f}",
            f"{result['cadenza_us']:.0f}",
            f"{result['factor']:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{case.aim:.2f}",
            " / ".join(f"{mb:.0f}" for mb in result["memory_mb"]),
            "; ".join(result["told"]),
        )
        print("  ".join(row), flush=True)
        rows.append(row)
        save(options.out / f"{options.name}.json", results)  # after each, in case the time on the device is short
    head = ("case", "by hand us", "Cadenza us", "factor", "95 % interval", "aim", "MB by hand / Cadenza", "told")
    print(table(head, rows))


def save(path: Path, results: dict[str, Any]) -> None:
    """Writes what this run has measured so far. Cases of other runs are not mixed in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    where = {**surroundings(), "processor": torch.cuda.get_device_name()}
    path.write_text(json.dumps({**where, "cases": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
