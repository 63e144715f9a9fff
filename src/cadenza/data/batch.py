"""Splits batches into the part for the model and the part for the loss, moves them to a device, joins outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from cadenza.foundation.tree import entries, fold, rebuilt, tensors_of, with_dicts

TARGET_KEYS = ("label", "labels", "target", "targets", "y")
_KEEP: Any = object()


def split(batch: Any) -> tuple[Any, Any]:
    """The inputs and the targets in ``batch``; targets are None if there are none.

    >>> split((1, 2, 3)), split({"x": 1, "label": 2}), split([5, 6])
    (((1, 2), 3), ({'x': 1}, 2), (5, 6))
    """
    if type(batch) in (list, tuple) and len(batch) == 2:  # by far the most common, so it is asked first
        return batch[0], batch[1]
    if isinstance(batch, Tensor):
        return batch, None
    named = as_mapping(batch)
    if named is not None:
        targets = {key: value for key, value in named.items() if key in TARGET_KEYS}
        inputs = {key: value for key, value in named.items() if key not in TARGET_KEYS}
        return inputs, (next(iter(targets.values())) if len(targets) == 1 else targets or None)
    if isinstance(batch, list | tuple) and batch:
        if len(batch) == 1:
            return batch[0], None
        return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
    raise TypeError(not_understood(batch))


def join(batch: Any, inputs: Any = _KEEP, targets: Any = _KEEP) -> Any:
    """A batch of the same form as ``batch`` with other inputs or targets.

    >>> join([1, 2], inputs=7), join({"x": 1, "y": 2}, targets=8)
    ([7, 2], {'x': 1, 'y': 8})
    """
    old_inputs, old_targets = split(batch)
    if targets is not _KEEP and old_targets is None:
        raise ValueError(f"this batch has no targets to replace: {describe(batch)}")
    inputs = old_inputs if inputs is _KEEP else inputs
    targets = old_targets if targets is _KEEP else targets
    if isinstance(batch, Tensor):
        return inputs
    named = as_mapping(batch)
    if named is not None:
        return _join_named(batch, named, inputs, targets)
    if len(batch) == 1:
        parts = [inputs]
    else:
        parts = [*([inputs] if len(batch) == 2 else inputs), targets]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _join_named(batch: Any, named: Mapping[str, Any], inputs: Any, targets: Any) -> Any:
    keys = [key for key in named if key in TARGET_KEYS]
    answers = targets if len(keys) > 1 else dict.fromkeys(keys, targets)
    values = {key: {**answers, **inputs}[key] for key in named if key in answers or key in inputs} | inputs
    if hasattr(batch, "_fields"):
        return type(batch)(**values)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(batch, **values)
    joined = batch.copy()
    joined.clear()
    joined.update(values)
    return joined


def has_targets(batch: Any) -> bool:
    """Whether ``batch`` has a place for targets, even if None stands there."""
    named = as_mapping(batch)
    if named is not None:
        return any(key in TARGET_KEYS for key in named)
    return isinstance(batch, list | tuple) and len(batch) > 1


def without_targets(batch: Any) -> Any:
    """A mapping, dataclass or named tuple without its targets; where they cannot be left out, None stands there."""
    named = as_mapping(batch)
    if named is None:
        return batch
    if isinstance(batch, Mapping):
        return {key: value for key, value in named.items() if key not in TARGET_KEYS}
    nothing = {key: None for key in named if key in TARGET_KEYS}
    return batch._replace(**nothing) if hasattr(batch, "_replace") else dataclasses.replace(batch, **nothing)


def as_mapping(batch: Any) -> Mapping[str, Any] | None:
    """The named parts of a dict, a dataclass, or a named tuple that names its target; None for anything else."""
    if isinstance(batch, Mapping):
        return batch
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    if hasattr(batch, "_fields") and set(batch._fields) & set(TARGET_KEYS):
        return dict(zip(batch._fields, batch, strict=True))
    return None


def to_device(batch: Any, device: torch.device) -> Any:
    """``batch`` with every tensor in it on ``device``; copies from pinned memory do not wait.

    Mappings, lists, tuples, named tuples and dataclasses keep their type; an object with a ``to`` method is asked to
    move itself; anything else is left as it is.

    >>> to_device({"x": [torch.ones(2)], "id": "a"}, torch.device("cpu"))
    {'x': [tensor([1., 1.])], 'id': 'a'}
    """
    if isinstance(batch, Tensor):
        here = batch.device
        return batch if here == device else batch.to(device, non_blocking=here.type == "cpu" and batch.is_pinned())
    if type(batch) in (tuple, list):  # nearly always, and they need not be asked for more
        return type(batch)([to_device(value, device) for value in batch])
    if type(batch) is dict:
        return {key: to_device(value, device) for key, value in batch.items()}
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, list):
        return [to_device(value, device) for value in batch]
    if (pairs := entries(batch)) is not None:
        return rebuilt(batch, ((key, to_device(value, device)) for key, value in pairs))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _with_fields_on(batch, device)
    return batch


def _with_fields_on(batch: Any, device: torch.device) -> Any:
    names = [field.name for field in dataclasses.fields(batch) if field.init]
    return dataclasses.replace(batch, **{name: to_device(getattr(batch, name), device) for name in names})


def count_samples(batch: Any) -> tuple[int, int]:
    """Samples and tokens in ``batch``: the length of its first tensor, and for whole numbers of two dimensions
    (token ids) the number of them; no tokens otherwise."""
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if not isinstance(first, Tensor):
        first = first_tensor(batch)
        if first is None:
            return 1, 0
    shape = first.shape  # read once: each question to a tensor costs more than all the rest here
    if not shape:
        return 1, 0
    if len(shape) == 2 and not first.is_floating_point():
        return shape[0], shape[0] * shape[1]
    return shape[0], 0


def first_tensor(batch: Any) -> Tensor | None:
    """The first tensor anywhere in ``batch``, if possible one with dimensions."""
    found = list(tensors_of(batch))
    return next((tensor for tensor in found if tensor.dim()), found[0] if found else None)


def describe(batch: Any, *, types: bool = False) -> str:
    """The form of a batch in a few words, for messages; with ``types`` those of its numbers, too.

    >>> describe([torch.zeros(8, 4), {"mask": torch.ones(8).bool()}], types=True)
    "list(float32[8, 4], {'mask': bool[8]})"
    """

    def leaf(value: Any) -> str:
        if not isinstance(value, Tensor):
            return type(value).__name__
        return f"{str(value.dtype).removeprefix('torch.') if types else 'tensor'}{list(value.shape)}"

    return str(fold(batch, leaf, _described))


def _described(container: Any, parts: Iterable[tuple[Any, str]]) -> str:
    first = islice(parts, 8)
    if isinstance(container, Mapping):
        kind = "" if type(container) is dict else type(container).__name__
        return f"{kind}{{{', '.join(f'{key!r}: {part}' for key, part in first)}}}"
    return f"{type(container).__name__}({', '.join(part for _, part in first)})"


def not_understood(batch: Any) -> str:
    return (
        f"the default behaviour does not understand a batch of the form {describe(batch)}. It takes (inputs, targets), "
        f"(a, b, ..., target), one tensor, or a dict or dataclass whose target is called {', '.join(TARGET_KEYS)}. "
        "For another form write a MainCallback with on_iter_forward and on_iter_loss."
    )


def gather(outputs: list[Any], counts: list[int] | None = None) -> Any:
    """One output for all batches: tensors are joined along their first dimension, inside lists, tuples and dicts too.

    ``counts`` is the number of samples in each batch: a list with one entry a sample is joined as a list. What cannot
    be joined (scalars, other objects, tensors that differ in shape) comes back as the list of what each batch gave.

    >>> gather([{"a": torch.ones(2)}, {"a": torch.zeros(1)}])
    {'a': tensor([1., 1., 0.])}
    """
    if len(set(map(type, outputs))) != 1:
        return outputs
    first = outputs[0]
    if isinstance(first, Tensor):
        alike = first.dim() > 0 and len({(output.dim(), output.shape[1:]) for output in outputs}) == 1
        return torch.cat(outputs) if alike else outputs
    if isinstance(first, list) and list(map(len, outputs)) == counts:
        return [one for output in outputs for one in output]
    if isinstance(first, dict | list | tuple) and all(_keys(output) == _keys(first) for output in outputs):
        parts = ((key, gather([output[key] for output in outputs])) for key in _keys(first))
        return with_dicts(first, parts)
    return outputs


def _keys(container: Any) -> Any:
    return container.keys() if isinstance(container, dict) else range(len(container))
