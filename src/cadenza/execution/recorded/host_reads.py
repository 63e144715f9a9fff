"""Values that a traced step reads on the host: those that torch itself would let pass are noticed here."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cadenza.execution.recorded.recording import first_line

_READS = {"tolist", "numpy", "__array__"}
_NOT_THE_USERS = tuple(str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))


class HostRead(RuntimeError):
    """The value of a tensor was asked for where steps are traced."""


class ReadingIsAnError(TorchFunctionMode):
    """Inside, a tensor does not become a list or an array: what is made of those would be the same in every step.

    >>> with ReadingIsAnError():
    ...     torch.ones(1).tolist()
    Traceback (most recent call last):
    cadenza.execution.recorded.host_reads.HostRead: tolist
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        by_values = name == "tensor_split" and any(
            isinstance(one, Tensor) for one in (*args[1:], *(kwargs or {}).values())
        )
        if name in _READS or by_values:
            raise HostRead(name)
        return func(*args, **(kwargs or {}))


def said_of(error: Exception) -> str:
    """Why a step cannot be traced; where a value is read on the host, the line that does it."""
    if not isinstance(error, HostRead) and "get value out of a tracing tensor" not in str(error):
        return first_line(error)
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS)
    ]
    where = f" at {places[-1]}" if places else ""
    return f"the step reads the value of a tensor on the host, as .item() and an if on a tensor do{where}"
