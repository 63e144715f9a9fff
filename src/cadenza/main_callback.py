"""The one callback that owns the behaviours: forward, loss, backward, step, zero_grad and the learning rate."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza.callback import Callback, Order
from cadenza.data.batch import (
    TARGET_KEYS,
    as_mapping,
    count_samples,
    describe,
    has_targets,
    not_understood,
    split,
    without_targets,
)

if TYPE_CHECKING:
    from cadenza.run import Run


class MainCallback(Callback):
    """Owns the behaviours: what forward, loss, backward, step, zero_grad and the learning rate do.

    A run has exactly one. Override what you want to be different; the rest stays as it is here.

    >>> class OwnLoss(MainCallback):
    ...     def on_iter_forward(self, run):
    ...         images, targets = run.batch
    ...         run.output = run.model(images, targets)
    ...         run.loss = sum(run.output.values())
    """

    _gives_defaults = True
    _instead_of_an_own_step = (
        "Let it only call run.loss.backward(), and put the rest into on_iter_step and on_iter_zero_grad, or leave "
        "those out"
    )
    lr_every: str | None = None
    """``"epoch"`` or ``"iter"``; None leaves it to ``Trainer(scheduler_every=...)``."""
    inference_mode: bool = False
    order: int = Order.PREPARE

    def __init__(self, *, lr_every: str | None = None, inference_mode: bool | None = None) -> None:
        if lr_every is not None:
            self.lr_every = lr_every
        if inference_mode is not None:
            self.inference_mode = inference_mode

    def count(self, run: Run) -> tuple[int, int]:
        """How many samples and tokens the batch holds. Means and the clock are weighted by it."""
        return count_samples(run.batch)

    def on_train_forward(self, run: Run) -> None:
        self.on_iter_forward(run)

    def on_val_forward(self, run: Run) -> None:
        self.on_iter_forward(run)

    def on_test_forward(self, run: Run) -> None:
        self.on_iter_forward(run)

    def on_pred_forward(self, run: Run) -> None:
        self.on_iter_forward(run)

    def on_iter_forward(self, run: Run) -> None:
        """Calls the model with the inputs of the batch."""
        batch = run.batch
        if type(batch) in (list, tuple) and len(batch) == 2:  # by far the most common, so it is asked first
            run.output = run.model(batch[0])
            return
        if isinstance(batch, Tensor):
            run.output = run.model(batch)
            return
        named = as_mapping(batch)
        if named is not None:
            run.output = self._call_with_names(run, batch, dict(named))
        elif isinstance(batch, list | tuple) and batch:
            run.output = run.model(*(batch[:-1] if len(batch) > 1 else batch))
        else:
            raise TypeError(not_understood(batch))

    def _call_with_names(self, run: Run, batch: Any, named: dict[str, Any]) -> Any:
        """``model(**parts)`` if its signature takes the names, else ``model(batch)``, without targets to predict."""
        rest = {key: value for key, value in named.items() if key not in TARGET_KEYS}
        for parts in (named, rest) if run.stage != "pred" else (rest,):
            if self._accepts(run.module, parts):
                return run.model(**parts)
        if isinstance(batch, tuple):
            return run.model(*rest.values())
        return run.model(without_targets(batch) if run.stage == "pred" else batch)

    def gives_whole(self, module: nn.Module, named: dict[str, Any]) -> bool:
        """Whether a model gets such a batch in one piece, since its signature does not take the names in it."""
        rest = {key: value for key, value in named.items() if key not in TARGET_KEYS}
        return not (self._accepts(module, named) or self._accepts(module, rest))

    def _accepts(self, module: nn.Module, parts: dict[str, Any]) -> bool:
        keys = frozenset(parts)
        if self.__dict__.get("_module") is not module:
            self._module, self._takes = module, dict[frozenset[str], bool]()
        if keys not in self._takes:
            parameters = inspect.signature(module.forward).parameters.values()
            names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            needed = {p.name for p in parameters if p.name in names and p.default is p.empty}
            anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
            self._takes[keys] = needed <= keys and (anything or keys <= names)
        return self._takes[keys]

    def on_iter_loss(self, run: Run) -> None:
        """Calls the criterion with output and targets; without a criterion takes the loss that the model returned."""
        if run.criterion is None:
            run.loss = own_loss(run.output)
            return
        batch = run.batch
        if type(batch) in (list, tuple) and len(batch) == 2:  # by far the most common, so it is asked first
            run.loss = run.criterion(run.output, batch[1])
        elif has_targets(batch):
            run.loss = run.criterion(run.output, split(batch)[1])
        else:
            raise TypeError(
                f"the batch has no targets for the criterion: it is {describe(batch)}. Let the loader give (inputs, "
                f"targets), or a dict whose target is called {', '.join(TARGET_KEYS)}; leave the criterion out if the "
                "model returns its own loss; or write a MainCallback with on_iter_loss"
            )

    def on_iter_backward(self, run: Run) -> None:
        """Back-propagates ``run.loss``, which is weighted and scaled here."""
        run.loss.backward()  # type: ignore[no-untyped-call]

    def on_iter_step(self, run: Run) -> None:
        """Steps every optimizer."""
        for optimizer in run.optimizers:
            run.step_optimizer(optimizer)

    def on_iter_zero_grad(self, run: Run) -> None:
        """Clears the gradients of every optimizer."""
        for optimizer in run.optimizers:
            zero_grad(optimizer)

    def on_lr_adjust(self, run: Run) -> None:
        """Steps every scheduler; one that follows a metric gets the watched one, or the validation or training loss."""
        for scheduler in run.schedulers:
            if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step()
            elif (name := followed(run)) is not None:
                scheduler.step(run.metrics[name])


def clears_plainly(optimizer: Optimizer) -> bool:
    """Whether ``zero_grad`` is torch's own, so that letting go of the gradients is all that it does."""
    return type(optimizer).zero_grad is Optimizer.zero_grad and "zero_grad" not in vars(optimizer)


def zero_grad(optimizer: Optimizer) -> None:
    """Clears gradients by letting go of them: what ``optimizer.zero_grad()`` does, without its profiler hooks."""
    if not clears_plainly(optimizer):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def followed(run: Run) -> str | None:
    """The metric that a plateau schedule follows: the watched one, else the loss of validation, or without validation
    that of training. None in an epoch that did not measure it."""
    name = run.watch.name if run.watch else "train/loss" if run.val_loader is None else "val/loss"
    return name if run.measured(name) else None


def own_loss(output: Any) -> Tensor:
    """The loss that a model returned itself: a scalar, ``output["loss"]``, ``output.loss`` or ``output[0]``."""
    first = output[0] if isinstance(output, list | tuple) and output else output
    if isinstance(first, Tensor) and first.numel() == 1 and first.dim() < 2:  # [1, 1] is the output for a batch of one
        return first
    if (named := named_loss(output)) is not None:
        return named
    raise TypeError(
        f"there is no criterion, and the model returned no loss but {type(output).__name__}. Give the trainer a "
        "criterion, let the model return a scalar or {'loss': ...}, or write a MainCallback that sets run.loss"
    )


def named_loss(output: Any) -> Tensor | None:
    """``output["loss"]`` or ``output.loss``, if that is a loss."""
    for candidate in (output.get("loss") if isinstance(output, dict) else None, getattr(output, "loss", None)):
        if isinstance(candidate, Tensor) and candidate.numel() == 1:
            return candidate
    return None
