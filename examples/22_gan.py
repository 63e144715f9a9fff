"""A GAN: two networks with an optimizer each, one after the other in every step.

The critic learns to tell real points from made ones, the maker to make points that the critic takes for real. The main
callback owns what a step is; everything else, callbacks included, is as in any training.
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as judge
from torch.utils.data import DataLoader, TensorDataset

from cadenza import MainCallback, Trainer

NOISE = 4


class Rivals(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, noise):
        return self.maker(noise)


class InTurn(MainCallback):
    """The optimizers are given in this order: that of the critic, that of the maker."""

    def on_iter_forward(self, run):
        (real,) = run.batch
        run.output = run.model(torch.randn(len(real), NOISE, device=run.device))
        run.loss = self.critic_loss(run.module.critic, real, run.output.detach())

    def on_iter_step(self, run):
        for_critic, for_maker = run.optimizers
        run.step_optimizer(for_critic)
        verdict = run.module.critic(run.output)
        loss = judge(verdict, torch.ones_like(verdict))
        loss.backward()  # into the critic too, which has made its step: those gradients are cleared with the rest
        run.step_optimizer(for_maker)
        run.log("train/maker_loss", loss)

    @staticmethod
    def critic_loss(critic, real, made):
        says_real, says_made = critic(real), critic(made)
        return judge(says_real, torch.ones_like(says_real)) + judge(says_made, torch.zeros_like(says_made))


def points(samples=2048):
    """Real points: a cloud around (2, -1), wider than high."""
    return TensorDataset(torch.randn(samples, 2) * torch.tensor([0.8, 0.3]) + torch.tensor([2.0, -1.0]))


def parts():
    """Model, optimizers and data of the training."""
    torch.manual_seed(0)
    model = Rivals()
    optimizers = [
        torch.optim.Adam(part.parameters(), lr=0.003, betas=(0.0, 0.9)) for part in (model.critic, model.maker)
    ]
    return model, optimizers, DataLoader(points(), batch_size=64, shuffle=True)


def main(epochs=25):
    model, optimizers, loader = parts()
    trainer = Trainer(model, optimizers, callbacks=[InTurn()], device="cpu")
    trainer.fit(loader, epochs=epochs)
    with torch.no_grad():
        made = model(torch.randn(4096, NOISE))
    for name, cloud in (("real", points(4096).tensors[0]), ("made", made)):
        (x, y), (width, height) = cloud.mean(0).tolist(), cloud.std(0).tolist()
        print(f"{name}: around ({x:+.2f}, {y:+.2f}), {width:.2f} wide, {height:.2f} high")
    return trainer


if __name__ == "__main__":
    main()
