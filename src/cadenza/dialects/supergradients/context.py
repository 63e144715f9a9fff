"""What every method of a callback gets: one object for the whole run, whole in every phase."""

from __future__ import annotations

from typing import Any

from cadenza.dialects.facade import Facade
from cadenza.dialects.supergradients.table import ATTRIBUTES, DIALECT

_METHODS = ("checkpoints_dir_path", "stop_training", "update_context")
FIELDS: tuple[str, ...] = tuple(row.name for row in ATTRIBUTES if row.name not in _METHODS)
_AT_ONCE = ("before_run", "after_best", "after_epoch")


_Unknown: Any = type("_Unknown", (), dict.fromkeys(FIELDS))
"""Every field as None, so that each is an attribute of its own: it stays when the run's field is gone."""


class PhaseContext(_Unknown, Facade, dialect=DIALECT):  # type: ignore[misc]
    """The state of a training as a callback sees it. What is not known is None, never missing.

    Values of the last batch stay until the next one. ``stop_training`` may be set from anywhere, and the training ends
    with the epoch that is going on.

    >>> context = PhaseContext(epoch=3)
    >>> context.update_context(batch_idx=0, note="mine")
    >>> context.epoch, context.batch_idx, context.preds, context.note
    (3, 0, None, 'mine')
    """

    epoch: Any
    batch_idx: Any

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(dict.fromkeys(FIELDS))
        self._stop = False
        self.update_context(**fields)

    def update_context(self, **fields: Any) -> None:
        """Sets attributes, also ones of your own, which other callbacks then see."""
        for name, value in fields.items():
            setattr(self, name, value)

    def put(self, **fields: Any) -> None:
        """Sets attributes that are known to be there, without a look at their names."""
        self.__dict__.update(fields)

    @property
    def checkpoints_dir_path(self) -> Any:
        """The folder of the checkpoints, as the documentation calls it; the same as ``ckpt_dir``."""
        return self.__dict__["ckpt_dir"]

    @property
    def stop_training(self) -> bool:
        return self._stop

    @stop_training.setter
    def stop_training(self, wanted: bool) -> None:
        self._stop = bool(wanted)
        run = self.__dict__.get("run")
        if wanted and run is not None and run.point is not None and run.point.name in _AT_ONCE:
            run.stop("stop_training was set on the context")

    def __repr__(self) -> str:
        return f"PhaseContext({', '.join(name for name in FIELDS if self.__dict__[name] is not None)})"
