"""A moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from cadenza.callback import Callback, Order
from cadenza.callbacks.training.averaging import (
    averaged_names,
    copied,
    copy_weights,
    fit_to,
    put_weights,
    start_average,
    update_average,
    weights_of,
)
from cadenza.foundation.arguments import among, check, flags, is_number, one_of, whole

if TYPE_CHECKING:
    from cadenza.run import Run

WARMUPS = ("constant", "threshold", "exponential")


class EMA(Callback):
    """Keeps an exponential moving average of the weights, and evaluates with it.

    After each real step the average moves: ``average = decay * average + (1 - decay) * weights``. It starts as a copy
    of the weights when the first training epoch begins. ``warmup`` lets the decay grow with the number ``s`` of the
    update, from 1: ``"constant"`` does not, ``"threshold"`` is ``min(decay, (1 + s) / (10 + s))``, ``"exponential"`` is
    ``decay * (1 - exp(-beta * s / steps))``, where ``steps`` is the number of steps you plan. Averages of weights in
    half precision are kept in float32. ``buffers="copy"`` takes the statistics of BatchNorm as they are at each update,
    ``"average"`` averages them, too; other buffers are always copied.

    Validation, test and prediction run with the average in the place of the weights (not with ``evaluate=False``), and
    the weights always come back, also after an exception. With ``keep=True`` the model has the average when a fit ended
    in order. ``ema.swap(module)`` is the same exchange as a context manager, ``ema.copy_to(module)`` is for good.
    ``run.evaluate`` and ``run.predict`` play no points and so use the weights as they are. The state is the averaged
    tensors.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, ema = tiny_classifier(), EMA(0.9)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[ema], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), tiny_loader(), epochs=2)
    >>> with ema.swap(model):
    ...     averaged = model[0].weight.clone()
    >>> torch.equal(averaged, ema.average["0.weight"]), torch.equal(averaged, model[0].weight)
    (True, False)
    """

    order = Order.UPDATE
    _loaded = 0

    def __init__(
        self,
        decay: float = 0.999,
        *,
        warmup: str = "constant",
        steps: int | None = None,
        beta: float = 15.0,
        buffers: str = "copy",
        evaluate: bool = True,
        keep: bool = False,
    ) -> None:
        _check_arguments(decay, warmup, steps, beta, buffers)
        flags(evaluate=evaluate, keep=keep)
        self.decay, self.warmup, self.steps, self.beta = decay, warmup, steps, beta
        self.buffers, self.evaluate, self.keep = buffers, evaluate, keep
        self.owns = frozenset({"final weights"} if keep else ())
        self.capturable = warmup == "constant"  # a decay that grows is counted on the host
        self.average: dict[str, Tensor] = {}
        self.updates = 0
        self._pairs: list[list[Tensor]] | None = None

    def explain(self) -> str:
        warmup = "" if self.warmup == "constant" else f", {self.warmup} warm-up"
        used = "evaluated" if self.evaluate else "not evaluated"
        return f"decay {self.decay:g}{warmup}, {used}{', kept at the end' if self.keep else ''}"

    # Points ---------------------------------------------------------------------------------------------------------

    def before_train_epoch(self, run: Run) -> None:
        self._bind(run.module)

    def after_step(self, run: Run) -> None:
        averaged, weights, kept, buffers = self._pairs or self._bind(run.module)
        decay = self.decay
        if self.warmup != "constant":
            self.updates += 1
            decay = decay_at(self.updates, decay, self.warmup, self.steps, self.beta)
        update_average(averaged, weights, decay)
        if kept:
            copy_weights(kept, buffers)

    def recorded_as(self, run: Run) -> Hashable:
        return self.decay, self._loaded  # a recorded step knows the tensors of the average, which are others then

    def _evaluate(self, run: Run) -> AbstractContextManager[None] | None:
        return self.swap(run.module) if self.evaluate and self.average else None

    around_val_epoch = around_test_epoch = around_pred_epoch = _evaluate

    def after_run(self, run: Run) -> None:
        if self.keep and run.mode == "fit" and self.average:
            self.copy_to(run.module)

    def close(self) -> None:
        self._pairs = None

    # The average ----------------------------------------------------------------------------------------------------

    def copy_to(self, module: nn.Module) -> None:
        """Puts the average into ``module``, for good."""
        put_weights(module, self._fitting(module))

    @contextmanager
    def swap(self, module: nn.Module) -> Iterator[None]:
        """``module`` has the average inside, and its own weights again outside, whatever happens."""
        average, own = self._fitting(module), copied(weights_of(module))
        put_weights(module, average)
        try:
            yield
        finally:
            put_weights(module, own)

    def _fitting(self, module: nn.Module) -> dict[str, Tensor]:
        if not self.average:
            raise RuntimeError("there is no average yet: it starts with the first training epoch")
        fit_to(module, self.average, self.name)
        return self.average

    def _bind(self, module: nn.Module) -> list[list[Tensor]]:
        """Pairs each tensor of the module with its average once an epoch, so that a step need not look them up."""
        weights = weights_of(module)
        if not self.average:
            self.average = start_average(weights)
        fit_to(module, self.average, self.name)
        moving = averaged_names(module, statistics=self.buffers == "average")
        names = [[name for name in weights if (name in moving) is moves] for moves in (True, False)]
        self._pairs = [[source[name] for name in part] for part in names for source in (self.average, weights)]
        return self._pairs

    def state_dict(self) -> dict[str, Any]:
        return {"average": dict(self.average), "updates": self.updates} if self.average else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = copied(state.get("average", {}))
        self.updates = state.get("updates", 0)
        self._pairs = None
        self._loaded += 1


def decay_at(update: int, decay: float, warmup: str, steps: int | None = None, beta: float = 15.0) -> float:
    """The decay of the ``update``-th update, counted from 1.

    >>> [round(decay_at(s, 0.5, "threshold"), 2) for s in (1, 5, 100)]
    [0.18, 0.4, 0.5]
    """
    if warmup == "threshold":
        return min(decay, (1 + update) / (10 + update))
    if warmup == "exponential" and steps is not None:
        return decay * (1 - math.exp(-beta * update / steps))
    return decay


def _check_arguments(decay: float, warmup: str, steps: int | None, beta: float, buffers: str) -> None:
    check(is_number(decay) and 0 <= decay < 1, "decay must be at least 0 and below 1", decay)
    among("warmup", warmup, WARMUPS)
    if (warmup == "exponential") != (steps is not None):
        raise ValueError(
            f"steps, the number of steps you plan, belongs to warmup='exponential', which needs it, not {steps!r}"
        )
    if steps is not None:
        whole("steps", steps, 1)
    check(is_number(beta) and beta > 0, "beta must be above 0 and finite", beta)
    one_of("buffers", buffers, ("copy", "average"))
