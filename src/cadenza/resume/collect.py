"""Everything that shapes the future of a run, as one tree of tensors and plain values.

``collect`` is called at a safe point: between two training iterations, between two epochs, after the run, or after an
evaluation of the epoch was broken off. Then the tree holds the state at the beginning of that evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cadenza.engine.resuming import before_evaluation, cadences_of, feeds_of, limits_of, position_of, row_of_epoch
from cadenza.foundation.rng import pack_rng, rng_state
from cadenza.foundation.torch_private import buffers_in
from cadenza.foundation.tree import fold, map_tree, plain, same_tree, with_dicts
from cadenza.resume.optimizer_groups import collect_outside, describe, scheduler_kinds
from cadenza.resume.per_rank import step_of

if TYPE_CHECKING:
    from cadenza.run import Run

_SMALL = 1 << 16


def collect(run: Run) -> dict[str, Any]:
    """The state of ``run``. Its tensors are those of the run: copy them before it goes on.

    Under many processes all of them must call this. Rank 0 gets the state of all, the others what they gave to it. What
    is spread stays so if there is a ``crew_of`` the run.
    """
    state = collect_here(run)
    return run.processes.collected(run, state)


def crew_of(run: Run) -> Any:
    """Who saves together, if each process stores its own part of a checkpoint; None if rank 0 stores all of it."""
    return run.processes.crew


def collect_here(run: Run) -> dict[str, Any]:
    """The state of ``run`` as this process has it."""
    began = before_evaluation(run)
    now = beginning(run) if began is None else began
    model, criterion, buffers = _modules(run, now["buffers"])
    return {
        "model": model,
        "criterion": criterion,
        "replaced": run.criterion is not run.training_state.criterion,
        "buffers": buffers,
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
        "groups": describe(run),
        "scheduler_kinds": scheduler_kinds(run),
        "schedulers": [encoded(scheduler.state_dict()) for scheduler in run.schedulers],
        "gradients": gradients_of(run),
        "outside": collect_outside(run),
        "clock": run.clock.state_dict(),
        "history": run.history.state_dict(now["rows"]),
        "best": None if run.best is None else asdict(run.best),
        "fit": limits_of(run),
        "cadences": cadences_of(run),
        "ended": run.stop_reason or "" if run.is_ending and not run.is_paused else None,
        "stop_reason": run.stop_reason,
        "metrics": now["metrics"],
        "callbacks": now["callbacks"],
        "rng": now["rng"],
        "feeds": now["feeds"],
        "store": {name: value for name, value in run.store.items() if is_tree(value)},
        "position": position_of(run, now["row"]),
        "asked": now["asked"],
        "waiting": [] if began is not None else run.processes.waiting(run),
        "step": step_of(run),
    }


def unmet(run: Run) -> list[str]:
    """What was asked and is acted on only after this save: the end of the epoch or of the run, no validation. A paused
    run is not asked to stop again."""
    names = ("end_epoch", "skip_validation") if run.is_paused else ("end_epoch", "skip_validation", "stop")
    return [name for name in names if run.is_asked(name)]


def beginning(run: Run) -> dict[str, Any]:
    """What an evaluation changes, and what was asked before it, as it is now: what is asked in it is asked again, since
    it is made again. Small tensors are copied, large ones belong to what does not change."""
    row = row_of_epoch(run)
    return {
        "asked": unmet(run),
        "rows": len(run.history),
        "row": None if row is None else dict(row),
        "metrics": dict(run.metrics),
        "callbacks": {callback.name: _kept(state) for callback in run.callbacks if (state := callback.state_dict())},
        "rng": pack_rng(rng_state(run.device)),
        "feeds": feeds_of(run),
        "buffers": {name: _kept(buffer) for name, buffer in _buffers(run).items()},
    }


def _modules(run: Run, buffers: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """The state dicts of model and criterion with ``buffers``, and of those what the state dicts leave out because it
    was registered with ``persistent=False``."""
    states = {"model": run.module.state_dict(), "criterion": {}}
    if isinstance(run.criterion, nn.Module):
        states["criterion"] = run.criterion.state_dict()
    hidden: dict[str, Tensor] = {}
    for path, buffer in buffers.items():
        part, _, name = path.partition(".")
        if name in states[part]:
            states[part][name] = buffer
        else:
            hidden[path] = buffer
    return states["model"], states["criterion"], hidden


def _buffers(run: Run) -> dict[str, Tensor]:
    """All buffers of model and criterion, by "model." or "criterion." and their names."""
    parts = [("model", run.module), *([("criterion", run.criterion)] if isinstance(run.criterion, nn.Module) else [])]
    return {f"{part}.{name}": buffer for part, module in parts for name, buffer in module.named_buffers()}


def load_buffers(model: nn.Module, criterion: object, buffers: dict[str, Tensor], device: torch.device) -> None:
    """Restores buffers that the state dicts leave out. One that has another shape now, or none, is replaced."""
    for path, saved in buffers.items():
        part, _, name = path.partition(".")
        place, _, last = name.rpartition(".")
        owner = model if part == "model" else criterion
        module = dict(owner.named_modules()).get(place) if isinstance(owner, nn.Module) else None
        if module is None:  # it is no longer part of the model, and had no weights
            continue
        now = getattr(module, last, None)
        if isinstance(now, Tensor) and now.shape == saved.shape and now.dtype == saved.dtype:
            with torch.no_grad():
                now.copy_(saved)
        else:
            module.register_buffer(last, saved.to(device, copy=True), persistent=False)


def load_module(module: object, saved: dict[str, Tensor], device: torch.device) -> None:
    """Loads a state dict into a model or a criterion; one that is a function has none. Buffers that were registered as
    None and that training created are created first: torch loads only what is there."""
    if not isinstance(module, nn.Module):
        return
    for place, part in module.named_modules():
        for name in [name for name, buffer in buffers_in(part).items() if buffer is None]:
            value = saved.get(f"{place}.{name}" if place else name)
            if value is not None:
                buffers_in(part)[name] = torch.empty_like(value, device=device)
    module.load_state_dict(saved)


def _kept(tree: Any) -> Any:
    def kept(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, Tensor) and value.numel() <= _SMALL else value

    return map_tree(tree, kept, rebuild=with_dicts)


def gradients_of(run: Run) -> dict[str, Tensor]:
    """Gradients that wait for a step, by the names of their parameters; none in an ordinary training."""
    return {name: p.grad for name, p in run.module.named_parameters() if p.grad is not None}


def is_tree(value: Any) -> bool:
    """Whether ``value`` is made of tensors and plain values alone, so that a checkpoint can hold it."""
    return bool(fold(value, lambda leaf: isinstance(leaf, bool | int | float | str | Tensor | None), _is_plain))


def _is_plain(container: Any, parts: Iterable[tuple[Any, bool]]) -> bool:
    return isinstance(container, dict | list | tuple) and all(
        isinstance(key, str | int) and fine for key, fine in parts
    )


def alike(one: Any, other: Any) -> bool:
    """Whether two trees hold the same values, to the last bit.

    >>> alike({"a": [torch.ones(2), 1]}, {"a": [torch.ones(2), 1]}), alike({"a": 1}, {"a": 2})
    (True, False)
    """
    return same_tree(one, other, _alike)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same_form = one.shape == other.shape and one.dtype == other.dtype
        same_form = same_form and hasattr(one, "to_local") == hasattr(other, "to_local")
        return same_form and torch.equal(_bits(one), _bits(other))
    return bool(one == other or (one != one and other != other))


def _bits(tensor: Tensor) -> Tensor:
    """As bytes, in which a NaN equals itself and zero differs from minus zero."""
    here = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    plain = here.detach().cpu().contiguous()
    return plain if plain.numel() == 0 else plain.reshape(-1).view(torch.uint8)


# Foreign state, such as that of torch's schedulers, as tensors and plain values ---------------------------------------


_PAIRS = "__pairs__"


def encoded(value: Any) -> Any:
    """State as tensors and JSON: a dict whose keys are no texts, such as milestones, as a list of pairs."""
    return fold(value, lambda leaf: leaf, _pairs_of)


def _pairs_of(container: Any, parts: Iterable[tuple[Any, Any]]) -> Any:
    made = plain(container, parts)
    if isinstance(made, dict) and not all(isinstance(key, str) for key in made):
        return {_PAIRS: [[key, part] for key, part in made.items()]}
    return made


def decoded(value: Any, like: Any) -> Any:
    """What ``encoded`` was given; ``like`` is a state of the same object, for the kinds of its containers.

    >>> decoded(encoded({"milestones": {3: (1, 2)}}), {"milestones": {3: (0, 0)}})
    {'milestones': {3: (1, 2)}}
    """
    if isinstance(value, dict):
        pairs = value[_PAIRS] if _PAIRS in value else value.items()
        known = like if isinstance(like, dict) else {}
        plain = {key: decoded(inner, known.get(key)) for key, inner in pairs}
        return type(like)(plain) if isinstance(like, dict) else plain
    if isinstance(value, list):
        known_items = like if isinstance(like, list | tuple) and len(like) == len(value) else [None] * len(value)
        items = [decoded(inner, one) for inner, one in zip(value, known_items, strict=True)]
        return tuple(items) if isinstance(like, tuple) else items
    return value
