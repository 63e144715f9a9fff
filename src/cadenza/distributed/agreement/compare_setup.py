"""Compares how the ranks set up a run, before they wait for each other.

Ranks with other callbacks, loaders, lengths or models call other collectives, and each waits for the others until the
timeout. One small collective at the beginning of a run turns that into an error which names the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from cadenza.clock import Duration
from cadenza.distributed.agreement.collectives import gathered
from cadenza.distributed.failures.rank_errors import RankFailed, may_be_news
from cadenza.foundation.tree import entries, fold
from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.trainer_state import Training
    from cadenza.run import Run

Setup: TypeAlias = dict[str, Any]
_PARTS = 4
"""A digest travels as so many numbers of 48 bits, which float64 holds exactly."""


_SAME_CALLS = (
    "All ranks must make the same calls of the trainer: remove the `if rank == 0` around them, and give what only rank "
    '0 should do to a callback with ranks = "main".'
)


class SetupDiffers(RuntimeError):
    """The ranks are set up differently; every rank raises it."""

    agreed = True
    """All ranks raise it, so none has to tell the others."""


def compare(run: Run, callbacks: Sequence[Callback], place: torch.device) -> float:
    """Raises on all ranks if they are set up differently. Returns the time of rank 0, which travels along."""
    mine = setup_of(run, callbacks)
    row = torch.tensor([run.clock.wall, *_digest(mine)], dtype=torch.float64, device=place)
    rows = [torch.empty_like(row) for _ in range(run.world_size)]
    dist.all_gather(rows, row)
    table = torch.stack(rows).tolist()
    if any(other[1:] != table[0][1:] for other in table):
        raise SetupDiffers(difference(gathered(mine)))
    return float(table[0][0])


@contextmanager
def noting_who_left(run: Run) -> Iterator[None]:
    """Adds a note to what a collective raises because another rank has ended."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if may_be_news(error) and not isinstance(error, RankFailed | SetupDiffers):
            error.add_note(
                f"cadenza: rank {run.rank} begins a {run.mode}, and another rank is gone. If that one ended in order, "
                f"it made fewer calls of the trainer. {_SAME_CALLS}"
            )
        raise


def _digest(setup: Setup) -> list[float]:
    digest = hashlib.blake2b(repr(setup).encode(), digest_size=6 * _PARTS).digest()
    return [float(int.from_bytes(digest[6 * part : 6 * part + 6], "big")) for part in range(_PARTS)]


# What is compared ---------------------------------------------------------------------------------------------------


def setup_of(run: Run, callbacks: Sequence[Callback]) -> Setup:
    """What has to be equal on all ranks, as texts."""
    training = run.training_state
    return {
        "call": run.mode,
        **{name: str(value) for name, value in run.fit_arguments.items()},
        "strategy": repr(training.strategy),
        "execution": getattr(training.execution, "mode", "eager"),
        "The main callback": _main(callbacks),
        "callbacks": [described(one) for one in sorted(callbacks, key=lambda one: one.order) if counts(one)],
        "train_loader": _presence(run.train_loader),
        "val_loader": _presence(run.val_loader),
        "test_loaders": _presence(run.test_loaders),
        "clock": f"{run.clock.epochs} epochs and {run.clock.steps} steps",
        "parameters": {name: _form(one) for name, one in run.module.named_parameters()},
        "buffers": {name: _form(one) for name, one in run.module.named_buffers()} if _sends_buffers(training) else {},
        "The optimizer": " and ".join(map(_optimizer, run.optimizers)),
        "The scheduler": _schedulers(run),
    }


def counts(callback: Callback) -> bool:
    """Whether all ranks must have ``callback``."""
    if callback.ranks != "all" or callback.same_on_ranks is None:
        everywhere = callback.ranks == "all" and (callback.owns or callback.agree == "all" or callback._keeps_state())
        return bool(everywhere or callback.asks)
    return True


def described(callback: Callback) -> tuple[str, dict[str, str]]:
    """What ``callback`` is called, and those of its settings that have to be equal."""
    kind = type(callback).__name__
    called = callback.name if kind in callback.name else f"{kind} {callback.name!r}"
    settings = {name: getattr(callback, name) for name in (*(callback.same_on_ranks or ()), "asks", "agree")}
    return called, {name: _text(value) for name, value in settings.items()}


def _main(callbacks: Sequence[Callback]) -> str:
    main = next((one for one in callbacks if isinstance(one, MainCallback)), None) or MainCallback()
    return f"{type(main).__name__} with lr_every={main.lr_every or 'epoch'!r}"


def _schedulers(run: Run) -> str:
    names = " and ".join(type(one).__name__ for one in run.schedulers) or "None"
    every = run.training_state.scheduler_every
    return names if every is None else f"{names} with scheduler_every={every!r}"


def _text(value: object) -> str:
    return str(fold(value, _leaf_text, _joined, _in_order))


def _in_order(value: Any) -> Iterable[tuple[Any, Any]] | None:
    return entries(sorted(value, key=str) if isinstance(value, set | frozenset) else value)


def _joined(container: Any, parts: Iterable[tuple[Any, str]]) -> str:
    named = isinstance(container, Mapping)
    return ", ".join(f"{key}: {part}" if named else part for key, part in parts) or "nothing"


def _leaf_text(value: object) -> str:
    if value is None or isinstance(value, str | int | float | Duration):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__name__))  # the text of an object may hold its address


def _presence(loader: object) -> str:
    if isinstance(loader, Mapping):
        return f"loaders for {', '.join(map(str, loader))}"
    return "None" if loader is None else "a loader"


def _sends_buffers(training: Training) -> bool:
    """Whether the ranks get rank 0's buffers; torch would wait for ever for one that another rank does not have."""
    return bool(getattr(training.strategy, "flags", {}).get("broadcast_buffers", True))


def _form(tensor: torch.Tensor) -> str:
    if is_lazy(tensor):
        return "without a shape yet"  # torch raises an error with what to do when it wraps the model
    frozen = ", frozen" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else ""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{frozen}"


def _optimizer(optimizer: Any) -> str:
    counted = [len(group["params"]) for group in optimizer.param_groups]
    return f"{type(optimizer).__name__} of {' + '.join(map(str, counted))} parameters"


# What is said of a difference ---------------------------------------------------------------------------------------


def difference(setups: Sequence[Setup]) -> str:
    """The first difference from rank 0, which ranks have it, and what to do.

    >>> print(difference([{"epochs": "2"}, {"epochs": "2"}, {"epochs": "3"}]))
    The ranks are set up differently. epochs is 2 on rank 0 and 3 on rank 2. Pass the same value on every rank.
    """
    first = setups[0]
    for key in first:
        # By their texts, as the digests: equal dicts may have their names in another order.
        others = [
            (rank, setup[key]) for rank, setup in enumerate(setups) if key in setup and _differ(setup, first, key)
        ]
        if others:
            _, theirs = others[0]
            who = _ranks([rank for rank, value in others if value == theirs])
            return f"The ranks are set up differently. {_SAID.get(key, _said_of_value)(key, first[key], theirs, who)}"
    return "The ranks are set up differently: some resume a run or begin one that the others do not."


def _differ(one: Setup, other: Setup, key: str) -> bool:
    return repr(one[key]) != repr(other[key])


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _said_of_value(key: str, ours: Any, theirs: Any, who: str) -> str:
    return f"{key} is {ours} on rank 0 and {theirs} on {who}. Pass the same value on every rank."


def _said_of_call(key: str, ours: str, theirs: str, who: str) -> str:
    return f"Rank 0 begins a {ours} and {who} a {theirs}. {_SAME_CALLS}"


def _said_of_resume(key: str, ours: str, theirs: str, who: str) -> str:
    return (
        f"resume is {ours} on rank 0 and {theirs} on {who}. Pass resume on every rank: rank 0 reads the checkpoint and "
        "sends it to the others."
    )


def _said_of_loader(key: str, ours: str, theirs: str, who: str) -> str:
    return (
        f"{key} is {ours} on rank 0 and {theirs} on {who}. Pass it on every rank: each gets its share of the batches, "
        "and the metrics are those of all samples."
    )


def _said_of_callbacks(key: str, ours: list[Any], theirs: list[Any], who: str) -> str:
    here, there = [name for name, _ in ours], [name for name, _ in theirs]
    for ones, others, having, lacking in ((here, there, "rank 0", who), (there, here, who, "rank 0")):
        missing = next((name for name in ones if name not in others), None)
        if missing is not None:
            return (
                f"{missing} is among the callbacks on {having} and not on {lacking}. Add it on every rank: the ranks "
                "exchange what it saves, owns or asks for, and each callback of Cadenza writes its files on rank 0 "
                'alone. For a callback of your own that only rank 0 needs, set ranks = "main" on the class.'
            )
    if here != there:
        return (
            f"The callbacks are in the order {', '.join(here)} on rank 0 and {', '.join(there)} on {who}. Pass them in "
            "the same order on every rank."
        )
    for (name, mine), (_, its) in zip(ours, theirs, strict=True):
        for setting in mine:
            if mine[setting] != its[setting]:
                return _said_of_value(f"{name}.{setting}", mine[setting], its[setting], who)
    return _said_of_value(key, ours, theirs, who)


def _said_of_tensors(key: str, ours: dict[str, str], theirs: dict[str, str], who: str) -> str:
    for name in (*ours, *theirs):
        mine, its = ours.get(name, "not there"), theirs.get(name, "not there")
        if mine != its:
            kind = key.removesuffix("s")
            return f"The {kind} {name} is {mine} on rank 0 and {its} on {who}. Create the same model on every rank."
    return f"The {key} are in another order on {who} than on rank 0. Create the same model on every rank."


def _said_of_clock(key: str, ours: str, theirs: str, who: str) -> str:
    return (
        f"Rank 0 has trained {ours} and {who} {theirs}. Let all ranks resume the same checkpoint, or create new "
        "trainers on all of them."
    )


_SAID: dict[str, Callable[[str, Any, Any, str], str]] = {
    "call": _said_of_call,
    "resume": _said_of_resume,
    "train_loader": _said_of_loader,
    "val_loader": _said_of_loader,
    "test_loaders": _said_of_loader,
    "callbacks": _said_of_callbacks,
    "parameters": _said_of_tensors,
    "buffers": _said_of_tensors,
    "clock": _said_of_clock,
}
