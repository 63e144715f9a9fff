"""What can be wrong with a checkpoint."""

from __future__ import annotations


class NotState(TypeError):
    """Something in a state is neither a tensor nor plain data, so it cannot be saved without pickle."""


class Damaged(ValueError):
    """A checkpoint does not hold what was written. ``name`` is its folder, ``reason`` says what differs."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the checkpoint {name} is damaged: {reason}")
        self.name = name
        self.reason = reason


class UnknownFormat(ValueError):
    """A checkpoint was written by a newer Cadenza, in a format that this one does not know."""


class NoCheckpoint(LookupError):
    """There is no checkpoint of the name that was asked for."""


class SaveFailed(RuntimeError):
    """A checkpoint could not be stored. Those that were committed before are as they were."""


class Taken(SaveFailed):
    """Another run writes to the same place, so this one does not save there any more."""
