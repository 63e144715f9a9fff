"""The model of a run, as its checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from cadenza.callback import Order
from cadenza.cli.errors import CommandError
from cadenza.cli.training import run_named, stored_recipe
from cadenza.recipes import Recipe
from cadenza.recipes.building import Built
from cadenza.recipes.errors import did_you_mean
from cadenza.resume.collect import load_buffers


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
        folder = run_named(run, root)
        recipe = stored_recipe(folder, overrides, imports=imports, allow=allow)
        built = recipe.build()
        for callback in built.callbacks.values():
            if callback.order >= Order.REPORT:  # those who show, send and save have nothing to do here
                built.trainer.remove(callback)
        saved = _read(folder / "checkpoints", checkpoint)
        built.trainer.model.load_state_dict(saved.state["model"])
        load_buffers(built.trainer.model, None, saved.state.get("buffers", {}), torch.device("cpu"))
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

    def predicted(self, data: str, out: str | None) -> str:
        """Writes the outputs, and says where."""
        file = Path(data)
        loader = self.built.loader(data) if data in ("train", "val", "test") else self._from_file(file)
        outputs = self.built.trainer.predict(loader)
        path = Path(out) if out is not None else self.folder / f"predictions-{file.stem}.pt"
        torch.save(outputs, path)
        shape = f" of shape {tuple(outputs.shape)}" if isinstance(outputs, torch.Tensor) else ""
        return f"outputs{shape}: {path}"

    def _from_file(self, file: Path) -> Any:
        if not file.is_file():
            known = [*self.built.loaders, *(path.name for path in file.parent.glob("*.pt"))]
            raise CommandError(f"there is no data {str(file)!r}{did_you_mean(str(file), known)}")
        inputs = _inputs(file)
        return self.recipe.plan.loaders["val"].build(TensorDataset(*inputs))


def _inputs(file: Path) -> list[torch.Tensor]:
    if file.suffix == ".npy":
        import numpy

        return [torch.from_numpy(numpy.load(file, allow_pickle=False))]
    if file.suffix not in (".pt", ".pth"):
        raise CommandError(f"{file}: inputs are read from .pt (a tensor or a list of them) or .npy")
    found = torch.load(file, weights_only=True)
    parts = list(found) if isinstance(found, list | tuple) else [found]
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        raise CommandError(f"{file} holds {type(found).__name__}, not a tensor or a list of tensors")
    return parts


def _read(place: Path, name: str) -> Any:
    from cadenza.checkpoint import NoCheckpoint, Shelf

    try:
        shelf = Shelf(str(place))
        return shelf.read("last" if name == "best" and shelf.best() is None else name)
    except NoCheckpoint as error:
        raise CommandError(f"{place.parent} has no checkpoint {name!r}: {error}") from error
