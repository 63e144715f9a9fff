"""fastai's view of an optimizer: learning rate, momentum and weight decay as properties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza.dialects.fastai.torch_core import split_no_wd_params


def _beta(place: int, plain: str) -> Any:
    """One of Adam's betas, or what other optimizers have in its place."""

    def read(self: OptimWrapper) -> float | None:
        group = self.opt.param_groups[-1]
        value = group["betas"][place] if "betas" in group else group.get(plain)
        return None if value is None else float(value)

    def write(self: OptimWrapper, value: float | Sequence[float]) -> None:
        for group, one in self._each(value):
            if "betas" in group:
                group["betas"] = (*group["betas"][:place], one, *group["betas"][place + 1 :])
            elif plain in group:
                group[plain] = one

    return property(read, write)


class OptimWrapper:
    """A torch optimizer with ``lr``, ``mom``, ``beta`` and ``wd``. Reading gives that of the last layer group; setting
    takes one value for all groups or a list of one for each. Everything else is the optimizer's own.

    >>> wrapped = OptimWrapper(torch.optim.Adam([torch.zeros(1)], lr=0.1))
    >>> wrapped.lr, wrapped.mom = 0.2, 0.8
    >>> wrapped.param_groups[0]["lr"], wrapped.param_groups[0]["betas"]
    (0.2, (0.8, 0.999))
    """

    def __init__(self, opt: Optimizer, true_wd: bool = False, bn_wd: bool = True, parts: int = 1) -> None:
        """``parts`` is how many parameter groups of torch make one layer group."""
        vars(self).update(opt=opt, true_wd=true_wd, bn_wd=bn_wd, _parts=parts)

    @classmethod
    def create(
        cls, opt_func: Callable[..., Optimizer], lr: Any, layer_groups: Iterable[Any], wd: Any = 0.0,
        true_wd: bool = False, bn_wd: bool = True,
    ) -> OptimWrapper:  # fmt: skip
        """An optimizer with two parameter groups for each layer group: the second has norms and biases, which without
        ``bn_wd`` are not decayed. ``true_wd`` takes the decay off the weights; otherwise it is part of gradients."""
        groups: list[dict[str, Any]] = [{"params": params} for params in split_no_wd_params(layer_groups)]
        made = (_decoupled(opt_func) if true_wd else opt_func)(groups, lr=3e-3)
        if true_wd and not isinstance(made, torch.optim.AdamW):
            made.register_step_pre_hook(_decay)
        wrapper = cls(made, true_wd, bn_wd, parts=2)
        wrapper.lr, wrapper.wd = lr, wd
        return wrapper

    @property
    def lr(self) -> float:
        return float(self.read_val("lr")[-1])

    @lr.setter
    def lr(self, value: float | Sequence[float]) -> None:
        self._set("lr", value)

    mom, beta = _beta(0, "momentum"), _beta(1, "alpha")

    @property
    def wd(self) -> float:
        return float(self.read_val(self._decay_key)[-1])

    @wd.setter
    def wd(self, value: float | Sequence[float]) -> None:
        self._set(self._decay_key, value)
        if not self.bn_wd:
            for group in self.opt.param_groups[1::2]:
                group[self._decay_key] = 0.0

    @property
    def _decay_key(self) -> str:
        hooked = self.true_wd and not isinstance(self.opt, torch.optim.AdamW)
        return "decoupled_decay" if hooked else "weight_decay"

    def read_val(self, key: str) -> list[Any]:
        """The value under ``key`` for each layer group."""
        return [group[key] for group in self.opt.param_groups[:: self._parts]]

    def _each(self, value: float | Sequence[float]) -> list[tuple[dict[str, Any], float]]:
        groups, parts = self.opt.param_groups, self._parts
        layers = len(groups) // parts
        values: list[float] = [value] * layers if isinstance(value, int | float) else list(map(float, value))
        if len(values) != layers:
            raise ValueError(f"fastai: {len(values)} values for {layers} layer groups")
        return [(group, values[number // parts]) for number, group in enumerate(groups)]

    def _set(self, name: str, value: float | Sequence[float]) -> None:
        for group, one in self._each(value):
            group[name] = one

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["opt"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(getattr(type(self), name, None), property):
            raise AttributeError(f"fastai: an optimizer has lr, mom, beta and wd to set, not {name!r}")
        object.__setattr__(self, name, value)


def _decoupled(opt_func: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """torch has Adam with decoupled decay, which runs fused and captured; other kinds get a hook."""
    if opt_func is torch.optim.Adam:
        return partial(torch.optim.AdamW, weight_decay=0.0)
    if isinstance(opt_func, partial) and opt_func.func is torch.optim.Adam and not opt_func.args:
        return partial(torch.optim.AdamW, **{**opt_func.keywords, "weight_decay": 0.0})
    return opt_func


def _decay(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            if group["decoupled_decay"]:
                for parameter in group["params"]:
                    if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                        parameter.mul_(1 - group["lr"] * group["decoupled_decay"])
