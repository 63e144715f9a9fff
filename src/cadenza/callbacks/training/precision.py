"""The number format in which the model computes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

import torch

from cadenza.callback import Callback, Order
from cadenza.foundation.arguments import among, check, is_number, whole

if TYPE_CHECKING:
    from cadenza.run import Run

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Precision(Callback):
    """Lets forward and loss compute in a smaller number format; weights and gradients stay as they are.

    ``"bf16"`` and ``"fp16"`` put ``torch.autocast`` around every forward and every loss, in all stages, on CPU and GPU;
    ``"fp32"`` turns an autocast of yours off there and in backward. With ``"fp16"`` the loss is scaled up before
    backward, so that small gradients do not vanish, and gradients are scaled down again before ``before_step``. If they
    are not finite, the scaler withholds the step: it counts as skipped, there is no ``after_step``, and the scale is
    halved. ``init_scale`` is the first scale, ``growth_interval`` the number of good steps in a row after which it is
    doubled. The state is that of the scaler. ``run.evaluate``, ``run.predict`` and the forwards that
    ``PreciseBatchNorm`` and ``WeightAverage`` add compute in this format too.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, seen = tiny_classifier(), []
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[Precision("bf16")], device="cpu")
    >>> _ = trainer.on("after_forward")(lambda run: seen.append(run.output.dtype))
    >>> _ = trainer.fit(tiny_loader(8), epochs=1)
    >>> seen, model[0].weight.dtype
    ([torch.bfloat16], torch.float32)
    """

    order = Order.PREPARE
    owns = frozenset({"precision"})
    same_on_ranks = ("precision",)

    def __init__(self, precision: str = "bf16", *, init_scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        among("precision", precision, _DTYPES)
        check(is_number(init_scale) and init_scale > 0, "init_scale must be a finite number above 0", init_scale)
        whole("growth_interval", growth_interval, 1)
        self.precision = precision
        self.init_scale, self.growth_interval = init_scale, growth_interval
        self.capturable = precision != "fp16"  # whether a step is withheld is known on the host
        self._scaler: torch.amp.GradScaler | None = None
        self._loaded: dict[str, Any] = {}

    @classmethod
    def example(cls) -> Self:
        return cls("bf16")

    def explain(self) -> str:
        return f"{self.precision} with a gradient scaler" if self.precision == "fp16" else self.precision

    def after_register(self, run: Run) -> None:
        run.autocast = lambda: self._autocast(run)  # for forwards beside the training, which play no points
        if self.precision == "fp16" and run.mode == "fit":
            run.scaler = self._new_scaler(run.device.type)

    def _autocast(self, run: Run) -> AbstractContextManager[Any]:
        dtype = _DTYPES[self.precision]
        if self.precision == "fp32":
            return torch.autocast(run.device.type, enabled=False)
        return torch.autocast(run.device.type, dtype=dtype)

    around_forward = around_loss = _autocast

    def around_backward(self, run: Run) -> AbstractContextManager[Any] | None:
        device = run.device.type  # each gradient has the format of its forward, whatever the user's own code turned on
        return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else None

    def _new_scaler(self, device: str) -> torch.amp.GradScaler:
        """A scaler that goes on where the last one was. The last one itself may still be in the middle of a step that
        an exception ended."""
        state = self.state_dict().get("scaler")
        self._scaler = torch.amp.GradScaler(device, init_scale=self.init_scale, growth_interval=self.growth_interval)
        if state is not None:
            self._scaler.load_state_dict(state)
        return self._scaler

    def state_dict(self) -> dict[str, Any]:
        if self._scaler is not None:
            return {"scaler": self._scaler.state_dict()}  # waits for the device, which a save does anyway
        return dict(self._loaded)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = dict(state)
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
