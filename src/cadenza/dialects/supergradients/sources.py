"""Where the context gets what a run does not know by itself: parameters, folders, names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from cadenza.callbacks import EMA
from cadenza.dialects.supergradients.loggers import BaseSGLogger
from cadenza.dialects.supergradients.metrics import open_metrics
from cadenza.dialects.supergradients.parameters import TrainingParams

if TYPE_CHECKING:
    from cadenza.dialects.supergradients.losses import BatchWithExtras
    from cadenza.run import Run


class ModelEMA(EMA):
    """The average of the weights, also as a module, as the original's ``ema_model.ema``."""

    name = "EMA"
    model: nn.Module

    @property
    def ema(self) -> nn.Module:
        """A copy of the model with the average as its weights; the model's own before the first step."""
        made = copy.deepcopy(self.model)
        if self.average:
            self.copy_to(made)
        return made


class Source:
    """What the context holds beside the run. The dialect's ``Trainer`` has one of its own, whose ``main`` knows the
    parts of the loss."""

    main: BatchWithExtras | None = None

    def fields(self, run: Run) -> dict[str, Any]:
        raise NotImplementedError

    def close(self) -> None:
        """The run ended: what is open is closed."""

    def metrics(self, run: Run) -> Any:
        """What measures the pass that is open."""
        return open_metrics(run)

    def loss_names(self, run: Run) -> list[str]:
        """What the losses are called: by their class, and by their parts if they are known."""
        if self.main is not None:
            return self.main.names
        return [type(run.criterion).__name__ if run.criterion is not None else "loss"]

    def loss_items(self, run: Run) -> Any:
        """The losses of this batch as one row, without their graph."""
        items = None if self.main is None else self.main.items
        return run.loss.detach().reshape(1) if items is None else items


class PlainSource(Source):
    """For callbacks in a plain ``cadenza.Trainer``: what can be told from the run and its experiment."""

    def __init__(self) -> None:
        self.logger: BaseSGLogger | None = None

    def close(self) -> None:
        if self.logger is not None:
            self.logger.close()
        self.logger = None

    def fields(self, run: Run) -> dict[str, Any]:

        experiment = run.experiment
        folder = getattr(experiment, "checkpoints", None) or Path("runs") / "checkpoints"
        watch = run.watch
        self.logger = self.logger or BaseSGLogger(str(folder), on=run.is_main)
        return {
            "experiment_name": getattr(experiment, "name", None) or "cadenza",
            "ckpt_dir": str(folder),
            "sg_logger": self.logger,
            "training_params": TrainingParams(max_epochs=run.num_epochs),
            "checkpoint_params": {},
            "arch_params": {},
            "lr_warmup_epochs": 0,
            "metric_to_watch": watch.name if watch else "val/loss",
            "valid_metrics": {},
            "ema_model": next((one for one in run.callbacks if isinstance(one, EMA)), None),
        }
