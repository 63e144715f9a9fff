"""Two networks that learn against each other, with an optimizer each.

The critic learns to tell real points from made ones, the maker to make points that the critic takes for real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as judge
from torch.utils.data import TensorDataset

from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.run import Run


class Cloud(TensorDataset):
    """Points around (2, -1), wider than high.

    >>> Cloud(100).tensors[0].shape
    torch.Size([100, 2])
    """

    def __init__(self, samples: int = 2048, *, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(samples, 2, generator=generator)
        super().__init__(points * torch.tensor([0.8, 0.3]) + torch.tensor([2.0, -1.0]))


class Rivals(nn.Module):
    """The parts ``maker`` and ``critic``; the model itself makes points from noise.

    >>> Rivals(noise=4)(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(self, noise: int = 4, width: int = 32) -> None:
        super().__init__()
        self.noise = noise
        self.maker = nn.Sequential(nn.Linear(noise, width), nn.ReLU(), nn.Linear(width, 2))
        self.critic = nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, noise: Tensor) -> Tensor:
        made: Tensor = self.maker(noise)
        return made


def parts_of(run: Run) -> Rivals:
    """The model of the run, which is known to be ``Rivals``."""
    assert isinstance(run.module, Rivals)
    return run.module


class InTurn(MainCallback):
    """Trains first the critic, then the maker, in every step. The optimizers are given in this order."""

    def on_iter_forward(self, run: Run) -> None:
        (real,) = run.batch
        rivals = parts_of(run)
        run.output = run.model(torch.randn(len(real), rivals.noise, device=run.device))
        critic = rivals.critic
        says_real, says_made = critic(real), critic(run.output.detach())
        run.loss = judge(says_real, torch.ones_like(says_real)) + judge(says_made, torch.zeros_like(says_made))

    def on_iter_step(self, run: Run) -> None:
        for_critic, for_maker = run.optimizers
        run.step_optimizer(for_critic)
        verdict = parts_of(run).critic(run.output)
        loss = judge(verdict, torch.ones_like(verdict))
        loss.backward()  # type: ignore[no-untyped-call]  # into the critic too, which has made its step: those gradients are cleared with the rest
        run.step_optimizer(for_maker)
        run.log("train/maker_loss", loss)


def real_and_made(run: Run) -> tuple[Tensor, Tensor]:
    """What ``Metrics`` compares: the made points with the real ones of the batch."""
    return run.output, run.batch[0]


def cloud_distance(output: Tensor, targets: Tensor) -> Tensor:
    """How far two clouds of points are apart: the distances of their means and of their spreads, added up.

    >>> points = torch.randn(100, 2)
    >>> cloud_distance(points, points).item()
    0.0
    """
    means: Tensor = (output.mean(0) - targets.mean(0)).norm()
    spreads: Tensor = (output.std(0) - targets.std(0)).norm()
    return means + spreads
