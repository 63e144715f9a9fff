"""Everything in a recipe is checked here, before anything is built."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from cadenza.recipes.coerce import Mismatch, converted, hints_of
from cadenza.recipes.compose.normalise import TARGET, Path
from cadenza.recipes.compose.origins import Origins
from cadenza.recipes.errors import RecipeError, UnknownName, did_you_mean
from cadenza.recipes.targets import Target, resolve
from cadenza.recipes.unbuilt import Blueprint, signature_of

PARTIAL = "_partial_"
_MISSING = inspect.Parameter.empty


class Checker:
    """Checks the objects of one recipe, and makes their blueprints."""

    def __init__(self, origins: Origins, allowed: Sequence[str] = ()) -> None:
        self.origins, self.allowed = origins, allowed

    def refuse(self, path: Path, what: str, value: Any = _MISSING) -> typing.NoReturn:
        """One message: the file and line, the key, what is wrong and what would be right."""
        shown = (value,) if value is not _MISSING else ()
        key = ".".join(str(part) for part in path)
        raise RecipeError(f"{self.origins.at(path, *shown)}: {key}: {what}" if key else what)

    def object(
        self, node: Any, kind: str | None, path: Path, *, filled: int = 0, default: str | None = None
    ) -> Blueprint:
        """The blueprint of the object at ``path``; ``filled`` of its first arguments are given when it is built."""
        if isinstance(node, str):
            node = {TARGET: node}
        if not isinstance(node, dict):
            self.refuse(path, f"{node!r} is no {kind or 'object'}; write its name, or {{_target_: name, ...}}", node)
        name = node.get(TARGET, default)
        if not isinstance(name, str):
            told = f"{', '.join(map(str, node)) or 'this'} without _target_: write which {kind or 'object'} it is"
            self.refuse(path, f"{told}: {{_target_: name, ...}}")
        target = self._target(name, kind, path)
        partial = node.get(PARTIAL, False)
        if not isinstance(partial, bool):
            self.refuse((*path, PARTIAL), f"{partial!r} is not true or false", partial)
        given = {str(key): value for key, value in node.items() if key not in (TARGET, PARTIAL)}
        as_it_is = kind == "metric" and not inspect.isclass(target.thing)
        blueprint = Blueprint(target.thing, {}, self._where(path), partial, as_it_is)
        blueprint.arguments = self._bound(target, given, path, filled, complete=not (partial or as_it_is))
        return blueprint

    def _where(self, path: Path) -> str:
        return f"{self.origins.at(path)}: {'.'.join(str(part) for part in path)}"

    def _target(self, name: str, kind: str | None, path: Path) -> Target:
        try:
            return resolve(name, kind, self.allowed)
        except UnknownName as error:
            self.refuse((*path, TARGET) if self._has_target(path) else path, str(error))
        except RecipeError as error:
            self.refuse((*path, TARGET), str(error), name)

    def _has_target(self, path: Path) -> bool:
        return any(layer.says((*path, TARGET)) for layer in self.origins.layers)

    def plain(
        self, thing: Any, name: str, given: dict[str, Any], path: Path, without: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The arguments for something that is built elsewhere, and may be given more there."""
        for key in without:
            if key in given:
                self.refuse((*path, key), f"{name} is given {key!r} by the recipe itself", given[key])
        return self._bound(Target(name, thing), given, path, 0, complete=False)

    # Arguments ------------------------------------------------------------------------------------------------------

    def _bound(
        self, target: Target, given: Mapping[str, Any], path: Path, filled: int, *, complete: bool
    ) -> dict[str, Any]:
        signature = signature_of(target.thing)
        if signature is None:
            return {key: self._value(value, (*path, key), target.holds.get(key)) for key, value in given.items()}
        hints = hints_of(target.thing)
        known = _arguments(signature, hints, filled)
        bound = {}
        for key, value in given.items():
            if known.open is False and key not in known.hints:
                every = f"it takes {', '.join(known.hints)}" if known.hints else "it takes none"
                told = did_you_mean(key, known.hints, every)
                self.refuse((*path, key), f"{target.name} takes no {key!r}{told}", value)
            bound[key] = self._argument(value, known.hints.get(key, Any), (*path, key), target.holds.get(key))
        missing = [name for name in known.required if name not in given]
        if missing and complete:
            self.refuse(path, f"{target.name} needs {missing[0]!r}; write {missing[0]}: ...")
        return bound

    def _argument(self, value: Any, hint: Any, path: Path, holds: str | None) -> Any:
        parsed = self._value(value, path, holds)
        try:
            return converted(parsed, hint)
        except Mismatch as error:
            self.refuse(path, str(error), value)

    def _value(self, value: Any, path: Path, holds: str | None = None) -> Any:
        """A value with its objects as blueprints."""
        if isinstance(value, dict) and (TARGET in value or PARTIAL in value):
            return self.object(value, holds, path)
        if holds is not None and isinstance(value, str):
            return self.object(value, holds, path)
        if isinstance(value, dict):
            return {key: self._value(inner, (*path, key), holds) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner, (*path, at), holds) for at, inner in enumerate(value)]
        return value


class _Arguments(typing.NamedTuple):
    hints: dict[str, Any]
    required: list[str]
    open: bool


def _arguments(signature: inspect.Signature, hints: Mapping[str, Any], filled: int) -> _Arguments:
    """What a recipe may give: each name with its annotation, those that it must give, and whether others pass too."""
    found: dict[str, Any] = {}
    required: list[str] = []
    is_open = False
    for name, parameter in list(signature.parameters.items())[filled:]:
        hint = hints.get(name, Any)
        if parameter.kind is parameter.VAR_KEYWORD:
            if get_origin(hint) is typing.Unpack:
                found |= typing.get_type_hints(get_args(hint)[0])
            else:
                is_open = True
        elif parameter.kind is parameter.VAR_POSITIONAL:
            found[name] = Sequence[hint]  # type: ignore[valid-type]
        elif parameter.kind is not parameter.POSITIONAL_ONLY:
            found[name] = hint
            if parameter.default is parameter.empty:
                required.append(name)
    return _Arguments(found, required, is_open)
