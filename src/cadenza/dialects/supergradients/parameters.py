"""The training parameters: their defaults, and which of them are not carried."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from cadenza.dialects.table import nearest
from cadenza.foundation.suggest import suggestion

__all__ = ["DEFAULT_TRAINING_PARAMS", "TrainingParams"]

RECIPE = Path(__file__).parent / "recipes" / "training_hyperparams" / "default_train_params.yaml"
DEFAULT_TRAINING_PARAMS: dict[str, Any] = {
    **{name: json.loads(value) for name, value in re.findall(r"^(\w+): (.*)$", RECIPE.read_text("utf-8"), re.M)},
    "initial_lr": None,
    "phase_callbacks": None,
    "resume_strict_load": False,
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

DEFAULT_TRAINING_PARAMS |= {name: value for name, (value, _) in ONLY_AS.items()}

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
        self.override(**(given or {}), **more)

    def override(self, **given: Any) -> None:
        for name, value in given.items():
            self._take(ALIASES.get(name, name), value)

    def _take(self, name: str, value: Any) -> None:
        if name in ONLY_AS:
            allowed, why = ONLY_AS[name]
            if value and value != allowed:
                raise ValueError(f"supergradients: the training parameter {name}={value!r} is not carried: {why}")
            return
        if name not in DEFAULT_TRAINING_PARAMS:
            raise ValueError(_unknown(name, DEFAULT_TRAINING_PARAMS))
        self[name] = value

    def check(self) -> None:
        """Refuses parameters that say too little for a training."""
        made = isinstance(self.optimizer, Optimizer)
        missing = [name for name in REQUIRED if self[name] is None and not (made and name == "initial_lr")]
        if missing:
            raise ValueError(f"supergradients: training_params must hold {', '.join(missing)}")

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(_unknown(name, self))


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    return f"supergradients: there is no training parameter {name!r}{suggestion(nearest(name, known, cutoff=0.7))}"
