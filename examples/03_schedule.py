"""A schedule of the learning rate as a callback: a function of the iteration, set before every batch."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer


class LearningRateSchedule(Callback):
    owns = frozenset({"lr"})  # two callbacks that set the learning rate are refused

    def __init__(self, function):
        self.function = function

    def before_train_iter(self, run):
        for group in run.optimizer.param_groups:
            group["lr"] = self.function(run.clock.batches)


def half_cosine(highest, batches):
    """From ``highest`` down to zero over so many batches."""
    return lambda batch: highest * (1 + math.cos(math.pi * batch / batches)) / 2


def main(epochs=8):
    torch.manual_seed(0)
    inputs = torch.randn(512, 10)
    loader = DataLoader(TensorDataset(inputs, inputs.sin().sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    schedule = LearningRateSchedule(half_cosine(0.2, epochs * len(loader)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    trainer = Trainer(model, optimizer, nn.MSELoss(), callbacks=[schedule], device="cpu")
    history = trainer.fit(loader, epochs=epochs)
    print(f"loss {history['train/loss'][-1]:.4f}, the last learning rate was {optimizer.param_groups[0]['lr']:.6f}")
    return trainer


if __name__ == "__main__":
    main()
