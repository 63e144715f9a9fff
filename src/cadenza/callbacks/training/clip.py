"""Clipping gradients before the step."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from torch.optim import Optimizer

from cadenza.callback import Callback, Order
from cadenza.foundation.arguments import is_number, positive
from cadenza.foundation.torch_private import foreach_mul_, foreach_norm

if TYPE_CHECKING:
    from cadenza.run import Run


class GradientClip(Callback):
    """Clips gradients right before the optimizers step.

    Give exactly one of two: ``norm`` scales all gradients together so that their norm is at most this, ``value`` bounds
    each element. It plays at ``before_step``, so only real steps are clipped: accumulated gradients are complete and
    fp16 gradients are unscaled by then. All parameters of all optimizers are clipped together, each once. ``norm_type``
    is the norm meant (2 by default, or ``math.inf``). With ``log=True`` the norm before clipping is logged as
    ``train/grad_norm``, with a text under that name; the value stays on its device until somebody reads it. A norm that
    is not finite is not repaired here: all gradients become zero or NaN, as in ``torch.nn.utils.clip_grad_norm_``.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, clip = tiny_classifier(), GradientClip(norm=0.5, log=True)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[clip], device="cpu")
    >>> history = trainer.fit(tiny_loader(), epochs=1)
    >>> len([row for row in history.iters if "train/grad_norm" in row])
    3
    """

    order = Order.UPDATE  # after those who make the gradients what they are, such as Accumulate
    owns = frozenset({"gradients"})
    same_on_ranks = ("norm", "value", "norm_type")

    def __init__(
        self,
        norm: float | None = None,
        *,
        value: float | None = None,
        norm_type: float = 2.0,
        log: bool | str = False,
    ) -> None:
        _check_bounds(norm, value, norm_type)
        if not isinstance(log, bool | str) or log == "":
            raise TypeError(f"log is True, False or the name that the norm is logged under, not {log!r}")
        self.norm, self.value, self.norm_type = norm, value, norm_type
        self.log = "train/grad_norm" if log is True else log or None
        self.capturable = self.log is None  # a row of the history is written on the host

    @classmethod
    def example(cls) -> Self:
        return cls(norm=1.0, log=True)

    def explain(self) -> str:
        bound = f"norm at most {self.norm:g}" if self.norm is not None else f"values at most {self.value:g}"
        return f"{bound}, logged as {self.log}" if self.log else bound

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        return [self.log] if self.log else []

    def before_step(self, run: Run) -> None:
        parameters = trained_parameters(run.optimizers)
        if self.log and self.value is not None:
            run.log(self.log, gradient_norm(parameters, self.norm_type))
        norm = _clip(parameters, self.norm, self.value, self.norm_type)
        if self.log and norm is not None:
            run.log(self.log, norm)

    def recorded_as(self, run: Run) -> Hashable:
        return self.norm, self.value, self.norm_type


def clip_gradients(
    parameters: Iterable[Tensor], *, norm: float | None = None, value: float | None = None, norm_type: float = 2.0
) -> Tensor | None:
    """Clips the gradients of ``parameters`` in place: by ``norm`` all together, or by ``value`` each element.

    By norm it returns the norm before that, on its device; by value there is none to return.

    >>> import torch
    >>> weight = torch.zeros(2, requires_grad=True)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weight], norm=1.0)
    tensor(5.)
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    _check_bounds(norm, value, norm_type)
    return _clip(parameters, norm, value, norm_type)


def _clip(parameters: Iterable[Tensor], norm: float | None, value: float | None, norm_type: float) -> Tensor | None:
    if isinstance(parameters, Tensor):  # whose parts have no gradients of their own
        parameters = [parameters]
    if norm is not None:
        return _clip_together(list(parameters), norm, norm_type)
    given = [parameter for parameter in parameters if parameter.grad is not None]
    if value is not None and given:
        clip_grad_value_(given, value)
    return None


def _clip_together(parameters: Sequence[Tensor], bound: float, norm_type: float) -> Tensor:
    """Clips by the common norm. Gradients that are all alike, as nearly always, need not be sorted by device and type
    before: torch's functions then make the same numbers in fewer calls."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    kinds = {(type(gradient), gradient.layout, gradient.device, gradient.dtype) for gradient in gradients}
    if len(kinds) != 1 or not _is_plain(*kinds.pop()):
        return whole(clip_grad_norm_(parameters, bound, norm_type))
    with torch.no_grad():
        norm: Tensor = vector_norm(torch.stack(foreach_norm(gradients, norm_type)), norm_type)
        share = torch.reciprocal(norm + 1e-6)
        foreach_mul_(gradients, torch.clamp(share if bound == 1 else share * bound, max=1.0))
    return norm


def _is_plain(kind: type, layout: torch.layout, device: torch.device, _: torch.dtype) -> bool:
    return kind is Tensor and layout is torch.strided and device.type in ("cpu", "cuda")


def gradient_norm(parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The common norm of the gradients of ``parameters``, on their device."""
    return whole(get_total_norm([p.grad for p in parameters if p.grad is not None], norm_type))


def whole(tensor: Tensor) -> Tensor:
    """A tensor that is spread over processes put together, which needs all of them; others as they are."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trained_parameters(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """The parameters of all groups of all optimizers, each once."""
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    return groups[0] if len(groups) == 1 else list({id(p): p for group in groups for p in group}.values())


def _check_bounds(norm: float | None, value: float | None, norm_type: float) -> None:
    if (norm is None) == (value is None):
        raise ValueError(f"give exactly one of norm and value, such as norm=1.0, not norm={norm!r} and value={value!r}")
    for name, bound in (("norm", norm), ("value", value)):
        if bound is not None:
            positive(name, bound)
    if not (is_number(norm_type) or norm_type == math.inf) or norm_type <= 0:
        raise ValueError(f"norm_type must be a number above 0 or infinity, not {norm_type!r}")
