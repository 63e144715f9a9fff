"""``torch_compile``: model and loss are compiled for the time of a training, and are themselves again afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from cadenza.dialects.supergradients.parameters import DEFAULT_TRAINING_PARAMS
from cadenza.dialects.table import nearest
from cadenza.foundation.suggest import suggestion
from cadenza.foundation.torch_private import compiled_call, set_compiled_call

DEFAULT_OPTIONS: dict[str, Any] = DEFAULT_TRAINING_PARAMS["torch_compile_options"]


def compile_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of ``torch.compile``: the original's, with ``given`` in place of some.

    >>> compile_options({"backend": "eager"})["backend"], compile_options(None)["mode"]
    ('eager', 'reduce-overhead')
    """
    for name in (given or {}).keys() - DEFAULT_OPTIONS.keys():
        hint = suggestion(nearest(name, DEFAULT_OPTIONS))
        raise ValueError(f"supergradients: torch_compile_options has no {name!r}{hint}")
    return {**DEFAULT_OPTIONS, **(given or {})}


def compiled_loss(criterion: Any, options: Mapping[str, Any]) -> Any:
    """A loss that is a plain function, compiled; one that is a module is compiled in place by ``compiled``."""
    return criterion if isinstance(criterion, nn.Module) else torch.compile(criterion, **options)


@contextmanager
def compiled(modules: Sequence[nn.Module], options: Mapping[str, Any]) -> Iterator[None]:
    """Calls of these modules are compiled inside the ``with``. Names of parameters stay as they are, so checkpoints
    of compiled and plain trainings are the same."""
    before = [compiled_call(module) for module in modules]
    for module in modules:
        module.compile(**options)
    try:
        yield
    finally:
        for module, impl in zip(modules, before, strict=True):
            set_compiled_call(module, impl)
