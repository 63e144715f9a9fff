"""Keeping the statistics of BatchNorm as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import nn

from cadenza.callback import Callback, Order
from cadenza.callbacks.training.freeze import freeze, unknown_part
from cadenza.callbacks.training.precise_batchnorm import has_statistics
from cadenza.clock import Duration
from cadenza.foundation.arguments import flags, texts

if TYPE_CHECKING:
    from cadenza.run import Run


class FreezeBatchNorm(Callback):
    """Trains with fixed statistics of BatchNorm from an epoch on.

    The BatchNorm layers are in eval mode during the training epochs that begin at ``start`` or later (at once by
    default): they normalise with their running statistics, which stay as they are. ``affine=True`` freezes their weight
    and bias as well. ``modules`` limits it to the layers inside the submodules of these names. After each training
    epoch, however it ends, the layers are as before; a validation in the middle of an epoch does not wake them.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), tiny_classifier())
    >>> sgd, freeze = torch.optim.SGD(model.parameters(), lr=0.1), FreezeBatchNorm()
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[freeze], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=1)
    >>> model[0].running_mean, model[0].training
    (tensor([0., 0., 0., 0.]), True)
    """

    order = Order.PREPARE
    same_on_ranks = ("start", "affine", "modules")

    def __init__(
        self, start: str | Duration = "0 epochs", *, affine: bool = False, modules: Sequence[str] | None = None
    ) -> None:
        flags(affine=affine)
        self.start, self.affine = Duration.parse(start, "start"), affine
        self.modules = None if modules is None else texts("modules", modules, "a list of names of submodules, or None")

    def explain(self) -> str:
        what = "statistics, weight and bias" if self.affine else "statistics"
        return f"{what} from {self.start}{'' if self.modules is None else ' in ' + ', '.join(self.modules)}"

    def around_train_epoch(self, run: Run) -> Iterator[None]:
        layers = self._layers(run.module) if run.clock.reached(self.start) else []
        flags = [(layer, layer.training) for layer in layers]
        frozen = freeze(p for layer in layers for p in layer.parameters()) if self.affine else []
        for layer in layers:
            layer.eval()
        try:
            yield
        finally:
            for layer, training in flags:
                layer.training = training
            for parameter in frozen:
                parameter.requires_grad_(True)

    def _layers(self, module: nn.Module) -> list[nn.Module]:
        parts = dict(module.named_modules())
        for name in self.modules or ():
            if name not in parts:
                raise ValueError(unknown_part(module, name))
        roots = [module] if self.modules is None else [parts[name] for name in self.modules]
        return list({id(part): part for root in roots for part in root.modules() if has_statistics(part)}.values())
