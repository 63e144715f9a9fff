"""Plays an example in this process, and keeps what its training began with, so that it can be done again by hand."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import cadenza

EXAMPLES = Path(__file__).parents[2] / "examples"


class Observed(cadenza.Trainer):
    """A trainer that remembers how things stood when training began, and over which loaders it went."""

    def run(self, **limits: Any) -> cadenza.Run:
        self.began = copy.deepcopy((self._training.module, self._training.optimizers))
        self.rng = torch.get_rng_state()
        self.loaders: dict[str, Any] = {}
        for stage in ("train", "val"):
            self.on(f"before_{stage}_epoch")(self._note)
        return super().run(**limits)

    def _note(self, run: cadenza.Run) -> None:
        self.loaders[str(run.stage)] = run.loader

    def begin_again(self) -> tuple[nn.Module, list[Optimizer]]:
        """Model and optimizers as they were, for a loop by hand; the random numbers too."""
        torch.set_rng_state(self.rng)
        return self.began


Play = Callable[..., tuple[ModuleType, Observed]]


@pytest.fixture
def play() -> Play:
    """``play("01_own_loss", epochs=2)`` gives the module of the example and the trainer that its main returned."""

    def play(name: str, **settings: Any) -> tuple[ModuleType, Observed]:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.Trainer = Observed  # type: ignore[attr-defined]
        return module, module.main(**settings)

    return play
