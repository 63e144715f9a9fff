"""The sections of a recipe, checked: what is left to do is to build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cadenza.clock import Duration
from cadenza.foundation.tree import Pairs, walk
from cadenza.recipes.checking import Checker
from cadenza.recipes.coerce import Mismatch, converted
from cadenza.recipes.compose.normalise import FIT, NAMED, REACHES, SECTIONS, STAGES, TARGET
from cadenza.recipes.compose.origins import Origins
from cadenza.recipes.errors import did_you_mean
from cadenza.recipes.unbuilt import Blueprint

Datasets = Blueprint | dict[str, Blueprint]
_LOADER = "data_loader"
_OF_TRAINER = ("device", "strategy", "execution", "scheduler_every")


@dataclass
class RecipePlan:
    """Everything that a recipe says, as blueprints and plain values."""

    model: Blueprint
    loss: Blueprint | None = None
    optimizers: dict[str, tuple[Blueprint, Any]] = field(default_factory=dict)
    schedulers: dict[str, tuple[Blueprint, str | None]] = field(default_factory=dict)
    data: dict[str, Datasets] = field(default_factory=dict)
    loaders: dict[str, Blueprint] = field(default_factory=dict)
    callbacks: dict[str, Blueprint] = field(default_factory=dict)
    trackers: dict[str, Blueprint] = field(default_factory=dict)
    experiment: dict[str, Any] | None = None
    fit: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    threads: int | None = None


class Reader:
    """Reads a composed tree into a plan; refuses the first thing that is wrong."""

    def __init__(self, tree: dict[str, Any], origins: Origins, allowed: Sequence[str] = ()) -> None:
        self.tree, self.check = tree, Checker(origins, allowed)

    def plan(self) -> RecipePlan:
        for key, value in self.tree.items():
            if key not in SECTIONS and key != "defaults":
                self.check.refuse((key,), f"a recipe has no such key{self._place_of(key)}", value)
        self._plain_sections()
        if self.tree.get("model") is None:
            self.check.refuse((), "the recipe has no model; write model: {_target_: name, ...}")
        optimizers = self._optimizers()
        return RecipePlan(
            model=self.check.object(self.tree["model"], "model", ("model",)),
            loss=self._optional("loss"),
            optimizers=optimizers,
            schedulers=self._schedulers(optimizers),
            data=self._data(),
            loaders=self._loaders(),
            callbacks=self._named("callbacks"),
            trackers=self._named("trackers"),
            experiment=self._experiment(),
            fit=self._fit(),
            trainer={name: self.tree[name] for name in _OF_TRAINER if self.tree.get(name)},
            seed=self._whole("seed", 0, 2**32 - 1),
            threads=self._whole("threads", 1),
        )

    def _place_of(self, key: str) -> str:
        """Where ``key`` belongs, if it stands in a section of this recipe or may stand in one: ``fit.epochs``."""
        sections = {name: value for name, value in self.tree.items() if name in SECTIONS}
        inside = dict.fromkeys([*_ways_to(key, sections), *([f"fit.{key}"] if key in FIT else [])])
        return f"; did you mean {' or '.join(map(repr, inside))}?" if inside else did_you_mean(key, SECTIONS)

    # Plain values ---------------------------------------------------------------------------------------------------

    def _plain_sections(self) -> None:
        for name in ("about", *_OF_TRAINER):
            if self.tree.get(name) is not None:
                self._value((name,), str)
        self._scheduler_every()
        if self.tree.get("imports") is not None:
            self._value(("imports",), list[str])
        reaches = self._mapping("reaches", REACHES)
        if reaches:
            self._value(("reaches", "metric"), str)
            for bound in REACHES[1:]:
                self._value(("reaches", bound), float | None)

    def _scheduler_every(self) -> None:
        every = self.tree.get("scheduler_every")
        if every not in (None, "epoch", "step"):
            self.check.refuse(("scheduler_every",), f"{every!r} is neither epoch nor step", every)
        if every is not None and not self.tree.get("scheduler"):
            self.check.refuse(("scheduler_every",), "there is no scheduler that it could be about", every)

    def _at(self, path: Sequence[str]) -> Any:
        branch: Any = self.tree
        for key in path:
            branch = branch.get(key) if isinstance(branch, dict) else None
        return branch

    def _value(self, path: tuple[str, ...], hint: Any) -> Any:
        value = self._at(path)
        try:
            return converted(value, hint)
        except Mismatch as error:
            self.check.refuse(path, str(error), value)

    def _mapping(self, key: str, known: Sequence[str]) -> dict[str, Any]:
        value = self.tree.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.check.refuse((key,), f"{value!r} is not a mapping of {', '.join(known)}", value)
        for name, inner in value.items():
            if name not in known:
                self.check.refuse((key, name), f"{key} has no {name!r}{did_you_mean(str(name), known)}", inner)
        return value

    def _whole(self, key: str, least: int, most: int | None = None) -> int | None:
        value: int | None = self._value((key,), int | None)
        if value is not None and (value < least or (most is not None and value > most)):
            until = f" to {most}" if most is not None else " on"
            self.check.refuse((key,), f"{value} is not a whole number from {least}{until}, or null", value)
        return value

    def _fit(self) -> dict[str, Any]:
        given = self._mapping("fit", FIT)
        found: dict[str, Any] = {}
        for name in ("epochs", "steps"):
            value = self._value(("fit", name), int | None)
            if value is not None and value < 1:
                self.check.refuse(("fit", name), f"{value} is not a whole number of at least 1", value)
            found |= {name: value} if value is not None else {}
        if len(found) == 2:
            self.check.refuse(
                ("fit", "steps"), "give epochs or steps, not both: fit.epochs=null takes that out", given["steps"]
            )
        if not found:
            self.check.refuse(("fit",), "say how far to train: fit: {epochs: 10} or fit: {steps: 1000}")
        if given.get("validate_every") is not None:
            found["validate_every"] = self._interval("validate_every", "epochs", "steps", "seconds")
        if (log_every := given.get("log_every")) is not None:
            found["log_every"] = log_every is not False and self._interval("log_every", "steps", "seconds")
        return found

    def _interval(self, name: str, *units: str) -> str:
        """How often something is done in a fit."""
        try:
            every = Duration.interval(self._value(("fit", name), str))
            if every.unit not in units:
                raise ValueError(f"it counts {', '.join(units[:-1])} or time, not {every.unit}")
            return str(every)
        except ValueError as error:
            self.check.refuse(("fit", name), str(error), self._at(("fit", name)))

    # Objects --------------------------------------------------------------------------------------------------------

    def _optional(self, key: str) -> Blueprint | None:
        value = self.tree.get(key)
        return None if value is None or value is False else self.check.object(value, key, (key,))

    def _several(self, path: tuple[str, ...]) -> dict[str, Any]:
        """The objects at ``path`` by name; a single one has none."""
        value = self._at(path)
        if value is None or value is False:
            return {}
        if isinstance(value, dict) and TARGET not in value and value and all(_is_object(one) for one in value.values()):
            return {str(name): one for name, one in value.items()}
        if isinstance(value, list):
            return {str(index): one for index, one in enumerate(value)}
        return {"": value}

    def _optimizers(self) -> dict[str, tuple[Blueprint, Any]]:
        found: dict[str, tuple[Blueprint, Any]] = {}
        for name, node in self._several(("optimizer",)).items():
            path = ("optimizer", name) if name else ("optimizer",)
            params = None
            if isinstance(node, dict) and "params" in node:
                params = node["params"]
                node = {key: value for key, value in node.items() if key != "params"}
                try:
                    params = converted(params, str | list[str])
                except Mismatch as error:
                    self.check.refuse((*path, "params"), f"{error}: the names of parts of the model", params)
            found[name] = (self.check.object(node, "optimizer", path, filled=1), params)
        if not found:
            self.check.refuse((), "the recipe has no optimizer; write optimizer: {_target_: adamw, lr: 0.001}")
        return found

    def _schedulers(self, optimizers: dict[str, Any]) -> dict[str, tuple[Blueprint, str | None]]:
        found: dict[str, tuple[Blueprint, str | None]] = {}
        for name, node in self._several(("scheduler",)).items():
            path = ("scheduler", name) if name else ("scheduler",)
            whose = name if name in optimizers else None
            if isinstance(node, dict) and "optimizer" in node:
                whose = node["optimizer"]
                if whose not in optimizers:
                    known = [one for one in optimizers if one]
                    self.check.refuse((*path, "optimizer"), f"no optimizer {whose!r}{did_you_mean(str(whose), known)}")
                node = {key: value for key, value in node.items() if key != "optimizer"}
            if whose is None and len(optimizers) > 1:
                self.check.refuse(path, f"which optimizer? write optimizer: one of {', '.join(optimizers)}")
            found[name] = (self.check.object(node, "scheduler", path, filled=1), whose)
        return found

    def _data(self) -> dict[str, Datasets]:
        given = self._mapping("data", STAGES)
        if given.get("train") is None:
            self.check.refuse(("data",), "there is no data to train on; write data: {train: {_target_: name, ...}}")
        found: dict[str, Datasets] = {}
        for stage in STAGES:
            several = self._several(("data", stage)) if stage != "train" else {"": given.get(stage)}
            parts = {
                name: self.check.object(node, "dataset", ("data", stage, name) if name else ("data", stage))
                for name, node in several.items()
            }
            if parts:
                found[stage] = parts.get("", parts)
        return found

    def _loaders(self) -> dict[str, Blueprint]:
        given = self._mapping("loaders", STAGES)
        found = {}
        for stage in STAGES:
            node = given.get(stage)
            node = {} if node is None else node
            found[stage] = self.check.object(node, "loader", ("loaders", stage), filled=1, default=_LOADER)
        return found

    def _named(self, key: str) -> dict[str, Blueprint]:
        value = self.tree.get(key)
        if value is None or value is False:
            return {}
        if not isinstance(value, dict):
            self.check.refuse((key,), f"{value!r} is not a mapping of names to arguments, and no list of names", value)
        found = {}
        for name, node in value.items():
            if node is False:
                continue
            if not isinstance(node, dict):
                self.check.refuse((key, name), f"{node!r} is not a mapping of arguments; false takes it out", node)
            found[str(name)] = self.check.object(node, NAMED[key], (key, name), default=str(name))
        return found

    def _experiment(self) -> dict[str, Any] | None:
        value = self.tree.get("experiment")
        if value is False:
            return None
        if value is not None and not isinstance(value, dict):
            self.check.refuse(
                ("experiment",), f"{value!r} is neither false nor a mapping of project, name, root", value
            )
        given = {str(key): inner for key, inner in (value or {}).items()}
        return self.check.plain(_experiment_class(), "experiment", given, ("experiment",), without=("recipe",))


def _experiment_class() -> Any:
    from cadenza.experiment import Experiment

    return Experiment


def _is_object(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and TARGET in value)


def _ways_to(key: str, tree: Any) -> list[str]:
    """The dotted names under which ``key`` stands in nested mappings.

    >>> _ways_to("batch_size", {"loaders": {"train": {"batch_size": 8}}, "seed": 1})
    ['loaders.train.batch_size']
    """

    def inside(branch: Any) -> Pairs | None:
        return sorted(branch.items(), key=lambda item: item[0] != key) if isinstance(branch, dict) else None

    return [".".join(map(str, path)) for path, _ in walk(tree, inside) if len(path) > 1 and path[-1] == key]
