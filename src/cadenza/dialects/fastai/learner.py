"""A small Learner: model, data, loss and metrics, trained by a native trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cadenza.callback import Callback as Native
from cadenza.callbacks.training.subset_run import FirstBatches
from cadenza.dialects.fastai.callback import AverageMetric
from cadenza.dialects.fastai.callbacks.fp16 import MixedPrecision
from cadenza.dialects.fastai.callbacks.lr_finder import LRFinder
from cadenza.dialects.fastai.callbacks.mixup import MixUpCallback
from cadenza.dialects.fastai.callbacks.phases import FlatCosAnnealScheduler, OneCycleScheduler
from cadenza.dialects.fastai.core import camel2snake, even_mults, listify
from cadenza.dialects.fastai.data import DataBunch, DatasetType
from cadenza.dialects.fastai.layers import FlattenedLoss
from cadenza.dialects.fastai.optimizer import OptimWrapper
from cadenza.dialects.fastai.recorder import Recorder
from cadenza.dialects.fastai.section import METRIC_PLACE, FastaiSection
from cadenza.dialects.fastai.table import DIALECT
from cadenza.dialects.fastai.torch_core import bn_types, defaults, flatten_model, requires_grad, split_model
from cadenza.dialects.fastai.train import GradientClipping
from cadenza.trainer import Trainer

AdamW = partial(torch.optim.Adam, betas=(0.9, 0.99))
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
        self, data: Any, model: nn.Module, opt_func: Callable[..., Any] = AdamW,
        loss_func: Callable[..., Any] | None = None, metrics: Any = None, true_wd: bool = True, bn_wd: bool = True,
        wd: float = 0.01, train_bn: bool = True, path: str | PathLike[str] | None = None, model_dir: str = "models",
        callback_fns: Any = None, callbacks: Any = None, layer_groups: Sequence[Any] | None = None,
        add_time: bool = True, silent: bool = False,
    ) -> None:  # fmt: skip
        self._opt: OptimWrapper | None = None
        self._trainer: Trainer | None = None
        self.data, self._module, self.opt_func, self.loss_func = data, model, opt_func, loss_func
        self.wd, self.true_wd, self.bn_wd, self.train_bn = wd, true_wd, bn_wd, train_bn
        self.model_dir, self.add_time, self.silent = model_dir, add_time, silent
        if self.loss_func is None:
            self.loss_func = getattr(getattr(self.data.train_dl, "dataset", None), "loss_func", None)
        self.layer_groups: list[Any] = listify(layer_groups) or [nn.Sequential(*flatten_model(model))]
        self.path = Path(path) if path is not None else self.data.path
        self.metrics = listify(metrics)
        self.callbacks = listify(callbacks)
        self.callback_fns = [partial(Recorder, add_time=add_time, silent=silent), *listify(callback_fns)]
        self.section = FastaiSection(spreads=True)
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
        if self._opt is None:
            self.create_opt(3e-3, self.wd)
            assert self._opt is not None
        return self._opt

    @opt.setter
    def opt(self, value: OptimWrapper) -> None:
        self._opt = value
        if self._trainer is not None:
            self._trainer._training.optimizers[:] = [value.opt]

    def __setattr__(self, name: str, value: Any) -> None:
        """New data counts from the next pass on, a new loss from the next batch on."""
        super().__setattr__(name, DataBunch.of(value) if name == "data" else value)
        run = self.section.run if "section" in vars(self) and self.section.is_open else None
        if name == "loss_func" and run is not None:
            run.criterion = value
        if name == "data" and run is not None:
            run.train_loader, run.val_loader = self.data.train_dl, self.data.valid_dl

    def create_opt(self, lr: Any, wd: Any = 0.0) -> None:
        """A new optimizer, without what the last one remembered, over the parameters that are trained now."""
        options = {"wd": wd, "true_wd": self.true_wd, "bn_wd": self.bn_wd}
        self.opt = OptimWrapper.create(self.opt_func, self.lr_range(lr), self.layer_groups, **options)

    def split(self, split_on: Any) -> Learner:
        """Makes layer groups: ``split_on`` is a function of the model, or the layers with which the groups begin."""
        self.layer_groups = split_model(self._module, split_on(self._module) if callable(split_on) else split_on)
        return self

    def freeze_to(self, n: int) -> None:
        """Trains the layer groups from ``n`` on; norms of the others too, unless ``train_bn`` is off."""
        for group in self.layer_groups[:n]:
            for layer in flatten_model(group):
                if not (self.train_bn and isinstance(layer, bn_types)):
                    requires_grad(layer, False)
        for group in self.layer_groups[n:]:
            requires_grad(group, True)
        self.create_opt(defaults.lr, self.wd)

    def freeze(self) -> None:
        if len(self.layer_groups) < 2:
            raise ValueError("fastai: there is one layer group, so freezing leaves nothing to train; split() first")
        self.freeze_to(-1)

    def unfreeze(self) -> None:
        self.freeze_to(0)

    @property
    def trainer(self) -> Trainer:
        """The native trainer that does the work."""
        if self._trainer is None:
            self._trainer = Trainer(self._module, self.opt.opt, self.loss_func, callbacks=[self.section])
        return self._trainer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "section":
            raise AttributeError(name)
        names = [one for one in (*dir(type(self)), *vars(self)) if not one.startswith("_")]
        raise AttributeError(DIALECT.not_carried(name, "attribute of a Learner", names), name=name)

    # Training ---------------------------------------------------------------------------------------------------------

    def fit(self, epochs: int, lr: Any = 3e-3, wd: Any = None, callbacks: Any = None) -> None:
        """Trains for so many epochs. ``lr`` is a number, or a slice over the layer groups."""
        self.opt.lr = self.lr_range(lr)
        self.opt.wd = self.wd if wd is None else wd
        wanted = [*self.callbacks, *self._made(), *listify(callbacks), *listify(defaults.extra_callbacks)]
        with self._playing(wanted, self.metrics):
            self.trainer.fit(self.data.train_dl, self.data.valid_dl, epochs=epochs)
            if self.data.valid_dl is not None and not self.section.values["skip_validate"]:
                self._module.eval()  # as its last pass left it

    def fit_one_cycle(
        self, cyc_len: int, max_lr: Any = 3e-3, moms: tuple[float, float] = (0.95, 0.85), div_factor: float = 25.0,
        pct_start: float = 0.3, final_div: float | None = None, wd: Any = None, callbacks: Any = None,
        tot_epochs: int | None = None, start_epoch: int | None = None,
    ) -> None:  # fmt: skip
        """Trains with the learning rate and the momentum of one cycle."""
        cycle = OneCycleScheduler(
            self, self.lr_range(max_lr), moms=moms, div_factor=div_factor, pct_start=pct_start, final_div=final_div,
            tot_epochs=tot_epochs, start_epoch=start_epoch,
        )  # fmt: skip
        self.fit(cyc_len, max_lr, wd=wd, callbacks=[*listify(callbacks), cycle])

    def fit_fc(
        self, tot_epochs: int = 1, lr: float = 3e-3, moms: tuple[float, float] = (0.95, 0.85), start_pct: float = 0.72,
        wd: Any = None, callbacks: Any = None,
    ) -> None:  # fmt: skip
        """Trains with a flat learning rate that falls along a cosine at the end."""
        flat = FlatCosAnnealScheduler(self, lr, tot_epochs, moms=moms, start_pct=start_pct, curve="cosine")
        self.fit(tot_epochs, lr, wd=wd, callbacks=[*listify(callbacks), flat])

    def lr_find(
        self, start_lr: float = 1e-7, end_lr: float = 10, num_it: int = 100, stop_div: bool = True,
        wd: float | None = None,
    ) -> None:  # fmt: skip
        """Sweeps over learning rates; the weights are then as before, and ``recorder.plot()`` shows the losses."""
        length = len(self.data.train_dl)
        finder = LRFinder(self, start_lr, end_lr, num_it, stop_div)
        self.fit(-(-num_it // length), start_lr, wd=wd, callbacks=[finder])

    def lr_range(self, lr: Any) -> Any:
        """One learning rate for each layer group: from a number, a list, or a slice of the first and the last."""
        groups = len(self.layer_groups)
        if not isinstance(lr, slice):
            return lr
        if lr.start is None:
            return [lr.stop / 10] * (groups - 1) + [lr.stop]
        return [float(one) for one in even_mults(lr.start, lr.stop, groups)] if groups > 1 else [lr.stop]

    def _made(self) -> list[Any]:
        """New callbacks of ``callback_fns``."""
        return [fn(self) for fn in (*self.callback_fns, *listify(defaults.extra_callback_fns))]

    @contextmanager
    def _playing(self, callbacks: Sequence[Any], metrics: Sequence[Any]) -> Iterator[None]:
        """With callbacks and metrics that take part in one call; metrics play before all others."""
        measures = [one if hasattr(one, "on_epoch_end") else AverageMetric(one) for one in metrics]
        for one in measures:
            vars(one)["_place"] = METRIC_PLACE
        self.trainer._training.criterion = self.loss_func
        self.section.metrics = list(metrics)
        self.section.metrics_names = [getattr(one, "name", camel2snake(type(one).__name__)) for one in measures]
        with ExitStack() as added:
            for one in (*measures, *callbacks):
                self.trainer.add(one)
                added.callback(self.trainer.remove, one)
            yield

    # Measuring --------------------------------------------------------------------------------------------------------

    def validate(self, dl: Any = None, callbacks: Any = None, metrics: Any = None) -> list[Any]:
        """The loss over the validation data, and the metrics."""
        measured = self.metrics if metrics is None else listify(metrics)
        with self._playing([*self.callbacks, *listify(callbacks)], measured):
            self.trainer.validate(self.data.dl() if dl is None else dl)
            values: list[Any] = self.section.values["last_metrics"]
        self._module.eval()
        return values

    def get_preds(
        self, ds_type: DatasetType = DatasetType.Valid, activ: Callable[[Any], Any] | None = None,
        with_loss: bool = False, n_batch: int | None = None, pbar: Any = None,
    ) -> list[Any]:  # fmt: skip
        """Predictions and targets in order, and with ``with_loss`` the loss of each sample. Without ``activ``, that of
        the loss is used: softmax for a cross entropy. Callbacks of ``callback_fns`` take part, each a new one; the
        learner keeps those of its last fit, such as ``recorder``."""
        loader = self.data.dl(ds_type)
        targets, known = _Targets(), dict(vars(self))
        made = self._made()
        vars(self).update(known)
        with self._playing([*made, *self.callbacks, targets], ()):
            outputs = self.trainer.predict(loader if n_batch is None else FirstBatches(loader, n_batch))
        self._module.eval()
        found = torch.cat(targets.found)
        active = self._active if activ is None else activ
        losses = [_each(self.loss_func, outputs, found)] if with_loss else []
        return [active(outputs), found, *losses]

    def dl(self, ds_type: DatasetType = DatasetType.Valid) -> Any:
        return self.data.dl(ds_type)

    def pred_batch(
        self, ds_type: DatasetType = DatasetType.Valid, batch: Any = None, reconstruct: bool = False,
        with_dropout: bool = False, activ: Callable[[Any], Any] | None = None,
    ) -> Any:  # fmt: skip
        """Predictions for a batch, by default the first of the loader. ``with_dropout`` leaves dropout on."""
        if reconstruct:
            raise TypeError("fastai: pred_batch(reconstruct=True) is not carried: items of the library are not")
        noisy = [_Dropout()] if with_dropout else []
        self.section.ends_batches = False
        try:
            with self._playing([*self.callbacks, *noisy], ()):
                outputs = self.trainer.predict([batch or self.data.one_batch(ds_type)])
        finally:
            self.section.ends_batches = True
            self._module.eval()
        return (self._active if activ is None else activ)(outputs)

    def _active(self, outputs: Any) -> Any:
        loss = self.loss_func.func if isinstance(self.loss_func, FlattenedLoss) else self.loss_func
        return ACTIVATIONS.get(type(loss), lambda values: values)(outputs)

    # State ------------------------------------------------------------------------------------------------------------

    def save(self, file: Any, return_path: bool = False, with_opt: bool = True) -> Any:
        """Writes the weights, and with ``with_opt`` the optimizer, to ``<path>/<model_dir>/<file>.pth``, or to an open
        file; on rank 0."""
        path = self._file(file)
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        weights = self._module.state_dict()
        state = {"model": weights, "opt": self.opt.opt.state_dict()} if with_opt else weights
        if not self.section.is_open or self.section.run.is_main:
            torch.save(state, path)
        return path if return_path else None

    def load(
        self, file: Any, device: Any = None, strict: bool = True, with_opt: bool | None = None, purge: bool = True,
        remove_module: bool = False,
    ) -> Learner:  # fmt: skip
        """Restores what ``save`` wrote. No pickle is executed. The model stays on its device, and nothing needs to be
        purged, so ``device`` and ``purge`` change nothing."""
        state = torch.load(self._file(file), map_location="cpu", weights_only=True)
        if remove_module:
            state = {name.removeprefix("module."): value for name, value in state.items()}
        whole = set(state) == {"model", "opt"}
        self._module.load_state_dict(state["model"] if whole else state, strict=strict)
        if whole and with_opt is not False:
            self.opt.opt.load_state_dict(state["opt"])
        return self

    def _file(self, file: Any) -> Any:
        return file if hasattr(file, "seek") else self.path / self.model_dir / f"{file}.pth"

    # Callbacks by a word ----------------------------------------------------------------------------------------------

    def clip_grad(self, clip: float = 0.1) -> Learner:
        return self._with(GradientClipping, clip=clip)

    def mixup(self, alpha: float = 0.4, stack_x: bool = False, stack_y: bool = True) -> Learner:
        return self._with(MixUpCallback, alpha=alpha, stack_x=stack_x, stack_y=stack_y)

    def to_fp16(self, **options: Any) -> Learner:
        return self._with(MixedPrecision, **options)

    def _with(self, kind: Callable[..., Any], **options: Any) -> Learner:
        self.callback_fns.append(partial(kind, **options))
        return self


class _Targets(Native):
    """Keeps the targets of a prediction."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def after_pred_iter(self, run: Any) -> None:
        self.found.append(run.targets.detach().cpu())


class _Dropout(Native):
    """Leaves dropout on in a prediction."""

    def before_pred_iter(self, run: Any) -> None:
        for module in run.module.modules():
            module.train("Dropout" in type(module).__name__)


def _each(loss_func: Any, outputs: Any, targets: Any) -> Any:
    """The loss of each sample."""
    if not hasattr(loss_func, "reduction"):
        return loss_func(outputs, targets, reduction="none")
    before, loss_func.reduction = loss_func.reduction, "none"
    try:
        return loss_func(outputs, targets)
    finally:
        loss_func.reduction = before
