"""How processes that write a checkpoint together hear of each other: on the lifeline, so that no collective is needed
and the writing can go on in the background."""

from __future__ import annotations

import time
from typing import Any

from cadenza.distributed.failures.failure_channel import Lifeline

_PATIENCE = 20.0
"""Seconds that rank 0 still waits for parts when a failure is known, since who failed may be about to finish its own;
and for connections that may have been made just now."""


class Crew:
    """This process among those that save together. ``timeout`` is how long rank 0 waits for the part of another."""

    def __init__(self, lifeline: Lifeline, timeout: float) -> None:
        self.lifeline, self.timeout = lifeline, timeout

    @property
    def rank(self) -> int:
        return self.lifeline.world.rank

    def refuse_if_unreached(self) -> None:
        """On rank 0: whoever cannot tell what it wrote would be waited for in vain."""
        others, until = set(range(1, self.lifeline.world.world_size)), time.monotonic() + _PATIENCE
        while others - self.lifeline.connected() and time.monotonic() < until:
            time.sleep(0.02)  # they say their names when they connect, which may have been a moment ago
        if missing := sorted(others - self.lifeline.connected()):
            raise RuntimeError(
                f"ranks {missing} have no connection to rank 0, so it cannot know when their parts of a checkpoint are "
                'written: open the way between the machines, or save with FSDP(checkpoints="whole")'
            )

    def apart(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What rank 0 stores of ``state`` for all, and the chunks that this process stores itself. All must call it."""
        from cadenza.distributed.sharded.sharding import taken_apart  # it takes long to import, and only FSDP needs it

        return taken_apart(state)

    def tell_written(self, number: int, report: dict[str, Any]) -> None:
        """Tells rank 0 what this process wrote of the checkpoint with that number, or why it could not."""
        self.lifeline.post(f"part of {number}", report)

    def hear_written(self, number: int) -> list[dict[str, Any]]:
        """On rank 0: what every other process wrote, when all have. Raises if one is gone or takes too long."""
        lifeline, topic = self.lifeline, f"part of {number}"
        waiting = set(range(1, lifeline.world.world_size))
        until, hurried = time.monotonic() + self.timeout, False
        heard: dict[int, dict[str, Any]] = {}
        while waiting:
            connected = lifeline.connected()  # before looking for its letters: what came before the end counts
            with lifeline.arrived:
                for rank in [rank for rank in waiting if (topic, rank) in lifeline.letters]:
                    heard[rank] = lifeline.letters.pop((topic, rank))
                waiting -= heard.keys()
                if waiting and connected >= waiting:
                    lifeline.arrived.wait(0.5)
            if lost := sorted(waiting - connected):
                raise OSError(f"the processes of the ranks {lost} ended before they had written their parts")
            if lifeline.failure is not None and not hurried:
                until, hurried = min(until, time.monotonic() + _PATIENCE), True
            if waiting and time.monotonic() > until:
                raise OSError(f"the ranks {sorted(waiting)} did not write their parts in time")
        return [heard[rank] for rank in sorted(heard)]
