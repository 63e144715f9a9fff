"""The training parameters: their defaults, and which of them are not carried."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from cadenza.dialects.table import nearest

__all__ = ["DEFAULT_TRAINING_PARAMS", "TrainingParams"]

DEFAULT_TRAINING_PARAMS: dict[str, Any] = {
    "max_epochs": None,
    "loss": None,
    "initial_lr": None,
    "lr_mode": None,
    "lr_warmup_epochs": 0,
    "lr_warmup_steps": 0,
    "lr_cooldown_epochs": 0,
    "warmup_initial_lr": None,
    "warmup_mode": "LinearEpochLRWarmup",
    "cosine_final_lr_ratio": 0.01,
    "step_lr_update_freq": None,
    "lr_updates": [],
    "lr_decay_factor": 0.1,
    "lr_schedule_function": None,
    "optimizer": "SGD",
    "optimizer_params": {},
    "zero_weight_decay_on_bias_and_bn": False,
    "criterion_params": {},
    "loss_logging_items_names": None,
    "ema": False,
    "ema_params": {"decay": 0.9999, "decay_type": "exp", "beta": 15},
    "batch_accumulate": 1,
    "clip_grad_norm": None,
    "mixed_precision": False,
    "precise_bn": False,
    "precise_bn_batch_size": None,
    "sync_bn": False,
    "train_metrics_list": [],
    "valid_metrics_list": [],
    "metric_to_watch": "Accuracy",
    "greater_metric_to_watch_is_better": True,
    "run_validation_freq": 1,
    "run_test_freq": 1,
    "save_model": True,
    "save_ckpt_epoch_list": [],
    "average_best_models": True,
    "ckpt_best_name": "ckpt_best.pth",
    "ckpt_name": "ckpt_latest.pth",
    "resume": False,
    "run_id": None,
    "resume_path": None,
    "resume_strict_load": False,
    "load_opt_params": True,
    "phase_callbacks": None,
    "pre_prediction_callback": None,
    "max_train_batches": None,
    "max_valid_batches": None,
    "seed": 42,
    "silent_mode": False,
    "torch_compile": False,
    "torch_compile_loss": False,
    "torch_compile_options": {},
    "sg_logger": "base_sg_logger",
    "sg_logger_params": {},
    "log_installed_packages": True,
    "kill_ddp_pgroup_on_end": True,
}
"""Every parameter that is carried, with its default. ``kill_ddp_pgroup_on_end`` has no effect: processes and their
group belong to whoever started them."""

ONLY_AS: dict[str, tuple[Any, str]] = {
    "launch_tensorboard": (False, "start it yourself: tensorboard --logdir"),
    "tb_files_user_prompt": (False, "nothing is asked while a training runs"),
    "tensorboard_port": (None, "start TensorBoard yourself"),
    "save_tensorboard_to_s3": (False, "files stay on this machine"),
    "dataset_statistics": (False, "look at the data set in a script of your own"),
    "enable_qat": (False, "quantisation is not carried"),
    "resume_from_remote_sg_logger": (False, "files stay on this machine"),
    "finetune": (False, "the zoo's models say which parts are frozen; use cadenza.callbacks.Freeze"),
}
"""Parameters of the original that are accepted with this value alone, and why."""

ALIASES = {"phase_calbacks_list": "phase_callbacks", "phase_callbacks_list": "phase_callbacks"}
"""Names that documents use for a parameter."""

REQUIRED = ("max_epochs", "initial_lr", "loss")


class TrainingParams(dict[str, Any]):
    """Parameters by name; attributes read the same. A name that is unknown is refused with the nearest.

    >>> params = TrainingParams(max_epochs=3)
    >>> params.max_epochs, params["batch_accumulate"]
    (3, 1)
    >>> TrainingParams(max_epoch=3)
    Traceback (most recent call last):
    ValueError: supergradients: there is no training parameter 'max_epoch'; did you mean 'max_epochs'?
    """

    def __init__(self, given: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(copy.deepcopy(DEFAULT_TRAINING_PARAMS))
        for name, value in {**(given or {}), **more}.items():
            self._take(ALIASES.get(name, name), value)

    def _take(self, name: str, value: Any) -> None:
        if name in ONLY_AS:
            allowed, why = ONLY_AS[name]
            if value and value != allowed:
                raise ValueError(f"supergradients: the training parameter {name}={value!r} is not carried: {why}")
            return
        if name not in DEFAULT_TRAINING_PARAMS:
            near = nearest(name, DEFAULT_TRAINING_PARAMS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"supergradients: there is no training parameter {name!r}{hint}")
        self[name] = value

    def check(self) -> None:
        """Refuses parameters that say too little for a training."""
        missing = [name for name in REQUIRED if self[name] is None]
        if missing:
            raise ValueError(f"supergradients: training_params must hold {', '.join(missing)}")

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name.startswith("__"):
            raise AttributeError(name)
        near = nearest(name, self)
        raise AttributeError(
            f"supergradients: there is no training parameter {name!r}" + (f"; did you mean {near!r}?" if near else "")
        )
