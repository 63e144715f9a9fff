"""The functions of ``fastai.torch_core`` over tensors and models that callbacks use, and ``defaults``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from cadenza import data
from cadenza.dialects.fastai.core import is_listy, listify, recurse
from cadenza.dialects.numeric import numpy as np
from cadenza.foundation.torch_private import parameters_in

bn_types = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
bias_types = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
no_wd_types = (*bn_types, nn.LayerNorm)
defaults = SimpleNamespace(
    device=torch.device("cuda:0" if torch.cuda.is_available() else "cpu"), cpus=min(16, os.cpu_count() or 1),
    lr=slice(3e-3), wd=1e-2, extra_callbacks=None, extra_callback_fns=None, cmap="viridis", return_fig=False,
    silent=False,
)  # fmt: skip
Module = nn.Module


class ParameterModule(nn.Module):
    """A parameter that belongs to a module with children, as a module of its own."""

    def __init__(self, p: nn.Parameter) -> None:
        super().__init__()
        self.val = p


def tensor(x: Any, *rest: Any) -> Tensor:
    """``x``, or all arguments, as a tensor; numbers are float32 or int64."""
    return torch.as_tensor([x, *rest] if rest else x)


def to_detach(b: Any, cpu: bool = True) -> Any:
    def one(value: Any) -> Any:
        found = value.detach() if isinstance(value, Tensor) else value
        return found.cpu() if cpu and isinstance(found, Tensor) else found

    return recurse(one, b)


def to_cpu(b: Any) -> Any:
    return recurse(lambda value: value.cpu() if isinstance(value, Tensor) else value, b)


def to_device(b: Any, device: Any = None) -> Any:
    return data.to_device(b, torch.device(device or defaults.device))


def to_half(b: Any) -> Any:
    return recurse(lambda value: value.half() if value.is_floating_point() else value, b)


def to_float(b: Any) -> Any:
    return recurse(lambda value: value.float() if value.is_floating_point() else value, b)


def to_np(x: Any) -> Any:
    return np.array(x.detach().cpu())


def to_data(b: Any) -> Any:
    return recurse(lambda value: getattr(value, "data", value), b)


def children(m: nn.Module) -> list[nn.Module]:
    return list(m.children())


def num_children(m: nn.Module) -> int:
    return len(children(m))


def flatten_model(m: nn.Module) -> list[nn.Module]:
    """The modules without children, in order; parameters beside children are modules of their own."""
    if not children(m):
        return [m]
    own = [ParameterModule(one) for one in parameters_in(m).values() if one is not None]
    return [leaf for child in m.children() for leaf in flatten_model(child)] + own


def first_layer(m: nn.Module) -> nn.Module:
    return flatten_model(m)[0]


def in_channels(m: nn.Module) -> int:
    """How many channels the first layer with weights takes."""
    found: Tensor = next(one.weight for one in flatten_model(m) if hasattr(one, "weight"))  # type: ignore[assignment]
    return int(found.shape[1])


def one_param(m: nn.Module) -> nn.Parameter:
    return next(m.parameters())


def trainable_params(m: nn.Module) -> list[nn.Parameter]:
    return [one for one in m.parameters() if one.requires_grad]


def requires_grad(m: nn.Module, b: bool | None = None) -> bool | None:
    """Sets it for all parameters, or without ``b`` tells it of the first."""
    parameters = list(m.parameters())
    if b is None:
        return parameters[0].requires_grad if parameters else None
    for one in parameters:
        one.requires_grad = b
    return None


def apply_leaf(m: nn.Module, f: Callable[[nn.Module], Any]) -> None:
    if isinstance(m, nn.Module):
        f(m)
    for child in m.children():
        apply_leaf(child, f)


def set_bn_eval(m: nn.Module) -> None:
    """Norms whose weights are not trained keep their statistics."""
    for one in m.modules():
        if isinstance(one, bn_types) and not next(one.parameters()).requires_grad:
            one.eval()


def split_model_idx(model: nn.Module, idxs: Sequence[int]) -> list[nn.Module]:
    layers = flatten_model(model)
    ends = [0, *(one for one in idxs if one), len(layers)]
    return [nn.Sequential(*layers[a:b]) for a, b in pairwise(ends)]


def split_model(model: nn.Module, splits: Any) -> list[nn.Module]:
    """Layer groups: each begins with the layer that ``splits`` names."""
    layers = flatten_model(model)
    firsts = [flatten_model(one)[0] for one in listify(splits)]
    places = [next(number for number, layer in enumerate(layers) if layer is one) for one in firsts]
    return split_model_idx(model, places)


def split_no_wd_params(layer_groups: Iterable[Any]) -> list[list[nn.Parameter]]:
    """Two lists of trainable parameters for each group: norms and biases are in the second."""
    found: list[list[nn.Parameter]] = []
    for group in layer_groups:
        plain: list[nn.Parameter] = []
        apart: list[nn.Parameter] = []
        for layer in group if isinstance(group, list | tuple) else flatten_model(group):
            for name, one in layer.named_parameters():
                if one.requires_grad and not any(one is known for known in (*plain, *apart)):
                    biased = isinstance(layer, bias_types) and name == "bias"
                    (apart if biased or isinstance(layer, no_wd_types) else plain).append(one)
        found += [plain, apart]
    return found


def add_metrics(last_metrics: Sequence[Any], mets: Any) -> dict[str, Any]:
    """What a metric returns from ``on_epoch_end``: the metrics so far, and its own."""
    return {"last_metrics": [*last_metrics, *(mets if is_listy(mets) else [mets])]}


def get_model(model: nn.Module) -> Any:
    """What DataParallel or DistributedDataParallel wraps."""
    return model.module if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) else model


def rank_distrib() -> int:
    return int(os.environ.get("RANK", 0))


def num_distrib() -> int:
    return int(os.environ.get("WORLD_SIZE", 0))
