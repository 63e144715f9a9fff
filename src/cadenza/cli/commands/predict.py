"""``predict``: the outputs of a run's model, written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.commands.arguments import Allow, Imports, Root, RunName, Which
from cadenza.cli.commands.validate import Trained
from cadenza.cli.terminal import CommandError

if TYPE_CHECKING:
    import torch


def predict(
    run: RunName,
    data: Annotated[str, typer.Argument(metavar="DATA", help="train, val or test; or a file of inputs: .pt, .npy.")],
    out: Annotated[str | None, typer.Option("--out", help="Where to write; else into the run's folder.")] = None,
    checkpoint: Which = "best",
    root: Root = "runs",
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Write a run's outputs for some data to a file, in order."""
    trained = Trained.of(run, root, checkpoint, [], imports=imports or [], allow=allow or [])
    typer.echo(_predicted(trained, data, out))


def _predicted(trained: Trained, data: str, out: str | None) -> str:
    """Writes the outputs, and says where."""
    import torch

    file = Path(data)
    loader = trained.built.loader(data) if data in ("train", "val", "test") else _loader(trained, file)
    outputs = trained.built.trainer.predict(loader)
    path = Path(out) if out is not None else trained.folder / f"predictions-{file.stem}.pt"
    torch.save(outputs, path)
    shape = f" of shape {tuple(outputs.shape)}" if isinstance(outputs, torch.Tensor) else ""
    return f"outputs{shape}: {path}"


def _loader(trained: Trained, file: Path) -> Any:
    """A loader of the recipe's kind over the inputs in ``file``."""
    from torch.utils.data import TensorDataset

    from cadenza.recipes.errors import did_you_mean

    if not file.is_file():
        known = [*trained.built.loaders, *(path.name for path in file.parent.glob("*.pt"))]
        raise CommandError(f"there is no data {str(file)!r}{did_you_mean(str(file), known)}")
    return trained.recipe.plan.loaders["val"].build(TensorDataset(*_inputs(file)))


def _inputs(file: Path) -> list[torch.Tensor]:
    import torch

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
