"""A training without a model: what the tests compare is every batch and where every generator stands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import torch

from cadenza.data import prepare

Made = Callable[[], Any]


def seed(number: int = 0) -> None:
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def generators() -> tuple[Any, ...]:
    name, words, *rest = numpy.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), name, words.tolist(), *rest


def set_generators(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(torch.tensor(states[0], dtype=torch.uint8))
    random.setstate(states[1])
    numpy.random.set_state((states[2], numpy.array(states[3], dtype=numpy.uint32), *states[4:]))


def train_on(batch: Any) -> None:
    """Draws from every generator of the process, as dropout and mixup do."""
    torch.rand(3)
    random.random()
    numpy.random.rand()


def plain(made: Any) -> Any:
    """A value that can be compared: tensors as lists with their type."""
    if isinstance(made, torch.Tensor):
        return str(made.dtype), made.tolist()
    if isinstance(made, dict):
        return {key: plain(value) for key, value in made.items()}
    if isinstance(made, list | tuple):
        return type(made).__name__, [plain(value) for value in made]
    return made


def by_hand(make: Made, epochs: int = 3) -> list[Any]:
    """What a loop over the loader itself sees."""
    seed()
    loader, seen = make(), []
    for epoch in range(epochs):
        if hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            seen.append(plain(batch))
            train_on(batch)
        seen.append(generators())
    return seen


def straight(make: Made, epochs: int = 3, **how: Any) -> list[Any]:
    """What a loop over a resumable feed sees."""
    return interrupted(make, [], epochs, **how)


def interrupted(make: Made, cuts: list[int], epochs: int = 3, ahead: bool = False, **how: Any) -> list[Any]:
    """The same, but at each number of batches in ``cuts`` everything is thrown away, made anew and resumed.

    A cut between two passes is given as a negative number: -1 is after the first epoch.
    """
    seed()
    feed, seen, done, cuts = prepare(make(), resumable=True, **how), [], 0, list(cuts)
    epoch, state = 0, None
    while epoch < epochs:
        feed.set_epoch(epoch)
        taken = 0 if state is None or state["consumed"] is None else state["consumed"]
        if state is not None:
            feed.load_state_dict(state)
            state = None
        cut = False
        batches = iter(feed)
        while True:
            if done in cuts:
                cuts.remove(done)
                feed, state = resumed(feed, batches, taken, make, ahead, how)
                cut = True
                break
            batch = next(batches, None)
            if batch is None:
                break
            seen.append(plain(batch))
            train_on(batch)
            taken, done = taken + 1, done + 1
        if cut:
            continue
        seen.append(generators())
        feed.end()
        epoch += 1
        if -epoch in cuts:
            cuts.remove(-epoch)
            feed, state = resumed(feed, None, None, make, False, how)
    assert not cuts, f"never came to {cuts}"
    feed.close()
    return seen


def resumed(feed: Any, batches: Any, taken: int | None, make: Made, ahead: bool, how: dict[str, Any]) -> Any:
    """A new feed of a new loader, with the generators as at the save, and the state to load."""
    if ahead:
        feed.bookmark()
        next(batches, None)
        train_on(None)
        # in the uninterrupted run nothing else happens between the read and the training on it
    state = through_files(feed.state_dict(taken))
    kept = generators()
    del batches
    feed.close()
    seed(99)
    fresh = prepare(make(), resumable=True, **how)
    fresh.load_state_dict(state)
    set_generators(kept)
    return fresh, state


def through_files(tree: Any) -> Any:
    """``tree`` as a checkpoint gives it back; anything but plain values and tensors is an error."""
    if isinstance(tree, dict):
        assert all(isinstance(key, str) for key in tree), tree.keys()
        return {key: through_files(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [through_files(value) for value in tree]
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    assert tree is None or type(tree) in (int, float, str, bool), f"{type(tree)} cannot be saved"
    return tree
