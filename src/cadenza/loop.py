"""The loop. This is all of it: copy a function, change it, and call it with ``with trainer.run(...) as run``.

The order of a step is in ``execution/eager.py`` (``in_order``), that of a pass in ``engine/passes.py`` (``go_over``).
Every verb below runs its points. In order, one epoch of ``fit``::

    run.epochs()        before_epoch, on_lr_adjust, after_best, after_epoch
    run.train()         before_train_epoch, for each batch before_fetch, after_fetch, before_iter, before_train_iter,
                        after_train_iter, after_iter, after_train_epoch
    run.train_step()    before_forward, after_forward, before_loss, after_loss, before_backward, after_backward,
                        before_step, after_step, before_zero_grad, after_zero_grad
    run.validate()      the same as run.train() with val in place of train
    run.eval_step()     before_forward, after_forward, before_loss, after_loss
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cadenza.clock import Cadence, Duration
from cadenza.data import gather, to_device

if TYPE_CHECKING:
    import torch

    from cadenza.run import Run


def fit(run: Run, validate_every: Duration, log_every: Duration | None = None) -> None:
    """Trains over ``run.train_loader``, and logs the loss, validates and tests in between."""
    validation, within_epochs = run.cadence(validate_every), validate_every.unit != "epochs"
    logging = None if log_every is None else Cadence(log_every, run.clock)
    for _ in run.epochs():
        for _ in run.train():
            run.train_step()
            if logging is not None and not run.skipped and logging.due():
                run.log("train/loss", run.loss)
            if within_epochs and validation.due():
                validate(run)
        if within_epochs:
            if validation.is_due():  # the end of the epoch made the step that was held
                validate(run)
                validation.due()
            test(run)
        elif (run.epoch + 1) % validate_every.amount == 0:
            validate(run)
            test(run)


def validate(run: Run) -> None:
    """Evaluates every validation loader."""
    for name, loader in named(run.val_loader).items():
        for _ in run.validate(loader, name):
            run.eval_step()


def test(run: Run) -> None:
    """Evaluates every test loader."""
    for name, loader in named(run.test_loaders).items():
        for _ in run.test(loader, name):
            run.eval_step()


def predict(run: Run, loader: Iterable[Any], device: torch.device | None) -> Any:
    """The outputs for ``loader``, in order; a batch that a callback skipped has none."""
    outputs, counts = [], []
    for _ in run.predicting(loader):
        if run.eval_step():
            outputs.append(run.output if device is None else to_device(run.output, device))
            counts.append(run.main.count(run)[0])
    return gather(*run.joined(outputs, counts))


def named(loaders: Any) -> Mapping[str | None, Any]:
    """One loader under no name, a dict of loaders as it is, nothing for None."""
    if loaders is None:
        return {}
    return loaders if isinstance(loaders, Mapping) else {None: loaders}
