"""Interruptions that are drawn at random, with a seed that draws the same ones again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cadenza.certify.probes import Kill

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")


@dataclass(frozen=True)
class Storm:
    """``kills`` interruptions by any of ``by``, half of them at points and half at moments, which may be in the middle
    of a step or a save. Each comes within the first ``share`` of the training, so that one is interrupted several times
    before it ends. Kills at points are spread over ``ranks`` processes.

    >>> kills = Storm(3, by=["SIGTERM"]).draw(seed=1, points=100, seconds=2.0)
    >>> str(next(kills))
    'SIGTERM after 0.063 s'
    """

    kills: int
    by: Sequence[str] = SIGNALS
    share: float = 0.5
    ranks: int = 1

    def draw(self, seed: int, points: int, seconds: float) -> Iterator[Kill]:
        """Kills without end, for a training that runs so many points in so many seconds."""
        draw = random.Random(seed)
        while True:
            by = draw.choice(self.by)
            group = by != "exception" and draw.random() < 0.5
            if by == "exception" or draw.random() < 0.5:
                count = draw.randint(1, max(1, int(points * self.share)))
                yield Kill("any", count, by=by, rank=draw.randrange(self.ranks), group=group)
            else:
                yield Kill(seconds=draw.uniform(0, seconds * self.share), by=by, group=group)
