"""Why steps are not recorded, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza.engine.requests import declared_skips
from cadenza.execution.recorded.optimizer_form import KINDS, captured_form, compiled_form, why_no_form, why_no_weights
from cadenza.execution.recorded.region import inside_points
from cadenza.execution.recorded.rollback import modules_of
from cadenza.foundation.torch_private import buffers_in, parameters_in
from cadenza.points import BEHAVIOURS

if TYPE_CHECKING:
    from cadenza.execution.executor import Execution
    from cadenza.plan import Plan
    from cadenza.run import Run


def why_not(mode: str, plan: Plan) -> str | None:
    """Why no step of this training can be recorded, whoever plays, if so."""
    run = plan.executor.run
    if mode != "compiled" and run.device.type != "cuda":
        return f"the device is {run.device.type}, and CUDA graphs need a GPU"
    why = run.training_state.strategy.why_not_recorded(run, mode)
    if why is not None:
        return why
    if run.world_size > 1 and not plan.is_default("on_iter_backward"):
        return f"{plan.main.name} has its own on_iter_backward, and the processes talk right after the library's"
    for optimizer in run.optimizers:
        why = why_no_form(optimizer)
        if why is not None:
            return why
    return why_no_weights(run.module, run.optimizers) or _what_is_sparse(modules_of(run))


def _what_is_sparse(modules: list[nn.Module]) -> str | None:
    """A table of a model or a criterion that lies in no single place, such as the neighbours in a graph, if any."""
    for module in modules:
        for name, tensor in {**parameters_in(module), **buffers_in(module)}.items():
            if tensor is not None and tensor.layout is not torch.strided:
                return f"{name!r} of {type(module).__name__} is sparse"
    return None


def why_opened(plan: Plan, mode: str) -> str | None:
    """Who plays inside the step and must be played one point after the other, if anybody."""
    if plan.instrumented:
        return "its points are being timed or recorded"
    for point in inside_points():
        for callback in plan.callbacks_at(point, "train"):
            if not callback.capturable:
                return f"{callback.name} plays {point} and is not capturable"
    if plan.executor.run.world_size > 1:
        skipping = [callback.name for callback in plan.callbacks if declared_skips([callback])]
        if skipping:
            return f"{skipping[0]} may skip, on which the processes agree in the midst of a step"
    spans = ("forward", "loss", "backward", "step", "zero_grad")
    own = [b.name for b in BEHAVIOURS if b.span in spans and "train" in b.stages and not plan.is_default(b.name)]
    if own and not plan.main.capturable:
        return f"{plan.main.name} has its own {own[0]}; declare capturable = True if it does nothing but device work"
    return None


def cycles_momentum(plan: Plan, run: Run) -> bool:
    """Whether a schedule sets the momentum between steps."""
    owned = any(name.split("[")[0] == "momentum" for callback in plan.callbacks for name in callback.owns)
    return owned or any(getattr(scheduler, "cycle_momentum", False) for scheduler in run.schedulers)


def may_be_fused(run: Run, optimizer: Optimizer) -> bool:
    """Whether torch has a fused form for this optimizer and its parameters, so that nothing fails that went before."""
    plain = not any(group.get("differentiable") for group in optimizer.param_groups)
    return "fused" in optimizer.defaults and plain and why_no_weights(run.module, [optimizer]) is None


def words(plan: Plan) -> list[str]:
    """What ``explain`` says about how steps are executed; nothing for plain eager steps."""
    options, run = plan.executor.options, plan.executor.run
    if options.plain:
        return []
    extras = [f"{name}={getattr(options, name)}" for name in ("fused", "foreach", "channels_last", "tf32")]
    extras = [one for one in extras if not one.endswith("None")]
    lines = [f"Execution: {options.mode}" + (f" ({', '.join(extras)})" if extras else "")]
    if options.mode == "eager":
        return lines
    why = [reason for reason in (why_not(options.mode, plan), why_opened(plan, options.mode)) if reason is not None]
    later = [reason for reason in run.training_state.told if reason not in why]
    lines += [f"  {line}" for line in _how(options.mode, why, later, run)]
    if why_not(options.mode, plan) is not None:
        fused = [type(one).__name__ for one in run.optimizers if options.fused and may_be_fused(run, one)]
        lines += [f"  {name} is stepped in {KINDS['fused']}" for name in fused]
    else:
        lines += [f"  {form_words(options, plan, optimizer)}" for optimizer in run.optimizers]
    return lines


def _how(mode: str, why: list[str], later: list[str], run: Run) -> Iterator[str]:
    """How steps are executed: ``why`` are the reasons against recording them, ``later`` those found in a run."""
    asked = mode != "auto"
    for reason in why:
        yield f"{'a fit is refused' if asked else 'steps are played one by one'}: {reason}"
    if asked and why:
        yield "steps of a fit that has begun are played one by one as long as that is so"
    for reason in later:
        yield f"steps are played one by one: {reason}"
    if not why and not later:
        done = "compiled" if mode == "compiled" else "captured"
        how = "as one region" if run.world_size == 1 else "in two parts, with one message of gradients between them"
        yield f"forward to zero_grad is {done} {how}, once for each shape of a batch"


def form_words(options: Execution, plan: Plan, optimizer: Optimizer) -> str:
    """The form in which ``optimizer`` is stepped, and how that differs."""
    run = plan.executor.run
    if options.mode == "compiled":
        return compiled_form(optimizer, run.device).words()
    return captured_form(optimizer, run.device, fused=options.fused, cycles=cycles_momentum(plan, run)).words()
