"""Nested passes for callbacks: they play no points and leave no trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from cadenza.data import gather, to_device
from cadenza.data.loader import check_kind
from cadenza.engine.running_mean import Mean
from cadenza.engine.stack import Outside
from cadenza.engine.state import GONE
from cadenza.foundation.module_modes import flags_of, set_flags
from cadenza.foundation.rng import rng_kept

if TYPE_CHECKING:
    from cadenza.run import Run


class QuietPass(Outside):
    """Stands in the place of the pass while a nested one goes on."""

    iterating = True


def predict(run: Run, loader: Iterable[Any]) -> Any:
    """The outputs of the model for ``loader``, in order, on the CPU."""
    check_kind("loader", loader)
    outputs, counts = [], []
    with _aside(run, "pred") as this:
        for batch in loader:
            this.index += 1
            run.batch = to_device(batch, run.device)
            with run.autocast():
                run.main.on_pred_forward(run)
            outputs.append(to_device(run.output, torch.device("cpu")))
            counts.append(run.main.count(run)[0])
    if not outputs:
        raise ValueError("the loader gave no batch to predict")
    return gather(outputs, counts)


def evaluate(run: Run, loader: Iterable[Any]) -> dict[str, float]:
    """The mean loss over ``loader``, weighted by samples."""
    check_kind("loader", loader)
    mean = Mean()
    with _aside(run, "val") as this:
        for batch in loader:
            this.index += 1
            run.batch = to_device(batch, run.device)
            with run.autocast():
                run.main.on_val_forward(run)
                if run._state.loss is GONE:
                    run.main.on_iter_loss(run)
            mean.add(run.loss, run.main.count(run)[0])
            run._state.set_loss(GONE)
    value = mean.value()
    if value is None:
        raise ValueError("the loader gave no batch to evaluate")
    return {"loss": float(value)}


@contextlib.contextmanager
def _aside(run: Run, stage: str) -> Iterator[QuietPass]:
    """Everything that a nested pass could disturb is put aside, and brought back however it ends."""
    fields, outer_stage, outer_pass = run._state.fields(), run.stage, run._state.current
    run._state.set_fields()
    flags = flags_of(run.module)
    mode = torch.inference_mode if run.main.inference_mode else torch.no_grad
    run.stage, this = stage, QuietPass()
    run._state.set_current(this)
    run.module.eval()
    try:
        with rng_kept(run.device), mode():
            yield this
    finally:
        set_flags(flags)
        run.stage = outer_stage
        run._state.set_current(outer_pass)
        run._state.set_fields(fields)
