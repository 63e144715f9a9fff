"""What a model consists of, and what one batch costs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from cadenza.callback import Callback, Order
from cadenza.callbacks.faults import Faults, tolerant
from cadenza.data import to_device
from cadenza.foundation.arguments import stream as stream_or_none
from cadenza.foundation.kept_state import buffers_kept
from cadenza.foundation.module_modes import flags_of, set_flags
from cadenza.foundation.rng import rng_kept
from cadenza.foundation.text_table import tell, text_table
from cadenza.foundation.torch_private import cpu_attention
from cadenza.foundation.tree import entries, tensors_of
from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.run import Run


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """The FLOPs of an attention, by the shapes of its inputs."""
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


_UNKNOWN_TO_TORCH = {cpu_attention(): _attention}
"""The attention that is chosen on a CPU; torch's counter knows only those of GPUs."""


@dataclass
class Layer:
    """One row: what a module holds and does by itself, without the modules inside it that have a row of their own."""

    name: str
    kind: str
    output: str = ""
    parameters: int = 0
    flops: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Summary:
    """The layers of a model with their shapes for one batch. Prints as a table; the columns add up to the totals."""

    layers: list[Layer]
    parameters: int
    trained: int
    bytes: int
    flops: int

    def __str__(self) -> str:
        rows = [
            [layer.name, layer.kind, layer.output, f"{layer.parameters:,}", f"{layer.flops:,}"] for layer in self.layers
        ]
        frozen = f", {self.parameters - self.trained:,} of them frozen" if self.trained < self.parameters else ""
        return "\n".join(
            [
                text_table(["layer", "type", "output", "parameters", "FLOPs"], rows, left=3),
                f"{self.parameters:,} parameters{frozen}, {_in_units(self.bytes, 1024, 'B')}",
                f"{_in_units(self.flops, 1000, 'FLOP')} in the forward of this batch",
            ]
        )


class ModelSummary(Faults, Callback):
    """Prints the layers of the model with output shapes, parameters and FLOPs, at the first batch.

    The batch is put through the model once more for it, as in ``run.predict``: in eval mode and without gradients;
    modes, buffers and random numbers are as before afterwards, so the training is the same to the last bit. FLOPs are
    counted by torch (``torch.utils.flop_counter``: matrix products, convolutions and attention, a multiplication and an
    addition as two; an operation that it does not know counts nothing) for the forward of that batch; a training step
    costs about three times as much. Each row is what a module does by itself, so that the columns add up. The result
    is in ``run.store["model_summary"]`` and in ``summary`` of the callback too. ``summarize(model, batch)`` does the
    same without a trainer.

    ``stream`` is where it is printed (standard output). With ``on_error="warn"`` a model that cannot be put through
    this is no reason to end the run.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[ModelSummary()], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=1)
    layer  type    output  parameters  FLOPs
    ----------------------------------------
    0      Linear  8 x 8           40    512
    1      ReLU    8 x 8            0      0
    2      Linear  8 x 3           27    384
    67 parameters, 268 B
    896 FLOP in the forward of this batch
    """

    order = Order.REPORT
    ranks = "all"  # a model that is spread over processes needs all of them for a forward; the main one prints

    def __init__(self, *, stream: TextIO | None = None, on_error: str = "raise") -> None:
        self._check_on_error(on_error)
        stream_or_none("stream", stream)
        self.stream = stream
        self.summary: Summary | None = None

    @tolerant
    def before_iter(self, run: Run) -> None:
        if self.summary is not None:
            return
        model, run.model = run.model, run.module  # without what a strategy or a compiler wraps around it
        try:
            self.summary = summarize(run.module, run.batch, forward=lambda batch: run.predict([batch]))
        finally:
            run.model = model
        run.store["model_summary"] = self.summary
        if run.is_main:
            tell(self.name, str(self.summary), self.stream)


def summarize(model: nn.Module, batch: Any, *, forward: Callable[[Any], object] | None = None) -> Summary:
    """The layers of ``model`` for ``batch``, which has the form that a trainer takes: ``(inputs, targets)``, a dict, or
    one tensor. ``forward`` puts the batch through the model; without it the inputs are moved to the model's device, and
    it is called as a trainer calls it, in eval mode. Modes, buffers and random numbers are as before afterwards.

    >>> summarize(nn.Linear(4, 2), torch.ones(3, 4)).flops
    48
    """
    found: dict[nn.Module, Layer] = {}
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    counter = FlopCounterMode(display=False, custom_mapping=_UNKNOWN_TO_TORCH)
    with _untouched(model, device), counter, _hooks(model, found, counter):
        if forward is not None:
            forward(batch)
        else:
            asked: Any = SimpleNamespace(batch=to_device(batch, device), model=model, module=model, stage="pred")
            MainCallback().on_pred_forward(asked)
    parameters = list(model.parameters())
    return Summary(
        layers=[layer for module, layer in found.items() if _has_a_row(module, layer)],
        parameters=sum(parameter.numel() for parameter in parameters),
        trained=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        flops=counter.get_total_flops(),
    )


@contextlib.contextmanager
def _hooks(model: nn.Module, found: dict[nn.Module, Layer], counter: FlopCounterMode) -> Iterator[None]:
    """Fills in ``found`` while the model is called; the FLOPs of a module are those that no module inside it made."""
    seen: set[nn.Parameter] = set()
    for name, module in model.named_modules():
        own = set(module.parameters(recurse=False)) - seen
        seen |= own
        found[module] = Layer(name or "model", type(module).__name__, parameters=sum(p.numel() for p in own))
    begun: list[int] = []
    inside: list[int] = [0]

    def enter(module: nn.Module, inputs: Any) -> None:
        begun.append(counter.get_total_flops())
        inside.append(0)

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        whole = counter.get_total_flops() - begun.pop()
        layer = found[module]
        layer.flops += whole - inside.pop()
        layer.calls += 1
        layer.output = shape_of(output)
        inside[-1] += whole

    with contextlib.ExitStack() as hooks:
        for module in found:
            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        yield


@contextlib.contextmanager
def _untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """In eval mode and without gradients; everything is as before when it ends."""
    flags = flags_of(model)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its one operation has no FLOPs
    model.eval()
    try:
        with rng_kept(device), torch.no_grad(), buffers_kept(model):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        set_flags(flags)


def _has_a_row(module: nn.Module, layer: Layer) -> bool:
    is_leaf = next(module.children(), None) is None
    return bool(layer.flops or layer.parameters or (is_leaf and layer.calls))


def shape_of(output: Any) -> str:
    """The shape of an output in a few words.

    >>> shape_of(torch.ones(2, 3)), shape_of((torch.ones(4), {"h": torch.ones(1, 2)})), shape_of(None)
    ('2 x 3', '4, 1 x 2', '')
    """
    return ", ".join(" x ".join(map(str, one.shape)) or "1" for one in tensors_of(output, entries))


def _in_units(amount: float, step: int, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if amount < step or prefix == "T":
            return f"{amount:,.0f} {unit}" if not prefix else f"{amount:.1f} {prefix}{unit}"
        amount /= step
    return ""  # pragma: no cover
