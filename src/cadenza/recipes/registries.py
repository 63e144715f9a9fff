"""One registry for each kind of object, and ``register``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cadenza.recipes import builtin_names
from cadenza.recipes.errors import RecipeError, did_you_mean
from cadenza.recipes.registry import KINDS, Registry, Thing

REGISTRIES: dict[str, Registry] = {kind: Registry(kind, builtin_names.TABLES.get(kind)) for kind in KINDS}


def registry(kind: str) -> Registry:
    """The registry of a kind.

    >>> "early-stopping" in registry("callback"), registry("optimizer")["AdamW"].path
    (True, 'torch.optim.AdamW')
    """
    if kind not in REGISTRIES:
        raise RecipeError(f"there is no kind {kind!r} of objects{did_you_mean(kind, KINDS)}")
    return REGISTRIES[kind]


def register(kind: str, name: str | None = None, *, holds: Mapping[str, str] | None = None) -> Callable[[Thing], Thing]:
    """A decorator that gives a class or a function a name in recipes.

    Without ``name`` it is the object's own: ``SaveFirst`` becomes ``save_first``. A second object under a taken name
    is refused. ``holds`` says which arguments are registered objects again: ``{"metrics": "metric"}``.

    >>> from cadenza import Callback
    >>> @register("callback", name="my_greeting")
    ... class Greeting(Callback):
    ...     def before_run(self, run): print("hello")
    >>> registry("callback")["My-Greeting"].load() is Greeting
    True
    """
    names = registry(kind)
    if callable(name):
        raise TypeError(f'write @register("{kind}") or @register("{kind}", name="...")')
    for argument, inner in (holds or {}).items():
        if inner not in REGISTRIES:
            raise RecipeError(f"{argument!r} cannot hold a {inner!r}{did_you_mean(inner, KINDS)}")

    def add(thing: Thing) -> Thing:
        return names.register(thing, name, holds=holds)

    return add
