"""Messages from one callback to another: ``train_loop_obj.message_service``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

__all__ = ["MessageHandling", "MessageService"]


@unique
class MessageHandling(Enum):
    """How long a message is kept."""

    KEEP_FOREVER = "keep_forever"
    UNTIL_END_OF_EPOCH = "until_end_of_epoch"
    UNTIL_READ = "until_read"
    OVERWRITE = "overwrite"


@dataclass(frozen=True)
class Message:
    """One message and how long it is kept."""

    key: str
    value: Any
    handling: frozenset[MessageHandling]


class MessageService:
    """A box for messages under names. Who reads gets all that lie under the name, in the order of writing.

    >>> service = MessageService()
    >>> service.write_message("plots", "loss.png")
    >>> service.write_message("plots", "accuracy.png", MessageHandling.UNTIL_READ)
    >>> service.read_messages("plots"), service.read_messages("plots"), service.read_messages("other")
    (['loss.png', 'accuracy.png'], ['loss.png'], None)
    >>> service.end_of_epoch_trigger()
    >>> service.read_messages("plots") is None
    True
    """

    def __init__(self) -> None:
        self.message_store: dict[str, list[Message]] = {}

    def write_message(
        self, key: str, value: Any,
        msg_handling_settings: MessageHandling | Sequence[MessageHandling] = MessageHandling.UNTIL_END_OF_EPOCH,
    ) -> None:  # fmt: skip
        """Puts ``value`` under ``key``. ``OVERWRITE`` takes away what lies there; alone, the message stays until it is
        overwritten in turn. It is the only mode that may be given together with another."""
        handling = _checked(msg_handling_settings)
        kept = [] if MessageHandling.OVERWRITE in handling else self.message_store.get(key, [])
        self.message_store[key] = [*kept, Message(key, value, handling)]

    def read_messages(self, key: str) -> list[Any] | None:
        """What lies under ``key``, or None. Messages that are kept until they are read are gone afterwards."""
        if key not in self.message_store:
            return None
        found = self.message_store[key]
        self.message_store[key] = [one for one in found if MessageHandling.UNTIL_READ not in one.handling]
        return [one.value for one in found]

    def end_of_epoch_trigger(self) -> None:
        """Takes away the messages that were kept for this epoch."""
        for key, messages in list(self.message_store.items()):
            messages[:] = [one for one in messages if MessageHandling.UNTIL_END_OF_EPOCH not in one.handling]
            if not messages:
                self.message_store.pop(key)


def _checked(settings: MessageHandling | Sequence[MessageHandling]) -> frozenset[MessageHandling]:
    modes = [settings] if isinstance(settings, MessageHandling) else list(settings)
    known = ", ".join(mode.name for mode in MessageHandling)
    if not modes or not all(isinstance(mode, MessageHandling) for mode in modes):
        raise ValueError(f"how a message is kept is one of MessageHandling.{{{known}}}, not {settings!r}")
    if len({*modes} - {MessageHandling.OVERWRITE}) > 1:
        names = " and ".join(mode.name for mode in modes)
        raise ValueError(f"{names} cannot be combined; only OVERWRITE goes together with another mode")
    return frozenset(modes)
