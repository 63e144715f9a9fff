"""A checkpoint by its path."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from cadenza.checkpoint.format.manifest import FOLDER, MARKER
from cadenza.checkpoint.store import Apart, Saved, Shelf


def read_at(path: str | PathLike[str], which: str = "last", apart: Apart | None = None) -> Saved:
    """Reads the checkpoint that ``path`` means: the folder of one, a folder of checkpoints of which ``which`` is taken,
    by default the newest valid one, or the folder of an experiment that holds them under ``checkpoints``.

    >>> import tempfile, torch
    >>> folder = tempfile.mkdtemp()
    >>> name = Shelf(folder).write("first", {"model": {"weight": torch.ones(1)}})
    >>> read_at(folder).name == read_at(f"{folder}/{name}").name == name
    True
    """
    text = fspath(path).rstrip("/\\")
    if "://" not in text:
        _refuse_file(text)
        _refuse_renamed(text)
    parent, _, name = text.replace("\\", "/").rpartition("/")
    beside = Shelf(parent or ("/" if text.startswith("/") else "."))
    if FOLDER.fullmatch(name) and name in beside.names():  # folders of experiments may begin with a number, too
        return beside.read(name, apart=apart)
    inside = Shelf(f"{text}/checkpoints")
    return (inside if inside.names() else Shelf(text)).read(which, apart=apart)


def _refuse_file(text: str) -> None:
    if not Path(text).is_file():
        return
    if (Path(text).parent / MARKER).exists():
        raise NotADirectoryError(f"{text} is one file of a checkpoint. Give its folder: {Path(text).parent}")
    raise NotADirectoryError(
        f"{text} is a file, and a checkpoint is a folder that Checkpoint wrote. To begin a training with the weights "
        f"in a file, leave resume out and add the callback Load({text!r}), which reads safetensors"
    )


def _refuse_renamed(text: str) -> None:
    if (Path(text) / MARKER).exists() and not FOLDER.fullmatch(Path(text).name):
        raise ValueError(f"{text} was renamed: the folder of a checkpoint begins with its number, such as 000012-")
