"""How a request of one process becomes the same decision in all of them, at the same step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from cadenza.distributed.agreement.collectives import gathered, summed
from cadenza.engine.requests import BIT, OF_ITERATION

if TYPE_CHECKING:
    from cadenza.engine.processes import Granted
    from cadenza.run import Run

_RULES = ("any", "all", "main")
_PLAYED_ALONG = ("backward", "step", "zero_grad")


class Agreement:
    """What this process asked for and the others do not know yet, or have not all asked for.

    ``any``: one process is enough. ``all``: when every process has asked. ``main``: what rank 0 asks counts, what
    others ask is dropped. (``same`` acts at once: it was computed from what is equal everywhere.)
    """

    def __init__(self, rank: int, world_size: int, place: torch.device) -> None:
        self.rank, self.world_size, self.place = rank, world_size, place
        self.untold = False
        self._waiting: dict[tuple[str, str], str | None] = {}
        self._skips: dict[str, int] = {}

    def ask(self, run: Run, request: str, reason: str | None) -> bool:
        """Records what a callback asked, by the rule that it declares. Returns whether it is decided now."""
        who = run.caller
        rule = "any" if who is None else who.agree
        if rule == "same":
            refuse_unheard(run, request)
            return True
        if rule == "main" and self.rank != 0:
            return False
        if BIT[request] & OF_ITERATION:
            self._refuse_undeclared(run, request)
            self._skips[rule] = self._skips.get(rule, 0) | BIT[request]
        elif (request, rule) not in self._waiting:
            self._waiting[request, rule] = reason
            self.untold = True
        return False

    def _refuse_undeclared(self, run: Run, request: str) -> None:
        """The others would wait for a process that skips, so they must know that it may; that costs a message."""
        who = run.caller
        if who is not None and request in who.asks:
            return
        whose = "the body of the loop" if who is None else who.name
        owner = type(getattr(who, "foreign", who)).__name__  # one that plays for a callback of another system
        fix = (
            "let a callback ask for it"
            if who is None
            else f"if it may differ between them, write asks = {{{request!r}}} in class {owner}; if every "
            'process asks alike, also agree = "same", which costs no message'
        )
        raise RuntimeError(
            f"{whose} asked run.{request}() under {self.world_size} processes without having declared it, so the "
            f"others would wait for ever: {fix}"
        )

    def forget(self, *requests: str) -> None:
        """Requests whose time is over: what not all have asked for is dropped."""
        for key in [key for key in self._waiting if key[0] in requests]:
            del self._waiting[key]

    def waiting(self, *, paused: bool) -> list[list[Any]]:
        """What is asked and not agreed on, as it is saved: request, rule and reason. A pause is no stop to come back
        to, and who saves need not save again."""
        left = ("save", "stop") if paused else ("save",)
        return [[request, rule, reason] for (request, rule), reason in self._waiting.items() if request not in left]

    def wait_again(self, request: str, rule: str, reason: str | None) -> None:
        """Takes up what was saved."""
        self._waiting[request, rule] = reason
        self.untold = True

    # Collectives ----------------------------------------------------------------------------------------------------

    def settle(self) -> list[Granted]:
        """Everyone tells what it asks, and all decide alike."""
        everyone: list[dict[tuple[str, str], str | None]] = gathered(self._waiting)
        self.untold = False
        granted = list(decided(everyone))
        self.forget(*(request for request, _ in granted))
        return granted

    def skip(self, mask: int) -> int:
        """Agrees on the requests of this iteration in ``mask``, at once."""
        names = [name for name, bit in BIT.items() if bit & mask]
        mine = [float(bool(self._skips.get(rule, 0) & BIT[name])) for name in names for rule in _RULES]
        votes = summed(mine, self.place)
        agreed = 0
        for place, name in enumerate(names):
            some, every, main = votes[3 * place : 3 * place + 3]
            if some or main or every == self.world_size:
                agreed |= BIT[name]
        for rule in self._skips:
            self._skips[rule] &= ~mask
        return agreed

    def end_iteration(self) -> None:
        self._skips.clear()


def refuse_unheard(run: Run, request: str) -> None:
    """A process without a batch plays the points of backward and step alone: at the others it does not ask alike."""
    at = run.point
    ends_anyway = request == "end_epoch" and run.rounds is not None and run.batches_seen >= run.rounds
    if run.all_have_batch or not run.is_iterating or ends_anyway or (at is not None and at.span in _PLAYED_ALONG):
        return
    who, where = run.caller.name if run.caller else "the body of the loop", at.name if at else "here"
    raise RuntimeError(
        f'{who} asked run.{request}() with agree = "same" in a round for which other processes have no batch; they do '
        f'not play {where}, so they do not ask alike and would wait for ever: declare agree = "any"'
    )


def decided(everyone: list[dict[tuple[str, str], Any]]) -> Iterator[tuple[str, str | None]]:
    """The requests that the rules grant, each with the reason of the first process that gave one.

    >>> list(decided([{("save", "all"): None}, {("stop", "any"): "late", ("save", "all"): None}]))
    [('save', None), ('stop', 'late (asked by rank 1)')]
    """
    for request, rule in sorted({key for asked in everyone for key in asked}):
        who = [rank for rank, asked in enumerate(everyone) if (request, rule) in asked]
        if rule != "all" or len(who) == len(everyone):
            reason = everyone[who[0]][request, rule]
            by = f" (asked by rank {who[0]})" if reason is not None and len(who) < len(everyone) else ""
            yield request, None if reason is None else f"{reason}{by}"
