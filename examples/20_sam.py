"""SAM, sharpness-aware minimization: each step uses the gradient of a point nearby where the loss is worse.

A step takes two forward and backward passes: the first finds the direction in which the loss rises fastest, the second
is played with the weights moved a little that way. The weights that come of it lie in a flatter place: moving them
costs less.
"""

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Order, Trainer


class SAM(Callback):
    """Plays inside every step, before anyone who clips or looks at the gradients."""

    order = Order.TRANSFORM
    owns = frozenset({"gradients"})

    def __init__(self, radius=0.3):
        self.radius = radius

    def before_step(self, run):
        kept = climb(run.module, self.radius)
        run.recompute()  # clears the gradients and plays forward, loss and backward of this batch once more
        put_back(kept)


@torch.no_grad()
def climb(model, radius):
    """Moves the weights by ``radius`` the way the loss rises; returns each with the value it had."""
    moved = [parameter for parameter in model.parameters() if parameter.grad is not None]
    length = torch.stack([parameter.grad.norm() for parameter in moved]).norm()
    kept = [(parameter, parameter.clone()) for parameter in moved]
    for parameter in moved:
        parameter.add_(parameter.grad * (radius / (length + 1e-12)))
    return kept


@torch.no_grad()
def put_back(kept):
    for parameter, value in kept:
        parameter.copy_(value)


def moons():
    """Two half circles that reach into one another, with noise."""
    points, labels = make_moons(256, noise=0.2, random_state=0)
    return TensorDataset(torch.tensor(points, dtype=torch.float32), torch.tensor(labels))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def sharpness(model, data, radius=0.2):
    """By how much the loss rises within ``radius``."""
    inputs, targets = data.tensors
    here = cross_entropy(model(inputs), targets)
    here.backward()
    kept = climb(model, radius)
    there = cross_entropy(model(inputs), targets)
    put_back(kept)
    model.zero_grad()
    return float((there - here).detach())


def train(callbacks, epochs):
    model, loader = network(), DataLoader(moons(), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
    trainer.fit(loader, epochs=epochs)
    return trainer


def main(epochs=40):
    for name, callbacks in (("without SAM", []), ("with SAM", [SAM()])):
        trainer = train(callbacks, epochs)
        loss, rise = trainer.history["train/loss"][-1], sharpness(trainer.model, moons())
        print(f"{name}: loss {loss:.3f}, which moving the weights by 0.2 raises by {rise:.3f}")
    return trainer


if __name__ == "__main__":
    main()
