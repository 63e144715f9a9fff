"""Recipes: trainings as YAML files, made of objects that are registered by name.

>>> from cadenza.recipes import load
>>> load("digits").tree["optimizer"]["_target_"]
'adamw'
"""

from cadenza.recipes.errors import RecipeError
from cadenza.recipes.recipe import Recipe, load, ready
from cadenza.recipes.registries import register, registry
from cadenza.recipes.registry import Registry

__all__ = ["Recipe", "RecipeError", "Registry", "load", "ready", "register", "registry"]
