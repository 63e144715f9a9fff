"""Adam's fused step inside a capture, in parts that the device works on side by side.

The fused kernel gives 65,536 numbers to each block, so that a model of a few million keeps a small part of a large GPU
busy. In a graph, launches cost nothing on the host: the same kernel over shorter pieces, on a few streams, does the
same arithmetic for each number in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW

from cadenza.foundation.torch_private import foreach_add_, fused_adam_, fused_adamw_

if TYPE_CHECKING:
    from cadenza.execution.recorded.optimizer_form import Form

_STREAMS, _PIECES = 4, 32
_FEW, _MANY = 100_000, 20_000_000
"""Below and above these numbers of parameters the plain kernel is as good."""
_streams: dict[torch.device, list[Any]] = {}


def step_in_parts(form: Form) -> bool:
    """Steps Adam or AdamW so, if a capture is on and all tensors allow it; else nothing happens and it says False."""
    optimizer = form.optimizer
    if type(optimizer) not in (Adam, AdamW) or not torch.cuda.is_current_stream_capturing():
        return False
    groups = [_rows(form, group) for group in optimizer.param_groups]
    total = sum(row[0].numel() for rows in groups for row in rows or ())
    if any(rows is None for rows in groups) or not _FEW < total < _MANY:
        return False
    piece = max(total // (_STREAMS * _PIECES) // 1024 + 1, 8) * 1024
    jobs: list[Callable[[], None]] = []
    for number, (group, rows) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        if rows:
            foreach_add_([row[-1] for row in rows], 1)
            rate = form.rate(number, "lr", group["lr"])
            jobs += _jobs(type(optimizer) is AdamW or group.get("decoupled_weight_decay"), group, rate, rows, piece)
    _side_by_side(jobs, form.device)
    return True


def _rows(form: Form, group: dict[str, Any]) -> list[tuple[Tensor, ...]] | None:
    """Weights, gradients, both averages and the count of each parameter, flat; None if one does not allow it."""
    rows = []
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        state = form.optimizer.state.get(parameter) or {}
        if group["amsgrad"] or "exp_avg_sq" not in state:
            return None
        row = (parameter.detach(), parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        if not all(one.is_contiguous() and one.dtype == torch.float32 for one in row):
            return None
        rows.append((*(one.detach().view(-1) for one in row), state["step"]))
    return rows


def _jobs(
    decoupled: Any, group: dict[str, Any], rate: Any, rows: list[tuple[Tensor, ...]], piece: int
) -> list[Callable[[], None]]:
    """The kernel over pieces of the tensors, about as many at a time as fit into one launch."""
    step: Any = fused_adamw_ if decoupled else fused_adam_
    pieces = [
        (*(one[begin : begin + piece] for one in row[:4]), row[4])
        for row in rows
        for begin in range(0, row[0].numel(), piece)
    ]
    more = {name: group[name] for name in ("weight_decay", "eps", "maximize")}
    more |= {"beta1": group["betas"][0], "beta2": group["betas"][1], "amsgrad": False, "lr": rate}

    def job(some: list[tuple[Tensor, ...]]) -> Callable[[], None]:
        weights, gradients, first, second, counts = (list(column) for column in zip(*some, strict=True))
        return lambda: step(weights, gradients, first, second, [], counts, grad_scale=None, found_inf=None, **more)

    return [job(pieces[begin : begin + _PIECES]) for begin in range(0, len(pieces), _PIECES)]


def _side_by_side(jobs: list[Callable[[], None]], device: torch.device) -> None:
    here = torch.cuda.current_stream(device)
    if device not in _streams:
        _streams[device] = [torch.cuda.Stream(device) for _ in range(_STREAMS - 1)]  # type: ignore[no-untyped-call]
    streams = [here, *_streams[device]][: len(jobs)]
    for stream in streams[1:]:
        stream.wait_stream(here)
    with torch.no_grad():
        for number, job in enumerate(jobs):
            with torch.cuda.stream(streams[number % len(streams)]):
                job()
    for stream in streams[1:]:
        here.wait_stream(stream)
