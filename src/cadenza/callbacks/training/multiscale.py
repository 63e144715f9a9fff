"""Training on images of changing size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor
from torch.nn.functional import interpolate

from cadenza.callback import Callback, Order
from cadenza.clock import Duration
from cadenza.data.batch import describe
from cadenza.foundation.arguments import among, flags, is_number, whole
from cadenza.foundation.host_draws import Draws

if TYPE_CHECKING:
    from cadenza.run import Run

_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area")


def rescale_images(images: Tensor, scale: float, *, multiple_of: int = 1, mode: str = "bilinear") -> Tensor:
    """Images ``(N, C, H, W)`` of ``scale`` times the size, rounded to a multiple of ``multiple_of``, at least one.

    >>> import torch
    >>> rescale_images(torch.zeros(2, 3, 100, 60), 0.5, multiple_of=32).shape
    torch.Size([2, 3, 64, 32])
    """
    size = _scaled(images.shape[-2:], scale, multiple_of)
    return images if size == tuple(images.shape[-2:]) else interpolate(images, size, mode=mode)


def rescale_masks(masks: Tensor, scale: float, *, multiple_of: int = 1) -> Tensor:
    """Masks ``(N, H, W)`` or ``(N, C, H, W)``, of whole numbers or not, in the size of images so rescaled: each pixel
    takes the value of the nearest one.

    >>> import torch
    >>> rescale_masks(torch.tensor([[[1, 2], [3, 4]]]), 2.0)[0]
    tensor([[1, 1, 2, 2],
            [1, 1, 2, 2],
            [3, 3, 4, 4],
            [3, 3, 4, 4]])
    """
    size = _scaled(masks.shape[-2:], scale, multiple_of)
    if size == tuple(masks.shape[-2:]):
        return masks
    channels = masks if masks.dim() == 4 else masks.unsqueeze(1)
    resized = interpolate(channels.float(), size, mode="nearest").to(masks.dtype)
    return resized if masks.dim() == 4 else resized.squeeze(1)


def _scaled(size: Sequence[int], scale: float, multiple_of: int) -> tuple[int, ...]:
    return tuple(max(round(side * scale / multiple_of), 1) * multiple_of for side in size)


class Multiscale(Callback):
    """Trains on images of changing size, so that the model learns to read objects of any size.

    It plays before each training iteration and resizes the inputs, images ``(N, C, H, W)``. Each time the clock has
    passed ``every``, it draws one of ``scales``, factors of the size that the loader gives, or any factor in the range
    ``between=(low, high)``. Both sides are rounded to a multiple of ``multiple_of``, for models that halve the size
    several times. ``interpolation`` is the mode of ``torch.nn.functional.interpolate``. With ``masks=True`` the targets
    are masks ``(N, H, W)`` or ``(N, C, H, W)`` of the same size and are resized too, each pixel to its nearest one.
    Where the size does not change, nothing is touched; validation is as it was.

    The draws are made by a generator of its own, seeded with ``seed``, or else with one number drawn from torch's
    global generator at the first batch. A checkpoint keeps its state and the scale in use.

    >>> import cadenza, torch
    >>> model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> callbacks = [Multiscale(scales=(0.5, 1.0, 1.5), every="1 batch")]
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
    >>> batches = [(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))] * 3
    >>> len(trainer.fit(batches, epochs=1)["train/loss"])
    1
    """

    order = Order.TRANSFORM
    stages = frozenset({"train"})

    def __init__(
        self,
        scales: Sequence[float] | None = None,
        *,
        between: tuple[float, float] | None = None,
        every: str | Duration = "10 batches",
        multiple_of: int = 1,
        masks: bool = False,
        interpolation: str = "bilinear",
        seed: int | None = None,
    ) -> None:
        if (scales is None) == (between is None):
            raise ValueError(
                "give scales=(0.75, 1.0, 1.25) to choose from, or between=(0.5, 1.5), one of the two, not "
                f"scales={scales!r} and between={between!r}"
            )
        factors = _factors("scales", scales) if scales is not None else _factors("between", between)
        if between is not None and (len(factors) != 2 or factors[0] > factors[1]):
            raise ValueError(f"between is a lowest and a highest factor, not {between!r}")
        flags(masks=masks)
        whole("multiple_of", multiple_of, 1)
        among("interpolation", interpolation, _MODES)
        self.every = Duration.interval(every, "every")
        if self.every.unit == "seconds":
            raise ValueError("every counts batches, steps, samples, tokens or epochs: time would differ in each run")
        self.factors = factors
        self.is_range = between is not None
        self.multiple_of = multiple_of
        self.masks = masks
        self.interpolation = interpolation
        self._draws = Draws(seed)
        self._scale = 1.0
        self._period = -1

    @classmethod
    def example(cls) -> Self:
        """One that fits inputs of any form, since it never changes them."""
        return cls(scales=(1.0,), every="1 batch")

    def explain(self) -> str:
        among = ", ".join(f"{factor:g}" for factor in self.factors)
        chosen = f"between {among.replace(', ', ' and ')}" if self.is_range else f"one of {among}"
        return f"{chosen}, drawn every {self.every}"

    def before_train_iter(self, run: Run) -> None:
        period = int(getattr(run.clock, self.every.unit) // self.every.amount)
        if period != self._period:
            self._period, self._scale = period, self._draw()
        if self._scale == 1.0 and self.multiple_of == 1:
            return
        run.inputs = rescale_images(
            self._checked(run, run.inputs, (4,)), self._scale, multiple_of=self.multiple_of, mode=self.interpolation
        )
        if self.masks:
            run.targets = rescale_masks(
                self._checked(run, run.targets, (3, 4)), self._scale, multiple_of=self.multiple_of
            )

    def _draw(self) -> float:
        if not self.is_range:
            return self.factors[self._draws.below(len(self.factors))]
        low, high = self.factors
        return low + (high - low) * self._draws.uniform()

    def _checked(self, run: Run, part: Any, dimensions: tuple[int, ...]) -> Tensor:
        if isinstance(part, Tensor) and part.dim() in dimensions:
            return part
        wanted = "images (N, C, H, W)" if dimensions == (4,) else "masks (N, H, W) or (N, C, H, W)"
        raise TypeError(f"{self.name} resizes {wanted}; the batch is {describe(run.batch)}")

    def state_dict(self) -> dict[str, Any]:
        return {**self._draws.state_dict(), "scale": self._scale, "period": self._period}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draws.load_state_dict(state)
        self._scale, self._period = float(state["scale"]), int(state["period"])


def _factors(name: str, factors: Any) -> tuple[float, ...]:
    some = isinstance(factors, Sequence) and not isinstance(factors, str) and len(factors) > 0
    if not some or not all(is_number(factor) and factor > 0 for factor in factors):
        raise ValueError(f"{name} are factors above 0, at least one of them, not {factors!r}")
    return tuple(factors)
