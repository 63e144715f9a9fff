"""The files that a recipe is made of, followed by its ``defaults`` before anything is composed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cadenza.recipes.compose.files import READY, SUFFIXES, display, find_file, read_text
from cadenza.recipes.compose.yaml_text import read_yaml
from cadenza.recipes.errors import RecipeError, did_you_mean


def family(primary: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The recipe and all files that it is based on, with what they say. A circle or a missing file is refused."""
    folders = folders_of(primary)
    found: dict[Path, dict[str, Any]] = {}

    def visit(path: Path, group: str, above: list[Path]) -> None:
        if path in above:
            circle = [*above[above.index(path) :], path]
            raise RecipeError(
                f"{display(above[-1])}: the defaults go in a circle: {' -> '.join(display(one) for one in circle)}"
            )
        if path in found:
            return
        document = read_yaml(read_text(path), display(path))
        for entry in _entries(document.tree, path):
            name = f"{group}{entry}" if not entry.startswith("/") else entry[1:]
            target = next((file for folder in folders if (file := find_file(folder / name))), None)
            if target is None:
                line = document.lines.get(("defaults",), 1)
                known = _known(folders, name)
                raise RecipeError(
                    f"{display(path)}:{line}: defaults: there is no recipe {name!r}{did_you_mean(name, known)}"
                )
            visit(target, f"{name.rpartition('/')[0]}/".lstrip("/"), [*above, path])
        found[path] = document.tree

    visit(primary, "", [])
    return list(found.items())


def folders_of(primary: Path) -> list[Path]:
    """Where defaults are looked for: beside the recipe, then among the ready ones."""
    return list(dict.fromkeys([primary.parent, READY]))


def _entries(tree: dict[str, Any], path: Path) -> list[str]:
    """The files that ``defaults`` names; what may be missing or is decided elsewhere is left to Hydra."""
    defaults = tree.get("defaults", [])
    if not isinstance(defaults, list):
        raise RecipeError(f"{display(path)}: defaults: this is a list, such as [digits, _self_], not {defaults!r}")
    entries: list[str] = []
    for entry in defaults:
        if isinstance(entry, str):
            name = entry.partition("@")[0]
            entries += [name] if name != "_self_" and "${" not in name else []
        elif isinstance(entry, dict) and len(entry) == 1:
            ((group, choice),) = entry.items()
            words = str(group).split()
            if isinstance(choice, str) and "${" not in choice and not {"optional", "override"} & set(words[:-1]):
                entries.append(f"{words[-1].partition('@')[0]}/{choice}")
        else:
            raise RecipeError(f"{display(path)}: defaults: {entry!r} is no name of a recipe")
    return entries


def _known(folders: list[Path], name: str) -> list[str]:
    group = name.rpartition("/")[0]
    prefix = f"{group}/" if group else ""
    files = [file for folder in folders if (folder / group).is_dir() for file in (folder / group).iterdir()]
    return [prefix + file.stem for file in files if file.suffix in SUFFIXES]
