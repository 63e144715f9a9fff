"""A recipe as a whole: its files put together by Hydra, overrides applied, references resolved."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from cadenza.foundation.tree import leaves
from cadenza.recipes.compose.defaults_tree import family, folders_of
from cadenza.recipes.compose.files import display
from cadenza.recipes.compose.hydra_source import PRIMARY, Shelf, register_source
from cadenza.recipes.compose.origins import Layer, Origins
from cadenza.recipes.compose.overrides import Override, apply, parse
from cadenza.recipes.errors import RecipeError


@dataclass(frozen=True)
class Composed:
    """``tree`` is what the recipe says in the end, ``written`` the same with references to the environment left in."""

    tree: dict[str, Any]
    written: dict[str, Any]
    origins: Origins


def compose(primary: Path, overrides: Sequence[str] = ()) -> Composed:
    """Puts the recipe in ``primary`` together."""
    register_source()
    shelf = Shelf(primary, folders_of(primary))
    if isinstance(overrides, str):
        raise TypeError(f"overrides is a list of texts: [{overrides!r}]")
    changes = [parse(text, shelf.is_group) for text in overrides]
    config = _composed(shelf, [change for change in changes if change.choice])
    order = {path: place for place, (path, _) in enumerate(family(primary))}  # what others build on comes first
    files = sorted(shelf.layers, key=lambda path: order.get(path, len(order)))
    layers = [*(shelf.layers[path] for path in files), *apply(changes, config)]
    layers = [layer for layer in layers if layer.tree]
    return _resolved(config, Origins(layers), primary)


def _composed(shelf: Shelf, choices: list[Override]) -> DictConfig:
    """What Hydra makes of the files. It wants to begin with a file in a folder; that one only names the recipe."""
    with tempfile.TemporaryDirectory() as folder, shelf as address:
        (Path(folder) / "start.yaml").write_text(f"defaults: [{PRIMARY}]", encoding="utf-8")
        words = [f"hydra.searchpath=['{address}']", *(choice.text for choice in choices)]
        try:
            with initialize_config_dir(config_dir=folder, version_base="1.3", job_name="cadenza"):
                config = hydra_compose("start", overrides=words)
        except HydraException as error:
            if isinstance(error.__cause__, RecipeError):
                raise error.__cause__ from None
            raise RecipeError(f"{display(shelf.primary)}: {_plain(error)}") from None
        except OmegaConfBaseException as error:
            raise RecipeError(f"{display(shelf.primary)}: {_plain(error)}") from None
    OmegaConf.set_struct(config, False)
    return config


def _plain(error: BaseException) -> str:
    cause = error.__cause__ if not str(error).strip() and error.__cause__ is not None else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if not lines:
        return type(cause).__name__
    inside = re.fullmatch(r"\w+ raised while resolving interpolation: [\"']?(.*?)[\"']?", lines[0])
    return (inside[1] if inside else lines[0]).replace(PRIMARY, "the recipe")


def _resolved(config: DictConfig, origins: Origins, primary: Path) -> Composed:
    raw = OmegaConf.to_container(config, resolve=False)
    try:
        _refuse_missing(config, origins)
        tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise RecipeError(f"{display(primary)}: {_plain(error)}") from None
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", "") or "")
        where = origins.at(tuple(key.split("."))) if key else display(primary)
        raise RecipeError(f"{where}: {key}: {_plain(error)}") from None
    if not isinstance(tree, dict) or not isinstance(raw, dict):
        raise RecipeError(f"{display(primary)}: a recipe is a mapping of keys to values")
    plain: dict[str, Any] = {str(key): value for key, value in tree.items()}
    written: dict[str, Any] = {str(key): value for key, value in raw.items()}
    origins.drop_stale(plain)
    origins.drop_stale(written)
    return Composed(plain, written if _reads_the_environment(written) else plain, origins)


def _refuse_missing(config: DictConfig, origins: Origins) -> None:
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        key = missing[0]
        where = origins.at(tuple(key.split(".")))
        raise RecipeError(f"{where}: {key}: this has to be given: {key}=..., or in a recipe of your own")


def _reads_the_environment(tree: Any) -> bool:
    """Whether some value is taken from the environment; then no resolved value is written down anywhere."""
    return any(isinstance(leaf, str) and "${oc.env" in leaf.replace(" ", "") for _, leaf in leaves(tree))


__all__ = ["Composed", "Layer", "compose"]
