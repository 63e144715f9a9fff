"""A loader prepared for the passes of a run: what it gives, and where a pass stands."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from cadenza.data.loader import epoch_listeners
from cadenza.data.sample_order import splits_itself
from cadenza.data.workers import as_draws
from cadenza.foundation.generators import RngStates, capture, pack, put_back, state_of, unpack
from cadenza.foundation.torch_private import end_workers, live_iterator

VERSION = 1


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Where a pass stood when ``count`` batches had been read, and the generators at that moment."""

    count: int
    snapshot: Any
    draws: RngStates | None


class Feed:
    """The batches of a loader, pass after pass. Each kind of loader has a subclass; ``prepare`` chooses it.

    ``consumed`` always counts the batches of the pass that were trained on, also those before a resume, never those
    that were only read ahead.
    """

    kind = "feed"
    reads_here = True
    """Whether reading a batch may draw from the generators of this process."""

    def __init__(self, loader: Any, *, stage: str = "train", rank: int = 0, world_size: int = 1) -> None:
        self.loader = loader
        self.stage = stage
        self.rank = rank
        self.world_size = world_size
        self.own: list[Any] = []
        self.resumable = True
        self.read = 0
        self.underway = False
        self._loaded: Any = None
        self._bookmarks: deque[Bookmark] = deque(maxlen=8)

    # One pass -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass at once, or goes on with the one that ``load_state_dict`` gave."""
        self.end()
        loaded, self._loaded = self._loaded, None
        self._bookmarks.clear()
        self.read = 0
        if loaded is None or loaded["consumed"] is None:
            batches = self._count(self.begin(loaded))
            self.underway = True
            return self._give(batches, [])
        return self._go_on(loaded)

    def _go_on(self, loaded: Any) -> Iterator[Any]:
        now = capture()
        try:
            self.read = loaded["consumed"]
            batches = self._count(self.resume(loaded))
            self.underway = True
            draws, ahead = unpack(loaded["draws"]), []
            if loaded["ahead"]:
                if draws is not None:
                    put_back(draws, self.own)
                self.bookmark()
                ahead = list(itertools.islice(batches, loaded["ahead"]))
        finally:
            put_back(now)
        if self.reads_here:
            put_back(RngStates({}, self._own_in(loaded)), self.own)
        return self._give(batches, ahead)

    def _count(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.read += 1
            yield batch

    def _give(self, batches: Iterator[Any], ahead: list[Any]) -> Iterator[Any]:
        yield from ahead
        del ahead[:]
        yield from batches
        self.underway = False

    def _own_in(self, loaded: Any) -> tuple[Any, ...]:
        known = unpack(loaded["own"])
        return () if known is None else known.own

    # What a kind of loader answers --------------------------------------------------------------------------------

    def begin(self, loaded: Any) -> Iterator[Any]:
        """The batches of a new pass; ``loaded`` is what was saved between two passes, or None."""
        raise NotImplementedError

    def resume(self, loaded: Any) -> Iterator[Any]:
        """The batches of the pass after ``loaded["consumed"]``; what this draws is put back by the caller."""
        raise NotImplementedError

    def snapshot(self) -> Any:
        """Where the pass stands, as cheap as possible; ``tree`` is asked to make something of it if it is saved."""
        raise NotImplementedError

    def tree(self, snapshot: Any) -> dict[str, Any]:
        """What ``resume`` needs, as a tree of plain values and tensors."""
        raise NotImplementedError

    def why_not_resumable(self) -> str | None:
        """Why a pass that is under way could not be resumed, with what to do; None if it could."""
        return None

    def between(self) -> dict[str, Any]:
        """What ``begin`` needs of the state between two passes."""
        return {}

    @property
    def steps(self) -> int | None:
        """The number of global batches in the pass, the same on all ranks; None if it is not known."""
        return None

    def __len__(self) -> int:
        """The number of batches of this rank in the pass, also those before a resume."""
        raise TypeError(f"the length of this {type(self.loader).__name__} is not known")

    def __bool__(self) -> bool:
        return True

    def portion(self, step: int) -> tuple[int, int] | None:
        """This rank's samples in global batch ``step`` of the pass, and those of all ranks; None if not known."""
        return None

    def load_between(self, loaded: Any) -> None:
        """Sets what the loader itself keeps from one pass to the next: here the generators of its objects."""
        put_back(RngStates({}, self._own_in(loaded)), self.own)

    def restore_loader(self) -> None:
        """Sets the loader as ``load_state_dict`` was told, without beginning a pass."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded["consumed"] is None:
            self.load_between(loaded)

    def set_epoch(self, epoch: int) -> None:
        """Tells the sampler, or whoever asks for it, which epoch comes."""
        for one in epoch_listeners(self.loader):
            one.set_epoch(epoch)

    def end(self) -> None:
        """The pass is over, perhaps before its end. Workers that live on are brought to rest."""
        self.underway = False

    def close(self) -> None:
        """No further pass: workers that live on are let go."""
        self.end()

    # Where a pass stands ------------------------------------------------------------------------------------------

    def bookmark(self) -> None:
        """To be called before a batch is read ahead: this place can still be asked for afterwards."""
        self._bookmarks.append(Bookmark(self.read, self.snapshot(), capture(self.own) if self.reads_here else None))

    def state_dict(self, consumed: int | None) -> dict[str, Any]:
        """Where the pass stands after ``consumed`` batches; None between two passes."""
        if not self.resumable:
            raise RuntimeError("where this loader stands was not kept: prepare it with resumable=True")
        own = pack(RngStates({}, tuple(map(state_of, self.own))))
        state = {"version": VERSION, "kind": self.kind, "consumed": consumed, "own": own, "draws": None, "ahead": 0}
        if consumed is None:
            return {**state, **self.between()}
        if consumed == self.read:
            return {**state, **self.tree(self.snapshot())}
        for mark in self._bookmarks:
            if mark.count == consumed:
                ahead = {"draws": pack(mark.draws), "ahead": self.read - consumed}
                return {**state, **ahead, **self.tree(mark.snapshot)}
        raise ValueError(
            f"{self.read} batches were read and {consumed} consumed, but this place was not kept: call bookmark() "
            "before a batch is read ahead"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on where ``state`` was taken. Refused if it was taken from another kind of loader."""
        if state["version"] > VERSION:
            raise ValueError(f"this position has version {state['version']}, newer than {VERSION}: update Cadenza")
        if state["kind"] != self.kind:
            raise ValueError(
                f"the saved position is of a {state['kind']} and this loader is a {self.kind}: give the loader of the "
                "saved run"
            )
        self._refuse_moved(state)
        self.end()
        self._loaded = state

    def _refuse_moved(self, state: dict[str, Any]) -> None:
        """Of a loader that divides the data itself nobody knows what other numbers of processes have had of it."""
        before, consumed = state.get("moved", self.world_size), state["consumed"]
        divides = getattr(self, "divided", False) or splits_itself(self.loader)
        if divides and before != self.world_size and consumed is not None:
            raise ValueError(
                f"the {self.stage} loader, a {type(self.loader).__name__}, divides the data over processes itself. The "
                f"run was saved with {before} of them, after {consumed} batches of each, and goes on with "
                f"{self.world_size}, which cannot know what is left: use {before} processes, go on from a checkpoint "
                "that was saved between two epochs, or give a loader that does not divide the data"
            )


class WorkersFeed(Feed):
    """Iterates a copy of the user's loader, ``live``, whose workers may live on from one pass to the next."""

    def __init__(self, loader: DataLoader[Any], **how: Any) -> None:
        super().__init__(loader, **how)
        self.reads_here = loader.num_workers == 0
        self.created: RngStates | None = None
        self.places: dict[int, Any] = {}
        self.turn = 0
        self.live: DataLoader[Any] | None = None
        self.iterator: Iterator[Any] | None = None

    def close(self) -> None:
        self.underway = False  # nobody asks for the states of the workers any more
        end_workers(self.iterator if self.iterator is not None else live_iterator(self.live))
        self.end()
        self.live = None

    def of_workers(self, places: dict[int, Any], turn: int) -> dict[str, Any]:
        """The part of a state that says where the workers stand."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "workers": self.loader.num_workers,
            "turn": turn,
            "created": pack(self.created),
            "places": {str(worker): self.packed(place) for worker, place in places.items()},
        }

    def packed(self, place: Any) -> Any:
        """Where one worker stands, as state."""
        return pack(as_draws(place))
