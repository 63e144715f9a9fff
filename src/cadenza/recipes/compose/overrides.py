"""What is changed from the command line: ``callbacks.ema.decay=0.99``, ``~callbacks.ema``, ``optimizer=sgd``."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as Parsed
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cadenza.recipes.compose.normalise import NAMED, OBJECTS, Normal
from cadenza.recipes.compose.origins import Layer
from cadenza.recipes.errors import RecipeError, did_you_mean, fold


class OverrideError(RecipeError):
    """An override that cannot be read: wrong usage."""


@dataclass(frozen=True)
class Override:
    """One change: a path and a value, or the path to take out. ``text`` is what was written."""

    text: str
    path: tuple[str, ...]
    value: Any = None
    removes: bool = False
    choice: bool = False

    @property
    def key(self) -> str:
        return ".".join(self.path)


def parse(text: str, is_group: Any = lambda name: False) -> Override:
    """Reads one override in the grammar of Hydra.

    >>> parse("fit.epochs=3")
    Override(text='fit.epochs=3', path=('fit', 'epochs'), value=3, removes=False, choice=False)
    """
    if not isinstance(text, str):
        raise TypeError(f'an override is a text such as "fit.epochs=3", not {type(text).__name__}')
    parsed: Parsed | None = None
    with contextlib.suppress(HydraException):
        parsed = OverridesParser.create().parse_override(text)
    if parsed is None or not parsed.key_or_group:
        wrong = _wrong_key(text) or _wrong_value(text)
        raise OverrideError(
            f"the override {text!r} {wrong}. Write key=value, such as fit.epochs=3, or ~key to take a key out"
        )
    if parsed.is_sweep_override():
        raise OverrideError(f"the override {text!r} gives several values; a list is written [1,2], a text in quotes")
    name = parsed.key_or_group
    if is_group(name) and not parsed.is_delete():
        return Override(text, tuple(name.split("/")), parsed.value(), choice=True)
    path = tuple(name.replace("/", ".").split("."))
    if path[0] == "hydra" or parsed.package is not None:
        raise OverrideError(f"the override {text!r} is about Hydra itself; a recipe has no such key")
    value = None if parsed.is_delete() else parsed.value()
    if value == "???":
        raise OverrideError(f"the override {text!r} gives no value: ??? marks what is still to be given")
    return Override(text, path, value, removes=parsed.is_delete())


def _wrong_key(text: str) -> str | None:
    """What is wrong before the value of an override that cannot be read; None if nothing is."""
    key, equals, _ = text.partition("=")
    name = re.sub(r"^(\+\+?|~)", "", key)
    if not text.strip():
        return "is empty"
    if key.startswith("-"):
        return "begins with a dash; overrides have none"
    if not name.strip():
        return "has no key"
    if re.search(r"\s", name):
        return "has a space before its value; a shell takes key=value as one word only if there is none"
    if not equals and not key.startswith("~"):
        return "has no value"
    if not re.fullmatch(r"[^\W\d][\w@:-]*([./][\w@:-]+)*", name, re.ASCII):
        return f"has the key {name!r}; a key is made of names with dots between them"
    return None


def _wrong_value(text: str) -> str:
    """Why Hydra cannot read the value, in words: its own speak of tokens."""
    value = text.partition("=")[2]
    for opened, closed in ("[]", "{}", "()"):
        if value.count(opened) != value.count(closed):
            return f"has a value in which a {opened if value.count(opened) > value.count(closed) else closed} is alone"
    if value.count("'") % 2 or value.count('"') % 2:
        return "has a value in which a quote is not closed"
    if "=" in value:
        return "has a value with a = in it, which must stand in quotes: key=\"'a=b'\""
    return "has a value that cannot be read; put a text with special characters into quotes: key=\"'a (b)'\""


def apply(overrides: list[Override], config: DictConfig) -> list[Layer]:
    """Changes ``config`` in place; returns the overrides as layers."""
    return [_apply(override, config) for override in overrides if not override.choice]


def _apply(override: Override, config: DictConfig) -> Layer:
    path = _spelled(override.path, config)
    if override.removes:
        _remove(path, override, config)
        return Layer(f"the override {override.text!r}", {})
    tree = _normal(path, override)
    try:
        for key, value in tree.items():
            OmegaConf.update(config, key, value, merge=True, force_add=True)
    except OmegaConfBaseException as error:
        said = str(error).splitlines()[0]
        raise RecipeError(f"the override {override.text!r} does not fit: {said}") from None
    return Layer(f"the override {override.text!r}", tree)


def _normal(path: tuple[str, ...], override: Override) -> dict[str, Any]:
    tree: Any = override.value
    for key in reversed(path):
        tree = {key: tree}
    if path in OBJECTS or path[0] in NAMED:
        return Normal(tree, {}, f"the override {override.text!r}").tree
    return dict(tree)


def _remove(path: tuple[str, ...], override: Override, config: DictConfig) -> None:
    branch: Any = config
    for at, key in enumerate(path):
        known = [str(one) for one in branch] if isinstance(branch, DictConfig) else []
        if key not in known:
            within = ".".join(path[:at]) or "the recipe"
            raise RecipeError(
                f"the override {override.text!r} takes out what is not there: "
                f"{within} has no {key!r}{did_you_mean(key, known)}"
            )
        if at == len(path) - 1:
            del branch[key]
        else:
            branch = branch[key]


def _spelled(path: tuple[str, ...], config: DictConfig) -> tuple[str, ...]:
    """The path with the name of a callback as it stands in the recipe: ``EarlyStopping`` is ``early_stopping``."""
    if len(path) < 2 or path[0] not in NAMED:
        return path
    branch = config.get(path[0])
    known = {fold(str(name)): str(name) for name in branch} if isinstance(branch, DictConfig) else {}
    return (path[0], known.get(fold(path[1]), path[1]), *path[2:])
