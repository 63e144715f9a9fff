"""``validate`` and ``test``: the metrics of a run's model, on data that the recipe names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cadenza.cli.commands.arguments import Allow, Imports, Overrides, Root, RunName, Which
from cadenza.cli.commands.train import stored_recipe
from cadenza.cli.terminal import CommandError

if TYPE_CHECKING:
    from cadenza.recipes import Recipe
    from cadenza.recipes.building import Built


def validate(
    run: RunName,
    overrides: Overrides = None,
    checkpoint: Which = "best",
    root: Root = "runs",
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Measure a run's model on its validation data."""
    trained = Trained.of(run, root, checkpoint, overrides or [], imports=imports or [], allow=allow or [])
    typer.echo(trained.measured("val"))


def measure_on_tests(
    run: RunName,
    overrides: Overrides = None,
    checkpoint: Which = "best",
    root: Root = "runs",
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Measure a run's model on its test data."""
    trained = Trained.of(run, root, checkpoint, overrides or [], imports=imports or [], allow=allow or [])
    typer.echo(trained.measured("test"))


class Trained:
    """A run whose model can be used. Nothing of the run is changed."""

    def __init__(self, folder: Path, recipe: Recipe, built: Built, checkpoint: str) -> None:
        self.folder, self.recipe, self.built, self.checkpoint = folder, recipe, built, checkpoint

    @classmethod
    def of(
        cls,
        run: str,
        root: str,
        checkpoint: str,
        overrides: Sequence[str],
        *,
        imports: Sequence[str],
        allow: Sequence[str],
    ) -> Trained:
        import torch

        from cadenza.callback import Order
        from cadenza.experiment.records import find_run
        from cadenza.resume.collect import load_buffers, load_module

        folder = find_run(run, root)
        recipe = stored_recipe(folder, overrides, imports=imports, allow=allow)
        built = recipe.build()
        for callback in built.callbacks.values():
            if callback.order >= Order.REPORT:  # those who show, send and save have nothing to do here
                built.trainer.remove(callback)
        saved = _read(folder / "checkpoints", checkpoint)
        model, criterion, cpu = built.trainer.model, built.trainer._training.criterion, torch.device("cpu")
        load_module(model, saved.state["model"], cpu)
        if not saved.state.get("replaced"):
            load_module(criterion, saved.state["criterion"], cpu)
        load_buffers(model, criterion, saved.state.get("buffers", {}), cpu)
        for callback in built.trainer.callbacks:
            if callback.name in saved.state["callbacks"]:
                callback.load_state_dict(saved.state["callbacks"][callback.name])
        return cls(folder, recipe, built, saved.name)

    def measured(self, stage: str) -> str:
        """The metrics over the data of a stage, one a line."""
        loader = self.built.loader(stage)
        trainer = self.built.trainer
        metrics = trainer.validate(loader) if stage == "val" else trainer.test(loader)
        width = max((len(name) for name in metrics), default=0)
        return "\n".join([f"{self.checkpoint}", *(f"{name:<{width}}  {value:.6g}" for name, value in metrics.items())])


def _read(place: Path, name: str) -> Any:
    from cadenza.checkpoint import NoCheckpoint, Shelf

    try:
        shelf = Shelf(str(place))
        return shelf.read("last" if name == "best" and shelf.best() is None else name)
    except NoCheckpoint as error:
        raise CommandError(f"{place.parent} has no checkpoint {name!r}: {error}") from error
