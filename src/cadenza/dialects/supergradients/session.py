"""One training of the dialect's ``Trainer``: everything that the training parameters say, as callbacks of Cadenza."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from cadenza import loop
from cadenza._trainer_arguments import choose_device
from cadenza.callback import Callback, Watch
from cadenza.callbacks import Accumulate, GradientClip, PreciseBatchNorm, Precision, Progress, SubsetRun, WeightAverage
from cadenza.callbacks.training.accumulate import Window
from cadenza.data import length_of
from cadenza.dialects.aitoolbox.folders import save_state
from cadenza.dialects.supergradients.callback import ContextSection
from cadenza.dialects.supergradients.carried import HpmStruct
from cadenza.dialects.supergradients.checkpoints import SaveCheckpoints, installed_packages, restore
from cadenza.dialects.supergradients.environment import broadcast_from_master, chosen, synchronised
from cadenza.dialects.supergradients.loggers import BaseSGLogger, check_params
from cadenza.dialects.supergradients.losses import BatchWithExtras, loss_names, make_loss
from cadenza.dialects.supergradients.metrics import ContextMetrics, metrics_by_name
from cadenza.dialects.supergradients.optimizers import make_optimizer, rate_callbacks
from cadenza.dialects.supergradients.parameters import (
    DEFAULT_TRAINING_PARAMS,
    TrainingParams,
    compile_options,
    compiled,
    compiled_loss,
)
from cadenza.dialects.supergradients.pre_prediction import PrePrediction
from cadenza.dialects.supergradients.registry import build, watched_name
from cadenza.dialects.supergradients.sources import ModelEMA, Source
from cadenza.distributed.world import World
from cadenza.trainer import Trainer as CadenzaTrainer

if TYPE_CHECKING:
    from cadenza.run import Run


STAGES = {"train": "train", "val": "valid", "test": "test"}
"""The names of the stages, by ours."""


class SummedWindow(Window):
    """The gradients of a window are added up, as the original does; their mean is not taken."""

    def weigh(self, count: Any, mean: Any = None) -> Any:
        return 1.0

    def settle(self, parameters: Iterable[Tensor]) -> None: ...


class Session:
    """What one call of ``train`` is made of."""

    def __init__(
        self, name: str, folder: Path, model: nn.Module, params: TrainingParams, loaders: dict[str, Any]
    ) -> None:
        params.check()
        options = chosen()
        device = choose_device(options["device"]).type
        if params.sync_bn:
            model = synchronised(model, World.detect().world_size, device)
        self.name, self.folder, self.params, self.loaders = name, folder, params, loaders
        self.results: dict[str, Any] = {}
        self.settled = False
        self.accumulate: Accumulate | None = None
        self.gradients: dict[str, Tensor] = {}
        self.best_metrics: dict[str, Any] = {}
        self.packages = installed_packages() if params.log_installed_packages and params.save_model else {}
        self._make_loss()
        self.main = BatchWithExtras(self.names)
        self.source = SessionSource(self)
        self.section = ContextSection(self.source)
        self.section.averages = True
        self.optimizer = make_optimizer(model, params)
        self.train_metrics = metrics_by_name(params.train_metrics_list)
        self.valid_metrics = metrics_by_name(params.valid_metrics_list)
        watched = loaders["valid"] is not None
        self.watch = watched_name(params.metric_to_watch, self.names, self.valid_metrics) if watched else None
        self.mode = "max" if params.greater_metric_to_watch_is_better else "min"
        self.ema = self._ema(model)
        self.average = self._average()
        self.logger = self._logger()
        callbacks = self.callbacks(model, device)
        self.trainer = CadenzaTrainer(
            model, self.optimizer, self.criterion, callbacks=callbacks, seed=params.seed, **options
        )

    # What it is made of ---------------------------------------------------------------------------------------------

    def _make_loss(self) -> None:
        params = self.params
        self.criterion = make_loss(params.loss, params.criterion_params)
        self.names = loss_names(self.criterion, params.loss_logging_items_names)
        self.compiling = compile_options(params.torch_compile_options)
        if params.torch_compile_loss:
            self.criterion = compiled_loss(self.criterion, self.compiling)

    def callbacks(self, model: nn.Module, device: str) -> list[Any]:
        """In the original's order: the user's, the warm-up, and the schedule at last."""
        params = self.params
        mine = params.phase_callbacks or []
        if not isinstance(mine, list | tuple):
            raise TypeError(f"supergradients: phase_callbacks is a list, not {type(mine).__name__}: [...]")
        warmup, schedule = rate_callbacks(params, self.optimizer, model, length_of(self.loaders["train"]) or 0)
        before: list[Any] = [self.main, self.section, *self._metrics(), *self._changing(device)]
        users = [build("callback", one) for one in mine]
        after: list[Any] = [Watch(self.watch, self.mode)] if self.watch is not None else []
        if params.clip_grad_norm:
            after.append(GradientClip(norm=float(params.clip_grad_norm)))
        after += [one for one in (self.ema, self.average) if one is not None]
        if params.precise_bn:
            after.append(PreciseBatchNorm(self._precise_batches()))
        if params.save_model:
            after.append(SaveCheckpoints(self))
        if not params.silent_mode:
            after.append(Progress())
        return [*before, *users, *warmup, *after, *schedule]

    def _metrics(self) -> list[Callback]:
        each = ((self.train_metrics, ("train",)), (self.valid_metrics, ("val", "test")))
        return [ContextMetrics(metrics, stages, self.section.facade) for metrics, stages in each if metrics]

    def _changing(self, device: str) -> list[Callback]:
        """What changes batches, precision and windows."""
        params = self.params
        made: list[Callback] = []
        if params.pre_prediction_callback is not None:
            made.append(PrePrediction(build("callback", params.pre_prediction_callback)))
        if params.mixed_precision:
            made.append(Precision("fp16" if device == "cuda" else "bf16"))
        if params.batch_accumulate > 1:
            self.accumulate = Accumulate(params.batch_accumulate, carry=True)
            self.accumulate.window = SummedWindow(params.batch_accumulate)
            made.append(self.accumulate)
        if params.max_train_batches or params.max_valid_batches:
            made.append(SubsetRun(params.max_train_batches, params.max_valid_batches, None))
        return made

    def _precise_batches(self) -> int:
        """So many batches as make ``precise_bn_batch_size`` samples; all of them if it is not given."""
        loader, samples = self.loaders["train"], self.params.precise_bn_batch_size
        size = getattr(loader, "batch_size", None)
        if samples is None or not size:
            return length_of(loader) or 100
        return max(1, int(samples) // (int(size) * World.detect().world_size))

    def _ema(self, model: nn.Module) -> ModelEMA | None:
        if not self.params.ema:
            return None
        options = {**DEFAULT_TRAINING_PARAMS["ema_params"], **(self.params.ema_params or {})}
        warmup = {"exp": "exponential", "threshold": "threshold", "constant": "constant"}.get(options["decay_type"])
        if warmup is None:
            raise ValueError("supergradients: ema_params.decay_type is exp, threshold or constant")
        batches = length_of(self.loaders["train"]) or 1
        steps = batches * int(self.params.max_epochs) if warmup == "exponential" else None
        made = ModelEMA(options["decay"], warmup=warmup, steps=steps, beta=options["beta"])
        made.model = model
        return made

    def _average(self) -> WeightAverage | None:
        if not self.params.average_best_models or self.watch is None:
            return None
        return WeightAverage(best=10, monitor=self.watch, mode=self.mode, apply=False)

    def _logger(self) -> Any:
        said = self.params.sg_logger
        if not isinstance(said, str):
            return said
        if said == "base_sg_logger":
            check_params(self.params.sg_logger_params)
            return BaseSGLogger(str(self.folder))
        return build("sg_logger", said, local_dir=str(self.folder), **(self.params.sg_logger_params or {}))

    # Playing it -----------------------------------------------------------------------------------------------------

    def settle_folder(self, run: Run) -> None:
        """All processes write where the first one does; only now, in a run, they can tell each other."""
        if not self.settled:
            self.settled = True
            if run.world_size > 1:
                self.folder = Path(broadcast_from_master(str(self.folder)))
                if isinstance(self.logger, BaseSGLogger):
                    self.logger.folder, self.logger.on = self.folder, run.is_main
            if run.is_main:
                self.folder.mkdir(parents=True, exist_ok=True)

    def play(self, resume: Path | None) -> dict[str, Any]:
        """Trains, and returns the last metrics of each stage."""
        done = 0 if resume is None else restore(self, resume)
        left = int(self.params.max_epochs) - done
        if left > 0:
            wanted = ((self.trainer.model, self.params.torch_compile), (self.criterion, self.params.torch_compile_loss))
            with compiled([one for one, is_on in wanted if is_on and isinstance(one, nn.Module)], self.compiling):
                self.train(left)
        return dict(self.results)

    def train(self, epochs: int) -> None:
        run = self.trainer.run(epochs=epochs)
        run.train_loader, run.val_loader, run.test_loaders = (self.loaders[key] for key in ("train", "valid", "test"))
        with run:
            for name, parameter in run.module.named_parameters():  # of a window that was open when the run was saved
                if name in self.gradients:
                    parameter.grad = self.gradients[name].to(run.device)
            for _ in run.epochs():
                rates = [group["lr"] for group in self.optimizer.param_groups]
                for _ in run.train():
                    run.train_step()
                if (run.epoch + 1) % self.params.run_validation_freq == 0 or run.is_last_epoch:
                    loop.validate(run)
                if (run.epoch + 1) % self.params.run_test_freq == 0:
                    loop.test(run)
                self.log(run, rates)
            self.finish(run)
        self.results = self.measured(run)

    def log(self, run: Run, rates: list[float]) -> None:
        """The metrics of the epoch, and the learning rates with which it began, go to the logger."""
        names = [group.get("name", number) for number, group in enumerate(self.optimizer.param_groups)]
        found = {"lr" if len({*names}) == 1 else f"lr/{name}": rate for name, rate in zip(names, rates, strict=True)}
        for stage, metrics in self.section.upkeep.found.items():
            found |= {f"{STAGES[stage]}_{name}": value for name, value in metrics.items()}
        for name, value in found.items():
            self.logger.add_scalar(name.lower(), value, run.epoch)

    def finish(self, run: Run) -> None:
        """Validates and writes the mean of the best models, between the two events that say so."""
        context = self.section.facade
        self.section.call("on_average_best_models_validation_start", run)
        if self.average is not None and self.average.count and not run.stop_reason:
            own = {name: value.detach().clone() for name, value in run.module.state_dict().items()}
            context.put(epoch=run.num_epochs)
            self.average.copy_to(run.module)
            if run.is_main:
                save_state(self.folder / "average_model.pth", {"net": run.module.state_dict()})
            self.section.averaging = True
            for _ in run.validate(self.loaders["valid"], "average"):
                run.eval_step()
            self.section.averaging = False
            run.module.load_state_dict(own)
        self.section.call("on_average_best_models_validation_end", run)

    def measured(self, run: Run) -> dict[str, Any]:
        return {
            stage: {name.removeprefix(f"{ours}/"): v for name, v in run.metrics.items() if name.startswith(f"{ours}/")}
            for ours, stage in STAGES.items()
        }

    def stateful(self, run: Run) -> list[Callback]:
        """The user's callbacks that keep something; what is the trainer's own is written under its own key."""
        return [member for member in self.section.members if member.state_dict()]


class SessionSource(Source):
    """What the context of a session holds beside the run."""

    def __init__(self, session: Session) -> None:
        self.session, self.main = session, session.main

    def fields(self, run: Run) -> dict[str, Any]:
        session = self.session
        session.settle_folder(run)
        return {
            "experiment_name": session.name,
            "ckpt_dir": str(session.folder),
            "sg_logger": session.logger,
            "training_params": session.params,
            "checkpoint_params": _struct(session.loaders.get("checkpoint_params"), load_checkpoint=False),
            "arch_params": _struct(session.loaders.get("arch_params")),
            "lr_warmup_epochs": session.params.lr_warmup_epochs,
            "metric_to_watch": session.params.metric_to_watch,
            "valid_metrics": session.valid_metrics,
            "ema_model": session.ema,
        }

    def close(self) -> None:
        self.session.logger.close()


def _struct(given: Any, **entries: Any) -> Any:
    """Arguments as attributes, given as a dict or as such."""
    return given if given and not isinstance(given, Mapping) else HpmStruct(**entries | dict(given or {}))
