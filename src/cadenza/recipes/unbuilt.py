"""An object of a recipe, checked and not yet built."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cadenza.foundation.tree import entries_and_sets, map_tree, with_dicts
from cadenza.recipes.coerce import Made
from cadenza.recipes.errors import RecipeError


@dataclass
class Blueprint(Made):
    """A class or function with arguments that fit it. ``where`` is the place in the recipe, for errors."""

    thing: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    partial: bool = False
    as_it_is: bool = False

    def build(self, *first: Any, **more: Any) -> Any:
        """Makes the object; ``first`` are the arguments that the recipe does not give, such as the parameters."""
        given = {name: built(value) for name, value in self.arguments.items()}
        if self.as_it_is:
            return functools.partial(self.thing, **given) if given else self.thing
        if self.partial:
            return functools.partial(self.thing, *first, **given, **more)
        try:
            return self.thing(*first, *given.pop(_starred(self.thing), ()), **given, **more)
        except RecipeError:
            raise
        except (ValueError, TypeError, KeyError, OSError, ImportError, LookupError) as error:
            raise RecipeError(f"{self.where}: {_said(error)}") from error


def built(value: Any) -> Any:
    """``value`` with every blueprint in it built."""
    return map_tree(value, _built, entries_and_sets, with_dicts)


def _built(leaf: Any) -> Any:
    return leaf.build() if isinstance(leaf, Blueprint) else leaf


def _starred(thing: Any) -> str:
    """The name of ``*channels`` in a signature, which a recipe gives as a list under this name."""
    signature = signature_of(thing)
    parameters = signature.parameters.values() if signature else ()
    return next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), "")


def _said(error: Exception) -> str:
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return said or type(error).__name__


def signature_of(thing: Callable[..., Any]) -> inspect.Signature | None:
    """The signature, or None for what was written in C and has none."""
    try:
        return inspect.signature(thing)
    except (TypeError, ValueError):
        return None
