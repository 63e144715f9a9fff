"""A ``DataLoader`` over an ``IterableDataset``: resumed by the data set's ``state_dict``, or by reading again."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from cadenza.data.feed import WorkersFeed
from cadenza.data.generic_feed import RoundsFeed
from cadenza.data.worker_stream import CollateStream, Samples, Short
from cadenza.data.workers import NOTHING, Begin, Desk, Place, starting_workers
from cadenza.foundation.generators import RngStates, capture, generators_in, pack, put_back, same, unpack
from cadenza.foundation.torch_private import live_iterator, replace_parts


class Turns:
    """The sampler that DataLoader is given: short tasks first, for workers whose turn is over; can be ended."""

    def __init__(self, tasks: Any, idle: int) -> None:
        self.tasks = tasks
        self.idle = idle
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        self.ended = False
        for task in itertools.chain([[None]] * self.idle, self.tasks):
            if self.ended:
                return
            yield task


class StreamFeed(WorkersFeed, RoundsFeed):
    """Iterates a copy of the user's loader. Each worker tells with each batch where it stands in its own part."""

    kind = "loader over a stream"

    def __init__(self, loader: DataLoader[Any], *, share: Callable[[Any], Any], **how: Any) -> None:
        super().__init__(loader, **how)
        self.share = share
        self.own = generators_in(loader.generator, *((loader.dataset, loader.collate_fn) if self.reads_here else ()))
        self.at_first: RngStates | None = None
        self.short: Short | None = None
        self._turns: Turns | None = None
        self.samples: Samples | None = None

    # One pass -----------------------------------------------------------------------------------------------------

    def begin(self, loaded: Any) -> Iterator[Any]:
        self.go_from(0, 0)
        self.at_first = None
        self.turn = 0
        places: dict[int, Place] = {}
        before = None
        if loaded is not None:
            self.load_between(loaded)
            if self._fits(loaded) and loaded["places"]:
                before, places = unpack(loaded["created"]), self._unpacked_places(loaded)
        now = capture(self.own)
        batches = self._open(places, before)
        if before is not None:
            put_back(now, self.own)  # workers that live on are not made anew, so nothing is drawn for them
        return self.turns(self._noted(batches))

    def load_between(self, loaded: Any) -> None:
        super().load_between(loaded)
        if loaded["dataset"] is not None and self.reads_here:
            self.loader.dataset.load_state_dict(loaded["dataset"])

    def resume(self, loaded: Any) -> Iterator[Any]:
        self.go_from(loaded["consumed"], loaded["cursor"])
        self._refuse_other_workers(loaded)
        self.live = None
        self.turn = loaded["turn"]
        places = self._unpacked_places(loaded)
        self.at_first = unpack(loaded["at_first"])
        if self.reads_here and self.at_first is not None:
            place = places.setdefault(0, Place())
            place.batches = loaded["cursor"]
            place.began = unpack(loaded["at_iter"])
        batches = self._open(places, unpack(loaded["created"]))
        return self.turns(batches if self.at_first is not None else self._noted(batches))

    def _open(self, places: dict[int, Place], before: RngStates | None) -> Iterator[Any]:
        mine = None
        if self.live is None or live_iterator(self.live) is None:
            mine = self._as_on_rank_0(before)
            self.places = {worker: dataclasses.replace(place) for worker, place in places.items()}
            self.live = self._watched_loader(places)
        else:
            self.places = {worker: Place(draws=place.draws) for worker, place in self.places.items()}
        with starting_workers(self.live):
            self.iterator = iter(self.live)
        assert self._turns is not None
        self._turns.idle = 0
        if mine is not None:
            put_back(mine)
        return self.iterator if self.reads_here else self._parcels(self.iterator)

    def _as_on_rank_0(self, before: RngStates | None) -> RngStates | None:
        """Lets the seeds of the workers be drawn as on rank 0, since all ranks must read the same stream."""
        self.created = before or capture(self.own)
        if before is not None:
            put_back(before, self.own)
            return None
        if self.ranks == 1:
            return None
        mine, theirs = self.created, unpack(self.share(pack(self.created)))
        assert theirs is not None
        self.created = theirs
        put_back(theirs, self.own, everywhere=False)
        if same(mine, theirs):
            return None
        put_back(theirs)
        return mine

    def _watched_loader(self, places: dict[int, Place]) -> DataLoader[Any]:
        watched: DataLoader[Any] = copy.copy(self.loader)
        desk = Desk(watched.dataset, watched.collate_fn, watched.worker_init_fn, dict(places))
        self.samples = Samples(desk, watched.batch_size, self.turn)
        batched = watched.batch_sampler is not None
        self._turns = Turns(watched.batch_sampler if batched else watched.sampler, self.turn if batched else 0)
        replace_parts(watched, dataset=self.samples, **{"batch_sampler" if batched else "sampler": self._turns})
        if self.reads_here:
            desk.own, self.samples.first = self.own, self.at_first
            self.short = Short(watched.collate_fn, watched.batch_size)
            replace_parts(watched, collate_fn=self.short)
        else:
            replace_parts(watched, collate_fn=CollateStream(desk, self.samples), worker_init_fn=Begin(desk))
        return watched

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        self.at_first = capture(self.own)
        yield from batches

    def _parcels(self, parcels: Iterator[Any]) -> Iterator[Any]:
        for parcel in parcels:
            if parcel.batch is NOTHING:
                continue
            old = self.places.get(parcel.worker, Place())
            draws = old.draws if parcel.draws is None else parcel.draws
            began = old.began if parcel.began is None else parcel.began
            self.places[parcel.worker] = Place(old.batches + 1, draws, began, parcel.state, parcel.over)
            self.turn = (parcel.worker + 1) % self.loader.num_workers
            yield parcel.batch

    def end(self) -> None:
        stays = self.loader.persistent_workers
        if self.underway and stays and self.iterator is not None and self._turns is not None:
            # tasks under way still move the workers' generators: their batches are dropped, their states are not
            self._turns.ended = True
            for _ in self._parcels(self.iterator):
                pass
        if not stays:
            self.live = None
        self.iterator = None
        self.underway = False

    # Where a pass stands ------------------------------------------------------------------------------------------

    def snapshot(self) -> Any:
        places = dict(self.places)
        if self.reads_here and self.samples is not None and self.read > self.first:
            over = self.short is not None and self.short.seen
            places[0] = Place(self.cursor, state=self.samples.state(), over=over)
        return self.cursor, places, self.turn

    def tree(self, snapshot: Any) -> dict[str, Any]:
        cursor, places, turn = snapshot
        at_iter = pack(self.samples.began) if self.reads_here and self.samples is not None else None
        at = {"cursor": cursor, "at_iter": at_iter, "at_first": pack(self.at_first)}
        return {**at, **self.of_workers(places, turn)}

    def between(self) -> dict[str, Any]:
        stays = self.loader.persistent_workers and self.live is not None
        places = {worker: Place(draws=place.draws) for worker, place in self.places.items()} if stays else {}
        keeps = self.reads_here and hasattr(self.loader.dataset, "state_dict")
        dataset = copy.deepcopy(self.loader.dataset.state_dict()) if keeps else None
        return {"dataset": dataset, **self.of_workers(places, 0)}

    def packed(self, place: Place) -> Any:
        draws, began = super().packed(place.draws), super().packed(place.began)
        return {"batches": place.batches, "draws": draws, "began": began, "state": place.state, "over": place.over}

    def _unpacked_places(self, loaded: Any) -> dict[int, Place]:
        return {int(worker): unpacked(place) for worker, place in loaded["places"].items()}

    def _fits(self, loaded: Any) -> bool:
        return (self.world_size, self.loader.num_workers) == (loaded["world_size"], loaded["workers"])

    def _refuse_other_workers(self, loaded: Any) -> None:
        if loaded["workers"] != self.loader.num_workers:
            raise ValueError(
                f"the position was saved with num_workers={loaded['workers']}, and this loader has "
                f"{self.loader.num_workers}: each worker reads its own part of a stream, so the number must be the same"
            )
        if self.divided and loaded["world_size"] != self.world_size:
            raise ValueError(
                f"the position was saved with {loaded['world_size']} process(es), and the data set divides the data "
                f"itself: it means nothing to {self.world_size} process(es)"
            )


def unpacked(tree: Any) -> Place:
    return Place(tree["batches"], unpack(tree["draws"]), unpack(tree["began"]), tree["state"], tree["over"])
