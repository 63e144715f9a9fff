"""Finding out what in a step first produced a value that is not finite. It looks at everything, so it is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from cadenza.foundation.tree import entries, tensors_of


class Finding(NamedTuple):
    """A value that is not finite: what it is, whose it is, and how much of it."""

    kind: str
    module: str
    detail: str


def not_finite(value: Any) -> str:
    """How many values in all tensors of ``value`` are NaN or infinite, in words; nothing if none is.

    >>> import torch
    >>> not_finite([torch.tensor([1.0, float("nan")])]), not_finite(torch.ones(2))
    ('1 of 2 values is nan', '')
    """
    total = nan = infinite = 0
    for tensor in tensors_of(value, entries):
        if tensor.is_floating_point() or tensor.is_complex():
            total += tensor.numel()
            nan += int(tensor.isnan().sum())
            infinite += int(tensor.isinf().sum())
    if not nan and not infinite:
        return ""
    parts = [f"{count} {'is' if count == 1 else 'are'} {name}" for count, name in ((nan, "nan"), (infinite, "inf"))]
    first, *rest = (part for part, count in zip(parts, (nan, infinite), strict=True) if count)
    head, _, tail = first.partition(" ")
    return " and ".join([f"{head} of {total} values {tail}", *rest])


class _Trace:
    """A tensor on its way through the modules."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor  # held, so that its id is its own
        self.producer: str | None = None
        self.consumer: str | None = None
        self.final = False


class Search:
    """Looks at parameters, outputs and gradients while a model is trained, and keeps in order what is not finite."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.found: list[Finding] = []
        self.gradients = True
        self._usual: set[tuple[str, str]] = set()
        self._traces: dict[int, _Trace] = {}
        self._owners = {name: owner or type(module).__name__ for name, owner in _owners(module)}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, inner in self.module.named_modules():
                handles = (
                    inner.register_forward_pre_hook(self._before(name), with_kwargs=True),
                    inner.register_forward_hook(self._after(name)),
                )
                for handle in handles:
                    stack.callback(handle.remove)
            for name, parameter in self.module.named_parameters():
                if parameter.requires_grad:
                    listen: Any = parameter.register_post_accumulate_grad_hook
                    stack.callback(listen(self._accumulated(name)).remove)
            yield

    def begin(self) -> None:
        """A new batch."""
        self.found.clear()
        self._traces.clear()

    def accept(self) -> None:
        """This batch was in order: what was not finite in it, such as a mask of infinities, is usual."""
        self._usual |= {(finding.kind, finding.module) for finding in self.found}

    def first(self) -> Finding | None:
        """The first unusual finding of this batch."""
        unusual = (finding for finding in self.found if (finding.kind, finding.module) not in self._usual)
        return next(unusual, None)

    def look(self, kind: str, module: str, value: Any, what: str) -> bool:
        """Notes ``value`` if it is not finite."""
        words = not_finite(value)
        if words:
            self.found.append(Finding(kind, module, f"{what} ({words})"))
        return bool(words)

    def look_at_parameters(self) -> bool:
        looked = [
            self.look("parameter", self._owners[name], parameter.detach(), f"the parameter {name}")
            for name, parameter in self.module.named_parameters()
        ]
        return any(looked)

    def look_at_gradients(self) -> bool:
        """Whether a gradient is not finite now; notes those that back-propagation did not show already."""
        known = any(finding.kind == "gradient" for finding in self.found)
        bad = False
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and not_finite(parameter.grad):
                bad = True
                if not known:
                    self.look("gradient", self._owners[name], parameter.grad, f"the gradient of {name}")
        return bad

    # Hooks ----------------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> str:
        return name or type(self.module).__name__

    def _before(self, name: str) -> Callable[..., None]:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            for tensor in tensors_of((args, kwargs), entries):
                self._trace(tensor).consumer = self._named(name)  # the innermost module comes last

        return before

    def _after(self, name: str) -> Callable[..., None]:
        def after(module: nn.Module, _: Any, output: Any) -> None:
            who = self._named(name)
            of = f"{name}, a {type(module).__name__}" if name else f"the model itself, a {who}"
            self.look("output", who, output, f"the output of {of}")
            for tensor in tensors_of(output, entries):
                trace = self._trace(tensor)
                if trace.producer is None:  # the innermost module comes first
                    trace.producer = name
                trace.final = trace.final or not name

        return after

    def _trace(self, tensor: Tensor) -> _Trace:
        trace = self._traces.get(id(tensor))
        if trace is None:
            trace = self._traces[id(tensor)] = _Trace(tensor)
            if tensor.requires_grad and self.gradients:
                tensor.register_hook(self._flowed(trace))  # type: ignore[no-untyped-call]
        return trace

    def _flowed(self, trace: _Trace) -> Callable[[Tensor], None]:
        """A gradient arrived at a tensor: whoever consumed the tensor has computed it."""

        def flowed(gradient: Tensor) -> None:
            if trace.consumer is not None:
                who = trace.consumer
            elif trace.final:
                who = "criterion"
            else:
                who = self._named((trace.producer or "").rpartition(".")[0])
            self.look("gradient", who, gradient, f"the gradient that comes back from {who}")

        return flowed

    def _accumulated(self, name: str) -> Callable[[Tensor], None]:
        def accumulated(parameter: Tensor) -> None:
            if self.gradients:
                self.look("gradient", self._owners[name], parameter.grad, f"the gradient of {name}")

        return accumulated


def _owners(module: nn.Module) -> Iterator[tuple[str, str]]:
    for name, _ in module.named_parameters():
        yield name, name.rpartition(".")[0]
