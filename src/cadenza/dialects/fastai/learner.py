"""A small Learner: model, data, loss and metrics, trained by a native trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cadenza.callback import Callback as Native
from cadenza.callbacks.subset_run import FirstBatches
from cadenza.dialects.fastai.callback import AverageMetric, camel2snake
from cadenza.dialects.fastai.data import DataBunch, DatasetType
from cadenza.dialects.fastai.optimizer import OptimWrapper
from cadenza.dialects.fastai.section import FastaiSection
from cadenza.dialects.fastai.table import DIALECT
from cadenza.trainer import Trainer

AdamW = partial(torch.optim.AdamW, betas=(0.9, 0.99))
ACTIVATIONS: dict[type, Callable[[Any], Any]] = {
    nn.CrossEntropyLoss: partial(torch.softmax, dim=-1),
    nn.NLLLoss: torch.exp,
    nn.BCEWithLogitsLoss: torch.sigmoid,
}


class Learner:
    """Trains ``model`` on ``data``: a DataBunch, a pair of loaders, or a training loader.

    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> data, loss = (tiny_loader(), tiny_loader(8)), nn.CrossEntropyLoss()
    >>> learn = Learner(data, tiny_classifier(), loss_func=loss, silent=True)
    >>> learn.fit(2, lr=1e-2)
    >>> len(learn.recorder.losses), len(learn.recorder.val_losses)
    (6, 2)
    """

    def __init__(
        self,
        data: Any,
        model: nn.Module,
        opt_func: Callable[..., Any] = AdamW,
        loss_func: Callable[..., Any] | None = None,
        metrics: Any = None,
        true_wd: bool = True,
        bn_wd: bool = True,
        wd: float = 0.01,
        train_bn: bool = True,
        path: str | PathLike[str] | None = None,
        model_dir: str = "models",
        callback_fns: Sequence[Callable[..., Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        layer_groups: Sequence[nn.Module] | None = None,
        add_time: bool = True,
        silent: bool = False,
    ) -> None:
        _refuse(true_wd=true_wd, bn_wd=bn_wd, train_bn=train_bn)
        from cadenza.dialects.fastai.recorder import Recorder

        self.data, self._module, self.opt_func, self.loss_func = DataBunch.of(data), model, opt_func, loss_func
        self.wd, self.model_dir, self.layer_groups = wd, model_dir, layer_groups
        self.path = Path(path) if path is not None else self.data.path
        self.metrics = list(metrics) if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]
        self.callbacks = list(callbacks or ())
        self.callback_fns: list[Callable[..., Any]] = [
            partial(Recorder, add_time=add_time, silent=silent),
            *(callback_fns or ()),
        ]
        self.section = FastaiSection()
        self._trainer: Trainer | None = None
        self.recorder: Recorder

    # What it has ------------------------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """What is called: that of the run while one goes on."""
        return self.section.run.model if self.section.is_open else self._module

    @model.setter
    def model(self, value: Any) -> None:
        if self.section.is_open:
            self.section.run.model = value
        elif value is not self._module:
            raise AttributeError("fastai: a Learner keeps its model; make another one for another model")

    @property
    def opt(self) -> OptimWrapper:
        return OptimWrapper(self.trainer._training.optimizers[0])

    @property
    def trainer(self) -> Trainer:
        """The native trainer that does the work."""
        if self._trainer is None:
            groups = [self._module] if self.layer_groups is None else self.layer_groups
            parameters = [{"params": [p for p in group.parameters() if p.requires_grad]} for group in groups]
            takes = inspect.signature(self.opt_func).parameters
            decay = {"weight_decay": self.wd} if "weight_decay" in takes else {}
            optimizer = self.opt_func(parameters, lr=3e-3, **decay)
            self._trainer = Trainer(self._module, optimizer, self.loss_func, callbacks=[self.section])
        return self._trainer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "section":
            raise AttributeError(name)
        names = [one for one in (*dir(type(self)), *vars(self)) if not one.startswith("_")]
        raise AttributeError(DIALECT.not_carried(name, "attribute of a Learner", names), name=name)

    # Training ---------------------------------------------------------------------------------------------------------

    def fit(self, epochs: int, lr: Any = 3e-3, wd: Any = None, callbacks: Sequence[Any] | None = None) -> None:
        """Trains for so many epochs. ``lr`` is a number, or a slice over the layer groups."""
        self.opt.lr = self.lr_range(lr)
        if wd is not None:
            self.opt.wd = wd
        with _With(self, [*(fn(self) for fn in self.callback_fns), *self.callbacks, *(callbacks or ())], self.metrics):
            self.trainer.fit(self.data.train_dl, self.data.valid_dl, epochs=epochs)

    def fit_one_cycle(
        self,
        cyc_len: int,
        max_lr: Any = 3e-3,
        moms: tuple[float, float] = (0.95, 0.85),
        div_factor: float = 25.0,
        pct_start: float = 0.3,
        final_div: float | None = None,
        wd: Any = None,
        callbacks: Sequence[Any] | None = None,
        tot_epochs: int | None = None,
        start_epoch: int | None = None,
    ) -> None:
        """Trains with the learning rate and the momentum of one cycle."""
        from cadenza.dialects.fastai.callbacks.phases import OneCycleScheduler

        cycle = OneCycleScheduler(
            self, self.lr_range(max_lr), moms=moms, div_factor=div_factor, pct_start=pct_start, final_div=final_div,
            tot_epochs=tot_epochs, start_epoch=start_epoch,
        )  # fmt: skip
        self.fit(cyc_len, max_lr, wd=wd, callbacks=[*(callbacks or ()), cycle])

    def lr_find(
        self,
        start_lr: float = 1e-7,
        end_lr: float = 10,
        num_it: int = 100,
        stop_div: bool = True,
        wd: float | None = None,
    ) -> None:
        """Sweeps over learning rates; the weights are then as before, and ``recorder.plot()`` shows the losses."""
        from cadenza.dialects.fastai.callbacks.lr_finder import LRFinder

        length = len(self.data.train_dl)  # type: ignore[arg-type]
        finder = LRFinder(self, start_lr, end_lr, num_it, stop_div)
        self.fit(-(-num_it // length), start_lr, wd=wd, callbacks=[finder])

    def lr_range(self, lr: Any) -> Any:
        """One learning rate for each layer group: from a number, a list, or a slice of the first and the last."""
        groups = len(self.trainer._training.optimizers[0].param_groups)
        if not isinstance(lr, slice):
            return lr if isinstance(lr, list | tuple) else [lr] * groups
        if lr.start is None:
            return [lr.stop / 10] * (groups - 1) + [lr.stop]
        factor = (lr.stop / lr.start) ** (1 / max(1, groups - 1))
        return [lr.start * factor**index for index in range(groups)] if groups > 1 else [lr.stop]

    # Measuring --------------------------------------------------------------------------------------------------------

    def validate(self, dl: Any = None, callbacks: Sequence[Any] | None = None, metrics: Any = None) -> list[Any]:
        """The loss over the validation data, and the metrics."""
        measured = self.metrics if metrics is None else list(metrics)
        with _With(self, [*self.callbacks, *(callbacks or ())], measured):
            self.trainer.validate(self.data.dl() if dl is None else dl)
            values: list[Any] = self.section.values["last_metrics"]
        return values

    def get_preds(
        self,
        ds_type: DatasetType = DatasetType.Valid,
        activ: Callable[[Any], Any] | None = None,
        with_loss: bool = False,
        n_batch: int | None = None,
    ) -> list[Any]:
        """Predictions and targets in order, and with ``with_loss`` the loss of each sample. Without ``activ``, that of
        the loss is used: softmax for a cross entropy."""
        loader = self.data.dl(ds_type)
        targets = _Targets()
        with _With(self, [*self.callbacks, targets], ()):
            outputs = self.trainer.predict(loader if n_batch is None else FirstBatches(loader, n_batch))
        found = torch.cat(targets.found)
        active = ACTIVATIONS.get(type(self.loss_func), lambda values: values) if activ is None else activ
        losses = [_each(self.loss_func, outputs, found)] if with_loss else []
        return [active(outputs), found, *losses]

    # State ------------------------------------------------------------------------------------------------------------

    def save(self, file: str, return_path: bool = False, with_opt: bool = True) -> Path | None:
        """Writes the weights, and with ``with_opt`` the optimizer, to ``<path>/<model_dir>/<file>.pth``; on rank 0."""
        path = self._file(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        weights = self._module.state_dict()
        state = {"model": weights, "opt": self.opt.opt.state_dict()} if with_opt else weights
        if not self.section.is_open or self.section.run.is_main:
            torch.save(state, path)
        return path if return_path else None

    def load(self, file: str, with_opt: bool | None = None, strict: bool = True) -> Learner:
        """Takes back what ``save`` wrote. No pickle is executed."""
        state = torch.load(self._file(file), map_location="cpu", weights_only=True)
        whole = set(state) == {"model", "opt"}
        self._module.load_state_dict(state["model"] if whole else state, strict=strict)
        if whole and with_opt is not False:
            self.opt.opt.load_state_dict(state["opt"])
        return self

    def _file(self, file: str) -> Path:
        return self.path / self.model_dir / f"{file}.pth"

    # Callbacks by a word ----------------------------------------------------------------------------------------------

    def clip_grad(self, clip: float = 0.1) -> Learner:
        from cadenza.dialects.fastai.train import GradientClipping

        self.callback_fns.append(partial(GradientClipping, clip=clip))
        return self

    def mixup(self, alpha: float = 0.4, stack_x: bool = False, stack_y: bool = True) -> Learner:
        from cadenza.dialects.fastai.callbacks.mixup import MixUpCallback

        self.callback_fns.append(partial(MixUpCallback, alpha=alpha, stack_x=stack_x, stack_y=stack_y))
        return self

    def to_fp16(self, **options: Any) -> Learner:
        from cadenza.dialects.fastai.callbacks.fp16 import MixedPrecision

        self.callback_fns.append(partial(MixedPrecision, **options))
        return self


class _With:
    """Callbacks and metrics that take part in one call; metrics play before all others."""

    def __init__(self, learn: Learner, callbacks: Sequence[Any], metrics: Sequence[Any]) -> None:
        measures = [one if hasattr(one, "on_epoch_end") else AverageMetric(one) for one in metrics]
        for one in measures:
            vars(one)["_place"] = -90
        self.learn, self.wanted = learn, [*measures, *callbacks]
        names = [getattr(one, "name", camel2snake(type(one).__name__)) for one in measures]
        learn.section.metrics = measures
        learn.section.metrics_names = ["epoch", "train_loss", "valid_loss", *names]
        self.added: list[Any] = []

    def __enter__(self) -> None:
        try:
            for one in self.wanted:
                self.learn.trainer.add(one)
                self.added.append(one)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for one in self.added:
            self.learn.trainer.remove(one)


class _Targets(Native):
    """Keeps the targets of a prediction."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def before_pred_iter(self, run: Any) -> None:
        self.found.append(run.targets.detach().cpu())


def _each(loss_func: Any, outputs: Any, targets: Any) -> Any:
    """The loss of each sample."""
    if not hasattr(loss_func, "reduction"):
        return loss_func(outputs, targets, reduction="none")
    before, loss_func.reduction = loss_func.reduction, "none"
    try:
        return loss_func(outputs, targets)
    finally:
        loss_func.reduction = before


def _refuse(**given: bool) -> None:
    for name, value in given.items():
        if value is not True:
            raise ValueError(
                f"fastai: {name}={value!r} is not carried: weight decay is that of the optimizer, and what is trained "
                "is said by requires_grad; give an opt_func with parameter groups of your own"
            )
