"""Workers that are just being started: a signal to the whole group, an exception, the end of their process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.context import ForkContext, ForkProcess

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from cadenza.data import prepare

pytestmark = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="forks workers")


class Signalled(ForkProcess):
    """Gets the signal before anything else runs in it."""

    def run(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        super().run()


class Context(ForkContext):
    Process = Signalled


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(3.0))


@pytest.mark.parametrize("dataset", [TensorDataset(torch.arange(6.0)), Stream()], ids=["map", "stream"])
def test_the_worker_passes_over_it_as_over_a_later_one(dataset):
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=Context())
    feed = prepare(loader, stage="train", rank=0, world_size=1, resumable=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        assert len(list(feed)) == (3 if isinstance(dataset, TensorDataset) else 4)
    finally:
        feed.close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


class Second(ForkProcess):
    """The second one cannot be started."""

    count = 0

    def start(self) -> None:
        Second.count += 1
        if Second.count == 2:
            raise OSError("no more processes")
        super().start()


class FewProcesses(ForkContext):
    Process = Second


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of DataLoader's own iterator
def test_workers_whose_loader_fails_to_start_are_ended():
    before = multiprocessing.active_children()
    data = TensorDataset(torch.arange(6.0))
    loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context=FewProcesses())
    feed = prepare(loader, stage="train", rank=0, world_size=1, resumable=True)
    with pytest.raises(OSError, match="no more processes"):
        iter(feed).__next__()
    for left in set(multiprocessing.active_children()) - set(before):
        left.join(20)
        assert left.exitcode == -signal.SIGKILL


KEPT = []


def leaves_workers():
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2, num_workers=1, persistent_workers=True)
    feed = prepare(loader, stage="train", rank=0, world_size=1, resumable=True)
    KEPT.append((feed, iter(feed)))
    next(KEPT[0][1])


def test_a_process_ends_while_its_workers_live():
    """As with torch.multiprocessing.spawn: such a process runs no functions of atexit."""
    process = multiprocessing.get_context("fork").Process(target=leaves_workers)
    process.start()
    process.join(60)
    ended = process.exitcode
    if ended is None:
        process.kill()
    assert ended == 0
