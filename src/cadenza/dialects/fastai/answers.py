"""What a fastai hook returned, and what is done about it: changes of the state, or the blog's skip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.dialects.adapter import Adapter
from cadenza.dialects.table import nearest

if TYPE_CHECKING:
    from cadenza.run import Run

BLOG_SKIPS: dict[str, str | None] = {
    "on_epoch_begin": "end_epoch",
    "on_batch_begin": "skip_batch",
    "on_loss_end": "skip_backward",
    "on_step_begin": "skip_step",
    "on_step_end": "skip_zero_grad",
    "on_batch_end": None,
    "on_epoch_end": None,
}
"""What a plain skip asks for, by the hook that returned it. After the last two nothing is left to skip."""

_SKIPS = {"skip_bwd": "skip_backward", "skip_step": "skip_step", "skip_zero": "skip_zero_grad"}
_FLAGS_AT = {
    "on_backward_begin": ("skip_bwd",),
    "on_loss_end": ("skip_bwd",),
    "on_backward_end": ("skip_step", "skip_zero"),
    "on_step_begin": ("skip_step", "skip_zero"),
    "on_step_end": ("skip_zero",),
}
"""Where a flag is acted on at once. Returned before, it stays in the state, and the section asks at its place."""


def take(values: dict[str, Any], member: Adapter, hook: str, result: Any, run: Run, late: bool) -> None:
    """Does what ``hook`` of ``member`` returned. ``late``: its action was skipped, and is over."""
    if isinstance(result, dict):
        _take_values(values, member, hook, result, run)
        _take_flags(hook, result, run, late)
    elif result is True:
        _skip(hook, run, late)
    elif result is not False:
        name = type(member.foreign).__name__
        raise TypeError(f"fastai: {name}.{hook} returned {result!r}; a hook returns a dict, a skip or nothing")


def _skip(hook: str, run: Run, late: bool) -> None:
    if hook not in BLOG_SKIPS:
        raise ValueError(f"fastai: a skip from {hook} means nothing; it does from {', '.join(BLOG_SKIPS)}")
    request = BLOG_SKIPS[hook]
    if request is not None and (not late or _can_keep_gradients(hook, run)):
        getattr(run, request)()


def _can_keep_gradients(hook: str, run: Run) -> bool:
    """Whether zero_grad is still to come, although the step was skipped."""
    return hook == "on_step_end" and "zero_grad" not in run.skipped


def _take_values(values: dict[str, Any], member: Adapter, hook: str, result: dict[str, Any], run: Run) -> None:
    for key, value in result.items():
        if key not in values:
            near = nearest(str(key), values)
            hint = f"; the nearest is {near!r}" if near else ""
            raise ValueError(f"fastai: {key} isn't a valid key in the state of the callbacks{hint}")
        if value is True and key in _SKIPS and run.world_size > 1:
            _refuse_undeclared(member, key, run)
        values[key] = value
        if (hook, key) in _REPLACING:
            setattr(run, _REPLACING[hook, key], value)


def _take_flags(hook: str, result: dict[str, Any], run: Run, late: bool) -> None:
    for flag in _FLAGS_AT.get(hook, ()):
        if result.get(flag) and (not late or _can_keep_gradients(hook, run)):
            getattr(run, _SKIPS[flag])()
    if result.get("stop_epoch") and run.stage is not None:
        run.end_epoch()
    if result.get("stop_training") and hook == "on_epoch_end":
        run.stop("stop_training")


def _refuse_undeclared(member: Adapter, flag: str, run: Run) -> None:
    """The other processes must know that this one may skip, wherever the flag is acted on."""
    request = _SKIPS[flag]
    if request not in member.asks:
        name = type(member.foreign).__name__
        raise RuntimeError(
            f"fastai: {name} returned {flag} under {run.world_size} processes without having declared it, so the "
            f"others would wait for ever: write asks = {{{request!r}}} in class {name}"
        )


_REPLACING = {
    ("on_batch_begin", "last_input"): "inputs",
    ("on_batch_begin", "last_target"): "targets",
    ("on_loss_begin", "last_output"): "output",
    ("on_backward_begin", "last_loss"): "loss",
}
"""What is put in the place of a part of the batch, the output or the loss."""
