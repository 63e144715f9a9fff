"""Several small trainings, one after the other, in the same two processes: starting them costs more than they do."""

from __future__ import annotations

import os
import time

import torch
from torch import distributed as dist
from torch import nn

from cadenza import Trainer
from cadenza.distributed.failures.join import part
from cadenza.testing import tiny_classifier, tiny_loader


class Mine(list):
    """Batches of this rank alone."""

    divides_over_ranks = True


def trainer_with(callbacks, strategy="ddp", model=None, **options):
    model = model or tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"criterion": nn.CrossEntropyLoss(), "device": "cpu", **options}
    return Trainer(model, sgd, callbacks=callbacks, strategy=strategy, **options)


def fitted(callbacks, train=None, val=None, epochs=3, **options):
    """Trains, and says how it ended, how long that took, and where the clock stands."""
    began = time.monotonic()
    trainer = trainer_with(callbacks, **options)
    found = {"error": None, "notes": []}
    try:
        trainer.fit(tiny_loader() if train is None else train, tiny_loader() if val is None else val, epochs=epochs)
    except BaseException as error:
        found["error"] = f"{type(error).__name__}: {error}"
        found["notes"] = list(getattr(error, "__notes__", ()))
    found["seconds"] = time.monotonic() - began
    found["clock"] = [trainer.clock.batches, trainer.clock.steps, trainer.clock.epochs]
    parts = (getattr(parameter, "to_local", lambda p=parameter: p)() for parameter in trainer.model.parameters())
    found["weights"] = torch.cat([part.detach().flatten() for part in parts])
    found["reason"] = trainer.store.get("reason")
    found["history"] = trainer.history.epochs
    return found


def play(folder, scenarios):
    """Calls each scenario in a process group of its own, since one that failed leaves its group broken."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found = []
    for number, (scenario, args) in enumerate(scenarios):
        part()  # what the last one left is let go of here, not in a loader's worker that is forked
        meeting = f"file://{folder}/{number}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        found.append(scenario(*args))
    part()
    return found
