"""Nested passes for callbacks: they play no points and leave no trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from cadenza.data import to_device
from cadenza.data.gather import gather
from cadenza.rng import rng_kept

if TYPE_CHECKING:
    from cadenza.run import Run


def predict(run: Run, loader: Iterable[Any]) -> Any:
    """The outputs of the model for ``loader``, in order, on the CPU."""
    outputs = []
    with _aside(run, "pred"):
        for run.batch_idx, batch in enumerate(loader):
            run.batch = to_device(batch, run.device)
            run.main.on_pred_forward(run)
            outputs.append(to_device(run.output, torch.device("cpu")))
    return gather(outputs)


def evaluate(run: Run, loader: Iterable[Any]) -> dict[str, float]:
    """The mean loss over ``loader``, weighted by samples."""
    from cadenza.passes import Mean

    mean = Mean()
    with _aside(run, "val"):
        for run.batch_idx, batch in enumerate(loader):
            run.batch = to_device(batch, run.device)
            run.main.on_val_forward(run)
            if not run._alive("loss"):
                run.main.on_iter_loss(run)
            mean.add(run.loss, run.main.count(run)[0])
            del run.loss
    value = mean.value()
    if value is None:
        raise ValueError("the loader gave no batch to evaluate")
    return {"loss": float(value)}


@contextlib.contextmanager
def _aside(run: Run, stage: str) -> Iterator[None]:
    """Everything that a nested pass could disturb is put aside, and brought back however it ends."""
    fields, outer_stage = run._put_aside_fields(), run.stage
    flags = [(module, module.training) for module in run.module.modules()]
    mode = torch.inference_mode if run.main.inference_mode else torch.no_grad
    run.stage = stage
    run.module.eval()
    try:
        with rng_kept(run.device), mode():
            yield
    finally:
        for module, training in flags:
            module.training = training
        run.stage = outer_stage
        run._bring_back_fields(fields)
