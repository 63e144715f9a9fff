"""The training parameters: their defaults, which of them are not carried, and what those of ``torch_compile`` do."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza.dialects.table import nearest
from cadenza.foundation.suggest import suggestion
from cadenza.foundation.torch_private import compiled_call, set_compiled_call

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
    "lr_scheduler_step_type": ("epoch", "say it by the phase of an LRSchedulerCallback"),
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


DEFAULT_OPTIONS: dict[str, Any] = DEFAULT_TRAINING_PARAMS["torch_compile_options"]


def compile_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of ``torch.compile``: the original's, with ``given`` in place of some.

    >>> compile_options({"backend": "eager"})["backend"], compile_options(None)["mode"]
    ('eager', 'reduce-overhead')
    """
    for name in (given or {}).keys() - DEFAULT_OPTIONS.keys():
        hint = suggestion(nearest(name, DEFAULT_OPTIONS))
        raise ValueError(f"supergradients: torch_compile_options has no {name!r}{hint}")
    return {**DEFAULT_OPTIONS, **(given or {})}


def compiled_loss(criterion: Any, options: Mapping[str, Any]) -> Any:
    """A loss that is a plain function, compiled; one that is a module is compiled in place by ``compiled``."""
    return criterion if isinstance(criterion, nn.Module) else torch.compile(criterion, **options)


@contextmanager
def compiled(modules: Sequence[nn.Module], options: Mapping[str, Any]) -> Iterator[None]:
    """Calls of these modules are compiled inside the ``with``. Names of parameters stay as they are, so checkpoints
    of compiled and plain trainings are the same."""
    before = [compiled_call(module) for module in modules]
    for module in modules:
        module.compile(**options)
    try:
        yield
    finally:
        for module, impl in zip(modules, before, strict=True):
            set_compiled_call(module, impl)
