"""fastai's callbacks in several processes: skips that are declared are agreed, others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from cadenza.dialects.fastai import Callback
from cadenza.testing import tiny_loader

from ..processes import ranks
from .rooms import trainer_with, weights

pytestmark = pytest.mark.timeout(300)


class Skips(Callback):
    """Skips the second step, by a flag that is returned before its place, and only on one rank."""

    def on_batch_begin(self, iteration: int, **kwargs: Any) -> Any:
        run = vars(self)["_section"].run
        return {"skip_step": True} if iteration == 1 and run.rank == 1 else None


class Declared(Skips):
    asks = frozenset({"skip_step"})


def train(kind: type[Callback]) -> tuple[int, int, float]:
    trainer = trainer_with(kind())
    trainer.fit(tiny_loader(batch_size=4), epochs=1)
    return trainer.clock.batches, trainer.clock.steps, sum(float(one.sum()) for one in weights(trainer.model))


def test_a_declared_skip_is_agreed() -> None:
    first, second = ranks(train, Declared, workers=2, results="all")
    assert first == second
    assert first[:2] == (3, 2)


def test_an_undeclared_skip_is_refused_with_the_line_to_add() -> None:
    with pytest.raises(RuntimeError, match=r"write asks = \{'skip_step'\} in class Skips"):
        ranks(train, Skips, workers=2)
