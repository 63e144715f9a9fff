"""What the passes of a run read their batches from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.data import Feed, prepare
from cadenza.spans import blame_loader

if TYPE_CHECKING:
    from cadenza.frames import Pass
    from cadenza.run import Run


def begin_reading(run: Run, this: Pass) -> None:
    """Opens the loader; a resumed run draws from here on what the interrupted one would have drawn."""
    try:
        this.feed = feed_for(run, this)
        if run._resume is not None:
            run._resume.set_rng(run)
        this.iterator = iter(this.feed)
    except BaseException as error:
        blame_loader(run, this, error)
        raise


def feed_for(run: Run, this: Pass) -> Any:
    """The loader of ``this`` pass itself, or what adapts it: so that it can go on later, is divided over processes, or
    is copied to the device beside the training. Made once for a loader, and told which epoch comes."""
    key = this.prefix.removesuffix("/")
    loader, feed = run._feeds.get(key, (None, None))
    if loader is not this.loader:
        if isinstance(feed, Feed):
            feed.close()
        feed = prepare(
            this.loader,
            stage=this.stage,
            rank=run.rank,
            world_size=1 if run._ensemble is None else run.world_size,
            device=run.device
            if getattr(this.loader, "pin_memory", False)
            else None,  # a wish for copies beside the step
            resumable=run._plan.saver is not None,
        )
        run._feeds[key] = (this.loader, feed)
    if isinstance(feed, Feed):
        if key in run._feed_states:
            feed.load_state_dict(run._feed_states.pop(key))
        feed.set_epoch(run.epoch)
    return feed
