"""What the front door takes: each argument is looked at before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza.callback import Callback
from cadenza.distributed import World
from cadenza.registration import CallbackError, adopt, check_callback, check_together
from cadenza.training import Training

ALONE = World()


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
        return world.device(str(device)) if str(device) == "cuda" else _named(device)
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
        near = ["cuda"] if device == "gpu" else get_close_matches(str(device), ("auto", "cpu", "cuda", "mps"), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise type(error)(
            f'device must be "auto", "cpu", "cuda", "cuda:1", "mps" or a torch.device, not {device!r}{hint}'
        ) from error


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
