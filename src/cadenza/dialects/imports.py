"""Original import paths that lead to a dialect, so that a script runs without a change."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dis import opmap
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType
from typing import Any

from cadenza.dialects.table import Dialect, dialect, nearest


def install(*names: str) -> None:
    """Makes the original import paths of these dialects resolve to them, until ``uninstall``. Refused if the real
    package is there: then the same name would mean two things.

    >>> install("orca")
    >>> from bigdl.orca.learn.pytorch.callbacks import Callback
    >>> Callback.__module__
    'cadenza.dialects.orca.callback'
    >>> uninstall("orca")
    """
    if not names:
        raise ValueError('say which dialect: install("orca")')
    wanted = [dialect(name) for name in names]
    for one in wanted:
        _refuse_if_real(one)
    for one in wanted:
        _put(one.name)


def _put(name: str) -> None:
    one = dialect(name)
    if _finder_of(one) is None:
        sys.meta_path.insert(0, _Finder(one))


def uninstall(*names: str) -> None:
    """Takes back what ``install`` did: the paths no longer resolve, and what was imported by them is forgotten."""
    for name in names:
        one = dialect(name)
        finder = _finder_of(one)
        if finder is None:
            raise ValueError(f"the dialect {name!r} is not installed")
        sys.meta_path.remove(finder)
        for path in [path for path, module in sys.modules.items() if _is_from(one, path, module)]:
            del sys.modules[path]


@contextmanager
def installed(*names: str) -> Iterator[None]:
    """Installed for the time of a ``with``; a dialect that was installed before stays so."""
    new = [name for name in names if _finder_of(dialect(name)) is None]
    if new:
        install(*new)
    try:
        yield
    finally:
        if new:
            uninstall(*new)


def run_script(name: str, file: str | PathLike[str], args: Sequence[str] = ()) -> dict[str, Any]:
    """Runs a script as ``python file args…`` would, with the dialect installed; returns the names that it defined."""
    path = Path(fspath(file))
    if not path.is_file():
        raise FileNotFoundError(f"there is no script {fspath(file)!r}")
    argv, search = sys.argv, sys.path[:]
    sys.argv, sys.path[:0] = [str(path), *args], [str(path.resolve().parent)]
    try:
        with installed(name):
            return runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, search


class _Finder(MetaPathFinder):
    """Finds the modules that one dialect stands for. It comes first, since a mere folder of that name beside the script
    would be found by Python as a package without files, and steps back where there is a real module. Pickled, it is
    installed where it arrives: workers of a launch import what the script imports."""

    travels = True

    def __init__(self, one: Dialect) -> None:
        self.dialect = one
        self.tops = {path.split(".")[0] for path in one.modules}

    def __reduce__(self) -> tuple[Any, ...]:
        return _put, (self.dialect.name,)

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        modules = self.dialect.modules
        if fullname.split(".")[0] not in self.tops:
            return None
        beside = PathFinder.find_spec(fullname, path)
        if _is_real(beside):
            return None
        if fullname in modules or any(known.startswith(f"{fullname}.") for known in modules):
            made = ModuleSpec(fullname, _Loader(self.dialect), is_package=True)
            made.submodule_search_locations = list((beside and beside.submodule_search_locations) or ())
            return made
        refused = next((one for one in self.dialect.refused if fullname.startswith(f"{one}.") or fullname == one), None)
        if refused is not None:
            raise ModuleNotFoundError(self.dialect.not_carried(refused, "module"), name=fullname)
        near = nearest(fullname, modules)
        raise ModuleNotFoundError(
            f"{self.dialect.name}: there is no module {fullname!r} here; the nearest is {near!r}", name=fullname
        )


class _Loader(Loader):
    def __init__(self, one: Dialect) -> None:
        self.dialect = one

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name, self.dialect)

    def get_resource_reader(self, name: str) -> Any:
        """Lets the files of a package be found under the original's name, too."""
        spec = import_module(self.dialect.modules[name]).__spec__
        return None if spec is None else spec.loader.get_resource_reader(spec.name)  # type: ignore[union-attr]

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__path__ = list(module.__spec__.submodule_search_locations or ())
        source = self.dialect.modules.get(module.__name__)
        if source is not None:
            found = import_module(source)
            if getattr(found, "__resources__", False):
                module.__file__, module.__path__ = found.__file__, list(found.__path__)
            names = public_names(found)
            vars(module).update({name: getattr(found, name) for name in names})
            module.__all__ = self.dialect.stars.get(module.__name__, names)  # type: ignore[attr-defined]


def public_names(module: ModuleType) -> list[str]:
    """What a star import of ``module`` brings, without the modules of its package."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if not isinstance(value, ModuleType)]
    return [name for name in names if not name.startswith("_")]


class _StandIn(ModuleType):
    """A module of the original's name. A name that it does not have is refused with the nearest that it has."""

    def __init__(self, name: str, one: Dialect) -> None:
        super().__init__(name, f"{one.original}, as Cadenza's dialect {one.name!r} carries it.")
        self._dialect, self.__version__ = one, one.version

    def __getattr__(self, name: str) -> Any:
        path, one = f"{self.__name__}.{name}", self._dialect
        if name.startswith("__") or any(known == path or known.startswith(f"{path}.") for known in one.modules):
            raise AttributeError(name)
        everything = vars(import_module(one.names)) if one.names and name not in one.refused else {}
        if name in everything and not name.startswith("_"):
            return everything[name]
        about = self.__name__ if self.__name__ in one.refused else name
        why = f"{one.not_carried(about, 'name', vars(self).get('__all__', ()))} (in {self.__name__})"
        caller = sys._getframe(1)
        if caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]:
            raise ImportError(why)  # of an AttributeError, "from module import name" would drop the message
        raise AttributeError(why, name=name)


def _finder_of(one: Dialect) -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder) and finder.dialect is one), None)


def _is_from(one: Dialect, path: str, module: ModuleType) -> bool:
    return type(module) is _StandIn and module._dialect is one and path == module.__name__


def _refuse_if_real(one: Dialect) -> None:
    for package in one.real:
        loaded = sys.modules.get(package)
        if (loaded is not None and not isinstance(loaded, _StandIn)) or _is_importable(package):
            raise ImportError(
                f"{package} is installed here, so its import paths cannot stand for Cadenza's dialect {one.name!r}. "
                f"Uninstall it, or change the imports to cadenza.dialects.{one.name}",
                name=package,
            )


def _is_real(spec: ModuleSpec | None) -> bool:
    """Whether a module has a file; a folder without ``__init__.py`` has none."""
    return spec is not None and spec.origin is not None


def _is_importable(package: str) -> bool:
    """Whether ``package`` can be found on the path, without importing it or what contains it."""
    search: Any = None
    for position, _ in enumerate(parts := package.split(".")):
        spec = PathFinder.find_spec(".".join(parts[: position + 1]), search)
        if spec is None or (position == len(parts) - 1 and not _is_real(spec)):
            return False
        search = spec.submodule_search_locations
        if search is None:
            return position == len(parts) - 1
    return True
