"""A typed method for every point, so that editors complete them. Made from ``points.py`` by ``make generate``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadenza.run import Run


class Stubs:
    """Every place at which a callback may play. None of them does anything by itself."""

    def before_run(self, run: Run) -> None:
        """Fit, validate, test or predict begins (run.mode says which); nothing has been read yet."""

    def around_run(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def before_epoch(self, run: Run) -> None:
        """One epoch of fit begins."""

    def around_epoch(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def before_train_epoch(self, run: Run) -> None:
        """A pass over the training data begins; its metrics of the last pass are cleared."""

    def around_train_epoch(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def before_fetch(self, run: Run) -> None:
        """The loop is about to wait for the next batch."""

    def around_fetch(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_fetch(self, run: Run) -> None:
        """Run.batch is set; at the end of the loader there is none."""

    def before_iter(self, run: Run) -> None:
        """One batch of any stage begins."""

    def around_iter(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def before_train_iter(self, run: Run) -> None:
        """The batch is on the device."""

    def around_train_iter(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def before_forward(self, run: Run) -> None:
        """The model is about to be called."""

    def around_forward(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_forward(self, run: Run) -> None:
        """Run.output is set."""

    def before_loss(self, run: Run) -> None:
        """The loss is about to be computed."""

    def around_loss(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_loss(self, run: Run) -> None:
        """Run.loss is set, unweighted and unscaled."""

    def before_backward(self, run: Run) -> None:
        """Gradients are about to be computed from run.loss."""

    def around_backward(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_backward(self, run: Run) -> None:
        """Gradients are there, added to those of held batches."""

    def before_step(self, run: Run) -> None:
        """Gradients are unscaled; the optimizer is about to step."""

    def around_step(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_step(self, run: Run) -> None:
        """The weights changed and clock.steps counted it; gradients can still be read."""

    def before_zero_grad(self, run: Run) -> None:
        """Gradients are about to be cleared."""

    def around_zero_grad(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_zero_grad(self, run: Run) -> None:
        """Gradients are gone."""

    def after_train_iter(self, run: Run) -> None:
        """This batch is done, also when parts of it were skipped (run.skipped)."""

    def before_val_iter(self, run: Run) -> None:
        """The batch is on the device."""

    def around_val_iter(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_val_iter(self, run: Run) -> None:
        """This batch is done, also when parts of it were skipped (run.skipped)."""

    def before_test_iter(self, run: Run) -> None:
        """The batch is on the device."""

    def around_test_iter(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_test_iter(self, run: Run) -> None:
        """This batch is done, also when parts of it were skipped (run.skipped)."""

    def before_pred_iter(self, run: Run) -> None:
        """The batch is on the device."""

    def around_pred_iter(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_pred_iter(self, run: Run) -> None:
        """This batch is done, also when parts of it were skipped (run.skipped)."""

    def after_iter(self, run: Run) -> None:
        """One batch of any stage is done; its fields are deleted after this point."""

    def after_train_epoch(self, run: Run) -> None:
        """The pass over the training data ended; its means are in run.metrics, the weights are as they are."""

    def before_val_epoch(self, run: Run) -> None:
        """A pass over a validation loader begins; its metrics of the last pass are cleared."""

    def around_val_epoch(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_val_epoch(self, run: Run) -> None:
        """The pass over a validation loader ended; its means are in run.metrics, the weights are as they are."""

    def before_test_epoch(self, run: Run) -> None:
        """A pass over a test loader begins; its metrics of the last pass are cleared."""

    def around_test_epoch(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_test_epoch(self, run: Run) -> None:
        """The pass over a test loader ended; its means are in run.metrics, the weights are as they are."""

    def after_epoch(self, run: Run) -> None:
        """Training, validation and the learning rate of this epoch are done; the epoch counts on the clock."""

    def before_pred_epoch(self, run: Run) -> None:
        """A pass over the data to predict begins; its metrics of the last pass are cleared."""

    def around_pred_epoch(self, run: Run) -> AbstractContextManager[Any] | Iterator[None] | None:
        """Returns a context manager that is held for the whole span."""
        return None

    def after_pred_epoch(self, run: Run) -> None:
        """The pass over the data to predict ended; its means are in run.metrics, the weights are as they are."""

    def after_run(self, run: Run) -> None:
        """The run ended in order; it does not fire after an exception."""

    def after_register(self, run: Run) -> None:
        """This callback joined a run; called on it alone, before before_run."""

    def after_launch(self, run: Run) -> None:
        """This process started its first run."""

    def before_save(self, run: Run) -> None:
        """State is about to be collected for a checkpoint."""

    def after_save(self, run: Run) -> None:
        """A checkpoint was committed; fired on the main thread at the next safe point."""

    def after_load(self, run: Run) -> None:
        """A checkpoint was loaded into this run."""

    def after_log(self, run: Run) -> None:
        """A row of metrics is complete; run.row holds it."""

    def after_best(self, run: Run) -> None:
        """The watched metric improved; run.best says to what."""

    def after_error(self, run: Run) -> None:
        """The run is ending with run.error; the fields of the iteration are still there."""
