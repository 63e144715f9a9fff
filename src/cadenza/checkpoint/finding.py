"""A checkpoint by its path."""

from __future__ import annotations

from os import PathLike, fspath

from cadenza.checkpoint.manifest import FOLDER
from cadenza.checkpoint.shelf import Apart, Saved, Shelf


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
    parent, _, name = text.replace("\\", "/").rpartition("/")
    beside = Shelf(parent or ("/" if text.startswith("/") else "."))
    if FOLDER.fullmatch(name) and name in beside.names():  # folders of experiments may begin with a number, too
        return beside.read(name, apart=apart)
    inside = Shelf(f"{text}/checkpoints")
    return (inside if inside.names() else Shelf(text)).read(which, apart=apart)
