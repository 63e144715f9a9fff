"""Training on samples into which a piece of another one was pasted."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor

from cadenza.callbacks.training.mixup import Mixing


def cutmix(
    inputs: Tensor, targets: Tensor, lam: float, permutation: Tensor, centre: Sequence[float]
) -> tuple[Tensor, Tensor, float]:
    """Each sample with a box of its partner pasted in, the partner's targets, and the share of the sample that is left.

    The box covers about ``1 - lam`` of the sample; ``centre`` says where it lies, from 0 to 1 in each dimension. What
    reaches over the edge is cut off, so the share that is left is counted, not assumed.

    >>> import torch
    >>> images = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    >>> pasted, partners, left = cutmix(images, torch.tensor([0, 1]), 0.75, torch.tensor([1, 0]), centre=(0.25, 0.25))
    >>> pasted[0, 0], partners, left
    (tensor([[1., 0.],
            [0., 0.]]), tensor([1, 0]), 0.75)
    """
    sizes = inputs.shape[-len(centre) :]
    box = cut(sizes, lam, centre)
    here: tuple[Any, ...] = (..., *box)
    pasted = inputs.clone()
    pasted[here] = inputs[here][permutation]
    left = 1 - prod(side.stop - side.start for side in box) / prod(sizes)
    return pasted, targets[permutation], left


def cut(sizes: Sequence[int], lam: float, centre: Sequence[float]) -> tuple[slice, ...]:
    """The box around ``centre`` that covers ``1 - lam`` of an image of these ``sizes``, cut off at the edges.

    >>> cut((8, 8), 0.75, (0.5, 0.0))
    (slice(2, 6, None), slice(0, 2, None))
    """
    box = []
    for size, where in zip(sizes, centre, strict=True):
        side = round(size * (1 - lam) ** (1 / len(sizes)))
        start = round(size * where - side / 2)
        box.append(slice(max(start, 0), min(start + side, size)))
    return tuple(box)


class CutMix(Mixing):
    """Trains on samples into which a box of another sample of the same batch was pasted.

    It plays before each training iteration. The inputs are images ``(N, C, H, W)``; signals ``(N, C, L)`` or ``(N, L)``
    and volumes are cut in the same way along their last dimensions. The box is one a batch: it covers ``1 - lam`` of
    the sample, with ``lam`` from the Beta distribution with both parameters ``alpha``, around a centre that is drawn
    evenly, and is cut off at the edges. ``probability`` is the share of the batches that are treated. ``run.targets``
    stay those of the sample, and ``run.loss`` becomes the loss of these, weighted by the share of the sample that is
    left, plus the loss of the other's targets, weighted by the share of the box. Validation is as it was.

    ``soft`` and ``seed`` are those of ``MixUp``: soft targets over so many classes in place of two losses, and the seed
    of the callback's own generator, whose state a checkpoint keeps.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> criterion = torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, criterion, callbacks=[CutMix(probability=0.5)], device="cpu")
    >>> len(trainer.fit(tiny_loader(), epochs=2)["train/loss"])
    2
    """

    def __init__(
        self, alpha: float = 1.0, probability: float = 1.0, *, soft: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(alpha, probability=probability, soft=soft, seed=seed)

    def mix(self, inputs: Tensor, targets: Tensor, lam: float, permutation: Tensor) -> tuple[Tensor, Tensor, float]:
        dimensions = max(inputs.dim() - 2, 1)
        if inputs.dim() < 2:
            raise TypeError(f"{self.name} cuts inputs of two dimensions or more, not of shape {tuple(inputs.shape)}")
        centre = [self._draws.uniform() for _ in range(dimensions)]
        return cutmix(inputs, targets, lam, permutation, centre)
