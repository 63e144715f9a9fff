"""The user's modules with registrations: files beside a recipe, or importable modules."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from cadenza.recipes.errors import RecipeError


def import_module(name: str, beside: Path | None = None) -> ModuleType:
    """Imports ``my_callbacks.py``, beside a recipe or from here, or the module ``my_callbacks``, once.

    A file is known by its path: importing it again, also under another spelling, does not run it again.
    """
    if not name.endswith(".py"):
        return _importable(name, beside)
    folder = Path.cwd() if beside is None else beside
    path = (folder / name).resolve()
    if not path.is_file():
        raise RecipeError(f"there is no file {name}" + (f" beside the recipe, in {folder}" if beside else ""))
    return _from_file(path)


def _importable(name: str, beside: Path | None) -> ModuleType:
    for folder in (Path.cwd(), *([beside] if beside is not None else [])):
        path = folder / f"{name.replace('.', '/')}.py"
        if path.is_file():
            return _from_file(path.resolve())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise RecipeError(f"there is no module {name!r}, and no file {name}.py here or beside the recipe") from None


def _from_file(path: Path) -> ModuleType:
    for module in list(sys.modules.values()):
        own = getattr(module, "__file__", None)
        if own and Path(own) == path:
            return module
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    free = path.stem.isidentifier() and path.stem not in sys.modules and importlib.util.find_spec(path.stem) is None
    name = path.stem if free else f"{path.stem}_{digest}"  # a file called random.py must not become the module random
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
