"""Noticing a model that says the same of everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.foundation.arguments import at_least_zero, check, is_number, one_of
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run


def all_same(predictions: Tensor, to: Tensor | None = None, *, tolerance: float = 0.0) -> Tensor:
    """Whether every prediction equals the first, or equals ``to``; a tensor, so that the device is not waited for.

    The first dimension counts the samples. NaN equals nothing, itself included.

    >>> all_same(torch.tensor([2, 2, 2])), all_same(torch.tensor([[0.1, 0.9], [0.2, 0.8]]))
    (tensor(True), tensor(False))
    """
    to = predictions[0] if to is None else to
    if tolerance:
        return ((predictions - to).abs() <= tolerance).all()
    return (predictions == to).all()


class AllPredictionsSame(Callback):
    """Warns, or stops the run, if the model predicted the same for every sample of a validation loader.

    It looks at the outputs of the validation pass as they are made, without a second pass, and compares them on the
    device; the answer is read once, at the end of the pass. Each validation loader is judged for itself.

    ``action`` is "warn" or "stop", which warns too. ``predictions`` says what counts as the prediction: "class", the
    index of the largest output along dimension 1; "value", the output itself; or a function from ``run.output`` to a
    tensor whose first dimension counts the samples. If it is None, whole-number targets mean "class" where the output
    has a dimension 1 of at least 2, and everything else "value". With ``value`` only that one prediction is looked for,
    such as class 0. ``tolerance`` is how much two values may differ and still be the same.

    >>> import cadenza, torch, warnings
    >>> from cadenza.testing import tiny_loader
    >>> model = torch.nn.Linear(4, 3)
    >>> with torch.no_grad():
    ...     model.bias[1] = 1000.0
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=1e-6), torch.nn.CrossEntropyLoss()
    >>> same = AllPredictionsSame(action="stop")
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[same], device="cpu")
    >>> with warnings.catch_warnings(record=True, action="always") as told:
    ...     _ = trainer.fit(tiny_loader(), tiny_loader(), epochs=5)
    >>> trainer.clock.epochs, str(told[0].message)
    (1, 'AllPredictionsSame: all 24 predictions on the validation set are 1 (epoch 1). The run is stopped')
    """

    order = Order.MEASURE
    stages = frozenset({"val"})
    agree = "all"
    passive = True

    def __init__(
        self,
        action: str = "warn",
        *,
        predictions: str | Callable[[Any], Tensor] | None = None,
        value: float | None = None,
        tolerance: float = 0.0,
    ) -> None:
        one_of("action", action, ("warn", "stop"))
        if predictions not in (None, "class", "value") and not callable(predictions):
            raise ValueError(f'predictions is "class", "value", a function or None, not {predictions!r}')
        check(value is None or is_number(value), "value is the finite number that is predicted, or None", value)
        at_least_zero("tolerance", tolerance)
        self.action, self.predictions, self.value, self.tolerance = action, predictions, value, tolerance
        self._forget()

    def _forget(self) -> None:
        self._first: Tensor | None = None
        self._same: Tensor | None = None
        self._samples = 0

    def explain(self) -> str:
        kind = self.predictions if isinstance(self.predictions, str) else "a function of the output"
        chosen = "class or value, by targets and output" if self.predictions is None else kind
        return f"{self.action}s if all are the same; compares {chosen}"

    def before_val_epoch(self, run: Run) -> None:
        self._forget()

    def after_forward(self, run: Run) -> None:
        predicted = self._predicted(run)
        if self._first is None:
            self._first = predicted[0].clone() if self.value is None else torch.full_like(predicted[0], self.value)
        same = all_same(predicted, self._first, tolerance=self.tolerance)
        self._same = same if self._same is None else self._same & same
        self._samples += len(predicted)

    def after_val_epoch(self, run: Run) -> None:
        # One wait for the device in each validation: the answer is what this callback is for.
        if self._samples > 1 and self._same is not None and self._same.item():
            self._act(run)
        self._forget()

    def _act(self, run: Run) -> None:
        first = self._first
        what = f"{first.item():g}" if first is not None and first.numel() == 1 else "the same values"
        loader = f"validation loader {run.loader_name!r}" if run.loader_name else "the validation set"
        said = f"{self.name}: all {self._samples} predictions on {loader} are {what} (epoch {run.epoch + 1})"
        if self.action == "stop":
            warn(f"{said}. The run is stopped")
            run.stop(said)
        else:
            warn(said)

    def close(self) -> None:
        self._forget()

    # What a prediction is -------------------------------------------------------------------------------------------

    def _predicted(self, run: Run) -> Tensor:
        if callable(self.predictions):
            predicted = self.predictions(run.output)
            return predicted.detach()
        output = _main_output(run.output).detach()
        if output.dim() == 0:
            raise ValueError(f"{self.name} needs an output for each sample; this model returned one number for all")
        if self.predictions == "class" or (self.predictions is None and _is_class_output(run, output)):
            return output.argmax(dim=1).flatten()
        return output


def _main_output(output: Any) -> Tensor:
    """The tensor in which a model says what it predicts."""
    if isinstance(output, Mapping):
        output = output.get("logits", next(iter(output.values()), None))
    output = getattr(output, "logits", output)
    if isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise TypeError(
            f"AllPredictionsSame does not know which part of a {type(output).__name__} is the prediction: give "
            "predictions=, a function from run.output to a tensor"
        )
    return output


def _is_class_output(run: Run, output: Tensor) -> bool:
    """Whether dimension 1 counts classes: at least two of them, and the targets are whole numbers."""
    if output.dim() < 2 or output.size(1) < 2 or not output.is_floating_point():
        return False
    try:
        targets = run.targets
    except TypeError:  # a form of batch that only the user's own behaviour knows
        return True
    return isinstance(targets, Tensor) and not targets.is_floating_point() and targets.shape != output.shape
