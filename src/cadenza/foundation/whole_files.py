"""Writes files whole: after a crash, an error or on a full disk there is the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name of another file to write to. It takes the place of ``path`` if what is inside succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{os.getpid()}.part.{path.name}")  # how a name ends may say how to write the file
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that there is at any time either the old one or the new one, never a part."""
    with whole_file(path) as unfinished:
        unfinished.write_bytes(content)


def append_whole(path: Path, content: bytes, *, on_disk: bool = False) -> None:
    """Adds ``content`` to a file, all of it or, after an error, nothing; with ``on_disk`` it waits for the disk."""
    end = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(content)
            if on_disk:
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):  # a part of a line stays; readers leave it out
            os.truncate(path, end)
        raise


def set_aside(path: Path) -> Path | None:
    """Gives a file another name, such as ``rows.1.csv``, and returns that; None if there is no file."""
    if not path.exists():
        return None
    number = 1
    while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(kept)
    return kept


def filled(path: Path, epoch: int, step: int, stage: str | None = None, loader: str | None = None) -> Path:
    """``path`` with its places filled in.

    >>> filled(Path("grads-{epoch}.png"), epoch=7, step=120).name
    'grads-007.png'
    >>> filled(Path("{stage}.png"), epoch=7, step=120, stage="val", loader="night").name
    'val-night.png'
    """
    text = str(path)
    safe = re.sub(r"[^\w.-]+", "_", loader) if loader else ""
    if safe and "{loader}" not in text:
        text = str(path.with_name(f"{path.stem}-{safe}{path.suffix}"))
    values = {"{epoch}": f"{epoch:03d}", "{step}": f"{step:06d}", "{stage}": stage or "", "{loader}": safe}
    for place, value in values.items():
        text = text.replace(place, value)
    return Path(text)
