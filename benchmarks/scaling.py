"""Two processes on this machine: what a step sends, and how long it takes, against plain DDP.

    python benchmarks/scaling.py [--steps 200] [--rounds 15] [--write]

The reference is what one writes by hand: DistributedDataParallel, a DataLoader with a DistributedSampler, zero_grad,
backward and step. The first two rows give a Trainer the same DataLoader, so that both train on the same batches, with
one thread each; the weights at the end must be the same to the last bit. In the third row the Trainer divides a plain
DataLoader itself. In the last the loop by hand gets batches that were cut before, which leaves nothing but the steps,
and the Trainer a plain DataLoader. Time is taken from the first batch to the end of the pass.

Collectives and their bytes are counted where torch dispatches them. One training makes 20 steps and another 40, and
half the difference is what 10 steps cost, without what is sent once in a pass.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from measure import median_with_interval, paired_ratios, write
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cadenza import Callback, Trainer, launch

BATCH, FEATURES = 32, 16


class Collectives(TorchDispatchMode):
    """Counts what is sent while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.calls += 1
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return func(*args, **(kwargs or {}))


class Quiet(Callback):
    """Plays before the step and asks for nothing."""

    def before_step(self, run: Any) -> None:
        pass


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))


def samples_for(steps: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    samples = steps * BATCH * dist.get_world_size()
    inputs = torch.randn(samples, FEATURES, generator=draw)
    return TensorDataset(inputs, torch.randint(0, 2, (samples,), generator=draw))


def batches_for(steps: int, kind: str) -> Any:
    """Of this rank: from a DataLoader with a DistributedSampler, cut before, or a DataLoader that has yet to be
    divided."""
    data = samples_for(steps)
    if kind == "whole":
        return DataLoader(data, batch_size=BATCH)
    own = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, shuffle=False))
    return list(own) if kind == "cut" else own


def plain(steps: int, kind: str = "sampler", weights: list[Tensor] | None = None) -> float:
    """A loop by hand around DistributedDataParallel."""
    model = nn.parallel.DistributedDataParallel(small_model())
    sgd, loss = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    begin = 0.0
    for inputs, targets in batches_for(steps, kind):
        if not begin:
            dist.barrier()
            begin = time.perf_counter()
        sgd.zero_grad()
        loss(model(inputs), targets).backward()
        sgd.step()
    seconds = time.perf_counter() - begin
    if weights is not None:
        weights += [parameter.detach().clone() for parameter in model.parameters()]
    return seconds


def with_cadenza(
    steps: int, callbacks: list[Callback], kind: str = "sampler", weights: list[Tensor] | None = None
) -> float:
    """The same through a Trainer."""
    model = small_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", strategy="ddp")
    batches = batches_for(steps, kind)
    times: list[float] = []
    with trainer.run(epochs=1) as run:
        for _ in run.epochs():
            for _ in run.train(batches):
                if not times:
                    dist.barrier()
                    times.append(time.perf_counter())
                run.train_step()
            times.append(time.perf_counter())
    if weights is not None:
        weights += [parameter.detach().clone() for parameter in model.parameters()]
    return times[1] - times[0]


def same_weights(steps: int) -> bool:
    """Whether both end with the same weights, to the last bit."""
    own: list[Tensor] = []
    other: list[Tensor] = []
    plain(steps, weights=own)
    with_cadenza(steps, [], weights=other)
    return all(map(torch.equal, own, other))


def sent(train: Any) -> tuple[float, float]:
    """Collectives and bytes of a step."""
    train(20)  # the first of a process also meets the others
    found = []
    for steps in (20, 40):
        with Collectives() as counted:
            train(steps)
        found.append((counted.calls, counted.bytes))
    return (found[1][0] - found[0][0]) / 20, (found[1][1] - found[0][1]) / 20


def work(steps: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    cases: dict[str, list[Callback]] = {"no callbacks": [], "one that asks nothing": [Quiet()]}
    counts = {"plain DDP": sent(plain)}
    if not same_weights(50):
        raise RuntimeError("plain DDP and Cadenza ended with different weights, so they did not do the same")
    counts |= {name: sent(lambda n, c=callbacks: with_cadenza(n, c)) for name, callbacks in cases.items()}
    runs = {name: (lambda c=callbacks: with_cadenza(steps, c)) for name, callbacks in cases.items()}
    runs["divided by the trainer"] = lambda: with_cadenza(steps, [], "whole")
    ratios, references = paired_ratios(lambda: plain(steps), runs, rounds)
    last = {"against batches cut before": lambda: with_cadenza(steps, [], "whole")}
    ratios |= paired_ratios(lambda: plain(steps, "cut"), last, rounds)[0]
    return {
        "sent": {name: {"collectives": calls, "bytes": size} for name, (calls, size) in counts.items()},
        "plain microseconds": median_with_interval([1e6 * one / steps for one in references]),
        "ratios": {name: median_with_interval(values) for name, values in ratios.items()},
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--write", action="store_true", help="write benchmarks/results/scaling.json")
    given = arguments.parse_args()
    found = launch(work, given.steps, given.rounds, workers=2, timeout=1800)
    for name, counted in found["sent"].items():
        print(f"{name:30} {counted['collectives']:g} collectives and {counted['bytes']:g} bytes a step")
    print(f"plain DDP: {found['plain microseconds'][0]:.0f} microseconds a step")
    for name, (median, low, high) in found["ratios"].items():
        print(f"{name:30} {median:.3f} of plain DDP (95 %: {low:.3f} to {high:.3f})")
    if given.write:
        write("scaling", {"processes": 2, "backend": "gloo", **found})


if __name__ == "__main__":
    main()
