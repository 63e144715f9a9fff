"""The weights of a module as a whole: copied, averaged, put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from cadenza.distributed.strategies.dtensor import cut
from cadenza.foundation.torch_private import RunningNorm, foreach_copy_, foreach_lerp_


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters of ``module`` and the buffers that are saved with it, each once, under their names."""
    saved = module.state_dict().keys()
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in saved}
    return {**dict(module.named_parameters()), **buffers}


def averaged_names(module: nn.Module, *, statistics: bool) -> set[str]:
    """The tensors of which a mean makes sense: parameters, and if asked for the running statistics of norms."""
    names = {name for name, parameter in module.named_parameters() if parameter.is_floating_point()}
    if statistics:
        for prefix, part in module.named_modules():
            if isinstance(part, RunningNorm) and part.running_mean is not None:
                names |= {f"{prefix}.{name}" if prefix else name for name in ("running_mean", "running_var")}
    return names


def copied(weights: Mapping[str, Tensor], device: torch.device | None = None) -> dict[str, Tensor]:
    """Copies that do not change with the model, on ``device`` if it is given."""
    return {name: tensor.detach().to(device or tensor.device, copy=True) for name, tensor in weights.items()}


def start_average(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies to average in: what has half precision gets float32, in which small changes are not lost."""
    half = (torch.float16, torch.bfloat16)
    return {name: t.float() if t.dtype in half else t for name, t in copied(weights).items()}


@torch.no_grad()
def update_average(average: list[Tensor], current: list[Tensor], decay: float) -> None:
    """Moves each tensor of ``average`` in place to ``decay`` of itself and ``1 - decay`` of the one in ``current``.

    >>> average, weights = [torch.tensor([1.0])], [torch.tensor([5.0])]
    >>> update_average(average, weights, 0.75)
    >>> average
    [tensor([2.])]
    """
    if average and not _is_plain(average, current):
        current = [here(new).to(old.dtype) for old, new in zip(average, current, strict=True)]
        average = [here(tensor) for tensor in average]
    if average:
        foreach_lerp_(average, current, 1.0 - decay)


def _is_plain(average: list[Tensor], current: list[Tensor]) -> bool:
    """Whether all of both are whole tensors of the same types, as in every step of most trainings."""
    whole = {Tensor, nn.Parameter}.issuperset((*map(type, average), *map(type, current)))
    return whole and [tensor.dtype for tensor in average] == [tensor.dtype for tensor in current]


def fit_to(module: nn.Module, kept: dict[str, Tensor], owner: str) -> None:
    """Brings ``kept``, such as what was loaded, to the devices of ``module``; refuses what belongs to another model."""
    weights = weights_of(module)
    for name in sorted(kept.keys() ^ weights.keys()):
        where = "its state" if name in kept else "the model"
        raise ValueError(f"{owner} does not fit the model: only {where} has {name!r}")
    for name, tensor in weights.items():
        if kept[name].shape != tensor.shape:
            shapes = f"{list(kept[name].shape)}, in the model {list(tensor.shape)}"
            raise ValueError(f"{owner} does not fit the model: its {name!r} has the shape {shapes}")
        if kept[name].device != tensor.device:
            kept[name] = kept[name].to(tensor.device)
        kept[name] = cut(kept[name], like=tensor)


def put_weights(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copies ``values`` into the tensors of ``module``, which stay where they are in memory.

    Autograd does not see it: whoever puts the old values back leaves a waiting backward as it was.
    """
    weights = weights_of(module)
    copy_weights(list(weights.values()), [values[name] for name in weights])


def copy_weights(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copies ``values`` into the tensors ``into``, of a model that is spread over processes the parts that are here."""
    if into:
        foreach_copy_([here(tensor.data) for tensor in into], [here(value) for value in values])


def here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has; all of it, unless it is spread over processes."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
