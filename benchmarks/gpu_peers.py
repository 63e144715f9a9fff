"""The training of ``gpu.py`` in other libraries, where they are installed: seconds of one epoch after the first."""

from __future__ import annotations

import importlib.util
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from gpu_models import CUDA, Case

Peer = Callable[[Case, Callable[[Case], Any], list[Any]], float]


def peers() -> dict[str, Peer]:
    found: dict[str, Peer] = {}
    if importlib.util.find_spec("lightning"):
        found["lightning_us"] = lightning
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"):
        found["transformers_us"] = transformers
    return found


class Ready(torch.utils.data.IterableDataset):
    """Batches that are there already."""

    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __iter__(self) -> Any:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


def difference(train: Callable[[int], float]) -> float:
    """What the second and third epochs take on average."""
    train(1)
    return max(train(3) - train(1), 0.0) / 2


def lightning(case: Case, parts: Callable[[Case], Any], data: list[Any]) -> float:
    import lightning.pytorch as pl

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, optimizer, criterion = parts(case)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> Any:
            return criterion(self.model(batch[0]), batch[1])

        def on_train_batch_end(self, *_: Any) -> None:
            average.update_parameters(model)

        def configure_optimizers(self) -> Any:
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(data))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train(epochs: int) -> float:
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="gpu",
            devices=1,
            precision="bf16-mixed" if case.bf16 else "32-true",
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
        loader = torch.utils.data.DataLoader(Ready(data), batch_size=None)
        begin = time.perf_counter()
        trainer.fit(Module(), loader)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    return difference(train)


def transformers(case: Case, parts: Callable[[Case], Any], data: list[Any]) -> float:
    import transformers as hf

    hf.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    model, optimizer, criterion = parts(case)
    average = [weight.detach().clone() for weight in model.parameters()]

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: Any, labels: Any) -> Any:
            return {"loss": criterion(self.model(inputs), labels)}

    class Averaging(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            with torch.no_grad():
                torch._foreach_lerp_(average, list(model.parameters()), 0.001)

    def train(epochs: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            arguments = hf.TrainingArguments(
                folder,
                num_train_epochs=epochs,
                bf16=case.bf16,
                max_grad_norm=1.0,
                logging_steps=50,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=False,
                per_device_train_batch_size=1,
                accelerator_config={"dispatch_batches": False},
                max_steps=epochs * len(data),
            )
            turn = lambda step: (1 + math.cos(math.pi * step / (3 * len(data)))) / 2  # noqa: E731
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, turn)
            trainer = hf.Trainer(
                Wrapped().to(CUDA),
                arguments,
                train_dataset=Ready([{"inputs": one[0], "labels": one[1]} for one in data]),
                data_collator=lambda one: one[0],
                optimizers=(optimizer, schedule),
                callbacks=[Averaging()],
            )
            begin = time.perf_counter()
            trainer.train()
            torch.cuda.synchronize()
            return time.perf_counter() - begin

    return difference(train)
