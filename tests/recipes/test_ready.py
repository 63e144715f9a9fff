"""The ready recipes: each builds and trains, and the long tests train each to the quality that it states."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.recipes import load, ready_recipes
from cadenza.recipes.compose.files import READY, ready_names
from cadenza.recipes.compose.yaml_text import read_yaml

QUIET = ["~callbacks.progress", "~callbacks.checkpoint"]
SHORT = {
    "characters": ["fit.epochs=1", "data.val.limit=20", "callbacks.subset_run={train:20,val:null}"],
    "diabetes": ["fit.epochs=10"],
    "digits": ["fit.epochs=4"],
    "digits_cnn": ["fit.epochs=2"],
    "rivals": ["fit.epochs=2"],
    "shapes": ["fit.epochs=2", "data.train.samples=120", "data.val.samples=20"],
}


def test_they_are_listed_with_what_they_reach():
    assert sorted(SHORT) == ready_names() == sorted(ready_recipes())
    assert all(said["about"] and said["reaches"]["metric"] for said in ready_recipes().values())


def test_the_page_shows_the_recipe_as_it_is():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    shown = page.split("```yaml\n")[1].split("```")[0]
    assert read_yaml(shown, "page").tree == read_yaml((READY / "digits.yaml").read_text(encoding="utf-8"), "file").tree


@pytest.mark.parametrize("name", sorted(SHORT))
def test_a_short_run_learns_something(name):
    recipe = load(name, [*QUIET, *SHORT[name]])
    metric, _, mode = recipe.reaches
    built = recipe.build()
    before = built.trainer.validate(built.loaders["val"])[metric]
    after = built.fit()[metric][-1]
    assert after < before if mode == "min" else after > before


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(SHORT))
def test_a_full_run_reaches_what_the_recipe_states(name):
    recipe = load(name, QUIET)
    metric, value, mode = recipe.reaches
    reached = recipe.build().fit()[metric][-1]
    assert reached <= value if mode == "min" else reached >= value
