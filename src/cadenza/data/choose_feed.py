"""Which feed a loader needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from cadenza.data.feed import Feed
from cadenza.data.generic_feed import ReplayFeed, StatefulFeed
from cadenza.data.iterable_feed import StreamFeed
from cadenza.data.loader import epoch_listeners
from cadenza.data.map_feed import MapFeed
from cadenza.data.prefetch import DeviceFeed
from cadenza.data.sample_order import splits_itself
from cadenza.data.tensor_feed import TensorFeed, TensorLoader, why_not_in_memory


def prepare(
    loader: Any,
    *,
    stage: str = "train",
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | None = None,
    resumable: bool = False,
    share: Callable[[Any], Any] | None = None,
) -> Any:
    """What the passes of ``stage`` iterate: a ``Feed``, or ``loader`` itself if nothing is asked of it.

    ``resumable``: ``feed.state_dict(consumed)`` and ``feed.load_state_dict`` work. ``world_size``: every rank gets its
    part. ``share`` gives all ranks the value of rank 0; the default asks ``torch.distributed``. ``device``: if it is a
    CUDA device, batches are copied there beside the training.

    >>> feed = prepare([10, 11, 12, 13], resumable=True)
    >>> batches = iter(feed)
    >>> next(batches), next(batches)
    (10, 11)
    >>> again = prepare([10, 11, 12, 13], resumable=True)
    >>> again.load_state_dict(feed.state_dict(consumed=2))
    >>> list(again), list(again)
    ([12, 13], [10, 11, 12, 13])
    """
    if isinstance(loader, Feed):
        return loader
    how: dict[str, Any] = {"stage": stage, "rank": rank, "world_size": world_size}
    feed = _feed(loader, resumable, share or from_rank_0, how)
    if device is None or device.type != "cuda" or _lies_on(feed, device):
        return feed
    return DeviceFeed(feed, device)


def _feed(loader: Any, resumable: bool, share: Callable[[Any], Any], how: dict[str, Any]) -> Any:
    if isinstance(loader, TensorLoader):
        return TensorFeed(loader.loader, share=share, keep_on=loader.device, watch=resumable, **how)
    if why_not_in_memory(loader) is None:
        return TensorFeed(loader, share=share, watch=resumable, **how)
    if how["world_size"] == 1 and not resumable and not epoch_listeners(loader):
        return loader
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return StatefulFeed(loader, divided=_divided(loader), **how)
    if isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__:
        _refuse_any_order(loader, resumable)
        if not isinstance(loader.dataset, IterableDataset | MapDataPipe):
            return MapFeed(loader, share=share, watch=resumable, **how)
        if not isinstance(loader.dataset, IterDataPipe | MapDataPipe):
            return StreamFeed(loader, share=share, divided=_divided(loader), **how)
    return ReplayFeed(loader, divided=_divided(loader), **how)


def _lies_on(feed: Any, device: torch.device) -> bool:
    """Whether the batches come from that device already."""
    return isinstance(feed, TensorFeed) and (feed.keep_on is not None or feed.loader.dataset.tensors[0].is_cuda)


def _divided(loader: Any) -> bool:
    """Whether the loader gives each rank other batches already; it, or its data set, says so."""
    asked = (loader, getattr(loader, "dataset", None))
    return any(getattr(one, "divides_over_ranks", False) for one in asked) or splits_itself(loader)


def _refuse_any_order(loader: DataLoader[Any], resumable: bool) -> None:
    if resumable and loader.num_workers > 1 and not loader.in_order:
        raise ValueError(
            "a DataLoader with in_order=False gives its batches in the order in which the workers are ready, so a pass "
            "over it cannot be resumed: leave in_order out"
        )


def from_rank_0(value: Any) -> Any:
    """``value`` of rank 0 on all ranks, by ``torch.distributed``."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError(
            "all ranks must take their parts of one order, but torch.distributed is not initialized: give prepare a "
            "function share that returns rank 0's value"
        )
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]
