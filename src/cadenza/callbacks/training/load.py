"""Starting from the weights of another training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.checkpoint import Report, Saved, Shelf, load_into, load_weights
from cadenza.foundation.arguments import flags, text

if TYPE_CHECKING:
    from cadenza.run import Run

log = logging.getLogger("cadenza.callbacks.training.load")


class Load(Callback):
    """Gives the model the weights of another training before this one begins.

    ``source`` is a safetensors file, the folder of a checkpoint or of many, a URL of these, or a dict of weights;
    ``which`` of many checkpoints: ``"last"``, ``"best"`` or a name; ``what`` in it: ``"model"``, or the dotted way to
    another dict of tensors in its state. ``prefix`` takes only names that begin with it, without it; a dict such as
    ``{"encoder.": "backbone."}`` moves parts. If ``strict``, what does not fit is refused; else ``report`` and the log
    say what was left out. A training that has made a step, such as one that is resumed, keeps its weights.

    >>> import cadenza, tempfile, torch
    >>> from cadenza.checkpoint import save_weights
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> path, old, model = f"{tempfile.mkdtemp()}/old.safetensors", tiny_classifier(seed=1), tiny_classifier()
    >>> save_weights(path, old)
    >>> load = Load(path)
    >>> trainer = cadenza.Trainer(model, criterion=torch.nn.CrossEntropyLoss(), callbacks=[load], device="cpu")
    >>> _ = trainer.validate(tiny_loader())
    >>> torch.equal(model[0].weight, old[0].weight)
    True
    >>> print(load.report)
    4 tensors loaded
    """

    order = Order.PREPARE
    same_on_ranks = ()

    def __init__(
        self,
        source: str | Path | Shelf | Saved | Mapping[str, Tensor],
        *,
        strict: bool = True,
        prefix: str | Mapping[str, str] | None = None,
        which: str = "last",
        what: str = "model",
    ) -> None:
        if not isinstance(source, str | Path | Shelf | Saved | Mapping):
            raise TypeError(f"source is a path, a checkpoint or a dict of tensors, not {source!r}")
        if source == "":
            raise ValueError("source is the path of a file or a folder, not ''")
        flags(strict=strict)
        if prefix is not None and not isinstance(prefix, str | Mapping):
            raise TypeError(
                f"prefix is the beginning of names to take off, a dict from old to new, or None, not {prefix!r}"
            )
        text("which", which, 'the checkpoint to take, "last", "best" or its name')
        text("what", what, 'the part of a checkpoint to take, such as "model"')
        self.source = source
        self.strict = strict
        self.prefix = prefix
        self.which = which
        self.what = what
        self.report: Report | None = None

    @classmethod
    def example(cls) -> Self:
        # In the model of ``check_callback`` this fits, and is what it begins with.
        return cls({"1.running_mean": torch.zeros(6)}, strict=False)

    def explain(self) -> str:
        if isinstance(self.source, Mapping):
            return "weights of a dict"
        return f"{self.what} of {self.source.name if isinstance(self.source, Saved) else self.source}"

    def before_run(self, run: Run) -> None:
        if run.clock.steps:
            return
        weights = self.source
        if not isinstance(weights, Mapping):
            weights = load_weights(weights, self.which, self.what)
        self.report = load_into(run.module, weights, self.strict, self.prefix)
        log.log(logging.INFO if self.report.complete else logging.WARNING, "Load, %s: %s", self.explain(), self.report)
