"""Loaders of which nothing is known but that they can be iterated, or that they keep their position themselves."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from cadenza.data.feed import Feed
from cadenza.data.loader import length_of
from cadenza.data.shards import batches_left, steps_left
from cadenza.foundation.generators import RngStates, capture, generators_in, pack, put_back, unpack


class RoundsFeed(Feed):
    """Each rank takes its turn: of every ``world_size`` batches one. A loader that divides the data itself is left."""

    start_cursor = 0
    first = 0

    def __init__(self, loader: Any, *, divided: bool = False, **how: Any) -> None:
        super().__init__(loader, **how)
        self.divided = divided

    @property
    def ranks(self) -> int:
        return 1 if self.divided else self.world_size

    @property
    def cursor(self) -> int:
        """How many batches of the loader were taken, by all ranks together."""
        return self.start_cursor + (self.read - self.first) * self.ranks

    def turns(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self.ranks == 1:
            return batches
        return self._own_turns(batches)

    def _own_turns(self, batches: Iterator[Any]) -> Iterator[Any]:
        # the whole round is read before a batch is given, so that all ranks stand at the same place of the loader
        while taken := list(itertools.islice(batches, self.world_size)):
            if self.rank < len(taken):
                yield taken[self.rank]

    def go_from(self, consumed: int, cursor: int) -> None:
        self.first, self.start_cursor = consumed, cursor

    def __len__(self) -> int:
        rank = 0 if self.divided else self.rank
        return self.first + batches_left(len(self.loader) - self.start_cursor, 1, rank, self.ranks, drop_last=False)

    @property
    def steps(self) -> int | None:
        length = length_of(self.loader)
        return None if length is None else self.first + steps_left(length - self.start_cursor, 1, self.ranks, False)


class ReplayFeed(RoundsFeed):
    """Resumes by reading the batches before the position again; those of a list are passed over unread."""

    kind = "iterable"

    def __init__(self, loader: Any, **how: Any) -> None:
        super().__init__(loader, **how)
        self.own = generators_in(loader)
        self.at_iter: RngStates | None = None
        self.at_first: RngStates | None = None
        self._reads_once = False

    def begin(self, loaded: Any) -> Iterator[Any]:
        if loaded is not None:
            self.load_between(loaded)
        self.go_from(0, 0)
        self.at_iter, self.at_first = capture(self.own), None
        batches = iter(self.loader)
        self._reads_once = batches is self.loader
        return self.turns(self._noted(batches))

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        self.at_first = capture(self.own)
        yield from batches

    def resume(self, loaded: Any) -> Iterator[Any]:
        self.at_iter, self.at_first = unpack(loaded["at_iter"]), unpack(loaded["at_first"])
        self.go_from(loaded["consumed"], loaded["cursor"])
        assert self.at_iter is not None
        put_back(self.at_iter, self.own)
        batches = iter(self.loader)
        self._reads_once = batches is self.loader
        if self._reads_once:
            raise TypeError(self.why_not_resumable())
        if self.at_first is None:
            return self.turns(self._noted(batches))
        put_back(self.at_first, self.own)
        if isinstance(self.loader, Sequence):
            return self.turns(itertools.islice(self.loader, self.start_cursor, None))
        deque(itertools.islice(batches, self.start_cursor), maxlen=0)
        return self.turns(batches)

    def why_not_resumable(self) -> str | None:
        if not self._reads_once:
            return None
        return (
            f"The {self.stage} loader, a {type(self.loader).__name__}, can be read only once, so a pass over it cannot "
            "be resumed. Give a DataLoader, a list, an object whose __iter__ begins again, or one with state_dict and "
            "load_state_dict"
        )

    def snapshot(self) -> Any:
        return self.cursor

    def tree(self, snapshot: Any) -> dict[str, Any]:
        return {"cursor": snapshot, "at_iter": pack(self.at_iter), "at_first": pack(self.at_first)}


class StatefulFeed(RoundsFeed):
    """A loader with ``state_dict`` and ``load_state_dict`` keeps its own position."""

    kind = "loader with state_dict"

    def begin(self, loaded: Any) -> Iterator[Any]:
        if loaded is not None:
            self.load_between(loaded)
        self.go_from(0, 0)
        return self.turns(iter(self.loader))

    def load_between(self, loaded: Any) -> None:
        self.loader.load_state_dict(loaded["loader"])

    def resume(self, loaded: Any) -> Iterator[Any]:
        self.go_from(loaded["consumed"], loaded["cursor"])
        self.loader.load_state_dict(loaded["loader"])
        return self.turns(iter(self.loader))

    def snapshot(self) -> Any:
        return self.cursor, copy.deepcopy(self.loader.state_dict())

    def tree(self, snapshot: Any) -> dict[str, Any]:
        cursor, state = snapshot
        return {"cursor": cursor, "loader": state}

    def between(self) -> dict[str, Any]:
        return {"loader": copy.deepcopy(self.loader.state_dict())}
