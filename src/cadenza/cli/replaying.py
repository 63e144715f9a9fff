"""``cadenza replay``: plays a file of ``NaNGuard`` again with the trainer that a function of yours makes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from cadenza.trainer import Trainer


def load_maker(place: str) -> Callable[[], Trainer]:
    """The function at ``file.py:function`` or ``module:function``."""
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"--trainer is file.py:function or module:function, not {place!r}")
    maker: Callable[[], Trainer] | None = getattr(_module(where), name, None)
    if not callable(maker):
        raise ValueError(f"{where} has no function {name!r} that makes a trainer")
    return maker


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve()
    if not path.is_file():
        raise ValueError(f"there is no file {where}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{where} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def replay_file(file: Path, place: str) -> str:
    """What the replay found, in words."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    trainer = load_maker(place)()
    if not isinstance(trainer, Trainer):
        raise ValueError(f"{place} returned a {type(trainer).__name__}, not a Trainer")
    return str(trainer.replay(file))
