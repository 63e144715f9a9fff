"""The next batch is copied to the device while this one trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from cadenza.data.batch import to_device
from cadenza.data.feed import Feed
from cadenza.foundation.tree import entries, entries_and_fields, map_tree, tensors_of, walk

_END: Any = object()


class Copier:
    """Copies batches on a stream of its own; the stream that computes waits for the copy, the host for nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, batch: Any) -> tuple[Any, torch.cuda.Event]:
        """Begins the copy, from pinned memory."""
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            if _opaque(batch):
                # its tensors cannot be told to whom they are lent: what was lent before must have been used by then
                self.stream.wait_stream(current)
            moved = to_device(_pinned(batch), self.device)
            return moved, self.stream.record_event()

    def receive(self, sent: tuple[Any, torch.cuda.Event]) -> Any:
        """The batch, for the stream that computes; its memory is used again only when that has finished with it."""
        moved, event = sent
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors_of(moved):
            if tensor.is_cuda:
                tensor.record_stream(current)
        return moved


def _pinned(batch: Any) -> Any:
    """``batch`` with its tensors in pinned memory; what cannot be is left, and its copy waits for the host."""
    return map_tree(batch, _pinned_leaf, _plain_entries)


def _pinned_leaf(value: Any) -> Any:
    if isinstance(value, Tensor):
        ordinary = value.device.type == "cpu" and value.layout == torch.strided
        return value.pin_memory() if ordinary and not value.is_pinned() else value
    return value.pin_memory() if callable(getattr(value, "pin_memory", None)) else value


def _plain_entries(value: Any) -> Iterable[tuple[Any, Any]] | None:
    opened = isinstance(value, list | tuple) and not callable(getattr(value, "to", None))
    return entries(value) if opened or type(value) is dict else None


def _opaque(batch: Any) -> bool:
    """Whether something in the batch moves itself, so that its tensors cannot be seen from outside."""
    inside = (one for _, one in walk(batch, entries_and_fields) if not isinstance(one, Tensor))
    return any(callable(getattr(one, "to", None)) for one in inside)


class DeviceFeed(Feed):
    """Another feed, or a loader, whose batches come on the device.

    Where reading draws nothing from the generators of this process (workers, tensors in memory), the next batch is
    read and sent before this one is given. Elsewhere each batch is sent when it is asked for, so that the draws keep
    their order; the copy still runs beside the step before it.
    """

    def __init__(self, inner: Any, device: torch.device) -> None:
        super().__init__(inner.loader if isinstance(inner, Feed) else inner)
        self.inner = inner
        self.copier = Copier(device)
        self.ahead = not reads_here(inner)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.inner)
        return self._ahead(batches) if self.ahead else self._at_once(batches)

    def _at_once(self, batches: Iterator[Any]) -> Iterator[Any]:
        copier = self.copier
        for batch in batches:
            yield copier.receive(copier.send(batch))

    def _ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        copier = self.copier
        batch = next(batches, _END)
        sent = None if batch is _END else copier.send(batch)
        while sent is not None:
            self.bookmark()
            batch, failed = _read(batches)
            # before the one that is given now is worked on, so that the copy runs beside that work
            following = None if batch is _END else copier.send(batch)
            yield copier.receive(sent)
            if failed is not None:
                raise failed
            sent = following

    # Everything else is as the inner one says ---------------------------------------------------------------------

    def bookmark(self) -> None:
        if isinstance(self.inner, Feed):
            self.inner.bookmark()

    def why_not_resumable(self) -> str | None:
        return self.inner.why_not_resumable() if isinstance(self.inner, Feed) else None

    def state_dict(self, consumed: int | None) -> dict[str, Any]:
        return self.inner.state_dict(consumed)  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def steps(self) -> int | None:
        return self.inner.steps if isinstance(self.inner, Feed) else None

    def portion(self, step: int) -> tuple[int, int] | None:
        return self.inner.portion(step) if isinstance(self.inner, Feed) else None

    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.inner, Feed):
            self.inner.set_epoch(epoch)

    def end(self) -> None:
        if isinstance(self.inner, Feed):
            self.inner.end()

    def close(self) -> None:
        if isinstance(self.inner, Feed):
            self.inner.close()


def _read(batches: Iterator[Any]) -> tuple[Any, Exception | None]:
    """The next batch, or why there is none: the one before it, which is there already, is given first."""
    try:
        return next(batches, _END), None
    except Exception as error:
        return _END, error


def reads_here(inner: Any) -> bool:
    """Whether reading a batch may draw from the generators of this process."""
    return inner.reads_here if isinstance(inner, Feed) else not getattr(inner, "num_workers", 0)
