"""What callbacks of AIToolbox call ``self.train_loop_obj``."""

from __future__ import annotations

from datetime import datetime
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.data import length_of
from cadenza.dialects.aitoolbox.collecting import append_predictions, torch_cat_transf
from cadenza.dialects.aitoolbox.evaluations import Evaluations
from cadenza.dialects.aitoolbox.handler import CallbacksHandler
from cadenza.dialects.aitoolbox.history import TrainingHistory
from cadenza.dialects.aitoolbox.messages import MessageService
from cadenza.dialects.aitoolbox.multi import MultiOptimizer
from cadenza.dialects.aitoolbox.predictions import PredictionStore
from cadenza.dialects.aitoolbox.table import DIALECT

if TYPE_CHECKING:
    from cadenza.dialects.adapter import Section
    from cadenza.run import Run

TIMESTAMP = "%Y-%m-%d_%H-%M-%S"
OF_EXPERIMENT = {"project_name": "project", "experiment_name": "name", "local_model_result_folder_path": "root"}


class LoopObject(Evaluations, dialect=DIALECT):
    """The loop as callbacks see it: over any run, whether a ``TrainLoop`` or a ``cadenza.Trainer`` made it."""

    _kept_names = frozenset(
        {"iteration", "total_iteration_idx", "message_service", "prediction_store", "callbacks_handler"}
        | {"grad_accumulation", "num_iterations", "gpu_mode"}
    )
    _replaceable = frozenset({"collate_batch_pred_fn", "pred_transform_fn"})
    message_service: MessageService
    prediction_store: PredictionStore
    callbacks_handler: CallbacksHandler
    gpu_mode = "single"
    end_auto_eval: bool | int = True
    lazy_experiment_save = False
    print_callbacks = False
    collate_batch_pred_fn = staticmethod(append_predictions)
    pred_transform_fn = staticmethod(torch_cat_transf)
    batch_model_feed_def: Any = None
    ddp_handler: Any = None
    amp_scaler_init: Any = None
    grad_cb_used = False
    grad_accumulation = 1
    num_iterations = 0
    iteration = -1
    total_iteration_idx = -1
    hyperparams: Any = None
    cloud_save_mode: str | None = None
    bucket_name: str | None = None
    cloud_dir_prefix = ""
    source_dirs: tuple[str, ...] = ()
    rm_subopt_local_models: bool | str = False
    iteration_save_freq = 0
    val_result_package: Any = None
    test_result_package: Any = None
    _section: Section
    _early_stop = False
    _resumed = False
    _epoch_is_over = False

    def __init__(self) -> None:
        self.experiment_timestamp = datetime.now().strftime(TIMESTAMP)
        self.train_history = TrainingHistory()
        vars(self).update(
            message_service=MessageService(),
            prediction_store=PredictionStore(),
            callbacks_handler=CallbacksHandler(self),
        )
        self.loss_batch_accum: list[Tensor] = []

    # Bookkeeping, called by the section before any callback ----------------------------------------------------------

    def begin_training(self, section: Section) -> None:
        self._section = section
        self._early_stop = False
        self._epoch_is_over = False
        vars(self)["total_iteration_idx"] = self.run.clock.batches - 1

    def begin_epoch(self, run: Run) -> None:
        self._purge_messages()
        if not self._resumed:  # an epoch that is resumed in its middle goes on with its losses
            self.loss_batch_accum = []
        self._resumed = False

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps: the history, and within an epoch its losses so far."""
        run = vars(self).get("run")
        inside = run is not None and run.is_open and run.clock.epochs <= run.epoch and bool(self.loss_batch_accum)
        return {
            "history": {name: list(values) for name, values in self.train_history.items()},
            "losses": torch.stack(self.loss_batch_accum) if inside else None,
            "early_stop": self._early_stop,
        }

    def take_back(self, state: dict[str, Any]) -> None:
        self.train_history.train_history = {name: list(values) for name, values in state["history"].items()}
        self._early_stop = bool(state["early_stop"])
        self._resumed = state["losses"] is not None
        self.loss_batch_accum = list(state["losses"].unbind()) if self._resumed else []

    def begin_batch(self, run: Run) -> None:
        vars(self).update(iteration=run.batch_idx, total_iteration_idx=run.clock.batches)

    def end_batch(self, run: Run) -> None:
        if "loss" not in run.skipped:
            self.loss_batch_accum.append(run.loss.detach())

    def end_epoch(self, run: Run) -> None:
        """The losses of the epoch go into the history, and a stop that was asked for during the epoch is passed on."""
        self._epoch_is_over = True
        if self.loss_batch_accum:
            self._remember("accumulated_loss", self.parse_loss(self.loss_batch_accum))
        if self.is_evaluated(run):
            self._remember("loss", self.full_train_loss(run))
            if run.measured("val/loss"):
                self._remember("val_loss", run.metrics["val/loss"])
                self.prediction_store.insert("validation_loss", run.metrics["val/loss"], self.total_iteration_idx, True)
        if self._early_stop:
            run.stop("early_stop was set on the train loop")

    def is_evaluated(self, run: Run) -> bool:
        """Whether the losses over whole data sets are computed in this epoch."""
        return True

    def full_train_loss(self, run: Run) -> float:
        """Under a plain trainer no pass is made for it: it is the mean over the training batches."""
        return run.metrics["train/loss"]

    def end_training(self, run: Run) -> None:
        self._purge_messages()

    def _purge_messages(self) -> None:
        """After an epoch, once all callbacks have played its end: here, since they play after the section."""
        if self._epoch_is_over:
            self.message_service.end_of_epoch_trigger()
            self._epoch_is_over = False

    def _remember(self, name: str, value: Any) -> None:
        values = value.items() if isinstance(value, dict) else [("", value)]
        for part, number in values:
            self.train_history[f"{name}_{part}" if part else name] = number

    # What may be set ------------------------------------------------------------------------------------------------

    @property
    def early_stop(self) -> bool:
        return self._early_stop

    @early_stop.setter
    def early_stop(self, wanted: bool) -> None:
        self._early_stop = bool(wanted)
        at = self.run._at
        if wanted and at is not None and at.name in ("after_epoch", "after_best", "after_run"):
            self.run.stop("early_stop was set on the train loop")

    @property
    def model(self) -> Any:
        return self.run.module

    @model.setter
    def model(self, module: torch.nn.Module) -> None:
        self.run.module = self.run.training_state.module = module.to(self.run.device)
        self.run.model = module

    @property
    def optimizer(self) -> Any:
        found = self.run.optimizers
        return found[0] if len(found) == 1 else MultiOptimizer(found)

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self.run.optimizers[:] = list(optimizer) if isinstance(optimizer, MultiOptimizer) else [optimizer]

    @property
    def criterion(self) -> Any:
        return self.run.criterion

    @criterion.setter
    def criterion(self, criterion: Any) -> None:
        self.run.criterion = self.run.training_state.criterion = criterion

    @property
    def train_loader(self) -> Any:
        return self.run.train_loader

    @train_loader.setter
    def train_loader(self, loader: Any) -> None:
        self.run.train_loader = loader

    @property
    def validation_loader(self) -> Any:
        return self.run.val_loader

    @validation_loader.setter
    def validation_loader(self, loader: Any) -> None:
        self.run.val_loader = loader

    @property
    def test_loader(self) -> Any:
        return self.run.test_loaders

    @test_loader.setter
    def test_loader(self, loader: Any) -> None:
        self.run.test_loaders = loader

    # What is read ---------------------------------------------------------------------------------------------------

    @property
    def num_optimizers(self) -> int:
        return len(self.run.optimizers)

    @property
    def use_amp(self) -> bool:
        return self.run.scaler is not None

    @property
    def ddp_training_mode(self) -> bool:
        return self.run.world_size > 1

    @property
    def callbacks(self) -> list[Any]:
        return [member.foreign for member in self._section.members]

    def __getattr__(self, name: str) -> Any:
        if name not in OF_EXPERIMENT:
            return super().__getattr__(name)
        experiment = self.run.experiment
        if experiment is None or not hasattr(experiment, OF_EXPERIMENT[name]):
            raise AttributeError(
                f"aitoolbox: {name} is not known: this loop belongs to no experiment. Use TrainLoopCheckpoint or "
                "cadenza.Trainer(experiment=...), or give it to the callback",
                name=name,
            )
        return str(getattr(experiment, OF_EXPERIMENT[name]))

    def is_main_process(self) -> bool:
        return self.run.is_main

    def get_num_training_steps(self) -> int:
        """How many optimizer steps the whole training makes."""
        batches = length_of(self.train_loader)
        if batches is None:
            raise ValueError("the training loader does not know its length, so neither is the number of steps known")
        if self.num_iterations:
            return ceil(self.num_iterations / self.grad_accumulation)
        return ceil(batches / self.grad_accumulation) * int(self.run.num_epochs or 0)

    def should_execute_optimizer_update(self) -> bool:
        """Whether this batch ends with a step of the optimizers."""
        last = length_of(self.train_loader)
        done = self.iteration + 1
        return done % self.grad_accumulation == 0 or done == last

    def get_schedulers(self) -> list[Any]:
        """The schedulers of the scheduler callbacks, and those that the trainer steps."""
        own = [member.foreign for member in self._section.members]
        return [one.scheduler for one in own if hasattr(one, "scheduler")] + list(self.run.schedulers)

    def insert_metric_result_into_history(self, metric_name: str, metric_result: Any) -> None:
        """Adds a value to the history, and logs it in the run under the same name if it is a number."""
        self.train_history[metric_name] = metric_result
        if isinstance(metric_result, int | float | Tensor):
            self.run.log(metric_name, metric_result)

    @staticmethod
    def parse_loss(loss_record: list[Any]) -> float:
        """The mean of a list of losses, as a number."""
        return float(torch.stack([torch.as_tensor(loss).float().cpu() for loss in loss_record]).mean())
