"""Finding and reading recipe files: a path of yours, or the name of a ready recipe."""

from __future__ import annotations

import os
from pathlib import Path

from cadenza.recipes.errors import RecipeError, did_you_mean

READY = Path(__file__).parents[1] / "ready"
SUFFIXES = (".yaml", ".yml")


def ready_names() -> list[str]:
    """The names of the recipes in the package.

    >>> "digits" in ready_names()
    True
    """
    return sorted(path.stem for path in READY.glob("*.yaml"))


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """The file of a recipe: a path, with or without its suffix, or the name of a ready one."""
    text = os.fspath(name)
    path = Path(text)
    found = find_file(path)
    if found is not None:
        return found
    if path.is_dir():
        raise RecipeError(f"{text} is a folder; name the recipe file in it")
    if path.name == text and not path.suffix:
        if text in ready_names():
            return READY / f"{text}.yaml"
        raise RecipeError(f"there is no recipe {text!r}{did_you_mean(text, [*ready_names(), *_beside(path)])}")
    raise RecipeError(f"there is no file {text}{did_you_mean(path.name, _beside(path), 'is the path right?')}")


def _beside(path: Path) -> list[str]:
    try:
        return [file.name for file in path.parent.iterdir() if file.suffix in SUFFIXES]
    except OSError:
        return []


def find_file(path: Path) -> Path | None:
    """``path`` itself if it is a file of YAML, or with a suffix added."""
    for candidate in (path, *(path.with_name(path.name + suffix) for suffix in SUFFIXES if path.name)):
        if candidate.suffix in SUFFIXES and candidate.is_file():
            return candidate.resolve()
    return None


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{display(path)}: this is not UTF-8 text: {error.reason}") from None
    except OSError as error:
        raise RecipeError(f"{display(path)}: {error.strerror}") from None


def display(path: Path) -> str:
    """A path as a message names it: by its name if it is ready, relative if it is near, else in full."""
    if path.is_relative_to(READY):
        return path.relative_to(READY).as_posix()
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
