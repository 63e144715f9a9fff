"""Any ready callbacks together, broken off at any points, end as the uninterrupted run, to the last bit."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from cadenza import Callback
from cadenza.callbacks import Checkpoint
from cadenza.certify.compare import comparable, first_difference
from cadenza.checkpoint import Shelf
from cadenza.points import POINTS

from .saving import Break, Oops
from .test_every_callback_resumes import DEAR, EPOCHS, READY, REFUSES, made

LEFT_OUT = {*DEAR, *REFUSES, "BatchSizeFinder", "HistoryPlot", "ModelSummary", "Notify", "Profile", "Visualize"}
"""These draw, write or try something once, at the beginning or the end, and take their time for it."""
NEVER = ("_run", "_register", "_load", "_error", "_best")
PLACES = [
    name
    for name in POINTS
    if name.startswith(("before_", "after_")) and not name.endswith(NEVER) and "test" not in name and "pred" not in name
]
"""Where every run comes by, between its beginning and its end."""


class Drawn:
    """Callbacks that may stand together, how often is saved and validated, and where the run is broken off."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.names = together(draw.sample(sorted(READY.keys() - LEFT_OUT), 8))
        self.saves, self.validates = draw.choice(["1 step", "2 steps", "1 epoch"]), draw.choice(["1 epoch", "4 steps"])
        self.breaks = [(draw.choice(PLACES), draw.randint(1, 10)) for _ in range(3)]
        self.workers = draw.choice([0, 0, 0, 1])

    def fit(self, folder: Path, *more: Callback) -> None:
        callbacks = [READY[name].example() for name in self.names]
        trainer, loader = made(None, *callbacks, Checkpoint(self.saves, to=folder, background=False), *more)
        train = DataLoader(loader.dataset, batch_size=6, shuffle=True, num_workers=self.workers)
        trainer.fit(train, loader, epochs=EPOCHS, validate_every=self.validates, resume="auto")


def together(names: list[str]) -> list[str]:
    """Those of ``names`` that own nothing which one before them owns."""
    taken: set[str] = set()
    found = []
    for name in names:
        owned = set(READY[name].example().owns)
        if not owned & taken:
            taken |= owned
            found.append(name)
    return found


def end_of(folder: Path) -> Any:
    return comparable(Shelf(folder).read("last").state)


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 60))])
@pytest.mark.filterwarnings("ignore")
def test_they_go_on_as_if_nothing_had_been(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = Drawn(seed)
    drawn.fit(tmp_path / "whole")
    for point, count in drawn.breaks:
        with contextlib.suppress(Oops):
            drawn.fit(tmp_path / "broken", Break(point, count))
    drawn.fit(tmp_path / "broken")
    assert first_difference(end_of(tmp_path / "whole"), end_of(tmp_path / "broken")) is None, vars(drawn)
