"""What somebody meant who wrote a name that is no point."""

from __future__ import annotations

from cadenza.foundation.suggest import nearest_name
from cadenza.points import POINTS

FOREIGN: dict[str, str] = {
    "on_run_begin": "before_run",
    "on_run_end": "after_run",
    "on_train_begin": "before_run",
    "on_train_start": "before_run",
    "on_training_start": "before_run",
    "on_fit_start": "before_run",
    "before_fit": "before_run",
    "on_train_end": "after_run",
    "on_training_end": "after_run",
    "on_fit_end": "after_run",
    "after_fit": "after_run",
    "on_epoch_begin": "before_epoch",
    "on_epoch_start": "before_epoch",
    "on_epoch_end": "after_epoch",
    "on_train_epoch_start": "before_train_epoch",
    "on_train_epoch_end": "after_train_epoch",
    "on_train_loader_start": "before_train_epoch",
    "on_train_loader_end": "after_train_epoch",
    "before_train": "before_train_epoch",
    "after_train": "after_train_epoch",
    "on_validation_epoch_start": "before_val_epoch",
    "on_validation_epoch_end": "after_val_epoch",
    "on_validation_start": "before_val_epoch",
    "on_validation_end": "after_val_epoch",
    "on_validation_loader_start": "before_val_epoch",
    "on_validation_loader_end": "after_val_epoch",
    "before_validate": "before_val_epoch",
    "after_validate": "after_val_epoch",
    "on_evaluate": "after_val_epoch",
    "on_test_loader_start": "before_test_epoch",
    "on_test_loader_end": "after_test_epoch",
    "on_iter_begin": "before_iter",
    "on_iter_end": "after_iter",
    "on_batch_begin": "before_train_iter",
    "on_batch_end": "after_train_iter",
    "on_step_begin": "before_train_iter",
    "on_step_end": "after_train_iter",
    "on_train_batch_start": "before_train_iter",
    "on_train_batch_end": "after_train_iter",
    "on_validation_batch_start": "before_val_iter",
    "on_validation_batch_end": "after_val_iter",
    "on_test_batch_start": "before_test_iter",
    "on_test_batch_end": "after_test_iter",
    "before_batch": "before_train_iter",
    "after_batch": "after_train_iter",
    "after_pred": "after_forward",
    "on_loss_begin": "before_loss",
    "on_loss_end": "after_loss",
    "on_backward_begin": "before_backward",
    "on_backward_end": "after_backward",
    "on_before_backward": "before_backward",
    "on_after_backward": "after_backward",
    "on_before_optimizer_step": "before_step",
    "on_optimizer_step": "after_step",
    "on_before_zero_grad": "before_zero_grad",
    "on_save_checkpoint": "before_save",
    "on_load_checkpoint": "after_load",
    "on_exception": "after_error",
    "on_log": "after_log",
}
"""Names that people know from other libraries, and what means the same here."""


def looks_like_a_point(name: str) -> bool:
    """Whether a method of this name is meant to be played, so that a name that is no point is a mistake.

    >>> looks_like_a_point("after_epochs"), looks_like_a_point("befor_step"), looks_like_a_point("measure")
    (True, True, False)
    """
    if name.startswith("_"):
        return False
    known = name.startswith(("before_", "after_", "around_", "on_")) or name in FOREIGN
    return known or nearest_name(name, POINTS, 0.88) is not None


def nearest(name: str) -> str | None:
    """The point that somebody who wrote ``name`` most likely meant.

    >>> nearest("on_epoch_end"), nearest("before_trian_iter")
    ('after_epoch', 'before_train_iter')
    """
    if name in FOREIGN:
        return FOREIGN[name]
    prefix = name.split("_")[0] + "_"
    same_kind = [point for point in POINTS if point.startswith(prefix)]
    return nearest_name(name, same_kind, 0.5) or nearest_name(name, POINTS, 0.5)
