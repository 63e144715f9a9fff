"""Kinds of trainings for the storm: each has one ingredient by name, and the others are drawn from a seed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import torch
from tests.certify import ingredients as of
from torch import nn
from torch.utils.data import DataLoader

import cadenza
from cadenza import Callback, Trainer
from cadenza.callbacks import Checkpoint
from cadenza.experiment import Experiment

EPOCHS = 3
CHOICES: dict[str, tuple[str, ...]] = {
    "data": tuple(of.DATA),
    "loop": ("fit", "steps", "custom", "two fits", "two stages"),
    "validation": ("epoch", "3 steps", "several", "none", "tests"),
    "model": tuple(of.MODELS),
    "optimizer": tuple(of.OPTIMIZERS),
    "schedule": tuple(of.SCHEDULES),
    "more": tuple(of.MORE),
    "folder": ("plain", "experiment"),
    "every": ("1 step", "2 steps", "4 steps", "1 epoch"),
}
ALONE = tuple(f"{group}={name}" for group, names in CHOICES.items() for name in names)
"""Kinds of one process."""
TOGETHER = ("ranks=forked", "ranks=launched")
"""Kinds of two processes: those that ``cadenza.launch`` starts take ten times as long to start."""
WITHOUT = {
    "optimizer=lbfgs": {"more": ("accumulate", "clip", "fp16", "bf16", "nan skips"), "loop": "fit"},
    "optimizer=added groups": {"schedule": "none"},  # torch's schedulers know only the groups that were there
    "optimizer=two": {"more": ("freeze", "freeze by steps")},  # torch's scaler wants gradients for each optimizer
    "loop=custom": {"more": ("swa", "precise batchnorm"), "validation": "epoch"},
    "data=persistent workers": {"more": ("swa",)},  # which reads the loader once more
    # if the first of two fits stops early, a checkpoint of the second may lie within the epochs of the first
    "loop=two fits": {"schedule": "none", "more": ("early stopping",)},
    "ranks=forked": {"more": ("freeze by steps",)},
    "ranks=launched": {"more": ("freeze by steps",)},
}
"""What an ingredient needs (a text) or does not go with (names)."""


class Kind:
    """A training with the ingredient ``name``; the other ingredients depend on ``seed``."""

    def __init__(self, name: str, seed: int) -> None:
        draw = random.Random(f"{name}~{seed}")
        group, _, wanted = name.partition("=")
        self.chosen = {group: draw.choice(names) for group, names in CHOICES.items() if group != "more"}
        self.chosen["every"] = draw.choice(CHOICES["every"])
        self.more = draw.sample(CHOICES["more"], draw.randint(0, 3))
        self.background = draw.random() < 0.5
        if group == "more":
            self.more = [wanted, *(one for one in self.more if one != wanted)]
        else:
            self.chosen |= {group: wanted}
        self.ranks = self.chosen.pop("ranks", "")
        if self.ranks:
            self.chosen |= {"loop": "fit", "data": draw.choice(["map", "noisy", "workers"])}
            self.chosen["optimizer"] = draw.choice(["sgd", "adam", "two"])
            if self.chosen["data"] == "workers" and self.chosen["model"] == "norm":
                self.chosen["data"] = "map"  # the last batch of a rank would be one sample, too few for BatchNorm
        self._settle(name)

    def _settle(self, first: str) -> None:
        """Lets the ingredients of the wanted one win where two do not go together."""
        present = [
            first,
            *(f"{group}={name}" for group, name in self.chosen.items()),
            *(f"more={m}" for m in self.more),
        ]
        for one in present:
            for group, rule in WITHOUT.get(one, {}).items():
                if first in {f"{group}={name}" for name in rule if isinstance(rule, tuple)}:
                    drawn = one.partition("=")[0]
                    self.chosen[drawn] = CHOICES[drawn][0]  # which goes with everything
                elif isinstance(rule, tuple):
                    self.more = [name for name in self.more if name not in rule]
                elif not first.startswith(f"{group}="):
                    self.chosen[group] = rule
                elif first != f"{group}={rule}":
                    drawn = one.partition("=")[0]
                    self.chosen[drawn] = CHOICES[drawn][0]

    def __repr__(self) -> str:
        return ", ".join([*self.chosen.values(), *self.more, "background" if self.background else "foreground"])

    def __call__(self, folder: Path, callbacks: list[Callback]) -> object:
        if self.ranks == "launched":
            return cadenza.launch(self.train_rank, folder, callbacks, workers=2)
        if self.ranks == "forked":
            return of.on_two_ranks(folder, lambda: self.train_rank(folder, callbacks))
        if self.chosen["loop"] != "two stages":
            return self.train(folder, callbacks)
        first = self.train(folder / "one", callbacks)  # what the second begins with depends on the random numbers
        return [first, self.train(folder / "two", callbacks, seed=None)]

    def train_rank(self, folder: Path, callbacks: list[Callback]) -> object:
        torch.set_num_threads(1)
        return self.train(folder, callbacks).model.state_dict()

    def train(self, folder: Path, callbacks: list[Callback], seed: int | None = 3) -> Trainer:
        if seed is not None:
            torch.manual_seed(0)
        model = of.MODELS[self.chosen["model"]]()
        optimizers = of.OPTIMIZERS[self.chosen["optimizer"]](model)
        made = of.SCHEDULES[self.chosen["schedule"]](optimizers)
        kept = [made] if isinstance(made, Callback) else []
        kept += [of.Unfreeze()] if self.chosen["optimizer"] == "added groups" else []
        scheduler = made if isinstance(made, list) else None
        apart = self.chosen["folder"] == "experiment"
        saving = Checkpoint(self.chosen["every"], to=None if apart else folder, keep_last=2, background=self.background)
        trainer = Trainer(
            model,
            optimizers,
            nn.CrossEntropyLoss(),
            scheduler=scheduler,
            callbacks=[saving, *kept, *together(self.more, folder, kept), *callbacks],
            experiment=experiment_in(folder) if apart else None,
            device="cpu",
            strategy="ddp" if "RANK" in os.environ else "auto",
            seed=seed,
        )
        self.loop(trainer)
        return trainer

    def loop(self, trainer: Trainer) -> None:
        train, how = of.DATA[self.chosen["data"]](), self.chosen["validation"]
        held = DataLoader(of.data(), batch_size=16)
        val: Any = {"near": held, "far": DataLoader(of.Noisy(), batch_size=11)} if how == "several" else held
        options: dict[str, Any] = {"resume": "auto", "validate_every": how if how[0].isdigit() else "1 epoch"}
        if how == "tests":
            options["test_loaders"] = held
        if self.chosen["loop"] == "custom":
            of.custom(trainer, train, held, EPOCHS)
            return
        val = None if how == "none" else val
        if self.chosen["loop"] == "steps":
            trainer.fit(train, val, steps=13, **options)
            return
        if self.chosen["loop"] == "two fits":
            trainer.fit(train, val, epochs=EPOCHS - 1, **options)
        trainer.fit(train, val, epochs=EPOCHS, **options)


def experiment_in(folder: Path) -> Experiment:
    """The experiment that was begun in ``folder``, or a new one."""
    begun = sorted(folder.glob("storm/run/*/run.json"))
    return Experiment.at(begun[-1].parent, report=False) if begun else Experiment("storm", "run", folder, report=False)


def together(names: list[str], folder: Path, others: list[Callback]) -> list[Callback]:
    """The callbacks of these names, without those that own what one before them owns."""
    taken = {owned for one in others for owned in one.owns}
    found = []
    for made in (one for name in names for one in of.MORE[name](folder)):
        if not set(made.owns) & taken:
            taken |= set(made.owns)
            found.append(made)
    return found
