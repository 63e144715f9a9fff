"""The training of ``checkpoint.py`` with Lightning and its ``ModelCheckpoint``, which saves once in the window."""

from __future__ import annotations

import importlib.util
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

STEPS, WARM = 50, 2
"""How many steps are timed, and how many are made before."""


class Seconds:
    """How long the steps took together, and how long training stood still for the save among them."""

    seconds = 0.0
    stalled = 0.0


def has_lightning() -> bool:
    return any(importlib.util.find_spec(name) is not None for name in ("lightning", "pytorch_lightning"))


def model_checkpoint(decoder: Callable[[], nn.Module], folder: Path, data: list[Any]) -> Seconds:
    if importlib.util.find_spec("lightning"):
        import lightning.pytorch as pl
        from lightning.pytorch.callbacks import ModelCheckpoint
    else:
        import pytorch_lightning as pl
        from pytorch_lightning.callbacks import ModelCheckpoint

    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    window = Seconds()

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.decoder, self.criterion = decoder(), nn.CrossEntropyLoss()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.criterion(self.decoder(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.decoder.parameters(), lr=1e-4)

    class Timed(pl.Callback):  # type: ignore[misc,name-defined]
        """Lightning plays its ``ModelCheckpoint`` after all others, so the save lies before the next batch begins."""

        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            self.ended = time.perf_counter()
            if trainer.global_step == WARM:
                self.begun = self.ended
            elif trainer.global_step == WARM + STEPS:
                window.seconds = self.ended - self.begun

        def on_train_batch_start(self, trainer: Any, *others: Any) -> None:
            if trainer.global_step == STEPS:
                window.stalled = time.perf_counter() - self.ended

    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=STEPS, save_top_k=-1)
        trainer = pl.Trainer(
            max_steps=WARM + STEPS, callbacks=[Timed(), saving], enable_model_summary=False, devices=1, **options
        )
        trainer.fit(Module(), DataLoader(data, batch_size=None))
    return window
