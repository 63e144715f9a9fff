"""Executes a round for a process that has no batch while others have one, with nothing of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.engine import boundaries
from cadenza.engine.iteration import begin_round, is_last, release
from cadenza.engine.requests import OF_ITERATION, SKIP_BATCH, STOP
from cadenza.engine.state import GONE, NOTHING, UNWEIGHTED
from cadenza.foundation.kept_state import buffers_kept
from cadenza.foundation.rng import rng_kept
from cadenza.foundation.torch_private import tree_leaves

if TYPE_CHECKING:
    from cadenza.engine.stack import Pass
    from cadenza.run import Run


def empty_round(run: Run, this: Pass, batch: Any) -> None:
    """Passes ``batch``, which was trained on before, through the model once more, and counts nothing. In training the
    backward, step and zero_grad spans run, since the weights change here as they do elsewhere."""
    state, processes = run._state, run._state.processes
    if this.training:
        run.clock.batches += 1
    begin_round(run, this)
    processes.empty = this.iterating = True
    try:
        state.give(batch)
        if state.asked & SKIP_BATCH:
            pass
        elif this.training:
            _train_on_nothing(run, this)
        else:
            with torch.no_grad(), rng_kept(run.device), buffers_kept(run.module):
                run.main.on_pred_forward(run)
        if state.rows["iter"] is not None:
            run._write_row("iter")
    finally:
        processes.empty = this.iterating = False
        state.set_fields()
        state.set_skipped(NOTHING)
        run.loss_weight = UNWEIGHTED
    boundaries.decide(run, this)
    if this.training:
        boundaries.between_iterations(run, this)
    state.drop(OF_ITERATION)


def _train_on_nothing(run: Run, this: Pass) -> None:
    state = run._state
    with buffers_kept(run.module):  # a backward may need them as they were in the forward
        with rng_kept(run.device):
            run.main.on_train_forward(run)
            state.set_loss(nothing(run))
        state.mark_forwarded()
        state.set_skipped(frozenset({"forward", "loss"}))
        steps = this.score.verbs.backward(run)
    if steps:
        this.score.verbs.step(run)
    if state.held and not state.asked & STOP and is_last(run, this):
        release(run, this)


def nothing(run: Run) -> Tensor:
    """A loss of zero that depends on all that the model returned."""
    state = run._state
    parts = [part for part in tree_leaves(state.output) if isinstance(part, Tensor) and part.requires_grad]
    if not parts and state.loss is GONE:
        run.main.on_iter_loss(run)
    if not parts:
        parts = [run.loss]
    return torch.stack([(part * 0).sum().float() for part in parts]).sum()


def backward_of_nothing(run: Run, batch: Any) -> None:
    """Puts together gradients that were held for a batch that never came, by a backward that adds nothing to them."""
    state, processes = run._state, run._state.processes
    fields, aside = state.fields(), state.asked & OF_ITERATION
    state.drop(OF_ITERATION)
    try:
        if state.batch is GONE:
            state.give(batch)
        with buffers_kept(run.module):
            with rng_kept(run.device):
                run.main.on_train_forward(run)
                state.set_loss(nothing(run))
            processes.carry(run, state.loss).backward()  # type: ignore[no-untyped-call]
            processes.after_backward(run)
    finally:
        state.drop(OF_ITERATION)
        state.ask(aside)
        state.set_fields(fields)
