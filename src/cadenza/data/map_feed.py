"""A ``DataLoader`` over a map-style data set: shared out over ranks, and resumed without reading a sample."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from cadenza.data.feed import WorkersFeed
from cadenza.data.index_walk import FRESH, Start
from cadenza.data.loader import epoch_listeners
from cadenza.data.sample_order import Order
from cadenza.data.shards import portion
from cadenza.data.workers import NOTHING, Begin, Collate, Desk, Items, Place, starting_workers
from cadenza.foundation.generators import RngStates, capture, generators_in, put_back, unpack
from cadenza.foundation.torch_private import live_iterator, replace_parts


class Tasks:
    """The sampler that DataLoader is given: the order, behind ``idle`` tasks that ask for nothing."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.idle = 0

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain([NOTHING] * self.idle, iter(self.order)) if self.idle else iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class MapFeed(WorkersFeed):
    """Iterates a copy of the user's loader whose sampler is an ``Order``; the user's own is not touched.

    With workers, each batch comes with the state of its worker's generators, so that random augmentation goes on
    where it stood: batch ``n`` is read by the worker that would have read it, with the same draws.
    """

    kind = "map-style loader"

    order_type: type[Order] = Order

    def __init__(self, loader: DataLoader[Any], *, share: Callable[[Any], Any], watch: bool = True, **how: Any) -> None:
        super().__init__(loader, **how)
        self.order = self.order_type(loader, self.rank, self.world_size, share)
        self.order.keeps = self.resumable = watch
        self.tasks = Tasks(self.order)
        self.watch = watch and loader.num_workers > 0
        self.own = [*self.order.own]
        for one in generators_in(loader.dataset, loader.collate_fn):
            if all(one is not other for other in self.own):
                self.own.append(one)
        self.first = 0

    # One pass -----------------------------------------------------------------------------------------------------

    def begin(self, loaded: Any) -> Iterator[Any]:
        places, start, before = {}, FRESH, None
        if loaded is not None:
            self.load_between(loaded)
            if self._fits(loaded) and loaded["places"]:
                # the workers of the saved run lived on: begin again as when they were made, then draw from here
                before, start = unpack(loaded["created"]), Start(at_iter=capture(self.order.own))
                places = {int(worker): unpack(draws) for worker, draws in loaded["places"].items()}
        self.first = self.turn = 0
        return self._open(start, places, before)

    def load_between(self, loaded: Any) -> None:
        super().load_between(loaded)
        if loaded["sampler"] is not None:
            self.order.source.load_state_dict(loaded["sampler"])

    def resume(self, loaded: Any) -> Iterator[Any]:
        fits = self._fits(loaded)
        before = unpack(loaded["created"]) if fits else None
        places = {int(worker): unpack(draws) for worker, draws in loaded["places"].items()} if fits else {}
        self.first, self.turn = loaded["consumed"], loaded["turn"] if fits else 0
        if not self.order.stateful and loaded["epoch"] is not None:
            self.set_epoch(loaded["epoch"])
        self.live = None
        start = self.order.resume(loaded["order"])
        batches = self._open(start, places, before)
        if start.begun and self.order.walk is not None and self.order.walk.batches is None:
            self.order.walk.prime()  # now, while what it draws is put back
        return batches

    def _open(self, start: Start, places: dict[int, Any], before: RngStates | None) -> Iterator[Any]:
        self.order.start, self.tasks.idle = start, self.turn
        self.start_cursor = start.cursor
        if self.live is None or live_iterator(self.live) is None:
            self.places = dict(places)
            if self.watch:
                self.created = before or capture(self.order.own)
            if before is not None:
                put_back(before, self.order.own)
            self.live = self._watched_loader(places)
            self.order.unused = int(self.loader.num_workers > 0)
        self.iterator = self._iterate(self.live)
        self.order.start, self.tasks.idle = FRESH, 0
        return self._unpacked(self.iterator) if self.watch else self.iterator

    def _iterate(self, watched: DataLoader[Any]) -> Iterator[Any]:
        with starting_workers(watched):
            return iter(watched)

    def _watched_loader(self, places: dict[int, Any]) -> DataLoader[Any]:
        watched: DataLoader[Any] = copy.copy(self.loader)
        replace_parts(watched, **{"sampler" if self.order.single else "batch_sampler": self.tasks})
        if self.watch:
            known = {worker: Place(draws=draws) for worker, draws in places.items()}
            desk = Desk(watched.dataset, watched.collate_fn, watched.worker_init_fn, known)
            replace_parts(watched, dataset=Items(desk), collate_fn=Collate(desk), worker_init_fn=Begin(desk))
        return watched

    def _unpacked(self, parcels: Iterator[Any]) -> Iterator[Any]:
        workers = self.loader.num_workers
        for parcel in parcels:
            if parcel.batch is NOTHING:
                continue
            if parcel.draws is not None:
                self.places[parcel.worker] = parcel.draws
            self.turn = (parcel.worker + 1) % workers
            yield parcel.batch

    def end(self) -> None:
        if self.underway and self.watch and self.loader.persistent_workers and self.iterator is not None:
            # tasks under way still move the workers' generators: their batches are dropped, their states are not
            if self.order.walk is not None:
                self.order.walk.ended = True
            for _ in self._unpacked(self.iterator):
                pass
        if not (self.loader.persistent_workers and self.loader.num_workers):
            self.live = None
        self.iterator = None
        self.underway = False

    # Where a pass stands ------------------------------------------------------------------------------------------

    def snapshot(self) -> Any:
        return self.read - self.first, dict(self.places), self.turn, self.order.mark()

    def tree(self, snapshot: Any) -> dict[str, Any]:
        batches, places, turn, mark = snapshot
        return {
            "order": self.order.position(batches, mark),
            "epoch": self._epoch(),
            **self.of_workers(places, turn),
        }

    def between(self) -> dict[str, Any]:
        stays = self.watch and self.loader.persistent_workers
        sampler = copy.deepcopy(self.order.source.state_dict()) if self.order.stateful else None
        return {"sampler": sampler, **self.of_workers(self.places if stays else {}, 0)}

    def _fits(self, loaded: Any) -> bool:
        """Whether the states of the workers are of this rank and this number of workers; else they start anew."""
        mine = (self.rank, self.world_size, self.loader.num_workers)
        if self.order.world_size != self.world_size and loaded["world_size"] != self.world_size:
            raise ValueError(
                f"the position was saved with {loaded['world_size']} process(es) and a sampler that divides the data "
                f"itself; it means nothing to {self.world_size}: use a plain loader, which Cadenza divides"
            )
        return mine == (loaded["rank"], loaded["world_size"], loaded["workers"])

    def _epoch(self) -> int | None:
        """As the sampler has it: a callback may have told it another one than the run's."""
        told = (getattr(one, "epoch", None) for one in epoch_listeners(self.loader))
        return next((epoch for epoch in told if isinstance(epoch, int)), None)

    # How long it is -----------------------------------------------------------------------------------------------

    start_cursor = 0

    def __len__(self) -> int:
        return self.first + self.order.length(self.start_cursor)

    @property
    def steps(self) -> int | None:
        return None if self.order.total_if_known() is None else self.first + self.order.steps(self.start_cursor)

    def portion(self, step: int) -> tuple[int, int] | None:
        total = self.order.total_if_known()
        if total is None or not self.order.counts_samples:
            return None
        at = self.start_cursor + (step - self.first) * self.order.stride
        size = min(self.order.stride, total - at)
        begin, end = portion(size, self.order.rank, self.order.world_size)
        return end - begin, size
