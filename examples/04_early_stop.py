"""Early stopping as a callback: train as long as the validation loss gets better, and not much longer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer


class EarlyStop(Callback):
    def __init__(self, patience):
        self.patience = patience
        self.best, self.bad = float("inf"), 0

    def after_epoch(self, run):
        loss = run.metrics["val/loss"]
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(loss, self.best)
        if self.bad == self.patience:
            run.stop(f"the validation loss has not been below {self.best:.4f} for {self.patience} epochs")


def noisy(samples):
    """Labels that depend on one of ten inputs, one in five of them wrong: easy to learn, easier to learn by heart."""
    inputs = torch.randn(samples, 10)
    wrong = torch.rand(samples) < 0.2
    return TensorDataset(inputs, ((inputs[:, 0] > 0) ^ wrong).long())


def main(epochs=100):
    torch.manual_seed(0)
    train, val = DataLoader(noisy(128), batch_size=16, shuffle=True), DataLoader(noisy(256), batch_size=256)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=[EarlyStop(patience=3)], device="cpu")
    trainer.on("after_run")(lambda run: print(f"stopped: {run.stop_reason}"))
    history = trainer.fit(train, val, epochs=epochs)
    losses = history["val/loss"]
    print(f"{len(losses)} of {epochs} epochs, the best was epoch {losses.index(min(losses))}")
    return trainer


if __name__ == "__main__":
    main()
