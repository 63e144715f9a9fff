"""``TrainLoop``: AIToolbox's front door, over a ``cadenza.Trainer``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from cadenza.arguments import choose_device
from cadenza.callback import Callback
from cadenza.callbacks import Accumulate, Precision
from cadenza.data import length_of
from cadenza.dialects.aitoolbox.abstract import LoopSection
from cadenza.dialects.aitoolbox.behaviour import FedModel
from cadenza.dialects.aitoolbox.collecting import append_predictions, torch_cat_transf
from cadenza.dialects.aitoolbox.history import TrainingHistory
from cadenza.dialects.aitoolbox.loop_object import LoopObject
from cadenza.dialects.aitoolbox.models import ModelWrap
from cadenza.dialects.aitoolbox.multi import MultiOptimizer
from cadenza.registration import stands_for
from cadenza.trainer import Trainer

if TYPE_CHECKING:
    from cadenza.run import Run

SPAWNING = (
    "ddp_model_args",
    "in_process_data_load",
    "num_nodes",
    "node_rank",
    "num_gpus",
    "backend",
    "init_method",
    "on_gpu",
)


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

    def __init__(
        self,
        model: nn.Module | ModelWrap,
        train_loader: Iterable[Any],
        validation_loader: Iterable[Any] | None,
        test_loader: Iterable[Any] | None,
        optimizer: Optimizer | MultiOptimizer,
        criterion: Callable[..., Any] | None,
        collate_batch_pred_fn: Callable[..., Any] = append_predictions,
        pred_transform_fn: Callable[..., Any] = torch_cat_transf,
        end_auto_eval: bool | int = True,
        lazy_experiment_save: bool = False,
        print_callbacks: bool = False,
        gpu_mode: str = "single",
        cuda_device_idx: int | None = None,
        use_amp: bool | dict[str, Any] = False,
    ) -> None:
        super().__init__()
        self.collate_batch_pred_fn = collate_batch_pred_fn
        self.pred_transform_fn = pred_transform_fn
        self.end_auto_eval = _checked_evaluation(end_auto_eval)
        self.lazy_experiment_save, self.print_callbacks = lazy_experiment_save, print_callbacks
        vars(self)["gpu_mode"] = _checked_gpu_mode(gpu_mode)
        self.train_history = TrainingHistory(has_validation=validation_loader is not None)
        self._loaders: dict[str, Any] = {"train": train_loader, "validation": validation_loader, "test": test_loader}
        if isinstance(model, ModelWrap):
            self.batch_model_feed_def, model = model.batch_model_feed_def, model.model
        self._main = FedModel(self.batch_model_feed_def)
        self._own = _OwnSection(self)
        device = choose_device("auto" if cuda_device_idx is None else f"cuda:{cuda_device_idx}")
        self._trainer = Trainer(
            model,
            list(optimizer) if isinstance(optimizer, MultiOptimizer) else optimizer,
            criterion,
            callbacks=[self._main, self._own, *_precision(use_amp, device.type)],
            device=device,
            strategy="ddp" if gpu_mode == "ddp" else "single",
        )
        self.run = self._trainer.run(epochs=1)  # not begun: what callers read before a fit
        self._put_loaders(self.run)

    # Training -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        num_epochs: int = 0,
        num_iterations: int = 0,
        callbacks: Iterable[Any] | None = None,
        grad_accumulation: int = 1,
        **kwargs: Any,
    ) -> nn.Module:
        """Trains for so many epochs or so many batches, and returns the model. A further fit goes on from there."""
        for name in kwargs:
            known = name in SPAWNING
            why = "processes are started from outside, with torchrun or `cadenza launch`" if known else "it is unknown"
            raise TypeError(f"aitoolbox: fit takes no {name!r}: {why}")
        if (num_epochs > 0) == (num_iterations > 0):
            raise ValueError("give exactly one of num_epochs and num_iterations, a number above 0")
        self._register(list(callbacks or ()))
        vars(self).update(grad_accumulation=grad_accumulation, num_iterations=num_iterations)
        own: list[Callback] = [Accumulate(grad_accumulation)] if grad_accumulation > 1 else []
        if num_iterations:
            num_epochs = ceil(num_iterations / self._batches())
            own.append(IterationLimit(num_iterations))
        self._fit(num_epochs, own)
        return self._trainer.model

    __call__ = fit

    def _fit(self, epochs: int, own: list[Callback]) -> None:
        every = 1 if self.end_auto_eval is True else int(self.end_auto_eval)
        validation = self._loaders["validation"] if self.end_auto_eval else None
        for callback in own:
            self._trainer.add(callback)
        try:
            loader = self._loaders["train"]
            self._trainer.fit(loader, validation, epochs=epochs, validate_every=f"{max(every, 1)} epochs")
        finally:
            for callback in own:
                self._trainer.remove(callback)

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

    def is_evaluated(self, run: Run) -> bool:
        every = int(self.end_auto_eval)
        return every > 0 and (run.epoch + 1) % every == 0

    def full_train_loss(self, run: Run) -> Any:
        return self.evaluate_loss_on_train_set()

    def end_training(self, run: Run) -> None:
        super().end_training(run)
        if run.mode == "fit" and self.end_auto_eval and self._loaders["test"] is not None:
            self._remember("train_end_test_loss", self.evaluate_loss_on_test_set())

    def evaluate_model_loss(self, data_loader: Iterable[Any], float_dict_format: bool = False) -> Any:
        """The mean loss over ``data_loader``. Several losses (``MultiLoss``) are a dict of their means by name."""
        parts: dict[str, list[float]] = {}

        def watched() -> Any:
            for batch in data_loader:
                yield batch
                for name, value in (self._main.losses.numbers() if self._main.losses else {}).items():
                    parts.setdefault(name, []).append(value)

        value = self.run.evaluate(watched())["loss"]
        if parts:
            return {name: sum(values) / len(values) for name, values in parts.items()}
        return {"loss": value} if float_dict_format else value

    def _answers(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        return self._main.answers if self._main.answers is not None else super()._answers(batch)

    # The loaders ----------------------------------------------------------------------------------------------------

    def _put_loaders(self, run: Run) -> None:
        run.train_loader = self._loaders["train"]
        run.val_loader = self._loaders["validation"] if self.end_auto_eval else None

    def _set_loader(self, name: str, loader: Any) -> None:
        self._loaders[name] = loader
        self._put_loaders(self.run)

    train_loader = property(lambda self: self._loaders["train"], lambda self, x: self._set_loader("train", x))
    validation_loader = property(
        lambda self: self._loaders["validation"], lambda self, x: self._set_loader("validation", x)
    )
    test_loader = property(lambda self: self._loaders["test"], lambda self, x: self._set_loader("test", x))

    @property
    def callbacks(self) -> list[Any]:
        adapters = [one for one in self._trainer.callbacks if getattr(one, "section", None) is self._own]
        return [one.foreign for one in sorted(adapters, key=lambda one: one.order)]  # type: ignore[attr-defined]


class _OwnSection(LoopSection):
    """A section whose loop object is a given ``TrainLoop``."""

    def __init__(self, loop: TrainLoop) -> None:
        super().__init__()
        self.facade = loop


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


def _checked_evaluation(every: bool | int) -> bool | int:
    if not isinstance(every, bool) and (not isinstance(every, int) or every < 1):
        raise ValueError(f"end_auto_eval is True, False or a number of epochs of at least 1, not {every!r}")
    return every


def _checked_gpu_mode(mode: str) -> str:
    if mode == "dp":
        raise ValueError(
            "aitoolbox: gpu_mode='dp' is not carried: torch.nn.DataParallel holds all devices in one process; start a "
            "process for each and use gpu_mode='ddp'"
        )
    if mode not in ("single", "ddp"):
        raise ValueError(f"gpu_mode is 'single' or 'ddp', not {mode!r}")
    return mode


def _precision(use_amp: bool | dict[str, Any], device: str) -> list[Callback]:
    """Half precision with a gradient scaler on a GPU; on a CPU bf16, which needs none."""
    if not use_amp:
        return []
    options = dict(use_amp) if isinstance(use_amp, dict) else {}
    unknown = options.keys() - {"init_scale", "growth_interval"}
    if unknown:
        raise ValueError(f"use_amp takes init_scale and growth_interval, not {', '.join(sorted(unknown))}")
    return [Precision("fp16", **options) if device == "cuda" else Precision("bf16")]
