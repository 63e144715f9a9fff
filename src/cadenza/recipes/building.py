"""Building what a recipe says: callbacks first, since they refuse most and cost least; then model, data and trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cadenza.callback import Callback
from cadenza.foundation.rng import seed_everything
from cadenza.history import History
from cadenza.recipes.compose.origins import Origins
from cadenza.recipes.errors import RecipeError
from cadenza.recipes.sections import RecipePlan
from cadenza.recipes.unbuilt import Blueprint
from cadenza.registration.checks import CallbackError, check_callback, check_together
from cadenza.registration.logged_names import LoggedNames
from cadenza.trainer import Trainer


@dataclass
class Built:
    """A trainer, its data, and how far to train."""

    trainer: Trainer
    loaders: dict[str, Any]
    fit_arguments: dict[str, Any]
    callbacks: dict[str, Callback] = field(default_factory=dict)

    def fit(self, **more: Any) -> History:
        """Trains as the recipe says; ``more`` goes to ``trainer.fit``."""
        return self.trainer.fit(
            self.loaders["train"],
            self.loaders.get("val"),
            test_loaders=self.loaders.get("test"),
            **{**self.fit_arguments, **more},
        )

    def loader(self, stage: str) -> Any:
        if stage not in self.loaders:
            known = ", ".join(self.loaders)
            raise RecipeError(f"the recipe has no data.{stage}; it has {known}")
        return self.loaders[stage]


class Builder:
    """Builds one plan. Nothing is written, and no folder is made: that happens when a run begins."""

    def __init__(self, plan: RecipePlan, origins: Origins) -> None:
        self.plan, self.origins = plan, origins

    def callbacks(self) -> dict[str, Callback]:
        """The callbacks of the recipe; refused together as a trainer would."""
        found: dict[str, Callback] = {}
        for section, blueprints in (("callbacks", self.plan.callbacks), ("trackers", self.plan.trackers)):
            for name, blueprint in blueprints.items():
                callback = blueprint.build()
                self._checked((section, name), check_callback, callback)
                if any(other.name == callback.name for other in found.values()):
                    callback.name = name  # two of a kind are told apart, in messages and in checkpoints
                found[name if name not in found else f"{section}.{name}"] = callback
        taken = {"lr": f"the scheduler ({self.origins.at(('scheduler',))})"} if self.plan.schedulers else {}
        self._checked(("callbacks",), check_together, list(found.values()), taken)
        unknown = unknown_monitor(found, self.plan.data)
        if unknown is not None:
            name, said = unknown
            raise RecipeError(f"{self.origins.at(('callbacks', name, 'monitor'))}: callbacks.{name}.monitor: {said}")
        return found

    def _checked(self, path: tuple[str, ...], check: Callable[..., None], *given: Any) -> None:
        try:
            check(*given)
        except CallbackError as error:
            raise RecipeError(f"{self.origins.at(path)}: {'.'.join(path)}: {error}") from error

    def build(self, experiment: Any = None) -> Built:
        """Everything. The model is made under the recipe's seed, and the trainer seeds again as the run begins."""
        callbacks = self.callbacks()
        if self.plan.threads is not None:
            torch.set_num_threads(self.plan.threads)
        if self.plan.seed is not None:
            seed_everything(self.plan.seed)
        model = self.plan.model.build()
        loss = None if self.plan.loss is None else self.plan.loss.build()
        optimizers = self._optimizers(model)
        trainer = self._trainer(model, optimizers, loss, list(callbacks.values()), experiment)
        return Built(trainer, self._loaders(), dict(self.plan.fit), callbacks)

    def _trainer(
        self, model: Any, optimizers: dict[str, Any], loss: Any, callbacks: list[Any], experiment: Any
    ) -> Trainer:
        try:
            return Trainer(
                model,
                list(optimizers.values()),
                loss,
                scheduler=self._schedulers(optimizers) or None,
                callbacks=callbacks,
                experiment=experiment,
                seed=self.plan.seed,
                **self.plan.trainer,
            )
        except RecipeError:
            raise
        except (ValueError, TypeError, RuntimeError) as error:
            named = next((key for key in self.plan.trainer if key in str(error)), None)
            where = f"{self.origins.at((named,))}: {named}: " if named else ""
            raise RecipeError(f"{where}{error}") from error

    def _optimizers(self, model: Any) -> dict[str, Any]:
        if not isinstance(model, torch.nn.Module):
            raise RecipeError(f"{self.plan.model.where}: this made a {type(model).__name__}, not a torch.nn.Module")
        return {
            name: blueprint.build(list(self._parameters(model, params, blueprint)))
            for name, (blueprint, params) in self.plan.optimizers.items()
        }

    def _parameters(self, model: torch.nn.Module, parts: Any, blueprint: Blueprint) -> list[torch.nn.Parameter]:
        if parts is None:
            return list(model.parameters())
        found: list[torch.nn.Parameter] = []
        for part in [parts] if isinstance(parts, str) else parts:
            try:
                found += model.get_submodule(part).parameters()
            except AttributeError:
                known = ", ".join(name for name, _ in model.named_children())
                raise RecipeError(f"{blueprint.where}.params: the model has no part {part!r}; it has {known}") from None
        return found

    def _schedulers(self, optimizers: dict[str, Any]) -> list[Any]:
        first = next(iter(optimizers.values()))
        return [
            blueprint.build(first if whose is None else optimizers[whose])
            for blueprint, whose in self.plan.schedulers.values()
        ]

    def _loaders(self) -> dict[str, Any]:
        loaders: dict[str, Any] = {}
        for stage, data in self.plan.data.items():
            make = self.plan.loaders[stage].build
            if isinstance(data, dict):
                loaders[stage] = {name: make(one.build()) for name, one in data.items()}
            else:
                loaders[stage] = make(data.build())
        return loaders


def unknown_monitor(callbacks: Mapping[str, Callback], data: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first callback that watches a metric nobody measures, and what to say of it."""
    logged = LoggedNames(callbacks.values(), data)
    for label, callback in callbacks.items():
        if callback.monitor is None:
            continue
        if missing := logged.missing_stage(callback.monitor):
            return label, f"it watches {callback.monitor!r}, but the recipe has no data.{missing}"
        if problem := logged.problem(callback.monitor):
            return label, f"it watches {callback.monitor!r}, {problem}"
    return None
