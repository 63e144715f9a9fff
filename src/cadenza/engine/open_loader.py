"""What the passes of a run read their batches from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cadenza.data import Feed, prepare
from cadenza.engine.dispatch import blame_loader

if TYPE_CHECKING:
    from cadenza.engine.stack import Pass
    from cadenza.run import Run


def begin_reading(run: Run, this: Pass) -> None:
    """Opens the loader; a resumed run draws from here on what the interrupted one would have drawn."""
    try:
        this.feed = feed_for(run, this)
        run._state.resume.set_rng(run)
        this.iterator = iter(this.feed)
    except BaseException as error:
        blame_loader(run, this, error)
        raise


def feed_for(run: Run, this: Pass) -> Any:
    """The loader of ``this`` pass itself, or what adapts it: so that it can go on later, is divided over processes, or
    is copied to the device beside the training. Made once for a loader, and told which epoch comes."""
    key = this.prefix.removesuffix("/")
    loader, feed = run._state.feeds.get(key, (None, None))
    if loader is not this.loader:
        if isinstance(feed, Feed):
            feed.close()
        beside = run.device if getattr(this.loader, "pin_memory", False) else None  # a wish for copies beside the step
        feed = _prepare(run, this.loader, this.stage, device=beside, resumable=run._state.plan.saver is not None)
        run._state.feeds[key] = (this.loader, feed)
    if isinstance(feed, Feed):
        if key in run._state.feed_states:
            feed.load_state_dict(run._state.feed_states.pop(key))
        feed.set_epoch(run.epoch)
    return feed


def _prepare(run: Run, loader: Any, stage: str, **how: Any) -> Any:
    return prepare(loader, stage=stage, rank=run.rank, world_size=run._state.processes.size, **how)


def restore_unread(run: Run) -> None:
    """A run that was resumed only to end opens no pass: sets its loaders as they were, for what is done with them next.

    A loader that a custom loop would have given to a verb is not known here, and stays as it is.
    """
    while run._state.feed_states:
        key, state = run._state.feed_states.popitem()
        stage, _, name = key.partition("/")
        loaders = {"train": run.train_loader, "val": run.val_loader, "test": run.test_loaders}.get(stage)
        loader = loaders.get(name) if isinstance(loaders, Mapping) else loaders
        feed = None if loader is None else _prepare(run, loader, stage, resumable=True)
        if isinstance(feed, Feed):
            feed.load_state_dict(state)
            feed.restore_loader()
            feed.close()
