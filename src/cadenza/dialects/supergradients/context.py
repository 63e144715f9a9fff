"""What every method of a callback gets: one object for the whole run, whole in every phase."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

FIELDS: tuple[str, ...] = (
    "epoch",
    "batch_idx",
    "optimizer",
    "metrics_dict",
    "inputs",
    "preds",
    "target",
    "metrics_compute_fn",
    "loss_avg_meter",
    "loss_log_items",
    "criterion",
    "device",
    "experiment_name",
    "ckpt_dir",
    "net",
    "lr_warmup_epochs",
    "sg_logger",
    "train_loader",
    "valid_loader",
    "test_loader",
    "training_params",
    "ddp_silent_mode",
    "checkpoint_params",
    "architecture",
    "arch_params",
    "metric_to_watch",
    "valid_metrics",
    "ema_model",
    "loss_logging_items_names",
    "additional_batch_items",
)


class PhaseContext:
    """The state of a training as a callback sees it. What is not known is None, never missing.

    Values of the last batch stay until the next one. ``stop_training`` may be set from anywhere, and the training ends
    with the epoch that is going on.

    >>> context = PhaseContext(epoch=3)
    >>> context.update_context(batch_idx=0, stop_training=True)
    >>> context.epoch, context.batch_idx, context.preds, context.stop_training
    (3, 0, None, True)
    """

    epoch: Any
    batch_idx: Any

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(dict.fromkeys(FIELDS))
        self.stop_training = False
        self.update_context(**fields)

    def update_context(self, **fields: Any) -> None:
        """Sets attributes, also ones of your own, which other callbacks then see."""
        for name, value in fields.items():
            setattr(self, name, value)

    @property
    def checkpoints_dir_path(self) -> Any:
        """The folder of the checkpoints, as the documentation calls it; the same as ``ckpt_dir``."""
        return self.__dict__["ckpt_dir"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        near = get_close_matches(name, [*FIELDS, "stop_training", *vars(self)], n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"supergradients: PhaseContext has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        known = [name for name, value in vars(self).items() if value is not None]
        return f"PhaseContext({', '.join(known)})"
