"""Draws trainings, interrupts each several times, and compares it with an uninterrupted one. Counts what it did.

    python -m tests.certify.storm --minutes 20 --seed 0
    python -m tests.certify.storm --only optimizer=lbfgs~3     # one of them again

The seed decides the trainings, and the kills of each; when a kill after so many seconds meets the training is up to the
machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.certify.kinds import ALONE, TOGETHER, Kind

from cadenza.certify.attempt import PRELOADED
from cadenza.testing import Storm, certify

PRELOADED.append(Kind.__module__)  # a third of the time of each start
BY = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "exception")


@dataclass
class Tally:
    """What was done, and every difference and failure, each with the name that repeats it."""

    kinds: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        killed = ", ".join(f"{number} {by}" for by, number in sorted(self.kills.items()))
        counts = ", ".join(f"{number} {what}" for what, number in self.counts.items())
        return "\n".join(
            [f"{len(self.kinds)} kinds, {sum(self.kills.values())} kills ({killed}), {counts}", *self.faults]
        )


def trial(name: str, kills: int, tally: Tally) -> None:
    """One kind with one seed, ``name`` is ``kind~seed``, killed so many times."""
    kind, _, seed = name.rpartition("~")
    made = Kind(kind, int(seed))
    try:
        found = certify(made, kills=Storm(kills, by=BY, ranks=2 if made.ranks else 1), seed=zlib.crc32(name.encode()))
    except RuntimeError as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        tally.faults.append(f"FAILED {name} ({made}): {error}\n{notes}")
        tally.counts["failed"] += 1
        return
    tally.kinds.add(kind)
    tally.kills.update(found.struck)
    tally.counts.update({"trainings completed": found.trainings, **found.compared})
    if not found.equal:
        tally.faults.append(f"DIFFERENT {name} ({made}): {found.difference}")
        tally.counts["different"] += 1


def drawn(seed: int) -> Iterator[str]:
    """Every kind in turn, and two processes in between, each time with another seed."""
    forked, launched = TOGETHER
    for number in count(seed):
        for place, kind in enumerate(ALONE):
            yield f"{kind}~{number}"
            if place % 6 == 5:
                yield f"{forked}~{100 * number + place}"
        yield f"{launched}~{number}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=5, help="of each training")
    parser.add_argument("--only", action="append", help="kind~seed; repeatable")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    tally, until = Tally(), time.monotonic() + 60 * given.minutes
    if Path("/dev/shm").is_dir():
        tempfile.tempdir = "/dev/shm"
    for name in given.only or drawn(given.seed):
        if time.monotonic() > until:
            break
        known = len(tally.faults)
        trial(name, given.kills, tally)
        print(name, *tally.faults[known:] or ["equal"], flush=True)
    print(tally)
    if given.out is not None:
        record = {"kinds": len(tally.kinds), "kills": tally.kills, **tally.counts, "faults": tally.faults}
        given.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
