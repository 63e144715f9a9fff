"""Weights alone: to a safetensors file that anybody can read, and from one or from a checkpoint into a module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from torch import Tensor, nn

from cadenza.checkpoint.backends.disk import Disk
from cadenza.checkpoint.backends.remote import Remote
from cadenza.checkpoint.finding import read_at
from cadenza.checkpoint.format.packing import TENSORS, pack
from cadenza.checkpoint.format.tensor_file import plain_tensors, read_header, read_values
from cadenza.checkpoint.problems import NotState
from cadenza.checkpoint.store import Saved, Shelf

SUFFIX = ".safetensors"
Weights = Mapping[str, Tensor]


def save_weights(path: str | Path, module: nn.Module | Weights) -> None:
    """Writes the weights of ``module`` to a safetensors file, whole or not at all; an older file is replaced.

    Weights that are tied are stored once, and the file notes under which other names they are known.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_weights(f"{folder}/linear.safetensors", nn.Linear(2, 1))
    >>> sorted(load_weights(f"{folder}/linear.safetensors"))
    ['bias', 'weight']
    """
    text = str(path)
    if not text.endswith(SUFFIX):
        raise ValueError(f"weights are stored in a safetensors file: {text} should be called {text}{SUFFIX}")
    state = dict(module.state_dict() if isinstance(module, nn.Module) else module)
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise NotState(f"{name} is a {type(tensor).__name__}; weights are tensors")
    packed = pack({"model": state})
    content = next((pieces for file, pieces in packed.files() if file == TENSORS["model"]), None)
    if content is None:
        raise ValueError("there are no weights to store")
    store, folder, file = _place(text)
    if isinstance(store, Remote):
        store.write(folder, file, content)
    else:
        (store.root / folder).mkdir(parents=True, exist_ok=True)
        _replace(store, folder, file, content)


def _replace(store: Disk, folder: str, file: str, content: Iterator[memoryview | bytes]) -> None:
    draft = f".{file}.{os.getpid()}.draft"
    try:
        store.write(folder, draft, content)
        os.replace(store.root / folder / draft, store.root / folder / file)
    except BaseException:
        (store.root / folder / draft).unlink(missing_ok=True)
        raise
    store.settle(folder)


def _place(text: str) -> tuple[Disk | Remote, str, str]:
    """Store, folder and file of a path or URL."""
    if "://" in text and not text.startswith("file://"):
        root, _, file = text.rpartition("/")
        root, _, folder = root.rpartition("/")
        if root.endswith(("/", ":")):  # the file lies directly in a bucket
            raise ValueError(f"{text} needs a folder: {root}/{folder}/weights/{file}")
        return Remote(root), folder, file
    path = Path(text.removeprefix("file://"))
    return Disk(path.parent), ".", path.name


def load_weights(source: str | Path | Shelf | Saved, which: str = "last", what: str = "model") -> dict[str, Tensor]:
    """Weights by their names, from a safetensors file, from a checkpoint or from a shelf.

    ``which`` is for a shelf: ``"last"``, ``"best"`` or a name. Of a checkpoint ``what`` is taken: ``"model"``, or the
    dotted way to another part of its state that maps names to tensors. Nothing is unpickled: other files are refused.
    """
    if isinstance(source, Saved):
        return _part(source, what)
    if isinstance(source, Shelf):
        return _part(source.read(which), what)
    text = str(source).rstrip("/")
    if text.endswith(SUFFIX):
        return _from_file(text)
    if "://" not in text and Path(text).is_file():
        raise ValueError(
            f"{text} is no safetensors file, and nothing else is read, since unpickling can execute anything. Read it "
            "with torch.load(path, weights_only=True), and write it with cadenza.checkpoint.save_weights"
        )
    return _part(read_at(text, which), what)


def _from_file(text: str) -> dict[str, Tensor]:
    store, folder, file = _place(text)
    try:
        with store.open(folder, file) as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            read = _reader(opened, text)
            header = read_header(read, size)
            tensors = plain_tensors(header)
            read_values(read, header, tensors)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {text}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{text} is no whole safetensors file: {error}") from error
    for name, kept in header.get("__metadata__", {}).items():
        if name not in tensors and kept in tensors:
            tensors[name] = tensors[kept]
    return tensors


def _reader(opened: IO[bytes], text: str) -> Callable[[memoryview], None]:
    def read(into: memoryview) -> None:
        done = 0
        while done < len(into):
            count = opened.readinto(into[done:])  # type: ignore[attr-defined]
            if not count:
                raise ValueError("it ends too early")
            done += count

    return read


def _part(saved: Saved, what: str) -> dict[str, Tensor]:
    found: Any = saved.state
    walked: list[str] = []
    for key in what.split("."):
        if not isinstance(found, dict) or key not in found:
            keys = ", ".join(map(str, found)) if isinstance(found, dict) else "nothing"
            where = ".".join(walked) or f"the checkpoint {saved.name}"
            raise KeyError(f"there is no {key!r} in {where}; it has {keys}")
        found = found[key]
        walked.append(key)
    if not isinstance(found, dict) or not any(isinstance(value, Tensor) for value in found.values()):
        raise TypeError(f"{what} in the checkpoint {saved.name} does not map names to tensors")
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}
