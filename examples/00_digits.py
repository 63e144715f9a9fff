"""Trains a small network on 8x8 images of handwritten digits, and says how many new ones it reads correctly."""

import argparse
import csv
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks import Progress


class Accuracy(Callback):
    """A callback plays at the points of a training that its methods are named after; `cadenza points` lists them."""

    stages = {"val"}  # points that all stages share, such as after_forward, only in validation

    def before_val_epoch(self, run):
        self.correct = self.seen = 0

    def after_forward(self, run):
        self.correct += (run.output.argmax(dim=1) == run.targets).sum()
        self.seen += len(run.targets)

    def after_val_epoch(self, run):
        if self.seen:
            run.log("val/accuracy", self.correct / self.seen)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="the folder for the results")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)  # so small a network gains little from more, and loses much on a busy machine

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
train, val = random_split(TensorDataset(images, torch.tensor(digits.target)), [1437, 360])
train_loader, val_loader = DataLoader(train, batch_size=32, shuffle=True), DataLoader(val, batch_size=120)

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 4 * 4, 10)),
)
optimizer = torch.optim.AdamW(model.parameters())
steps = options.epochs * len(train_loader)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
callbacks = [MainCallback(lr_every="iter"), Accuracy(), Progress()]

trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=schedule, callbacks=callbacks)
history = trainer.fit(train_loader, val_loader, epochs=options.epochs)

options.out.mkdir(parents=True, exist_ok=True)
torch.save(model.state_dict(), options.out / "weights.pt")
with open(options.out / "history.csv", "w", newline="") as file:
    table = csv.DictWriter(file, fieldnames=history.epochs[0])
    table.writeheader()
    table.writerows(history.epochs)
print(f"validation accuracy {history['val/accuracy'][-1]:.2%} after {trainer.clock.seconds:.1f} s of training")
print(f"results: {options.out}/history.csv and {options.out}/weights.pt")
