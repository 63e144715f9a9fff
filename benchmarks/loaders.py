"""Reading tensors in memory: ``TensorLoader`` against ``DataLoader``, and what resumability adds.

``python benchmarks/loaders.py`` goes over 8,192 samples of 784 numbers in batches of 128, shuffled. Each case runs
between two runs of the plain ``DataLoader``; what is reported is the median of the ratios and its 95 % interval.
``--device cuda`` measures instead what copying batches of images beside the training gains on a CUDA device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import median_with_interval, paired_ratios, table, timed, write

from cadenza.data import TensorLoader, plain, prepare, to_device

SAMPLES, FEATURES, BATCH = 8192, 784, 128


def a_pass(batches: Iterable[Any]) -> Callable[[], float]:
    def go_over() -> None:
        for _ in batches:
            pass

    return lambda: timed(go_over)


def cases(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Callable[[], float]]:
    loader: DataLoader[Any] = DataLoader(TensorDataset(inputs, targets), BATCH, shuffle=True)
    kept_plain = plain(DataLoader(TensorDataset(inputs, targets), BATCH, shuffle=True))
    return {
        "TensorLoader": a_pass(TensorLoader(inputs, targets, batch_size=BATCH, shuffle=True)),
        "DataLoader, prepared": a_pass(prepare(loader)),
        "DataLoader, prepared, resumable": a_pass(prepare(loader, resumable=True)),
        "DataLoader, kept plain, resumable": a_pass(prepare(kept_plain, resumable=True)),
    }


def training(batches: Iterable[Any], model: torch.nn.Module, waits: bool) -> Callable[[], float]:
    """A pass that trains on each batch of images; with ``waits`` the loss is read after each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    device = next(model.parameters()).device

    def go_over() -> None:
        for images, *_ in batches:
            optimizer.zero_grad()
            loss = model(to_device(images, device)).mean()
            loss.backward()
            optimizer.step()
            if waits:
                loss.item()
        torch.cuda.synchronize()

    return lambda: timed(go_over)


def on_device(rounds: int) -> None:
    device = torch.device("cuda", 0)
    images = torch.randn(2048, 3, 96, 96)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 5)).to(
        device
    )
    rows, results = [], {}
    for name, how in (("tensors in memory", {}), ("2 workers", {"num_workers": 2, "persistent_workers": True})):
        for waits in (False, True):
            loader: DataLoader[Any] = DataLoader(TensorDataset(images), 128, pin_memory=True, **how)
            reference = training(prepare(loader), model, waits)
            cases = {"beside": training(prepare(loader, device=device), model, waits)}
            ratios, references = paired_ratios(reference, cases, rounds)
            median, low, high = median_with_interval(ratios["beside"])
            full = f"{name}, loss read after {'every' if waits else 'no'} step"
            results[full] = {"ratio": median, "low": low, "high": high}
            each = 1e6 * sorted(references)[len(references) // 2] / len(loader)
            rows.append((full, f"{median:.3f}", f"{low:.3f} to {high:.3f}", f"{each:.0f}"))
    print(table(("copied beside the training, against before each step", "ratio", "95 % interval", "µs a step"), rows))
    write("loaders_cuda", {"rounds": rounds, "gpu": torch.cuda.get_device_name(0), "cases": results})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    asked = parser.parse_args()
    rounds = asked.rounds
    if asked.device == "cuda":
        on_device(rounds)
        return
    torch.set_num_threads(1)
    inputs, targets = torch.randn(SAMPLES, FEATURES), torch.randint(10, (SAMPLES,))
    reference: DataLoader[Any] = DataLoader(TensorDataset(inputs, targets), BATCH, shuffle=True)
    ratios, references = paired_ratios(a_pass(reference), cases(inputs, targets), rounds)
    batches = len(reference)
    each = 1e6 * sorted(references)[len(references) // 2] / batches
    rows, results = [], {}
    for name, values in ratios.items():
        median, low, high = median_with_interval(values)
        results[name] = {"ratio": median, "low": low, "high": high}
        rows.append((name, f"{median:.3f}", f"{low:.3f} to {high:.3f}", f"{each * median:.0f}"))
    rows.insert(0, ("DataLoader", "1", "", f"{each:.0f}"))
    print(table(("a pass over 8,192 x 784, batch 128", "ratio", "95 % interval", "µs a batch"), rows))
    write("loaders", {"rounds": rounds, "batch_us": each, "cases": results})


if __name__ == "__main__":
    main()
