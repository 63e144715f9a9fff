"""Record the kinds of optimizers and schedulers and which parameters each holds by name; restore parameter groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza.foundation.torch_private import inner_schedulers

if TYPE_CHECKING:
    from cadenza.run import Run


Names = list[str | None]
"""The names of one group's parameters; None for a parameter that is in neither the model nor the criterion."""


def describe(run: Run) -> list[dict[str, Any]]:
    """For each optimizer its class and, group by group, the names of its parameters."""
    names = {id(parameter): name for name, parameter in _parameters(run).items()}
    return [{"kind": type(optimizer).__name__, "groups": _names(optimizer, names)} for optimizer in run.optimizers]


def scheduler_kinds(run: Run) -> list[str]:
    """The class of each scheduler, with those that it calls in turn."""
    return [_kind(scheduler) for scheduler in run.schedulers]


def check_schedulers(run: Run, saved: list[str]) -> None:
    """Raises if a scheduler is of another class than in the checkpoint: the settings of one mean nothing to another."""
    for kind, now in zip(saved, scheduler_kinds(run), strict=False):  # a different number is reported by the caller
        _check_kind("scheduler", kind, now)


def _kind(scheduler: object) -> str:
    inner = " and ".join(map(_kind, inner_schedulers(scheduler)))
    return type(scheduler).__name__ + (f" of {inner}" if inner else "")


def restore_groups(run: Run, saved: list[dict[str, Any]], states: list[dict[str, Any]]) -> None:
    """Gives the optimizers the groups that ``describe`` found, so that a state is loaded into the right parameters.

    A group that was added during training is added again, and parameters in another order are reordered. Another kind
    of optimizer, or parameters that are divided otherwise, raise an error before anything is changed.
    """
    known = _parameters(run)
    pairs = list(zip(run.optimizers, saved, states, strict=False))  # a different number is reported by the caller
    for optimizer, described, _ in pairs:
        _check_kind("optimizer", described["kind"], type(optimizer).__name__)
        _check_groups(optimizer, described["groups"], known)
    for optimizer, described, state in pairs:
        _arrange(optimizer, described["groups"], state["param_groups"], known)


def accept_known_groups(optimizer: Optimizer) -> Callable[[], None]:
    """Until the returned function is called, adding a group that ``optimizer`` already has does nothing.

    A resumed run calls ``before_run`` and ``before_epoch`` again. A callback that adds a group there would add the one
    that was just restored, and torch would raise an error.
    """
    add = optimizer.add_param_group

    def add_if_new(group: dict[str, Any]) -> None:
        given = group["params"]
        if isinstance(given, Iterator):  # it can be read only once
            given = list(given)
        held = {id(one) for present in optimizer.param_groups for one in present["params"]}
        each = [given] if isinstance(given, Tensor) else [one[1] if isinstance(one, tuple) else one for one in given]
        if not each or any(id(one) not in held for one in each):
            add({**group, "params": given})

    vars(optimizer)["add_param_group"] = add_if_new

    def undo() -> None:
        vars(optimizer).pop("add_param_group", None)

    return undo


def _parameters(run: Run) -> dict[str, nn.Parameter]:
    """The parameters that have a name a resumed process will know."""
    named = dict(run.module.named_parameters())
    criterion = run.training_state.criterion  # that of the run may be replaced later
    if isinstance(criterion, nn.Module):
        named.update((f"criterion.{name}", one) for name, one in criterion.named_parameters())
    return named


def _names(optimizer: Optimizer, names: Mapping[int, str]) -> list[Names]:
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]


def _check_kind(what: str, saved: str, now: str) -> None:
    if saved != now:
        raise ValueError(
            f"The checkpoint was saved with {saved}, and this trainer has {now}. Resume with the {what} that it was "
            "saved with. To begin a new training with its weights, leave resume out and add the callback Load(path)"
        )


def _check_groups(optimizer: Optimizer, saved: list[Names], known: Mapping[str, nn.Parameter]) -> None:
    """The groups of now must be those of the checkpoint, or what was there before parameters were added to them."""
    held = _names(optimizer, {id(parameter): name for name, parameter in known.items()})
    everywhere = {name for group in held for name in group if name is not None}
    none: Names = []
    for number, (now, then) in enumerate(zip_longest(held, saved, fillvalue=none)):
        odd = sorted(filter(None, set(now) - set(then)))
        moved = sorted(filter(None, (set(then) - set(now)) & everywhere))
        gone = sorted(name for name in then if name is not None and name not in known)
        if odd or moved or gone or now.count(None) != then.count(None) or number >= len(saved):
            raise ValueError(
                f"The {type(optimizer).__name__} of this trainer holds other parameters than the one in the "
                f"checkpoint: group {number} {_difference(odd, moved, gone)}. Resume with the parameter groups that it "
                "was saved with. To begin a new training with its weights, leave resume out and add the callback "
                "Load(path)"
            )


def _difference(odd: list[str], moved: list[str], gone: list[str]) -> str:
    if odd:
        return f"has {_listed(odd)}, which was not in it"
    if moved:
        return f"lacks {_listed(moved)}, which is in another group now"
    if gone:
        return f"had {_listed(gone)}, which the model does not have"
    return "has another number of parameters that are not in the model; add them before fit as the saved run did"


def _listed(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _arrange(
    optimizer: Optimizer, saved: list[Names], options: list[dict[str, Any]], known: Mapping[str, nn.Parameter]
) -> None:
    named = {id(parameter) for parameter in known.values()}
    for number, names in enumerate(saved):
        if number == len(optimizer.param_groups):
            added = [known[name] for name in names if name is not None]
            optimizer.add_param_group({**options[number], "params": added})
            continue
        group = optimizer.param_groups[number]
        unnamed = iter([one for one in group["params"] if id(one) not in named])
        group["params"][:] = [next(unnamed) if name is None else known[name] for name in names]


# Parameters that the optimizers train and the model does not have, such as those of a criterion. No state dict of the
# model holds them, and under DDP each process has its own. ------------------------------------------------------------


def collect_outside(run: Run) -> dict[str, dict[str, Any]]:
    """By their places in the optimizers: the value, the gradient if it waits for a step, the state in the optimizer."""
    return {
        place: {"value": one.detach(), "gradient": one.grad, "state": dict(kept)} for place, one, kept in _outside(run)
    }


def load_outside(run: Run, saved: dict[str, dict[str, Any]]) -> None:
    """Restores what ``collect_outside`` found; the optimizers hold their parameters in the saved order by now."""
    for place, one, kept in _outside(run):
        found = saved[place]
        gradient = found["gradient"]
        one.grad = None if gradient is None else gradient.to(one.device, copy=True)
        with torch.no_grad():
            one.copy_(found["value"])
            for name, value in found["state"].items():
                if isinstance(value, Tensor) and isinstance(kept.get(name), Tensor):
                    kept[name].copy_(value)


def _outside(run: Run) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    known = {id(one) for one in run.module.parameters()}
    for number, optimizer in enumerate(run.optimizers):
        held = [one for group in optimizer.param_groups for one in group["params"]]
        for place, one in enumerate(held):
            if id(one) not in known:
                yield f"{number}.{place}", one, optimizer.state.get(one, {})
