"""Which parameter groups a schedule sets, and how a group is set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from cadenza.foundation.suggest import did_you_mean


@dataclass(frozen=True)
class Target:
    """The groups that are meant: of one optimizer or of all (None), and of those the named or numbered ones or all."""

    optimizer: int | None = None
    groups: Sequence[int | str] | None = None

    def __post_init__(self) -> None:
        if self.optimizer is not None and (not _is_index(self.optimizer)):
            raise ValueError(f"optimizer is the number of one, from 0, or None for all of them, not {self.optimizer!r}")
        if self.groups is None:
            return
        if isinstance(self.groups, str) or not isinstance(self.groups, Sequence) or not self.groups:
            raise ValueError(f"groups is a list of names or numbers of parameter groups, not {self.groups!r}")
        for group in self.groups:
            if not isinstance(group, str) and not _is_index(group):
                raise ValueError(
                    f"groups is a list of names or numbers from 0 of parameter groups, not {self.groups!r}"
                )
        object.__setattr__(self, "groups", tuple(self.groups))
        if self.optimizer is None:
            object.__setattr__(self, "optimizer", 0)

    def owned(self, what: str) -> frozenset[str]:
        """The names under which a callback declares that it sets ``what``."""
        return frozenset(f"{what}{suffix}" for suffix in self._suffixes())

    def suffix(self) -> str:
        """What tells the callback from one of the same class for other groups."""
        groups = "" if self.groups is None else f"[{', '.join(map(str, self.groups))}]"
        return "" if self.optimizer is None else f"[{self.optimizer}]{groups}"

    def _suffixes(self) -> list[str]:
        if self.optimizer is None:
            return [""]
        whole = f"[{self.optimizer}]"
        return [whole] if self.groups is None else [f"{whole}[{group}]" for group in self.groups]

    def chosen(self, optimizers: Sequence[Optimizer]) -> list[tuple[Optimizer, list[int]]]:
        """The optimizers that are meant, each with the numbers of its groups."""
        if self.optimizer is None:
            return [(optimizer, list(range(len(optimizer.param_groups)))) for optimizer in optimizers]
        if self.optimizer >= len(optimizers):
            raise ValueError(f"there is no optimizer {self.optimizer}: the trainer has {len(optimizers)}, from 0")
        one = optimizers[self.optimizer]
        if self.groups is None:
            return [(one, list(range(len(one.param_groups))))]
        return [(one, [_find(one, group) for group in self.groups])]


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _find(optimizer: Optimizer, wanted: int | str) -> int:
    groups = optimizer.param_groups
    if isinstance(wanted, int):
        if wanted < len(groups):
            return wanted
        raise ValueError(f"there is no parameter group {wanted}: the optimizer has {len(groups)}, from 0")
    names = [group.get("name") for group in groups]
    if wanted in names:
        return names.index(wanted)
    known = [name for name in names if isinstance(name, str)]
    hint = did_you_mean(wanted, known, ".", cutoff=0.4)
    listed = ", ".join(known) if known else 'none; name them with {"params": ..., "name": "head"}'
    raise ValueError(f"there is no parameter group named {wanted!r}{hint} Known: {listed}")


def initial_lr(group: dict[str, Any]) -> float:
    """The learning rate that the group began with. It is kept in the group, where torch's schedulers keep it too."""
    value = group.setdefault("initial_lr", group["lr"])
    if not isinstance(value, float):
        value = group["initial_lr"] = float(value)  # waits for the device if it is a tensor: once for each group
    return value


def set_lr(group: dict[str, Any], value: float) -> None:
    """A learning rate that is a tensor stays that tensor, since a captured step reads it from there."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(value)
    else:
        group["lr"] = value


def set_momentum(group: dict[str, Any], value: float) -> None:
    """Sets the momentum, or for optimizers of the Adam kind the first beta."""
    if "betas" in group:
        first, *others = group["betas"]
        if isinstance(first, Tensor):
            first.fill_(value)
        else:
            group["betas"] = (value, *others)
    elif "momentum" in group:
        group["momentum"] = value
    else:
        raise ValueError("this optimizer has no momentum and no betas to cycle: give the schedule momentum=None")
