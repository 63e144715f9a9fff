"""Making sure that a model can leave the training."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.callbacks.faults import Faults, tolerant
from cadenza.callbacks.folders import place_for
from cadenza.callbacks.showing.export import Call, ExportResult, call_of, check_export, missing_packages
from cadenza.data import to_device
from cadenza.foundation.arguments import flags, function, is_number, one_of
from cadenza.foundation.arguments import path as path_or_none
from cadenza.foundation.torch_private import tree_map

if TYPE_CHECKING:
    from cadenza.run import Run


class ExportCheck(Callback, Faults):
    """Exports the model to ONNX, runs it in onnxruntime, and compares its outputs with the model's on a real batch.

    ``when`` is "before", so that nobody trains for days what cannot be exported: it checks the untrained model with
    the first training batch, before anything is done with it; "after", which checks the trained model with that batch
    when the fit ended in order; or "both". The model is exported in eval mode, and its flags, buffers and random
    numbers are as before afterwards. The largest differences are in ``run.store["export_check"]["before"]`` and
    ``["after"]``.

    Outputs may differ by ``atol + rtol * |output|``. With ``dynamic_batch`` the export takes any number of samples,
    which is tried with half of the batch. ``on_error`` says what happens if the model cannot be exported or computes
    something else: "raise" ends the run, "warn" goes on with a warning. ``inputs`` is a function of the run that
    returns what the model is called with, a tuple or a dict of named ones, where that is not ``run.inputs``.

    With ``keep`` the file of the last check stays: at ``path``, else as ``model.onnx`` in the folder of the run's
    experiment, else in ``runs``. Otherwise it is deleted. It needs the packages onnx, onnxscript and onnxruntime.

    ``check_export(module, Call((inputs,)))`` from ``cadenza.callbacks.showing.export`` does the same in a loop of your
    own.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[ExportCheck("after")], device="cpu")
    >>> history = trainer.fit(tiny_loader(), epochs=1)
    >>> trainer.store["export_check"]["after"].batch_sizes
    (8, 4)
    """

    order = Order.REPORT
    ranks = "main"
    stages = frozenset({"train"})

    def __init__(
        self,
        when: str = "before",
        *,
        rtol: float = 1e-3,
        atol: float = 1e-5,
        dynamic_batch: bool = True,
        inputs: Callable[[Run], Any] | None = None,
        keep: bool = False,
        path: str | os.PathLike[str] | None = None,
        on_error: str = "raise",
    ) -> None:
        one_of(f"{self.name}: when", when, ("before", "after", "both"))
        if not (is_number(rtol) and is_number(atol) and rtol >= 0 and atol >= 0):
            raise ValueError(f"{self.name}: rtol and atol are finite numbers of at least 0, not {rtol!r} and {atol!r}")
        function(f"{self.name}: inputs", inputs, "a function of the run")
        if path_or_none(f"{self.name}: path", path) is not None and not keep:
            raise ValueError(f"{self.name}: path says where the file is kept; it goes with keep=True")
        if missing := missing_packages():
            raise ImportError(f"{self.name} needs {', '.join(missing)}: pip install 'cadenza[onnx]'")
        flags(dynamic_batch=dynamic_batch, keep=keep)
        self.when, self.rtol, self.atol, self.dynamic_batch = when, rtol, atol, dynamic_batch
        self.inputs, self.keep, self.path = inputs, keep, path
        self._check_on_error(on_error)
        self._call: Call | None = None

    @classmethod
    def example(cls) -> Self:
        return cls("after")

    def explain(self) -> str:
        batch = "any batch size" if self.dynamic_batch else "one batch size"
        return f"{self.when} training, {batch}, rtol {self.rtol:g}, atol {self.atol:g}, then: {self.on_error}"

    def after_register(self, run: Run) -> None:
        self._call = None

    @tolerant
    def before_train_iter(self, run: Run) -> None:
        if self._call is not None:
            return
        call = call_of(run.module, self.inputs(run) if self.inputs is not None else run.inputs)
        self._call = to_host(call) if self.when != "before" else Call()
        if self.when != "after":
            self._check(run, call, "before")

    @tolerant
    def after_run(self, run: Run) -> None:
        if run.mode == "fit" and self.when != "before" and self._call is not None:
            args, kwargs = to_device(self._call.both, run.device)
            self._check(run, Call(args, kwargs), "after")

    def close(self) -> None:
        self._call = None

    def _check(self, run: Run, call: Call, when: str) -> None:
        path = place_for(run, self.path, "model.onnx") if self.keep else None
        bounds: dict[str, Any] = {"rtol": self.rtol, "atol": self.atol, "dynamic_batch": self.dynamic_batch}
        result: ExportResult = check_export(run.module, call, path, **bounds)
        run.store.setdefault("export_check", {})[when] = result


def to_host(call: Call) -> Call:
    """A copy of the inputs in main memory, so that they take no room on the device while it trains."""
    args, kwargs = tree_map(
        lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf, call.both
    )
    return Call(args, kwargs)
