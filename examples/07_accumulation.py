"""Gradient accumulation as a callback: steps of four batches of 8 are those of one batch of 32."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer


class Accumulate(Callback):
    """One step for so many batches of equal size. What is left at the end of an epoch is stepped by the loop."""

    asks = frozenset({"hold_step"})

    def __init__(self, batches):
        self.batches = batches

    def before_train_iter(self, run):
        run.loss_weight = 1 / self.batches  # weights what is back-propagated; run.loss stays the plain one
        if (run.batch_idx + 1) % self.batches:
            run.hold_step()


def train(batch_size, callbacks, epochs):
    torch.manual_seed(0)
    inputs = torch.randn(256, 10)
    loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=batch_size)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
    trainer.fit(loader, epochs=epochs)
    return trainer


def main(epochs=5):
    small, large = train(8, [Accumulate(4)], epochs), train(32, [], epochs)
    pairs = zip(small.model.parameters(), large.model.parameters(), strict=True)
    apart = max(float((one - other).abs().max().detach()) for one, other in pairs)
    print(f"{small.clock.batches} batches in {small.clock.steps} steps against {large.clock.steps} steps")
    print(f"largest difference of any weight: {apart:.1e}")
    return small


if __name__ == "__main__":
    main()
