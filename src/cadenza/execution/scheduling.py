"""When the schedulers of a trainer are stepped, and whether they seem to count something else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
)

from cadenza.data import length_of
from cadenza.engine.stalled import has_no_rate
from cadenza.foundation.torch_private import schedulers_in
from cadenza.foundation.warn import warn
from cadenza.main_callback import MainCallback
from cadenza.registration.checks import CallbackError

if TYPE_CHECKING:
    from cadenza.run import Run

CADENCES = {"epoch": "epoch", "step": "iter"}
"""What ``Trainer(scheduler_every=...)`` says, in the words of ``MainCallback.lr_every``."""
_LENGTHS: dict[type, str] = {
    OneCycleLR: "total_steps",
    CosineAnnealingLR: "T_max",
    LinearLR: "total_iters",
    ConstantLR: "total_iters",
    PolynomialLR: "total_iters",
}


def lr_cadence(main: MainCallback, scheduler_every: str | None) -> str:
    """``"epoch"`` or ``"iter"``: what the main callback and the trainer say together."""
    said = None if scheduler_every is None else CADENCES[scheduler_every]
    if None not in (said, main.lr_every) and said != main.lr_every:
        raise CallbackError(
            f"{main.name} has lr_every={main.lr_every!r}, and the trainer scheduler_every={scheduler_every!r}: leave "
            "one of them out"
        )
    return main.lr_every or said or "epoch"


def steps_per_epoch(run: Run) -> int:
    """The number of steps in an epoch, by the length of the training loader.

    A callback that holds steps, so that there are fewer of them than batches, is asked: ``steps_in(batches)``.
    """
    batches = length_of(run.loader)
    if batches is None:
        raise ValueError(
            f"the number of steps in an epoch is needed, but {type(run.loader).__name__} does not know its length. Say "
            'everything in steps: length="1000 steps" (or fit(steps=1000)), and warm-up and cool-down too'
        )
    steps = batches
    for callback in run.callbacks:
        if "hold_step" in callback.asks:
            steps_in = getattr(callback, "steps_in", None)
            if steps_in is None:
                raise ValueError(
                    f"the number of steps in an epoch is needed, but {callback.name} holds steps and does not say how "
                    'many it makes of so many batches. Say everything in steps: length="1000 steps" (or '
                    "fit(steps=1000)), and warm-up and cool-down too"
                )
            steps = steps_in(steps)
    return int(steps)


# A scheduler that counts steps, stepped once an epoch ---------------------------------------------------------------


def tell_of_schedulers(run: Run) -> None:
    """As the first training pass of a fit begins: warns of schedulers that are stepped once an epoch, since nothing
    else was said, and seem to count steps."""
    training, plan = run.training_state, run._state.plan
    unsaid = training.scheduler_every is None and plan.main.lr_every is None
    if not (run.schedulers and unsaid and run.is_main and plan.is_default("on_lr_adjust")):
        return
    extent = _extent(run)
    for scheduler in run.schedulers:
        why = [said for said in (_fits_steps(scheduler, *extent), _begins_at_zero(scheduler)) if said]
        if why:
            warn(
                f"{type(scheduler).__name__} {', and '.join(why)}; it is stepped once an epoch. If it counts steps, "
                'write Trainer(..., scheduler_every="step"); if it counts epochs, scheduler_every="epoch"'
            )


def _extent(run: Run) -> tuple[int, int | None, int | None]:
    """How many epochs, steps and batches are before this fit; None for what is not known."""
    batches = length_of(run.loader)
    try:
        steps = None if batches is None else steps_per_epoch(run)
    except ValueError:
        steps = None
    if run.num_epochs is not None:
        epochs = run.num_epochs - run.clock.epochs
        return epochs, steps and steps * epochs, batches and batches * epochs
    ahead = None if run.num_steps is None else run.num_steps - run.clock.steps
    epochs = math.ceil(ahead / steps) if ahead and steps else 1
    return epochs, ahead, batches and batches * epochs


def _fits_steps(scheduler: Any, epochs: int, steps: int | None, batches: int | None) -> str:
    length, known = _length(scheduler), [count for count in (steps, batches) if count]
    if not length or not known or length <= epochs:
        return ""
    near = length > 4 * epochs and min(known) <= 2 * length and length <= 2 * max(known)
    if length not in known and not near:
        return ""
    counted = f"{steps} steps" if steps and (length == steps or length != batches) else f"of {batches} batches"
    verb = "makes" if counted.endswith("steps") else "is one"
    return f"is {length} long, and this fit {verb} {counted} in {epochs} epoch{'s' if epochs > 1 else ''}"


def _length(scheduler: Any) -> float | None:
    """After how many of its steps a scheduler has reached its end, if it says so."""
    if isinstance(scheduler, SequentialLR):
        parts, milestones = schedulers_in(scheduler)
        last = _length(parts[-1])
        return None if last is None else milestones[-1] + last
    if isinstance(scheduler, ChainedScheduler):
        return max((length for one in schedulers_in(scheduler)[0] if (length := _length(one))), default=None)
    if isinstance(scheduler, LambdaLR):  # transformers' are partials of functions with this argument
        found = [getattr(one, "keywords", {}).get("num_training_steps") for one in scheduler.lr_lambdas]
        return next((length for length in found if isinstance(length, int | float)), None)
    name = next((name for kind, name in _LENGTHS.items() if isinstance(scheduler, kind)), "")
    return getattr(scheduler, name, None) if name else None


def _begins_at_zero(scheduler: Any) -> str:
    optimizer = getattr(scheduler, "optimizer", None)
    if not isinstance(optimizer, Optimizer) or not has_no_rate(optimizer):
        return ""
    if not any(group.get("initial_lr") for group in optimizer.param_groups):
        return ""
    return "begins with a learning rate of 0, so the first epoch changes no weight"
