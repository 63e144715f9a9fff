"""``train``: a recipe, from a file to a trained model in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.commands.arguments import Allow, Imports, Overrides, RecipeName
from cadenza.cli.terminal import UsageError, fitted, terminal_width

if TYPE_CHECKING:
    from cadenza.experiment import Experiment
    from cadenza.history import History
    from cadenza.recipes import Recipe
    from cadenza.resume.signals import Preempted

RECIPE = "recipe.yaml"


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and build everything, train nothing.")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the whole recipe, and stop.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run of this recipe and settings, or the run named.")
    ] = False,
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Train a recipe. RECIPE may be the folder of a run, whose recipe is then used again."""
    job = Job.of(recipe, overrides or [], imports=imports or [], allow=allow or [])
    if print_config:
        typer.echo(job.recipe.text, nl=False)
    elif dry_run:
        typer.echo(fitted(job.rehearse(), terminal_width()))
    elif said := job.train(resume=resume):
        typer.echo(said)


class Job:
    """One recipe to train, and the run that it belongs to, if it is that of a run."""

    def __init__(self, recipe: Recipe, folder: Path | None = None) -> None:
        self.recipe, self.folder = recipe, folder

    @classmethod
    def of(cls, name: str, overrides: Sequence[str], *, imports: Sequence[str], allow: Sequence[str]) -> Job:
        """A ready recipe, a file, or the folder of a run, whose stored recipe is used."""
        from cadenza.recipes import load

        folder = Path(name)
        if not folder.is_dir():
            return cls(load(name, overrides, imports=imports, allow=allow))
        return cls(stored_recipe(folder, overrides, imports=imports, allow=allow), folder)

    def rehearse(self) -> str:
        """Builds everything, and says what would happen."""
        built = self.recipe.build(experiment=self._experiment())
        length = ", ".join(
            f"{built.fit_arguments[unit]} {unit}" for unit in ("epochs", "steps") if unit in built.fit_arguments
        )
        parameters = sum(parameter.numel() for parameter in built.trainer.model.parameters())
        where = "no folder" if (place := self._place()) is None else str(place)
        lines = [f"{self.recipe.name}: {length}; {parameters} parameters; results in {where}", ""]
        return "\n".join(lines) + built.trainer.explain()

    def train(self, *, resume: bool) -> str:
        """Trains; then the main process says how good it got and where everything is."""
        from cadenza.experiment.choose_run import UnclearRun
        from cadenza.recipes import RecipeError
        from cadenza.resume.signals import Preempted

        experiment = self._continued() if resume else self._experiment()
        if resume and experiment is None:
            raise UsageError("--resume needs an experiment, which this recipe switched off")
        built = self.recipe.build(experiment=experiment)
        try:
            history = built.fit(resume="auto") if resume else built.fit()
        except UnclearRun as error:
            raise RecipeError(f"{error.listing}\nName the one to continue: `cadenza train RUN --resume`") from error
        except (KeyboardInterrupt, Preempted) as error:
            if experiment is not None and str(error).startswith("SIG"):  # what Checkpoint says, which saves then
                _tell_the_way_on(error, experiment)
            raise
        return self._ended(history, experiment)

    def _ended(self, history: History, experiment: Experiment | None) -> str:
        """What the main process says at the end."""
        from cadenza.distributed.world import World

        if not World.detect().is_main:
            return ""
        lines: list[str] = []
        if self.recipe.reaches is not None:
            name, value, mode = self.recipe.reaches
            stated = f"(stated: at {'least' if mode == 'max' else 'most'} {value:g})"
            reached = history[name][-1] if name in history.names() else None
            lines.append(f"{name} {'not measured' if reached is None else f'{reached:.4g}'} {stated}")
        if experiment is not None:
            lines.append(str(experiment.folder))
        return "\n".join(lines)

    # The experiment -------------------------------------------------------------------------------------------------

    def _arguments(self) -> dict[str, Any] | None:
        given = self.recipe.plan.experiment
        return None if given is None else {"project": self.recipe.name, "name": "default", **given}

    def _place(self) -> Path | None:
        given = self._arguments()
        return None if given is None else Path(given.get("root", "runs")) / given["project"] / given["name"]

    def _experiment(self) -> Experiment | None:
        from cadenza.experiment import Experiment
        from cadenza.recipes import RecipeError

        given = self._arguments()
        if given is None:
            return None
        try:
            return Experiment(**given, recipe=self.recipe.written)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"{self.recipe.origins.at(('experiment',))}: experiment: {error}") from error

    def _continued(self) -> Experiment | None:
        """The experiment of the run named; else one that chooses among the runs of this recipe, or begins a new one."""
        from cadenza.experiment import Experiment

        return self._experiment() if self.folder is None else Experiment.at(self.folder)


def _tell_the_way_on(error: KeyboardInterrupt | Preempted, experiment: Experiment) -> None:
    from cadenza.resume.signals import Preempted

    said = f"{error}; `cadenza train {experiment.folder} --resume` goes on with it"
    if isinstance(error, Preempted):
        error.message = said
    else:
        error.args = (said,)


def stored_recipe(
    folder: Path, overrides: Sequence[str] = (), *, imports: Sequence[str] = (), allow: Sequence[str] = ()
) -> Recipe:
    """The recipe in the folder of a run. What it imports or names by ``_target_`` must be allowed again."""
    from cadenza.recipes import RecipeError, load

    file = folder / RECIPE
    if not file.is_file():
        raise RecipeError(f"{folder} holds no {RECIPE}; only runs that were trained from a recipe can be used again")
    return load(file, overrides, imports=imports, allow=allow, stored=True)
