"""A recipe as a training that can be certified."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cadenza.callback import Callback
from cadenza.callbacks import Checkpoint, Progress
from cadenza.recipes import load


@dataclass(frozen=True)
class RecipeTraining:
    """Trains a recipe with its checkpoints in ``folder``, and goes on from them if there are any."""

    recipe: str
    overrides: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    def __call__(self, folder: Path, callbacks: list[Callback]) -> None:
        found = load(self.recipe, self.overrides, imports=self.imports, allow=self.allow)
        built = found.build(experiment=None)
        trainer = built.trainer
        savers = [callback for callback in trainer.callbacks if isinstance(callback, Checkpoint)]
        for saver in savers:
            saver.to = folder
        for callback in trainer.callbacks:
            if isinstance(callback, Progress):
                trainer.remove(callback)
        for callback in [*([] if savers else [Checkpoint(to=folder)]), *callbacks]:
            trainer.add(callback)
        built.fit(resume="auto")
