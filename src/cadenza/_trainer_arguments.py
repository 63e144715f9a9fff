"""What the front door takes: each argument is looked at before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza.callback import Callback
from cadenza.clock import Duration
from cadenza.data import length_of
from cadenza.distributed import World
from cadenza.engine.trainer_state import Training
from cadenza.execution.scheduling import CADENCES
from cadenza.foundation.suggest import nearest_name, suggestion
from cadenza.foundation.warn import warn
from cadenza.registration.checks import CallbackError, adopt, check_callback, check_together
from cadenza.registration.logged_names import LoggedNames

if TYPE_CHECKING:
    from cadenza.run import Run

ALONE = World()
_WITHOUT_CUDA = "this torch was built without CUDA (pytorch.org tells how to install one with it)"


def check_model(model: Any) -> None:
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}; give an instance: {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


def check_criterion(criterion: Any) -> None:
    """A loss class would be called with output and targets, and make a loss of them only by chance."""
    if isinstance(criterion, type):
        raise TypeError(f"criterion is the class {criterion.__name__}; give an instance: {criterion.__name__}()")
    if criterion is not None and not callable(criterion):
        raise TypeError(f"criterion must be a function of output and targets, not {type(criterion).__name__}")


def check_experiment(experiment: Any) -> None:
    if isinstance(experiment, type):
        name = experiment.__name__
        raise TypeError(f'experiment is the class {name}; give an instance: {name}("project", "name")')
    if experiment is not None and not hasattr(type(experiment), "folder") and not hasattr(experiment, "folder"):
        raise TypeError(
            f'experiment must be an Experiment, such as Experiment("project", "name"), or have a folder as that has, '
            f"not {experiment!r}"
        )


def optimizers_of(optimizer: Any) -> list[Any]:
    """The optimizers as a list, each of them once: one that stands there twice would make two steps."""
    found = _listed(optimizer, Optimizer, "optimizer", "torch.optim.Optimizer")
    for place, one in enumerate(found):
        if any(one is other for other in found[:place]):
            raise ValueError(f"the same {type(one).__name__} stands twice in optimizer, and would step twice")
    return found


def schedulers_of(scheduler: Any, optimizers: Sequence[Optimizer]) -> list[Any]:
    """The schedulers as a list. One whose optimizer is not stepped here would change nothing."""
    found = _listed(scheduler, object, "scheduler", "a scheduler with step()")
    groups = {id(group) for optimizer in optimizers for group in optimizer.param_groups}
    for one in found:
        whose = getattr(one, "optimizer", None)
        if groups and isinstance(whose, Optimizer) and not any(id(group) in groups for group in whose.param_groups):
            raise ValueError(
                f"the {type(one).__name__} was made for another optimizer than those of this trainer, whose learning "
                "rate it would not change; make it from the optimizer that the trainer gets"
            )
    return found


def scheduler_cadence(scheduler_every: Any, schedulers: Sequence[Any]) -> str | None:
    """How often schedulers are stepped, as far as the trainer is told; without one it would have no effect."""
    if scheduler_every is not None:
        if scheduler_every not in CADENCES:
            raise ValueError(f'scheduler_every must be "step" or "epoch", not {scheduler_every!r}')
        if not schedulers:
            raise ValueError("scheduler_every has no effect without scheduler=; a callback has its own cadence")
    return None if scheduler_every is None else str(scheduler_every)


def callbacks_of(callbacks: Any, experiment: Any, taken: Mapping[str, str]) -> list[Callback]:
    """The callbacks that take part, the experiment in front of them if it is one itself; ``taken`` is what somebody
    else owns already, and who."""
    if not isinstance(callbacks, list | tuple):
        one = f"[{type(callbacks).__name__}(...)]" if isinstance(callbacks, Callback) else "[...]"
        raise CallbackError(f"callbacks must be a list, not {type(callbacks).__name__}: callbacks={one}")
    if isinstance(experiment, Callback) and not any(callback is experiment for callback in callbacks):
        callbacks = [experiment, *callbacks]
    adopted = adopt(callbacks)
    for callback in adopted:
        check_callback(callback)
    check_together(adopted, taken)
    return adopted


def check_trainable(training: Training) -> None:
    """Refuses a fit in which no weight of the model could change."""
    if not training.optimizers:
        raise ValueError("training needs an optimizer: Trainer(model, optimizer, ...)")
    if not any(parameter.requires_grad for parameter in training.module.parameters()):
        raise ValueError("the model has no parameter that could be trained")
    own = {id(parameter) for parameter in training.module.parameters()}
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    if not any(id(parameter) in own for group in groups for parameter in group["params"]):
        raise ValueError("the optimizer holds no parameter of this model; make it from model.parameters()")


def tell_of_no_validation(run: Run, every: Duration) -> None:
    """Warns if ``validate_every`` cannot have an effect: nothing is there to be validated, or the fit ends before."""
    if not run.is_main or run.is_resuming:  # which may owe one that was due before
        return
    says_when_to_test = run.test_loaders is not None and every.unit == "epochs"
    if run.val_loader is None and not says_when_to_test:
        if every != Duration(1, "epochs"):
            has_none = "has no effect, for there is no val_loader: fit(train_loader, val_loader, ...)"
            warn(f'validate_every="{every}" {has_none}')
        return
    begins = run.clock.epochs if every.unit == "epochs" else run.clock.steps
    ends = _end(run, every.unit)
    if ends is not None and begins < ends and ends // every.amount == begins // every.amount:
        what = "tested" if run.val_loader is None else "validated"
        warn(f'nothing will be {what}: validate_every="{every}", and the fit ends at {Duration(ends, every.unit)}')


def check_monitors(run: Run, callbacks: Sequence[Callback]) -> None:
    """Refuses to follow a metric that this fit will not log. Where a callback of the user's may log anything, only
    the loss of a stage without a loader is known, and a warning."""
    stages = {"train": run.train_loader, "val": run.val_loader, "test": run.test_loaders}
    logged = LoggedNames(callbacks, {stage: loader for stage, loader in stages.items() if loader is not None})
    for callback in callbacks:
        if callback.monitor is None:
            continue
        who = f"{callback.name} watches {callback.monitor!r}"
        if missing := logged.missing_stage(callback.monitor):
            argument = "val_loader" if missing == "val" else f"{missing}_loaders"
            problem = f"but this fit has no {argument}: pass one, or watch 'train/loss'"
            if logged.all_known:
                raise ValueError(f"{who}, {problem}")
            if run.is_main and callback.monitor.endswith("/loss"):  # which validation itself would log
                warn(f"{who}, {problem}, unless a callback of yours logs it")
        elif problem := logged.problem(callback.monitor):
            raise ValueError(f"{who}, {problem}")


def _end(run: Run, unit: str) -> int | None:
    """How many epochs or steps there will be at most when this fit ends; None if that is not known."""
    if unit == "epochs":
        return run.num_epochs
    if unit != "steps" or run.num_steps is not None or run.num_epochs is None:
        return run.num_steps if unit == "steps" else None
    batches = length_of(run.train_loader)
    return None if batches is None else run.clock.steps + (run.num_epochs - run.clock.epochs) * batches


def loss_interval(log_every: str | Duration | Literal[False] | None, callbacks: Iterable[Callback]) -> Duration | None:
    """How often ``fit`` logs the loss in iterations; None if it does not."""
    if log_every is False:
        return None
    if log_every is None:
        return Duration(50, "steps") if any(callback._shows_iterations for callback in callbacks) else None
    every = Duration.interval(log_every, "log_every")
    if every.unit not in ("steps", "seconds"):
        raise ValueError(f'log_every counts steps or time, such as "50 steps", not {every.unit}: {log_every!r}')
    return every


def seed_of(seed: int | None, experiment: Any) -> int | None:
    """The seed that the trainer or its experiment says; if both do, it must be the same."""
    said = getattr(experiment, "seed", None)
    if None not in (seed, said) and seed != said:
        raise ValueError(f"seed={seed} and the experiment's seed={said} differ; leave one of them out")
    found = said if seed is None else seed
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise TypeError(f"seed must be a whole number or None, not {found!r}")
    return found


def choose_device(device: str | torch.device, world: World = ALONE) -> torch.device:
    """``"auto"`` is the accelerator that is there, of several on a machine one for each process, else the CPU."""
    if device != "auto":
        named = _named(device)
        _refuse_missing(named)
        return world.device("cuda") if str(device) == "cuda" else named
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return (
        world.device("cpu" if accelerator is None else accelerator.type)
        if not world.alone or accelerator is None
        else accelerator
    )


def _named(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        near = "cuda" if device == "gpu" else nearest_name(str(device), ("auto", "cpu", "cuda", "mps"))
        raise type(error)(
            f'device must be "auto", "cpu", "cuda", "cuda:1", "mps" or a torch.device, not {device!r}{suggestion(near)}'
        ) from error


def _refuse_missing(device: torch.device) -> None:
    """Torch would say so only when something is moved there, and not what else there is."""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            built = torch.version.cuda or torch.version.hip
            why = "torch finds no GPU (nvidia-smi and CUDA_VISIBLE_DEVICES may tell why)" if built else _WITHOUT_CUDA
        elif (device.index or 0) >= (there := torch.cuda.device_count()):
            why = f"there {'is 1 GPU' if there == 1 else f'are {there} GPUs'}, and the first is cuda:0"
        else:
            return
    elif device.type == "mps" and not torch.backends.mps.is_available():
        why = "torch finds no Apple GPU that it can use"
    else:
        return
    raise RuntimeError(f'device="{device}" is not there: {why}. device="auto" takes what there is, or else the CPU')


def _listed(value: Any, kind: type, name: str, wanted: str) -> list[Any]:
    if value is None:
        return []
    values = list(value) if isinstance(value, list | tuple) else [value]
    for one in values:
        if isinstance(one, type):
            raise TypeError(f"{name} is the class {one.__name__}; give an instance: {one.__name__}(...)")
        if not isinstance(one, kind) or not hasattr(one, "step"):
            raise TypeError(f"{name} must be {wanted} or a list of them, not {type(one).__name__}")
    return values
