"""Gradient clipping as a callback: with it a training survives a learning rate that ruins it otherwise."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer


class GradientClip(Callback):
    owns = frozenset({"gradients"})

    def __init__(self, norm):
        self.norm = norm

    def before_step(self, run):  # whatever was accumulated or scaled, here are the gradients that the step will use
        nn.utils.clip_grad_norm_(run.module.parameters(), self.norm)


def train(callbacks, epochs):
    torch.manual_seed(0)
    inputs = torch.randn(256, 10)
    loader = DataLoader(TensorDataset(inputs, 20 * inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = Trainer(model, optimizer, nn.MSELoss(), callbacks=callbacks, device="cpu")
    trainer.fit(loader, epochs=epochs)
    return trainer


def main(epochs=15):
    for name, callbacks in (("without clipping", []), ("with the norm clipped to 10", [GradientClip(10.0)])):
        trainer = train(callbacks, epochs)
        print(f"{name}: loss {trainer.history['train/loss'][-1]:.1f}")
    return trainer


if __name__ == "__main__":
    main()
