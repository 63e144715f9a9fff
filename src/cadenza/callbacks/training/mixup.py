"""Training on mixtures of two samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Callback, Order, overrides, without
from cadenza.data.batch import describe
from cadenza.foundation.arguments import check, is_number, is_whole, positive
from cadenza.foundation.host_draws import Draws

if TYPE_CHECKING:
    from cadenza.run import Run


def mixup(inputs: Tensor, targets: Tensor, lam: float, permutation: Tensor) -> tuple[Tensor, Tensor]:
    """``lam`` parts of each sample and ``1 - lam`` parts of its partner, and the partner's targets.

    The loss is then ``lam * criterion(output, targets) + (1 - lam) * criterion(output, partners)``.

    >>> mixup(torch.tensor([0.0, 4.0]), torch.tensor([0, 1]), 0.75, torch.tensor([1, 0]))
    (tensor([1., 3.]), tensor([1, 0]))
    """
    return inputs * lam + inputs[permutation] * (1 - lam), targets[permutation]


def soft_targets(targets: Tensor, partners: Tensor, lam: float, classes: int) -> Tensor:
    """One distribution over ``classes`` for each sample, made of its own target and its partner's.

    >>> soft_targets(torch.tensor([0, 1]), torch.tensor([1, 1]), 0.75, classes=2)
    tensor([[0.7500, 0.2500],
            [0.0000, 1.0000]])
    """
    if not targets.is_floating_point():
        targets, partners = (torch.nn.functional.one_hot(part, classes).float() for part in (targets, partners))
    return targets * lam + partners * (1 - lam)


class Mixing(Callback):
    """What ``MixUp`` and ``CutMix`` share: the draws, the partners' targets, and the loss of both."""

    order = Order.TRANSFORM
    stages = frozenset({"train"})

    def __init__(
        self, alpha: float, *, probability: float = 1.0, soft: int | None = None, seed: int | None = None
    ) -> None:
        positive("alpha", alpha)
        check(is_number(probability) and 0 <= probability <= 1, "probability must be from 0 to 1", probability)
        check(soft is None or is_whole(soft, 2), "soft must be None or the number of classes, at least 2", soft)
        self.alpha = alpha
        self.probability = probability
        self.soft = soft
        # Soft targets can be mixed again; targets that are kept for the loss cannot.
        self.owns = frozenset({"targets"} if soft is None else {f"targets[{type(self).__name__}]"})
        self._draws = Draws(seed)
        self._partners: Any = None
        self._lam = 1.0

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """With soft targets nothing is left to do inside the step, which so stays closed."""
        unneeded = ("before_loss", "after_loss") if self.soft is not None else ()
        return without(super().plays(), Mixing, *unneeded)

    def explain(self) -> str:
        how = "weights the losses of both targets" if self.soft is None else f"soft targets of {self.soft} classes"
        return how if self.probability == 1 else f"{how}, in {self.probability:.0%} of the batches"

    def mix(self, inputs: Tensor, targets: Tensor, lam: float, permutation: Tensor) -> tuple[Tensor, Tensor, float]:
        """The mixed inputs, the partners' targets, and how much of each sample was kept."""
        raise NotImplementedError  # pragma: no cover

    def before_train_iter(self, run: Run) -> None:
        self._partners = None
        if self.probability < 1 and self._draws.uniform() >= self.probability:
            return
        inputs, targets = self._parts(run)
        permutation = self._draws.permutation(len(inputs), inputs.device)
        mixed, partners, lam = self.mix(inputs, targets, self._draws.beta(self.alpha), permutation)
        run.inputs = dict.fromkeys(run.inputs, mixed) if isinstance(run.inputs, Mapping) else mixed
        if self.soft is None:
            self._partners, self._lam = partners, lam
        else:
            run.targets = soft_targets(targets, partners, lam, self.soft)

    def before_loss(self, run: Run) -> None:
        if self._partners is None:
            return
        if hasattr(run, "loss") or (run.criterion is None and not overrides(type(run.main), "on_iter_loss")):
            raise RuntimeError(
                f"{self.name} computes the loss of two targets, but here the model computes its own loss. Give the "
                f"trainer a criterion, or use {type(self).__name__}(soft=classes), which changes the targets instead"
            )

    def after_loss(self, run: Run) -> None:
        if self._partners is None:
            return
        own, targets = run.loss, run.targets
        run.targets = self._partners
        try:
            run.main.on_iter_loss(run)
        finally:
            run.targets = targets
        run.loss = own * self._lam + run.loss * (1 - self._lam)

    def after_train_iter(self, run: Run) -> None:
        self._partners = None

    def _parts(self, run: Run) -> tuple[Tensor, Tensor]:
        inputs, targets = run.inputs, run.targets
        if isinstance(inputs, Mapping) and len(inputs) == 1:
            inputs = next(iter(inputs.values()))
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or not isinstance(targets, Tensor):
            raise TypeError(
                f"{self.name} mixes one tensor of floating-point inputs and one tensor of targets; this batch is "
                f"{describe(run.batch)}, its inputs are {getattr(inputs, 'dtype', type(inputs).__name__)}"
            )
        return inputs, targets

    def state_dict(self) -> dict[str, Any]:
        return self._draws.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draws.load_state_dict(state)


class MixUp(Mixing):
    """Trains on mixtures of two samples: ``lam`` parts of one and ``1 - lam`` parts of another of the same batch.

    It plays before each training iteration. ``lam`` is one number a batch, drawn from the Beta distribution with both
    parameters ``alpha``; ``probability`` is the share of the batches that are mixed. ``run.targets`` stay those of the
    first sample, and ``run.loss`` becomes ``lam`` times the loss of these plus ``1 - lam`` times the loss of the
    second's, so it is also what is averaged over the epoch. Validation is as it was.

    With ``soft``, the number of classes, the targets themselves become distributions over the classes (targets that
    already are floating-point are mixed as they are) and the loss is computed once. The criterion must take them, as
    ``CrossEntropyLoss`` does; a model that computes its own loss needs this. Only then can two mixings be combined.

    The draws are made on the host by a generator of its own, seeded with ``seed``, or else with one number drawn from
    torch's global generator at the first batch. A checkpoint keeps its state.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> criterion = torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, criterion, callbacks=[MixUp(alpha=0.4)], device="cpu")
    >>> len(trainer.fit(tiny_loader(), epochs=2)["train/loss"])
    2
    """

    def __init__(
        self, alpha: float = 0.4, *, probability: float = 1.0, soft: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(alpha, probability=probability, soft=soft, seed=seed)

    def mix(self, inputs: Tensor, targets: Tensor, lam: float, permutation: Tensor) -> tuple[Tensor, Tensor, float]:
        return *mixup(inputs, targets, lam, permutation), lam
