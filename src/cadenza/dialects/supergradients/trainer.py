"""``Trainer``: SuperGradients' front door, over a ``cadenza.Trainer``."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cadenza.dialects.facade import FrontDoor
from cadenza.dialects.supergradients.callback import ContextSection
from cadenza.dialects.supergradients.checkpoints import folder_to_resume, new_run_folder
from cadenza.dialects.supergradients.environment import chosen
from cadenza.dialects.supergradients.losses import BatchWithExtras, loss_names, make_loss
from cadenza.dialects.supergradients.metrics import ContextMetrics, metrics_by_name
from cadenza.dialects.supergradients.parameters import TrainingParams
from cadenza.dialects.supergradients.registry import build
from cadenza.dialects.supergradients.session import Session
from cadenza.dialects.supergradients.sources import PlainSource, Source
from cadenza.dialects.supergradients.table import DIALECT
from cadenza.trainer import Trainer as CadenzaTrainer

log = logging.getLogger("cadenza")
_SAME = ("optimizer", "criterion", "train_metrics", "valid_metrics")
_OF_THE_TRAINING = {"net": "trainer.model", "ema_model": "ema", "sg_logger": "logger", "training_params": "params"}
_OF_THE_TRAINING |= {name: name for name in _SAME}
"""What a trainer has after its first training, None before, and where the session keeps it."""


class Trainer(metaclass=FrontDoor):
    """Trains and tests models by training parameters; files go to ``<ckpt_root_dir>/<experiment_name>/RUN_…``. After a
    training it has ``net``, ``optimizer``, ``criterion``, ``sg_logger``, ``training_params``, ``train_metrics``,
    ``valid_metrics`` and ``ema_model``, whose ``ema`` is a model with the averaged weights.

    >>> import tempfile
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> params = {"max_epochs": 1, "initial_lr": 0.1, "lr_mode": "cosine", "loss": "cross_entropy", "silent_mode": True}
    >>> params |= {"valid_metrics_list": ["Accuracy"], "metric_to_watch": "Accuracy", "average_best_models": False}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer = Trainer("first", ckpt_root_dir=folder)
    ...     results = trainer.train(tiny_classifier(), params, tiny_loader(), tiny_loader())
    >>> sorted(results["valid"])
    ['Accuracy', 'loss']
    """

    dialect = DIALECT

    def __init__(self, experiment_name: str, ckpt_root_dir: str | None = None) -> None:
        self.experiment_name = experiment_name
        self.ckpt_root_dir = Path(ckpt_root_dir or "checkpoints")
        self.session: Session | None = None

    # Training -------------------------------------------------------------------------------------------------------

    def train(
        self,
        model: nn.Module,
        training_params: Mapping[str, Any] | None = None,
        train_loader: Any = None,
        valid_loader: Any = None,
        test_loaders: Mapping[str, Any] | None = None,
        additional_configs_to_log: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Trains, and returns the last metrics by stage. Ctrl-C ends the training in order, and is not raised."""
        for name in more.keys() - {"arch_params", "checkpoint_params"}:
            raise TypeError(f"supergradients: Trainer.train has no argument {name!r}")
        params = TrainingParams(training_params)
        if train_loader is None:
            raise ValueError("supergradients: Trainer.train needs a train_loader")
        loaders = {"train": train_loader, "valid": valid_loader, "test": test_loaders, **more}
        resume, folder = self._place(params)
        self.session = Session(self.experiment_name, folder, model, params, loaders)
        if additional_configs_to_log:
            self.session.logger.add_config("additional_configs", dict(additional_configs_to_log))
        try:
            return self.session.play(resume)
        except KeyboardInterrupt:
            log.info("training was interrupted from the keyboard")
        return {}

    def _place(self, params: TrainingParams) -> tuple[Path | None, Path]:
        """The checkpoint to go on from, if there is one, and the folder of the run."""
        if params.resume_path is not None:
            return Path(params.resume_path), new_run_folder(self.ckpt_root_dir, self.experiment_name)
        if params.resume or params.run_id is not None:
            folder = folder_to_resume(self.ckpt_root_dir, self.experiment_name, params.run_id, params.ckpt_name)
            return folder / params.ckpt_name, folder
        return None, new_run_folder(self.ckpt_root_dir, self.experiment_name)

    @property
    def checkpoints_dir_path(self) -> str | None:
        return None if self.session is None else str(self.session.folder)

    # Testing --------------------------------------------------------------------------------------------------------

    def test(
        self,
        model: nn.Module | None = None,
        test_loader: Any = None,
        loss: Any = None,
        silent_mode: bool = False,
        test_metrics_list: Sequence[Any] | None = None,
        loss_logging_items_names: Sequence[str] | None = None,
        metrics_progress_verbose: bool = False,
        test_phase_callbacks: Sequence[Any] | None = None,
        use_ema_net: bool = True,
    ) -> dict[str, float]:
        """The metrics over ``test_loader``, by name. Without a model it is the one that was trained, with its average
        if there is one and ``use_ema_net``."""
        session = self.session
        model = model if model is not None else self.net
        if model is None or test_loader is None:
            raise ValueError("supergradients: Trainer.test needs a model, or a training before, and a test_loader")
        criterion, metrics, source = self._for_test(loss, test_metrics_list)
        source.main = main = BatchWithExtras(loss_names(criterion, loss_logging_items_names))
        section = ContextSection(source)
        callbacks: list[Any] = [main, section]
        if metrics:
            callbacks.append(ContextMetrics(metrics, ("test",), section.facade))
        if session is not None and session.ema is not None and use_ema_net and model is self.net:
            callbacks.append(session.ema)
        callbacks += [build("callback", one) for one in test_phase_callbacks or ()]
        tester = CadenzaTrainer(model, None, criterion or _no_loss, callbacks=callbacks, device=chosen()["device"])
        tester.test(test_loader)
        found: dict[str, float] = section.facade.metrics_dict
        return {name: value for name, value in found.items() if criterion or name not in main.names}

    def _for_test(self, loss: Any, metrics: Sequence[Any] | None) -> tuple[Any, dict[str, Any], Source]:
        """Criterion, metrics and source: what is given, else what the training had."""
        given = metrics_by_name(metrics or ())
        session = self.session
        criterion = make_loss(loss, {}) if loss is not None else session and session.criterion
        if session is None:
            return criterion, given, PlainSource()
        return criterion, given or session.valid_metrics, copy.copy(session.source)

    # From a recipe --------------------------------------------------------------------------------------------------

    @classmethod
    def train_from_config(cls, cfg: Any) -> tuple[nn.Module, dict[str, Any]]:
        """Trains what a recipe says, a Hydra ``DictConfig``; returns the model and its last metrics."""
        from cadenza.dialects.supergradients.config import train_from_config

        return train_from_config(cls, cfg)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_THE_TRAINING:
            return self.session and attrgetter(_OF_THE_TRAINING[name])(self.session)
        return FrontDoor.__getattr__(type(self), name)  # it is not there, and says so


def _no_loss(output: Any, target: Any) -> Any:
    return torch.zeros(())
