"""Recipes: trainings as YAML files, made of objects that are registered by name.

>>> from cadenza.recipes import load
>>> load("digits").tree["optimizer"]["_target_"]
'adamw'
"""

from typing import TYPE_CHECKING, Any

from cadenza.recipes.errors import RecipeError
from cadenza.recipes.registries import register, registry
from cadenza.recipes.registry import Registry

if TYPE_CHECKING:
    from cadenza.recipes.recipe import Recipe, load, ready_recipes

__all__ = ["Recipe", "RecipeError", "Registry", "load", "ready_recipes", "register", "registry"]


def __getattr__(name: str) -> Any:
    """Recipes themselves are read with PyYAML, which who only registers names need not have."""
    if name not in ("Recipe", "load", "ready_recipes"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cadenza.recipes import recipe

    return getattr(recipe, name)
