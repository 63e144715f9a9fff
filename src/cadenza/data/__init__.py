"""Batches: their parts, how they reach the device, and where a pass over a loader stands.

The core calls ``prepare`` once for each loader and stage, and keeps what it returns for the whole run::

    feed = prepare(loader, stage="train", rank=0, world_size=1, device=device, resumable=True)
    feed.set_epoch(epoch)           # before each pass: samplers and data sets that ask for it are told
    for batch in feed: ...          # a pass; it begins when iter(feed) is called
    feed.end()                      # the pass is over, also one that was left early
    feed.state_dict(consumed)       # in a pass, after so many batches of it; None between two passes
    feed.load_state_dict(state)     # the next iter(feed) goes on from there
    feed.bookmark()                 # before next() is called for a batch that is not consumed at once
    len(feed), feed.steps           # batches of this rank, global batches (the same on all ranks, None if unknown)
    feed.portion(step)              # samples of this rank and of all ranks in global batch ``step``
    feed.close()                    # no further pass: workers that live on are let go

On a resume, the order is: ``load_state_dict``, then the generators of the process are set as they were saved, then
``iter(feed)``, which leaves them untouched. ``consumed`` goes on from the saved number. ``prepare`` returns the loader
itself when nothing is asked for.
"""

from cadenza.data.batch import count_samples, gather, join, split, to_device
from cadenza.data.choose_feed import prepare
from cadenza.data.feed import Feed
from cadenza.data.loader import check_loader, length_of
from cadenza.data.shards import accumulation_for, unshard
from cadenza.data.tensor_feed import TensorLoader, plain, why_not_in_memory

__all__ = [
    "Feed",
    "TensorLoader",
    "accumulation_for",
    "check_loader",
    "count_samples",
    "gather",
    "join",
    "length_of",
    "plain",
    "prepare",
    "split",
    "to_device",
    "unshard",
    "why_not_in_memory",
]
