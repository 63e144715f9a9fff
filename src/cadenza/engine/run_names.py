"""Names that a run does not have: what somebody meant who read or set one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cadenza.foundation.suggest import nearest_name
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run

ELSEWHERE: dict[str, str] = {
    "lr": 'run.optimizer.param_groups[0]["lr"]',
    "learning_rate": 'run.optimizer.param_groups[0]["lr"]',
    "lr_scheduler": "run.scheduler",
    "loss_fn": "run.criterion",
    "loss_func": "run.criterion",
    "logs": "run.metrics",
    "global_step": "run.clock.steps",
    "iteration": "run.clock.batches",
    "current_epoch": "run.epoch",
    "max_epochs": "run.num_epochs",
    "preds": "run.output",
    "outputs": "run.output",
    "labels": "run.targets",
    "target": "run.targets",
    "net": "run.module",
    **dict.fromkeys(("log_metric", "log_metrics", "log_dict", "log_scalar", "add_scalar"), 'run.log("name", value)'),
    **dict.fromkeys(("should_stop", "stop_training"), "run.stop()"),
    "save_checkpoint": "run.save()",
}
"""Names that people know from other libraries, and what means the same here."""


def instead_of(run: Run, name: str) -> str:
    """What to say of a name that is none: ``"; did you mean run.targets?"``, or where things of one's own go."""
    near = meant_by(name, (one for one in dir(run) if not one.startswith("_") and one != name))
    return f"; did you mean {near}?" if near else "; things of your own have their place in run.store"


def meant_by(name: str, known: Iterable[str], alike: float = 0.7) -> str:
    """What somebody most likely meant who wrote ``run.name``; nothing if no name that is known is like it.

    >>> meant_by("stopp", ["stop", "step"]), meant_by("global_step", []), meant_by("teacher", ["stop"])
    ('run.stop', 'run.clock.steps', '')
    """
    near = nearest_name(name, known, alike)
    return ELSEWHERE.get(name) or (f"run.{near}" if near else "")


def unknown_name(run: Run, error: BaseException) -> str | None:
    """A sentence beside an error that asked the run for something that it does not have."""
    if not isinstance(error, AttributeError) or error.obj is not run or not isinstance(error.name, str):
        return None
    return f"a run has no {error.name!r}{instead_of(run, error.name)}"


def warn_of_set_names(run: Run) -> None:
    """Tells of attributes that somebody set on the run and nobody reads, such as ``run.target``."""
    for name in sorted(vars(run).keys() - run._known_names):
        if not name.startswith("_"):
            warn(f"run.{name} was set, which means nothing to the run{instead_of(run, name)}")
