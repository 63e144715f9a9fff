"""Making the folder of a run, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza.experiment.provenance import packages
from cadenza.experiment.recipe_text import jsonable, yaml_text
from cadenza.experiment.secrets import masked
from cadenza.foundation.whole_files import write_whole

DETAILS = "run.json"
PARTS = ("checkpoints", "plots", "tensorboard")
_NAME = re.compile(r"[\w][\w .+=,@-]{0,99}")
_ROOM = 1_000_000
"""So many bytes must be free, or the run would end with its first rows."""


class FolderError(OSError):
    """The folder of an experiment cannot be used; no training has begun."""


def check_name(what: str, name: object) -> str:
    """Refuses a project or a name that can be no folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith((".", " ")):
        raise ValueError(
            f"the {what} of an experiment names a folder: a letter or digit, then letters, digits, blanks and any of "
            f"_ . + = , @ - up to 100 in all; not {name!r}"
        )
    return name


def make_folder(parent: Path) -> Path:
    """A new folder in ``parent``, named by the time and a few random letters; two at once get two."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if free < _ROOM:
            raise FolderError(f"there is no room for a run in {parent}: {free:,} bytes are free")
        while True:
            folder = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except FolderError:
        raise
    except OSError as error:
        raise FolderError(
            error.errno,
            f"no folder for the run can be made in {parent}: {error.strerror or error}. Choose another root",
        ) from error


def fill_folder(folder: Path, details: Mapping[str, Any], recipe: Mapping[str, Any] | None, diff: str) -> None:
    """Writes what is known before the training begins. If that fails, the folder is taken away again."""
    try:
        for part in PARTS:
            (folder / part).mkdir(exist_ok=True)
        if recipe is not None:
            write_whole(folder / "recipe.yaml", yaml_text(masked(jsonable(recipe))).encode())
        if diff:
            write_whole(folder / "git.diff", diff.encode())
        write_whole(folder / "packages.txt", ("\n".join(packages()) + "\n").encode())
        write_details(folder, details)
        (folder / "metrics.jsonl").touch()
        (folder / "log.txt").touch()
    except OSError as error:
        remove_folder(folder)
        raise FolderError(error.errno, f"{folder} cannot be written: {error.strerror or error}") from error


def write_details(folder: Path, details: Mapping[str, Any]) -> None:
    write_whole(folder / DETAILS, json.dumps(jsonable(details), indent=1, ensure_ascii=False).encode())


def read_details(folder: Path) -> dict[str, Any]:
    """What ``write_details`` wrote; raises ``FolderError`` if this is not the folder of a run."""
    try:
        found = json.loads((folder / DETAILS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder} is not the folder of a run: {DETAILS} cannot be read ({error})") from error
    if not isinstance(found, dict) or "project" not in found:
        raise FolderError(f"{folder} is not the folder of a run: {DETAILS} names no project")
    return found


def remove_folder(folder: Path) -> None:
    """Takes a half-made folder away, and those above it that are empty now, up to the root."""
    shutil.rmtree(folder, ignore_errors=True)
    for parent in list(folder.parents)[:3]:
        try:
            parent.rmdir()
        except OSError:
            return
