"""``TrainLoop``: AIToolbox's front door, over a ``cadenza.Trainer``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza._trainer_arguments import choose_device
from cadenza.callback import Callback, Order
from cadenza.callbacks import Precision
from cadenza.data import length_of
from cadenza.dialects.aitoolbox.abstract import LoopSection
from cadenza.dialects.aitoolbox.collecting import append_predictions, torch_cat_transf
from cadenza.dialects.aitoolbox.evaluations import LOADERS
from cadenza.dialects.aitoolbox.history import TrainingHistory
from cadenza.dialects.aitoolbox.loop_object import LoopObject
from cadenza.dialects.aitoolbox.models import FedModel, ModelWrap
from cadenza.dialects.aitoolbox.multi import MultiOptimizer
from cadenza.foundation.module_modes import flags_of, set_flags
from cadenza.registration.checks import stands_for
from cadenza.trainer import Trainer

if TYPE_CHECKING:
    from cadenza.run import Run

SPAWNING = (
    "ddp_model_args", "in_process_data_load", "num_nodes", "node_rank", "num_gpus", "backend", "init_method", "on_gpu",
)  # fmt: skip


def _loader(name: str) -> Any:
    """A property of the loop that is the loader of one data set."""

    def replace(loop: TrainLoop, loader: Any) -> None:
        loop._loaders[name] = loader
        loop.run.train_loader = loop._loaders["train"]

    return property(lambda loop: loop._loaders[name], replace)


class TrainLoop(LoopObject):
    """Trains a model and plays callbacks; ``train_loop_obj`` of the callbacks is this very object.

    >>> import torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loop = TrainLoop(model, tiny_loader(), tiny_loader(), None, sgd, nn.CrossEntropyLoss())
    >>> loop.fit(num_epochs=2) is model, len(loop.train_history["val_loss"])
    (True, 2)
    """

    _offered = ("fit",)

    def __init__(
        self, model: nn.Module | ModelWrap, train_loader: Iterable[Any], validation_loader: Iterable[Any] | None,
        test_loader: Iterable[Any] | None, optimizer: Optimizer | MultiOptimizer, criterion: Callable[..., Any] | None,
        collate_batch_pred_fn: Callable[..., Any] = append_predictions,
        pred_transform_fn: Callable[..., Any] = torch_cat_transf, end_auto_eval: bool | int = True,
        lazy_experiment_save: bool = False, print_callbacks: bool = False, gpu_mode: str = "single",
        cuda_device_idx: int | None = None, use_amp: bool | dict[str, Any] = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.collate_batch_pred_fn = collate_batch_pred_fn
        self.pred_transform_fn = pred_transform_fn
        _check(end_auto_eval, gpu_mode)
        self.end_auto_eval = end_auto_eval
        self.lazy_experiment_save, self.print_callbacks = lazy_experiment_save, print_callbacks
        vars(self)["gpu_mode"] = gpu_mode
        self.train_history = TrainingHistory(has_validation=validation_loader is not None)
        self._loaders: dict[str, Any] = {"train": train_loader, "validation": validation_loader, "test": test_loader}
        if isinstance(model, ModelWrap):
            self.batch_model_feed_def, model = model.batch_model_feed_def, model.model
        self._main = FedModel(self.batch_model_feed_def)
        self._own = _OwnSection(self)
        device = choose_device("auto" if cuda_device_idx is None else f"cuda:{cuda_device_idx}")
        optimizers = list(optimizer) if isinstance(optimizer, MultiOptimizer) else optimizer
        callbacks = [self._main, self._own, Windows(self), *_precision(use_amp, device.type)]
        self._trainer = Trainer(model, optimizers, criterion, callbacks=callbacks, device=device, strategy=gpu_mode)
        self.run = self._trainer._run("fit", epochs=1)  # not begun: what callers read and compute before a fit

    # Training -------------------------------------------------------------------------------------------------------

    def fit(
        self, num_epochs: int = 0, num_iterations: int = 0, callbacks: Iterable[Any] | None = None,
        grad_accumulation: int = 1, **kwargs: Any,
    ) -> nn.Module:  # fmt: skip
        """Trains for so many epochs or so many batches, and returns the model. A further fit goes on from there."""
        for name in kwargs:
            known = name in SPAWNING
            why = "processes are started from outside, with torchrun or `cadenza launch`" if known else "it is unknown"
            raise TypeError(f"aitoolbox: fit takes no {name!r}: {why}")
        if (num_epochs > 0) == (num_iterations > 0):
            raise ValueError("give exactly one of num_epochs and num_iterations, a number above 0")
        self._register(list(callbacks or ()))
        self.grad_accumulation, self.num_iterations = grad_accumulation, num_iterations
        limit = [IterationLimit(num_iterations)] if num_iterations else []
        for callback in limit:
            self._trainer.add(callback)
        try:
            epochs = ceil(num_iterations / self._batches()) if num_iterations else num_epochs
            self._trainer.fit(self._loaders["train"], self._loaders["validation"], epochs=epochs)
        finally:
            for callback in limit:
                self._trainer.remove(callback)
        return self._trainer.model

    __call__ = fit

    def _batches(self) -> int:
        length = length_of(self._loaders["train"])
        if length is None:
            raise ValueError("num_iterations needs a training loader that knows its length; give num_epochs")
        return length

    def _register(self, callbacks: list[Any]) -> None:
        for callback in callbacks:
            if not any(stands_for(known, callback) for known in self._trainer.callbacks):
                self._trainer.add(callback)

    # What the loop does by itself ------------------------------------------------------------------------------------

    def begin_training(self, section: Any) -> None:
        super().begin_training(section)
        if self.print_callbacks:
            self.callbacks_handler.print_registered_callback_names()

    def begin_epoch(self, run: Run) -> None:
        super().begin_epoch(run)
        run.val_loader = self._loaders["validation"] if self.is_evaluated(run) else None

    def is_evaluated(self, run: Run) -> bool:
        return bool(self.end_auto_eval) and run.epoch % int(self.end_auto_eval) == 0

    def full_train_loss(self, run: Run) -> Any:
        return self.evaluate_loss_on_train_set()

    def end_train_epoch(self, run: Run) -> None:
        if self.is_evaluated(run):  # now, since a loader that shuffles takes its order from what torch draws next
            self.evaluate_loss_on_train_set()

    def end_training(self, run: Run) -> None:
        super().end_training(run)
        if run.mode == "fit" and self.end_auto_eval and self._loaders["test"] is not None:
            self._remember("train_end_test_loss", self.evaluate_loss_on_test_set())

    def _loss_here(self, run: Run) -> Any:
        return super()._loss_here(run) if self._main.losses is None else self._main.losses.detach()

    def _loss_of(self, batch: Any) -> Any:
        if not self._main.knows(self.run):
            return super()._loss_of(batch)
        with self._in_evaluation():
            return self._main.ask(self.run, "get_loss_eval", batch, self.criterion, self.device)

    def _prediction_of(self, batch: Any) -> tuple[Any, Any, dict[str, Any]]:
        if not self._main.knows(self.run):
            return super()._prediction_of(batch)
        with self._in_evaluation():
            found: tuple[Any, Any, dict[str, Any]] = self._main.ask(self.run, "get_predictions", batch, self.device)
            return found

    @contextmanager
    def _in_evaluation(self) -> Iterator[None]:
        """In eval mode, without gradients, in the precision of the training; also before a fit."""
        flags = flags_of(self.model.to(self.device))
        self.model.eval()
        try:
            with torch.no_grad(), self.run.autocast():
                yield
        finally:
            set_flags(flags)

    # The loaders ----------------------------------------------------------------------------------------------------

    train_loader, validation_loader, test_loader = (_loader(name) for name in LOADERS)

    @property
    def callbacks(self) -> list[Any]:
        adapters = [one for one in self._trainer.callbacks if getattr(one, "section", None) is self._own]
        return [one.foreign for one in sorted(adapters, key=lambda one: one.order)]  # type: ignore[attr-defined]


class _OwnSection(LoopSection):
    """A section whose loop object is a given ``TrainLoop``."""

    def __init__(self, loop: TrainLoop) -> None:
        super().__init__()
        self.facade = loop


class Windows(Callback):
    """Makes one step for ``grad_accumulation`` batches: each loss is divided by their number, and the last batch of an
    epoch ends with a step, however many the window has by then. The number may change at any time."""

    order = Order.TRANSFORM
    owns = frozenset({"accumulation"})
    asks = frozenset({"hold_step"})
    agree = "same"

    def __init__(self, loop: TrainLoop) -> None:
        self.loop = loop

    def before_train_epoch(self, run: Run) -> None:
        # Known before the forward, gradients are put together over processes once in a window, not for each batch.
        run.processes.hold_while(lambda: not self.loop.should_execute_optimizer_update())

    def before_backward(self, run: Run) -> None:
        if self.loop.grad_accumulation > 1:
            run.loss_weight = run.loss_weight / self.loop.grad_accumulation

    def after_backward(self, run: Run) -> None:
        if not self.loop.should_execute_optimizer_update():
            run.hold_step()


class IterationLimit(Callback):
    """Ends the epoch, validation included, after so many batches of this fit."""

    asks = frozenset({"end_epoch"})
    agree = "same"

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.seen = 0

    def after_train_iter(self, run: Run) -> None:
        self.seen += 1
        if self.seen >= self.iterations:
            run.end_epoch()


def _check(every: bool | int, mode: str) -> None:
    if not isinstance(every, bool) and (not isinstance(every, int) or every < 1):
        raise ValueError(f"end_auto_eval is True, False or a number of epochs of at least 1, not {every!r}")
    if mode == "dp":
        raise ValueError(
            "aitoolbox: gpu_mode='dp' is not carried: torch.nn.DataParallel holds all devices in one process; start a "
            "process for each and use gpu_mode='ddp'"
        )
    if mode not in ("single", "ddp"):
        raise ValueError(f"gpu_mode is 'single' or 'ddp', not {mode!r}")


def _precision(use_amp: bool | dict[str, Any], device: str) -> list[Callback]:
    """Half precision with a gradient scaler on a GPU; on a CPU bf16, which needs none."""
    if not use_amp:
        return []
    options = dict(use_amp) if isinstance(use_amp, dict) else {}
    unknown = options.keys() - {"init_scale", "growth_interval"}
    if unknown:
        known = "init_scale and growth_interval (opt_level is of versions before 1.8: write use_amp=True)"
        raise ValueError(f"use_amp takes {known}, not {', '.join(sorted(unknown))}")
    return [Precision("fp16", **options) if device == "cuda" else Precision("bf16")]
