"""A model as ONNX, and whether it computes the same there."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.foundation.kept_state import buffers_kept
from cadenza.foundation.module_modes import flags_of, set_flags
from cadenza.foundation.rng import rng_kept
from cadenza.foundation.torch_private import tree_leaves, tree_map

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_NOISY = "torch.onnx._internal.exporter._registration"
"""It says of each optional package that it is not there."""


class ExportError(RuntimeError):
    """The model cannot be exported, or computes something else after it."""


@dataclass(frozen=True)
class ExportResult:
    """The largest differences between the model and its export, and the batch sizes that were tried."""

    max_abs: float
    max_rel: float
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """What a model is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    @property
    def both(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.args, dict(self.kwargs or {})

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(self.both) if isinstance(leaf, Tensor)]

    def samples(self) -> int:
        """The length of the first tensor that has one."""
        return next((tensor.size(0) for tensor in self.tensors() if tensor.dim()), 0)

    def map(self, change: Any) -> Call:
        """The same call with every tensor that counts samples changed."""
        samples = self.samples()

        def apply(leaf: Any) -> Any:
            counts = isinstance(leaf, Tensor) and leaf.dim() and leaf.size(0) == samples
            return change(leaf) if counts else leaf

        args, kwargs = tree_map(apply, self.both)
        return Call(args, kwargs)


def call_of(module: nn.Module, inputs: Any) -> Call:
    """How the default behaviour calls a model with ``inputs``: one thing, several in a tuple, or named ones in a dict
    if the model takes those names."""
    if isinstance(inputs, Mapping):
        try:
            inspect.signature(module.forward).bind(**inputs)
        except TypeError:
            return Call((dict(inputs),))
        return Call(kwargs=dict(inputs))
    return Call(tuple(inputs)) if isinstance(inputs, tuple) else Call((inputs,))


def missing_packages() -> list[str]:
    return [package for package in PACKAGES if find_spec(package) is None]


# Exporting ----------------------------------------------------------------------------------------------------------


def export_model(module: nn.Module, call: Call, path: str | os.PathLike[str], *, dynamic_batch: bool = True) -> None:
    """Writes ``module``, in the mode that it is in, as ONNX; with ``dynamic_batch`` for any number of samples."""
    args, kwargs = call.both
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    if dynamic_batch:
        batch = torch.export.Dim("batch")
        for tensor in call.tensors():
            if tensor.dim() and tensor.size(0) == call.samples():
                shapes[tensor] = {0: batch}
    with _quiet(), torch.no_grad():
        dynamic = shapes.dynamic_shapes(module, args, kwargs) if dynamic_batch else None
        program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=False)
        size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
        torch.onnx.export(program, f=path, dynamo=True, verbose=False, external_data=size > 1_500_000_000)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of the exporter about itself."""
    noisy = logging.getLogger(_NOISY)
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        noisy.setLevel(level)


@contextlib.contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """The model in eval mode; flags, buffers and random numbers are as before afterwards."""
    flags = flags_of(module)
    device = next((parameter.device for parameter in module.parameters()), None)
    with rng_kept(device), buffers_kept(module, torch.device("cpu")):
        try:
            module.eval()
            yield
        finally:
            set_flags(flags)


# Comparing ----------------------------------------------------------------------------------------------------------


def check_export(
    module: nn.Module,
    call: Call,
    path: str | os.PathLike[str] | None = None,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    dynamic_batch: bool = True,
) -> ExportResult:
    """Exports ``module``, runs it in onnxruntime, and compares its outputs for ``call``; with ``dynamic_batch`` also
    those for half of its samples. Raises an ``ExportError`` where they differ by more than ``atol + rtol * |output|``.
    The file is left at ``path``, if there is one. The model is as before.
    """
    if dynamic_batch and call.samples() == 1:
        call = call.map(lambda tensor: torch.cat([tensor, tensor]))  # a batch of one would stay one
    calls = [call]
    if dynamic_batch and call.samples() > 1:
        half = call.samples() // 2
        calls.append(call.map(lambda tensor: tensor[:half]))
    with in_eval_mode(module), tempfile.TemporaryDirectory(dir=_beside(path)) as folder:
        file = Path(folder) / (Path(path).name if path is not None else "model.onnx")
        try:
            export_model(module, call, file, dynamic_batch=dynamic_batch)
        except Exception as error:
            raise ExportError(f"the model cannot be exported: {_first_lines(error)}") from error
        differences = [_compare(module, one, file, rtol, atol) for one in calls]
        if path is not None:
            for written in sorted(Path(folder).iterdir(), key=lambda one: one.name == file.name):
                os.replace(written, Path(path).with_name(written.name))  # the model itself at last
    largest = [max(column) for column in zip(*differences, strict=True)]
    return ExportResult(largest[0], largest[1], tuple(one.samples() for one in calls))


def _beside(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path).parent


def _first_lines(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"


def _compare(module: nn.Module, call: Call, file: Path, rtol: float, atol: float) -> tuple[float, float]:
    args, kwargs = call.both
    with torch.no_grad():
        wanted = [leaf for leaf in tree_leaves(module(*args, **kwargs)) if isinstance(leaf, Tensor)]
    if not wanted:
        raise ExportError("the model returned no tensor that could be compared")
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(os.fspath(file), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    tensors = call.tensors()
    if len(names) != len(tensors):
        raise ExportError(f"the model was called with {len(tensors)} tensors, but its export takes {len(names)}")
    given = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors, strict=True)}
    try:
        found = session.run(None, given)
    except Exception as error:
        raise ExportError(f"onnxruntime fails for {call.samples()} samples: {_first_lines(error)}") from error
    if len(found) != len(wanted):
        raise ExportError(f"the model returns {len(wanted)} tensors, but its export {len(found)}")
    pairs = zip(session.get_outputs(), wanted, found, strict=True)
    return _largest([_difference(f"output {one.name!r}", w, f, rtol, atol) for one, w, f in pairs])


def _largest(differences: list[tuple[float, float]]) -> tuple[float, float]:
    return max(one[0] for one in differences), max(one[1] for one in differences)


def _difference(what: str, wanted: Tensor, found: Any, rtol: float, atol: float) -> tuple[float, float]:
    """The largest absolute and relative difference; raises if it is too large."""
    expected, got = wanted.detach().cpu(), torch.as_tensor(found)
    if expected.shape != got.shape or expected.dtype != got.dtype:
        kinds = f"{tuple(expected.shape)} {expected.dtype} and {tuple(got.shape)} {got.dtype}"
        raise ExportError(f"{what} differs between model and export: {kinds}")
    one, other = expected.double(), got.double()
    distance = torch.where(one == other, 0.0, (one - other).abs())  # so that two infinities are the same
    distance = torch.where(one.isnan() & other.isnan(), 0.0, distance).nan_to_num(math.inf)
    if bool((distance > atol + rtol * one.abs().nan_to_num(0.0)).any()):
        worst = int(distance.argmax())
        raise ExportError(
            f"{what} differs between model and export: {float(one.flatten()[worst]):g} and "
            f"{float(other.flatten()[worst]):g} at element {worst}, more than rtol={rtol:g}, atol={atol:g} allow"
        )
    relative = distance / one.abs().clamp(min=1e-12)
    return float(distance.max()) if distance.numel() else 0.0, float(relative.max()) if distance.numel() else 0.0
