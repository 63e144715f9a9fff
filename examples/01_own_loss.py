"""A model that computes its own loss, as many detection models do: the main callback takes it from the model."""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from cadenza import MainCallback, Trainer


class Finder(nn.Module):
    """Finds the bright spot in an image. It gets the targets too, and returns its losses by name."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.place, self.light = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, images, targets):
        seen = self.body(images)
        place, light = mse_loss(self.place(seen), targets[:, :2]), mse_loss(self.light(seen), targets[:, 2:])
        return {"place": place, "light": light}


class OwnLoss(MainCallback):
    def on_iter_forward(self, run):
        images, targets = run.batch
        run.output = run.model(images, targets)
        run.loss = sum(loss for loss in run.output.values())


def spots(samples=512):
    """8x8 images of one spot each; the targets are its place and how bright it is."""
    targets = torch.rand(samples, 3)
    grid = torch.linspace(0, 1, 8)
    rows, columns = (torch.exp(-30 * (grid - targets[:, [side]]) ** 2) for side in (0, 1))
    return TensorDataset(targets[:, 2, None, None] * rows.unsqueeze(2) * columns.unsqueeze(1), targets)


def main(epochs=10):
    torch.manual_seed(0)
    model, loader = Finder(), DataLoader(spots(), batch_size=32, shuffle=True)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.01), callbacks=[OwnLoss()], device="cpu")
    history = trainer.fit(loader, epochs=epochs)
    print(f"loss of the first epoch {history['train/loss'][0]:.4f}, of the last {history['train/loss'][-1]:.4f}")
    return trainer


if __name__ == "__main__":
    main()
