"""How far a training in another form of the optimizer comes from the user's own: rounding, and nothing else.

    python benchmarks/forms.py [--device cuda] [--steps 200]

A perceptron is trained from the same weights on the same batches with each optimizer as it is and in the forms that
``Execution`` chooses or allows. For each form: the distance of the weights afterwards, as a part of their length, and
the largest difference of a loss on the way. Beside them the user's own training once more. The model has no corners:
where a ReLU flips, which the last bit may decide, two trainings part for good, whatever made the difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import surroundings, table
from torch import Tensor, nn

import cadenza

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
}
FORMS = {
    "cpu": {"fused": cadenza.Execution(fused=True), "foreach": cadenza.Execution(foreach=True), "compiled": "compiled"},
    "cuda": {
        "captured": "captured",
        "captured, fused=False": cadenza.Execution("captured", fused=False),
        "fused": cadenza.Execution(fused=True),
        "compiled": "compiled",
    },
}


def batches(steps: int, device: str) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    inputs, planes = torch.randn(steps, 128, 784, generator=draw), torch.randn(784, 10, generator=draw)
    return [(one.to(device), (one @ planes).argmax(1).to(device)) for one in inputs]


def trained(
    make: Callable[[Any], torch.optim.Optimizer], execution: Any, data: list[Any], device: str
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)).to(device)
    optimizer, losses = make(model.parameters()), list[Tensor]()
    trainer = cadenza.Trainer(model, optimizer, nn.CrossEntropyLoss(), device=device, execution=execution)
    trainer.on("after_train_iter")(lambda run: losses.append(run.loss.detach()))
    trainer.fit(data, epochs=1)
    weights = torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])
    return weights, torch.stack(losses).double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(FORMS), default="cpu")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, rows = batches(options.steps, options.device), []
    for name, make in OPTIMIZERS.items():
        own, losses = trained(make, "eager", data, options.device)
        for form, execution in {"the same again": "eager", **FORMS[options.device]}.items():
            weights, others = trained(make, execution, data, options.device)
            apart = float((weights - own).norm() / own.norm())
            rows.append((name, form, f"{apart:.1e}", f"{float((losses - others).abs().max()):.1e}"))
    print(table(("optimizer", "form", "weights apart", "losses apart, at most"), rows))
    print(f"losses from {float(losses[0]):.2f} to {float(losses[-1]):.2f};", surroundings())


if __name__ == "__main__":
    main()
