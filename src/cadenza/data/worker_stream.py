"""An ``IterableDataset`` where it is read, in a worker or here: begins, goes on from a position, and tells its own."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import get_worker_info

from cadenza.data.workers import NOTHING, Desk, Parcel, Place, in_bytes
from cadenza.foundation.generators import RngStates, capture, put_back, same


class Samples:
    """Stands in for the data set; the first iteration goes on from the place that is known for this worker."""

    def __init__(self, desk: Desk, batch_size: int | None, idle: int) -> None:
        self.desk = desk
        self.batch_size = batch_size
        self.idle = idle
        self.source: Any = None
        self.began: RngStates | None = None
        self.first: RngStates | None = None

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        place = self.desk.places.pop(worker, None)
        idle, self.idle = self.idle, 0
        if place is None or not place.batches:
            self.began = capture(self.desk.own)
            self.source = iter(self.desk.dataset)
        else:
            self.began = place.began
            self.source = self.go_on(place, here=info is None)
        return itertools.chain([NOTHING], self.source) if worker < idle else self.source

    def go_on(self, place: Place, here: bool) -> Iterator[Any]:
        dataset = self.desk.dataset
        if place.began is not None:
            put_back(place.began, self.desk.own)
        if place.state is not None and hasattr(dataset, "load_state_dict"):
            dataset.load_state_dict(place.state)
        source: Iterator[Any] = iter(() if place.over and place.state is not None else dataset)
        if self.first is not None:
            put_back(self.first, self.desk.own)
        if place.state is not None and not place.over and not hasattr(dataset, "load_state_dict"):
            source.load_state_dict(place.state)  # type: ignore[attr-defined]
        elif place.state is None:
            self.replay(source, place, here)
        if place.draws is not None:
            put_back(place.draws, self.desk.own)
        return source

    def replay(self, source: Iterator[Any], place: Place, here: bool) -> None:
        """Reads again what was given before. In a worker nobody else draws, so that it must end as it did then."""
        for _ in range(place.batches):
            if self.batch_size is None:
                samples = next(source, None)
            else:
                samples = list(itertools.islice(source, self.batch_size))
            if not here:
                self.desk.collate_fn(samples)
        if not here and place.draws is not None and not same(capture(), place.draws):
            raise RuntimeError(
                f"{type(self.desk.dataset).__name__} was read again up to the saved position and drew other random "
                "numbers than in the saved run: give it state_dict and load_state_dict"
            )

    def state(self) -> Any:
        """What the data set, or its iterator, says of its position; None if neither keeps one."""
        for one in (self.desk.dataset, self.source):
            if hasattr(one, "state_dict"):
                return copy.deepcopy(one.state_dict())
        return None


class Short:
    """The ``collate_fn`` of a loader that is read here: sees whether the last batch was a short one."""

    def __init__(self, collate_fn: Any, batch_size: int | None) -> None:
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.seen = False

    def __call__(self, given: Any) -> Any:
        self.seen = self.batch_size is not None and len(given) < self.batch_size
        return self.collate_fn(given)


class CollateStream:
    """The ``collate_fn`` of a watched loader over a stream."""

    def __init__(self, desk: Desk, samples: Samples) -> None:
        self.desk = desk
        self.samples = samples

    def __call__(self, given: Any) -> Parcel:
        if given is NOTHING or (isinstance(given, list) and given[:1] == [NOTHING]):
            return Parcel(NOTHING, -1)
        samples = self.samples
        parcel = self.desk.parcel(self.desk.collate_fn(given))
        if samples.began is not None:
            parcel.began, samples.began = in_bytes(samples.began), None
        parcel.state = samples.state()
        parcel.over = samples.batch_size is not None and len(given) < samples.batch_size
        return parcel
