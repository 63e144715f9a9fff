"""The ready recipes, killed and resumed, end as if nothing had been, to the last bit."""

from __future__ import annotations

import pytest

from cadenza.cli.commands.certify import RecipeTraining
from cadenza.recipes.compose.files import ready_names
from cadenza.testing import Kill, certify

KILLS = [Kill("before_train_epoch", 2), Kill("after_train_iter", 3), Kill("after_run", 1)]
"""After a checkpoint, in mid-epoch after a resume, and before the last save."""


def prove(name: str, kills: list[Kill], epochs: int = 3) -> None:
    certificate = certify(RecipeTraining(name, (f"fit.epochs={epochs}",)), kills=kills)
    assert certificate.equal, certificate
    assert sum("killed" in line for line in certificate.kills) == len(kills), certificate


@pytest.mark.timeout(300)
def test_the_first_recipe() -> None:
    prove("digits", KILLS[:1], epochs=2)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ready_names())
def test_every_recipe_survives_being_killed_to_the_last_bit(name: str) -> None:
    prove(name, KILLS)
