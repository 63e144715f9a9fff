"""What the tests of the core share: a trainer around a tiny model, and callbacks that do one thing at one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cadenza import Callback, MainCallback, Trainer
from cadenza.points import POINTS, Kind
from cadenza.testing import tiny_classifier, tiny_loader

ANY_STAGE = "any"


class Oops(Exception):
    """What callbacks and loops raise on purpose."""


def fail(run: Any) -> None:
    raise Oops


def make_trainer(
    *callbacks: Callback,
    model: nn.Module | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    **more: Any,
) -> Trainer:
    model = tiny_classifier() if model is None else model
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    return Trainer(model, make(model.parameters()), nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", **more)


def batches(count: int, size: int = 4) -> list[Any]:
    return list(tiny_loader(count * size, size))


def frozen_model() -> nn.Module:
    """A model with a part that is frozen in eval mode: its flag differs from the model's, and must stay so."""
    model = nn.Sequential(tiny_classifier(), nn.Dropout(0.5))
    model[1].eval()
    return model


def flags(model: nn.Module) -> list[bool]:
    """Whether each module is in training mode."""
    return [module.training for module in model.modules()]


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models are equal to the last bit."""
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def torch_modes() -> tuple[bool, bool, bool]:
    """The modes that a run must leave as they were."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


class Act(Callback):
    """Calls ``act(run)`` at ``point``: the ``time``-th time that it is played in ``stage``, or every time (None)."""

    def __init__(
        self, point: str, act: Callable[[Any], Any], *, stage: str | None = ANY_STAGE, time: int | None = 0
    ) -> None:
        self.point, self.act, self.stage, self.time = point, act, stage, time
        self.times = 0

    def plays(self) -> dict[str, Callable[[Any], Any]]:
        return {self.point: self._play}

    def _play(self, run: Any) -> Any:
        if self.stage not in (ANY_STAGE, run.stage):
            return None
        self.times += 1
        return self.act(run) if self.time in (None, self.times - 1) else None


class Ask(Act):
    """Makes one request at ``point``, on the batches for which ``where(run)`` is true."""

    def __init__(self, point: str, request: str, where: Callable[[Any], bool] = lambda run: True) -> None:
        super().__init__(point, lambda run: getattr(run, request)() if where(run) else None, time=None)


class RecordingMain(MainCallback):
    """The default behaviours, each written into ``trace``, and ``act(name, run)`` called inside."""

    def __init__(
        self, trace: list[str], act: Callable[[str, Any], None] = lambda name, run: None, lr_every: str = "epoch"
    ) -> None:
        super().__init__(lr_every=lr_every)
        self.trace, self.act = trace, act


def _recorded(name: str) -> Callable[[RecordingMain, Any], None]:
    def behave(self: RecordingMain, run: Any) -> None:
        self.trace.append(name)
        self.act(name, run)
        getattr(super(RecordingMain, self), name)(run)

    return behave


for _point in POINTS.values():
    if _point.kind is Kind.BEHAVIOUR:
        setattr(RecordingMain, _point.name, _recorded(_point.name))


class Held:
    """A context manager that calls ``act(error)`` when it is left."""

    def __init__(self, act: Callable[[BaseException | None], None]) -> None:
        self.act = act

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.act(error)
