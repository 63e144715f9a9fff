"""A training that draws random numbers everywhere it can, with checkpoints; for runs that are broken off and go on."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cadenza import Callback, Trainer
from cadenza.callbacks import EMA, Accumulate, Checkpoint, Metrics
from cadenza.callbacks.measuring.per_sample import accuracy
from cadenza.certify.compare import comparable, first_difference
from cadenza.checkpoint import Shelf


class Noisy(Dataset):
    """Samples with random noise, drawn when they are read. The last column is the index of the sample."""

    def __init__(self, samples):
        draw = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(samples, 6, generator=draw)
        self.targets = torch.arange(samples) % 3

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noisy = self.inputs[index] + 0.1 * torch.randn(6)
        return torch.cat([noisy, torch.tensor([float(index)])]), self.targets[index]


class Network(nn.Module):
    def __init__(self, norm=True, drifts=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 3)])
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.dropout = nn.Dropout(0.3)
        if drifts:
            self.register_buffer("drift", torch.zeros(6), persistent=False)

    def forward(self, inputs):
        if self.training and hasattr(self, "drift"):
            self.drift = self.drift + 0.1 * inputs[:, :6].mean(0)
            inputs = torch.cat([inputs[:, :6] + self.drift, inputs[:, 6:]], 1)
        return self.layers[1](self.dropout(torch.tanh(self.norm(self.layers[0](inputs[:, :6])))))


class Tempered(nn.Module):
    """A criterion with a parameter and a buffer, which are others on each rank."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.ones(()))

    def forward(self, output, target):
        self.calls += float(os.environ.get("RANK", "0")) + 1
        return nn.functional.cross_entropy(output * self.temperature, target) / self.calls


class SavesInAWindow(Callback):
    """Asks for a save when gradients wait for a step."""

    def after_train_iter(self, run):
        if run.clock.batches % 2:
            run.save()


class Ledger(Callback):
    """Notes which samples this process trained on, by epoch, in a file: a killed process leaves what it had noted."""

    def __init__(self, folder):
        self.folder = folder

    def after_train_iter(self, run):
        indices = [int(index) for index in run.inputs[:, -1]]
        with open(f"{self.folder}-{run.world_size}-{run.rank}.ledger", "a") as file:
            file.writelines(f"{run.epoch} {run.clock.batches} {index}\n" for index in indices)


class BreaksOff(Callback):
    """Ends the run at a batch: by an exception in all processes, or by SIGKILL of those in ``ranks``."""

    order = 10_000

    def __init__(self, batch, ranks=None):
        self.batch, self.killed = batch, ranks

    def after_iter(self, run):
        if run.stage == "train" and run.clock.batches == self.batch:
            if self.killed is None:
                raise KeyError("broken off")
            if run.rank in self.killed:
                os.kill(os.getpid(), signal.SIGKILL)


class EndsEpoch(Callback):
    """One process wants the epoch to end, so late in an iteration that the others hear of it in the next."""

    def __init__(self, batch):
        self.batch = batch

    def after_train_iter(self, run):
        if run.rank == 1 and run.clock.batches == self.batch:
            run.end_epoch()


class Unfreezes(Callback):
    """Gives the optimizer a further group of parameters when the second epoch begins."""

    def before_epoch(self, run):
        if run.epoch == 1:
            run.optimizer.add_param_group({"params": run.module.layers[0].parameters(), "lr": 0.01})


def train(folder, stop=None, ranks=None, **options):
    """Trains three epochs, or goes on with them; ``stop`` is the batch at which it is broken off."""
    how = {
        "strategy": "ddp",
        "norm": True,
        "batch_size": 4,
        "workers": 0,
        "accumulate": 1,
        "samples": 36,
        "every": "1 step",
        "background": False,
        "to": folder,
        "ends_epoch": None,
        "grows": False,
        "criterion": nn.CrossEntropyLoss,
        **options,
    }
    torch.set_num_threads(1)
    model = Network(how["norm"], drifts=how["grows"])
    trained = (model.layers[1] if how["grows"] else model).parameters()
    criterion = how["criterion"]()
    adam = torch.optim.AdamW([*trained, *criterion.parameters()], lr=0.02)
    callbacks = [
        Accumulate(how["accumulate"]),
        EMA(0.8),
        Metrics({"accuracy": accuracy}, stages={"train", "val"}),
        Checkpoint(how["every"], to=how["to"], background=how["background"]),
        Ledger(folder),
    ]
    if how["ends_epoch"] is not None:
        callbacks.append(EndsEpoch(how["ends_epoch"]))
    if list(criterion.parameters()):
        callbacks.append(SavesInAWindow())
    if how["grows"]:
        callbacks.append(Unfreezes())
    if stop is not None:
        callbacks.append(BreaksOff(stop, ranks))
    trainer = Trainer(model, adam, criterion, callbacks=callbacks, device="cpu", strategy=how["strategy"], seed=3)
    data = Noisy(how["samples"])
    loader = DataLoader(data, how["batch_size"], shuffle=True, num_workers=how["workers"])
    try:
        trainer.fit(loader, DataLoader(data, 8), epochs=3, resume="auto")
    except Exception as error:
        if not isinstance(error, KeyError) and "broken off" not in str(error):
            raise
    return trainer.clock.batches, trainer.clock.steps, trainer.clock.samples, trainer.clock.epochs


def difference(one, other):
    """The first value in which the last checkpoints of two folders differ, or None."""
    states = [comparable(Shelf(folder).read("last").state) for folder in (one, other)]
    return first_difference(*states)


def ledger(folder, world_size, ranks):
    """For each epoch and batch the samples of all ranks, as the last process to train that batch noted them."""
    found = {}
    for rank in range(ranks):
        mine = {}
        with open(f"{folder}-{world_size}-{rank}.ledger") as file:
            for line in file:
                epoch, batch, index = map(int, line.split())
                mine.setdefault((epoch, batch), []).append(index)
        for key, indices in mine.items():
            found.setdefault(key, []).extend(indices)
    return found
