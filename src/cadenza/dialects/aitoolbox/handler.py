"""The callbacks of a loop as one object: ``train_loop_obj.callbacks_handler``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cadenza.dialects.adapter import overridden
from cadenza.dialects.aitoolbox.table import HOOKS

if TYPE_CHECKING:
    from cadenza.dialects.aitoolbox.loop_object import LoopObject


class CallbacksHandler:
    """Counts, finds, lists and adds the callbacks of a loop."""

    def __init__(self, loop: LoopObject) -> None:
        self.loop = loop

    @property
    def registered_cbs(self) -> list[Any]:
        return list(self.loop.callbacks)

    def register_callbacks(self, callbacks: Iterable[Any] | None, cache_callbacks: bool = False) -> None:
        """Adds callbacks; those that are there already are left as they are. In a running fit they play from the next
        iteration on. Registration always waits for the fit, so ``cache_callbacks`` changes nothing."""
        register = getattr(self.loop, "_register", None)
        if register is None:
            raise TypeError(
                "aitoolbox: this loop belongs to a cadenza.Trainer; add callbacks with trainer.add(callback)"
            )
        register(list(callbacks or ()))

    def __iadd__(self, callbacks: Iterable[Any]) -> CallbacksHandler:
        self.register_callbacks(callbacks)
        return self

    __add__ = __iadd__

    def __len__(self) -> int:
        return len(self.registered_cbs)

    def __contains__(self, wanted: object) -> bool:
        """Whether a callback of this name, of this class, or this very one is registered."""
        return any(wanted in (one, type(one), one.callback_name) for one in self.registered_cbs)

    def __str__(self) -> str:
        lines = []
        for row in HOOKS:
            names = [one.callback_name for one in self.registered_cbs if overridden(one, row.name)]
            if names:
                lines.append(f"{row.name}: {', '.join(names)}")
        return "\n".join(lines) or "no callbacks"

    def print_registered_callback_names(self) -> None:
        """Prints for each hook who plays there, in order."""
        print(self)
