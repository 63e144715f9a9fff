"""The train and eval flags of modules, noted and brought back one by one: a frozen BatchNorm stays frozen."""

from __future__ import annotations

from typing import TypeAlias

from torch import nn

Flags: TypeAlias = list[tuple[nn.Module, bool]]
"""Each module and whether it is in train mode, the root first."""


def flags_of(root: nn.Module) -> Flags:
    return [(module, module.training) for module in root.modules()]


def set_flags(flags: Flags) -> None:
    """Puts each module into the mode it had, through the root's ``train`` in case that does more.

    >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    >>> flags = flags_of(model)
    >>> _ = model.eval()
    >>> set_flags(flags)
    >>> model.training, model[0].training, model[1].training
    (True, True, False)
    """
    if flags:
        root, training = flags[0]
        root.train(training)
    for module, training in flags:
        module.training = training
