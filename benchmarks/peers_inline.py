"""The same training in other libraries, as lean as they can be made, where they are installed beside this one."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from measure import timed


class Ready:
    """Batches that are there already, as something to iterate over; some libraries take a list for many loaders."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def peer_cases() -> dict[str, Callable[[Callable[[], Any], list[Any]], float]]:
    """Those that are installed, by name: a function of the parts (model, optimizer, criterion) and the batches."""
    found: dict[str, Callable[[Callable[[], Any], list[Any]], float]] = {}
    if importlib.util.find_spec("pytorch_lightning") or importlib.util.find_spec("lightning"):
        found["Lightning"] = lightning
    if importlib.util.find_spec("ignite"):
        found["Ignite"] = ignite
    return found


def lightning(parts: Callable[[], Any], data: list[Any]) -> float:
    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    model, optimizer, criterion = parts()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> Any:
            return criterion(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return optimizer

    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", barebones=True)
    return timed(lambda: trainer.fit(Module(), Ready(data)))


def ignite(parts: Callable[[], Any], data: list[Any]) -> float:
    from ignite.engine import Engine

    model, optimizer, criterion = parts()

    def step(_: Any, batch: Any) -> Any:
        loss = criterion(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    engine = Engine(step)
    return timed(lambda: engine.run(Ready(data), max_epochs=1))
