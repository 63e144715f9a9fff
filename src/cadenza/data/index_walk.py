"""One walk over the indices of a pass: from where it starts, in global batches, and what is noted on the way."""

from __future__ import annotations

import copy
import itertools
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import SequentialSampler

from cadenza.data.shards import portion
from cadenza.foundation.generators import RngStates, capture, pack, put_back, same, unpack

if TYPE_CHECKING:
    from cadenza.data.sample_order import Order


@dataclass(frozen=True, slots=True)
class Start:
    """Where a pass begins: at ``cursor``, with the generators as they stood when it was begun first."""

    cursor: int = 0
    at_iter: RngStates | None = None
    at_first: RngStates | None = None
    state: Any = None
    check: int | None = None
    over: bool = False
    begun: bool = False
    """Whether the sampler had drawn already."""


FRESH = Start()


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a sampler of one's own stands: the sum over what it gave, or its own state.

    ``over``: it has come to its end, and would begin anew if it were asked again.
    """

    check: int | None
    state: Any
    over: bool


class Walk:
    """One pass over the index batches of an ``Order``."""

    def __init__(self, order: Order, start: Start) -> None:
        self.order = order
        self.start = start
        self.at_iter: RngStates | None = None
        self.at_first: RngStates | None = None
        self.mine: RngStates | None = None
        self.batches: Iterator[Any] | None = None
        self.ended = self.moves = False
        self.check = 0
        self.marks: deque[tuple[int, Mark]] = deque(maxlen=16 + 2 * order.drawn_ahead)
        self.over = start.over
        # DataLoader asks its own samplers for an iterator at the first batch, and others at once
        self.source = None if order.plain or order.world_size > 1 else self.open()

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.batches is None:
            self.prime()
        if self.ended:
            raise StopIteration
        return next(self.batches)  # type: ignore[arg-type]

    def open(self) -> Iterator[Any]:
        """Asks the sampler for its iterator, with the generators as they stood then."""
        order, start = self.order, self.start
        if start.state is not None:
            order.source.load_state_dict(start.state)
        elif start.at_iter is not None:
            put_back(start.at_iter, order.own)
        self.mine = self.follow_rank_0()
        self.at_iter = capture(order.own) if order.keeps else None
        return iter(order.source)

    def prime(self) -> None:
        """Draws what the sampler draws at its beginning, and goes to the cursor: no sample is read."""
        order, start = self.order, self.start
        source = self.source if self.source is not None else self.open()
        if start.at_first is not None:
            put_back(start.at_first, order.own)
        self.at_first = start.at_first or (capture(order.own) if order.keeps else None)
        if start.state is None:
            self.skip(source, start.cursor)
        chunks = self.chunks(iter(()) if start.over else source)
        if not order.known:
            chunks = self.watched(chunks)
        first = [] if start.begun else list(itertools.islice(chunks, 1))
        if self.mine is not None:
            put_back(self.mine)
        self.batches = self.parts(itertools.chain(first, chunks))

    def follow_rank_0(self) -> RngStates | None:
        """Sets the generators as on rank 0, so that all take their parts of one order; returns what to put back."""
        order = self.order
        if order.world_size == 1 or self.start.begun or type(order.source) is SequentialSampler:
            return None
        mine = capture(order.own)
        theirs = unpack(order.share(pack(mine)))
        assert theirs is not None
        put_back(theirs, order.own, everywhere=False)
        if same(mine, theirs):
            return None  # then this rank goes on from after the draw, as rank 0 does
        put_back(theirs)
        return mine

    def skip(self, source: Iterator[Any], cursor: int) -> None:
        if self.order.known:
            deque(itertools.islice(source, cursor), maxlen=0)
            return
        while cursor > 0 and (passed := list(itertools.islice(source, min(cursor, 4096)))):
            cursor -= len(passed)
            self.check = checksum(passed, self.check)
        if self.start.check is not None and self.check != self.start.check:
            raise ValueError(
                f"{type(self.order.source).__name__} gave other indices than in the saved run, so the position in the "
                "epoch cannot be found: let it draw from a generator that it holds as an attribute, or give it "
                "state_dict and load_state_dict"
            )

    def chunks(self, source: Iterator[Any]) -> Iterator[list[Any]]:
        """Global batches."""
        size, order = self.order.stride, self.order
        while chunk := list(itertools.islice(source, size)):
            if order.drop_last and len(chunk) < size:
                return
            yield chunk

    def parts(self, chunks: Iterable[list[Any]]) -> Iterator[Any]:
        """This rank's part of each global batch."""
        rank, world_size, plain = self.order.rank, self.order.world_size, self.order.plain
        for chunk in chunks:
            begin, end = portion(len(chunk), rank, world_size)
            if begin < end:
                yield chunk[begin:end] if plain else chunk[begin]

    def watched(self, chunks: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """Notes where a sampler of one's own stands after each global batch, and whether it draws as it goes."""
        order = self.order
        for number in itertools.count(1):
            if number == 1 and order.drawn_ahead:
                self.marks.append((0, self.mark()))
            look = not order.stateful and (1 < number < 9 or number % 32 == 0)
            before = capture() if look else None
            chunk = next(chunks, None)
            if chunk is None:
                return
            if before is not None and not same(before, capture()):
                self.moves = True
                if order.world_size > 1:
                    raise TypeError(draws_as_it_goes(order.source))
            self.check = 0 if order.stateful else checksum(chunk, self.check)
            self.over = order.stateful and len(chunk) < order.stride
            if order.drawn_ahead:
                self.marks.append((number, self.mark()))
            yield chunk

    def mark(self) -> Mark:
        if self.batches is None and self.start.begun:
            return Mark(self.start.check, self.start.state, self.start.over)
        state = copy.deepcopy(self.order.source.state_dict()) if self.order.stateful else None
        return Mark(self.check, state, self.over)

    def position(self, batches: int, mark: Mark | None) -> dict[str, Any]:
        order = self.order
        if self.moves:
            raise TypeError(draws_as_it_goes(order.source))
        mark = mark or Mark(self.start.check, self.start.state, self.start.over)
        for number, noted in self.marks:
            mark = noted if number == batches else mark
        return {
            "unit": "samples" if order.counts_samples else "batches",
            "total": order.total_if_known(),
            "cursor": self.start.cursor + batches * order.stride,  # as many as were asked for: the last asks for more
            "at_iter": None if order.stateful else pack(self.at_iter),
            "at_first": None if order.stateful else pack(self.at_first),
            "sampler": mark.state,
            "check": mark.check,
            "over": mark.over,
            "begun": self.batches is not None or self.start.begun,
        }


def checksum(indices: list[Any], before: int) -> int:
    return zlib.crc32(",".join(map(str, [*indices, ""])).encode(), before)


def draws_as_it_goes(sampler: Any) -> str:
    return (
        f"{type(sampler).__name__} draws from the generators of the process while it goes, so where it stands cannot "
        "be saved: let it draw from a torch.Generator or random.Random that it holds as an attribute, or give it "
        "state_dict and load_state_dict"
    )
