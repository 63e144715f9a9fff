"""fastai's view of an optimizer: learning rate, momentum and weight decay as properties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


class OptimWrapper:
    """A torch optimizer with ``lr``, ``mom``, ``beta`` and ``wd``. Reading gives that of the last group; setting takes
    one value for all groups or a list of one for each. Everything else is the optimizer's own.

    >>> import torch
    >>> wrapped = OptimWrapper(torch.optim.Adam([torch.zeros(1)], lr=0.1))
    >>> wrapped.lr, wrapped.mom = 0.2, 0.8
    >>> wrapped.param_groups[0]["lr"], wrapped.param_groups[0]["betas"]
    (0.2, (0.8, 0.999))
    """

    def __init__(self, opt: Optimizer) -> None:
        self.__dict__["opt"] = opt

    @property
    def lr(self) -> float:
        return float(self.opt.param_groups[-1]["lr"])

    @lr.setter
    def lr(self, value: float | Sequence[float]) -> None:
        self._set("lr", value)

    @property
    def mom(self) -> float | None:
        group = self.opt.param_groups[-1]
        if "betas" in group:
            return float(group["betas"][0])
        return float(group["momentum"]) if "momentum" in group else None

    @mom.setter
    def mom(self, value: float | Sequence[float]) -> None:
        for group, one in zip(self.opt.param_groups, self._each(value), strict=True):
            if "betas" in group:
                group["betas"] = (one, group["betas"][1])
            elif "momentum" in group:
                group["momentum"] = one

    @property
    def beta(self) -> float | None:
        group = self.opt.param_groups[-1]
        return float(group["betas"][1]) if "betas" in group else group.get("alpha")

    @beta.setter
    def beta(self, value: float | Sequence[float]) -> None:
        for group, one in zip(self.opt.param_groups, self._each(value), strict=True):
            if "betas" in group:
                group["betas"] = (group["betas"][0], one)
            elif "alpha" in group:
                group["alpha"] = one

    @property
    def wd(self) -> float:
        return float(self.opt.param_groups[-1]["weight_decay"])

    @wd.setter
    def wd(self, value: float | Sequence[float]) -> None:
        self._set("weight_decay", value)

    def _each(self, value: float | Sequence[float]) -> list[float]:
        groups = self.opt.param_groups
        return list(value) if isinstance(value, Sequence) else [value] * len(groups)

    def _set(self, name: str, value: float | Sequence[float]) -> None:
        for group, one in zip(self.opt.param_groups, self._each(value), strict=True):
            group[name] = one

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["opt"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(getattr(type(self), name, None), property):
            raise AttributeError(f"fastai: an optimizer has lr, mom, beta and wd to set, not {name!r}")
        object.__setattr__(self, name, value)
