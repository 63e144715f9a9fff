"""What callbacks of AIToolbox call ``self.train_loop_obj``."""

from __future__ import annotations

from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.data import length_of
from cadenza.dialects.aitoolbox.collecting import append_predictions, torch_cat_transf
from cadenza.dialects.aitoolbox.evaluations import Evaluations
from cadenza.dialects.aitoolbox.handler import CallbacksHandler
from cadenza.dialects.aitoolbox.history import TrainingHistory
from cadenza.dialects.aitoolbox.messages import MessageService
from cadenza.dialects.aitoolbox.multi import MultiLoss, MultiOptimizer
from cadenza.dialects.aitoolbox.predictions import PredictionStore
from cadenza.dialects.aitoolbox.table import DIALECT

if TYPE_CHECKING:
    from cadenza.dialects.adapter import Section
    from cadenza.run import Run

NOT_GIVEN: Any = None
TIMESTAMP = "%Y-%m-%d_%H-%M-%S"
OF_EXPERIMENT = {"project_name": "project", "experiment_name": "name", "local_model_result_folder_path": "root"}


def _of_run(field: str) -> Any:
    """A property that is a field of the run."""
    return property(attrgetter(f"run.{field}"), lambda self, value: setattr(self.run, field, value))


class LoopObject(Evaluations, dialect=DIALECT):
    """The loop as callbacks see it: over any run, whether a ``TrainLoop`` or a ``cadenza.Trainer`` made it."""

    _kept_names = frozenset({"message_service", "prediction_store", "gpu_mode"})
    _replaceable = frozenset({"collate_batch_pred_fn", "pred_transform_fn"})
    message_service: MessageService
    prediction_store: PredictionStore
    gpu_mode = "single"
    end_auto_eval: bool | int = True
    lazy_experiment_save = print_callbacks = grad_cb_used = False
    collate_batch_pred_fn = staticmethod(append_predictions)
    pred_transform_fn = staticmethod(torch_cat_transf)
    batch_model_feed_def = ddp_handler = amp_scaler_init = hyperparams = NOT_GIVEN
    val_result_package = test_result_package = cloud_save_mode = bucket_name = NOT_GIVEN
    grad_accumulation = 1
    epoch = iteration = num_epochs = num_iterations = iteration_save_freq = 0
    cloud_dir_prefix = ""
    source_dirs: tuple[str, ...] = ()
    rm_subopt_local_models: bool | str = False
    _section: Section
    _early_stop = _resumed = _epoch_is_over = False
    _begins_at: int | None = None
    _total = -1
    _shift = 0

    def __init__(self) -> None:
        self.experiment_timestamp = datetime.now().strftime(TIMESTAMP)
        self.train_history = TrainingHistory()
        vars(self).update(message_service=MessageService(), prediction_store=PredictionStore())
        self.loss_batch_accum: list[Any] = []
        self._val_losses: list[Any] = []
        self._disabled_scaler = torch.amp.GradScaler(enabled=False)

    # Bookkeeping, called by the section before any callback ----------------------------------------------------------

    def begin_training(self, section: Section) -> None:
        self._section = section
        self._early_stop = False
        self._epoch_is_over = False
        self.epoch = self._begins_at = self.run.epoch
        self.num_epochs, self._total = int(self.run.num_epochs or 0), self.run.clock.batches - 1

    def begin_epoch(self, run: Run) -> None:
        if self._begins_at not in (None, self.epoch):  # a callback has set it
            run.clock.epochs = run.epoch = self.epoch
        self.epoch, self._begins_at = run.epoch, None
        self._purge_messages()
        self._val_losses = []
        if not self._resumed:  # an epoch that is resumed in its middle goes on with its losses
            self.loss_batch_accum = []
        self._resumed = False

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps: the history, and within an epoch its losses so far."""
        run = vars(self).get("run")
        inside = run is not None and run.is_open and run.clock.epochs <= run.epoch and bool(self.loss_batch_accum)
        losses = [dict(loss) if isinstance(loss, MultiLoss) else loss for loss in self.loss_batch_accum]
        return {
            "history": {name: list(values) for name, values in self.train_history.items()},
            "losses": losses if inside else None,
            "early_stop": self._early_stop,
        }

    def take_back(self, state: dict[str, Any]) -> None:
        self.train_history.train_history = {name: list(values) for name, values in state["history"].items()}
        self._early_stop, self._begins_at = bool(state["early_stop"]), None
        self._resumed = state["losses"] is not None
        self.loss_batch_accum = [MultiLoss(one) if isinstance(one, dict) else one for one in state["losses"] or ()]

    def begin_batch(self, run: Run) -> None:
        self.iteration, self._total = run.batch_idx, run.clock.batches

    def end_batch(self, run: Run) -> None:
        if "loss" not in run.skipped:
            self.loss_batch_accum.append(self._loss_here(run))

    def end_train_epoch(self, run: Run) -> None:
        """The batches of the epoch are over, and the validation is still to come."""

    def end_val_batch(self, run: Run) -> None:
        if "loss" not in run.skipped:
            self._val_losses.append(self._loss_here(run))

    def _loss_here(self, run: Run) -> Any:
        """The loss of the batch at hand."""
        return run.loss.detach()

    def end_epoch(self, run: Run) -> None:
        """The losses of the epoch go into the history, and a stop that was asked for during the epoch is passed on."""
        self._epoch_is_over = True
        if self.loss_batch_accum:
            self._remember("accumulated_loss", self.parse_loss(self.loss_batch_accum))
            self.loss_batch_accum = []
        if self.is_evaluated(run):
            self._remember("loss", self.full_train_loss(run))
            if self._val_losses:
                loss = self.parse_loss(self._val_losses) if run.world_size == 1 else run.metrics["val/loss"]
                self._remember("val_loss", loss)
                self.prediction_store.insert("validation_loss", loss, self.total_iteration_idx, True)
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
        values = value if isinstance(value, MultiLoss) else {"": value}
        for part in sorted(values):
            self.train_history[f"{name}_{part}" if part else name] = float(values[part])

    # What may be set ------------------------------------------------------------------------------------------------

    def _set_early_stop(self, wanted: bool) -> None:
        self._early_stop = bool(wanted)
        at = self.run.point
        if wanted and at is not None and at.name in ("after_epoch", "after_best", "after_run"):
            self.run.stop("early_stop was set on the train loop")

    early_stop = property(attrgetter("_early_stop"), _set_early_stop)

    @property
    def total_iteration_idx(self) -> int:
        return self._total + self._shift

    @total_iteration_idx.setter
    def total_iteration_idx(self, number: int) -> None:
        self._shift = number - self._total

    def _set_model(self, module: torch.nn.Module) -> None:
        self.run.module = self.run.training_state.module = module.to(self.run.device)
        self.run.model = module

    model = property(attrgetter("run.module"), _set_model)

    @property
    def optimizer(self) -> Any:
        found = self.run.optimizers
        return found[0] if len(found) == 1 else MultiOptimizer(found)

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self.run.optimizers[:] = list(optimizer) if isinstance(optimizer, MultiOptimizer) else [optimizer]

    train_loader = _of_run("train_loader")
    validation_loader = _of_run("val_loader")
    test_loader = _of_run("test_loaders")

    def _set_criterion(self, criterion: Any) -> None:
        self.run.criterion = self.run.training_state.criterion = criterion

    criterion = property(attrgetter("run.criterion"), _set_criterion)

    # What is read ---------------------------------------------------------------------------------------------------

    @property
    def callbacks_handler(self) -> CallbacksHandler:
        return CallbacksHandler(self)

    @callbacks_handler.setter
    def callbacks_handler(self, handler: CallbacksHandler) -> None:
        if not isinstance(handler, CallbacksHandler) or handler.loop is not self:  # as it is after `+=`
            raise AttributeError("aitoolbox: train_loop_obj.callbacks_handler is kept by the loop; use +=")

    num_optimizers = property(lambda self: len(self.run.optimizers))
    use_amp = property(lambda self: self.run.scaler is not None)
    amp_scaler = property(lambda self: self.run.scaler or self._disabled_scaler)
    ddp_training_mode = property(lambda self: self.run.world_size > 1)
    ddp_rank = property(lambda self: self.run.rank if self.ddp_training_mode else None)

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
        """How many optimizer steps the whole training makes, as far as windows are complete."""
        batches = length_of(self.train_loader)
        if batches is None:
            raise ValueError("the training loader does not know its length, so neither is the number of steps known")
        if self.num_iterations:
            return self.num_iterations // self.grad_accumulation
        return batches // self.grad_accumulation * self.num_epochs

    def should_execute_optimizer_update(self) -> bool:
        """Whether this batch ends with a step of the optimizers."""
        done = self.iteration + 1
        return done % self.grad_accumulation == 0 or done == length_of(self.train_loader)

    def get_schedulers(self) -> list[Any]:
        """The callbacks that are schedules, and the schedulers that the trainer steps."""
        return [one for one in self.callbacks if hasattr(one, "scheduler")] + list(self.run.schedulers)

    def insert_metric_result_into_history(self, metric_name: str, metric_result: Any) -> None:
        """Adds a value to the history, and logs it in the run under the same name if it is a number."""
        self.train_history[metric_name] = metric_result
        if isinstance(metric_result, int | float | Tensor):
            self.run.log(metric_name, metric_result)
