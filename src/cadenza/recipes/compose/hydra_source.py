"""Recipe files as a source of configurations for Hydra, read by our own YAML reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from cadenza.recipes.compose.files import display, find_file, read_text
from cadenza.recipes.compose.normalise import Normal
from cadenza.recipes.compose.origins import Layer
from cadenza.recipes.compose.yaml_text import read_yaml
from cadenza.recipes.errors import RecipeError

SCHEME = "recipe"
PRIMARY = "_recipe_"
_PACKAGE = re.compile(r"^\s*#\s*@package\s+(\S+)\s*$", re.MULTILINE)


class Shelf:
    """The files of one composition: the recipe itself, the folder beside it, and the ready ones. What was read is
    kept as layers, in the order of reading."""

    _open: dict[str, Shelf] = {}  # noqa: RUF012

    def __init__(self, primary: Path, folders: list[Path]) -> None:
        self.primary, self.folders = primary, folders
        self.layers: dict[Path, Layer] = {}

    def __enter__(self) -> str:
        token = str(id(self))
        self._open[token] = self
        return f"{SCHEME}://{token}"

    def __exit__(self, *error: object) -> None:
        self._open.pop(str(id(self)), None)

    @classmethod
    def at(cls, token: str) -> Shelf:
        return cls._open[token]

    def file(self, name: str) -> Path | None:
        """The file of a configuration, ``digits`` or ``optimizer/sgd``."""
        if name == PRIMARY:
            return self.primary
        return next((found for folder in self.folders if (found := find_file(folder / name))), None)

    def is_group(self, name: str) -> bool:
        return any((folder / name).is_dir() for folder in self.folders)

    def load(self, name: str) -> Layer:
        """Reads a file into its normal form, and keeps it."""
        path = self.file(name)
        if path is None:
            raise RecipeError(f"there is no file for {name!r}")
        if path not in self.layers:
            text = read_text(path)
            document = read_yaml(text, display(path))
            package = _package(name, text)
            normal = Normal(document.tree, document.lines, display(path), package)
            self.layers[path] = Layer(display(path), normal.tree, normal.lines, package)
        return self.layers[path]


def _package(name: str, text: str) -> tuple[str, ...]:
    """Where the content of a file stands in the whole: its folder, or what ``# @package`` says."""
    said = _PACKAGE.search(text)
    if said is None:
        return () if name == PRIMARY else tuple(name.split("/")[:-1])
    return () if said[1] in ("_global_", "_root_") else tuple(said[1].split("."))


class RecipeSource(ConfigSource):
    """What Hydra asks; the shelf answers."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    @property
    def shelf(self) -> Shelf:
        return Shelf.at(self.path)

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return self.shelf.is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        return self.shelf.file(config_path) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        try:
            layer = self.shelf.load(config_path)
        except OSError as error:
            raise ConfigLoadError(str(error)) from error
        package = ".".join(layer.package) or "_global_"
        return ConfigResult(
            provider=self.provider,
            path=f"{SCHEME}://{layer.name}",
            config=OmegaConf.create(layer.tree),
            header={"package": package},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return sorted(set(self._listed(config_path, results_filter)))

    def _listed(self, config_path: str, results_filter: ObjectType | None) -> Iterator[str]:
        for folder in self.shelf.folders:
            if (folder / config_path).is_dir():
                for file in (folder / config_path).iterdir():
                    if file.is_dir() and results_filter in (None, ObjectType.GROUP):
                        yield file.name
                    elif file.suffix in (".yaml", ".yml") and results_filter in (None, ObjectType.CONFIG):
                        yield file.stem


def register_source() -> None:
    """Makes Hydra know the scheme; once more does nothing."""
    Plugins.instance().register(RecipeSource)
