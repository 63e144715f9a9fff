"""For tests of callbacks, yours and ours: a recorder, tiny models and data, and checks that every callback passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza.callback import Callback
from cadenza.certify.certify import Certificate, certify
from cadenza.certify.probes import Kill, Storm
from cadenza.points import POINTS, Kind
from cadenza.testing.conformance import check_callback

if TYPE_CHECKING:
    from cadenza.run import Run


__all__ = [
    "Certificate",
    "Kill",
    "Recorder",
    "Storm",
    "certify",
    "check_callback",
    "tiny_classifier",
    "tiny_data",
    "tiny_loader",
]


class Recorder(Callback):
    """Writes down every point that is played. ``trace`` is the list of them.

    >>> recorder = Recorder(points=["before_run", "after_run"])
    >>> sorted(recorder.plays())
    ['after_run', 'before_run']
    """

    passive = True

    def __init__(self, points: Iterable[str] | None = None, *, arounds: bool = False) -> None:
        kinds = (Kind.BEFORE, Kind.AFTER, Kind.EVENT) + ((Kind.AROUND,) if arounds else ())
        self.points = (
            [name for name, point in POINTS.items() if point.kind in kinds] if points is None else list(points)
        )
        self.trace: list[str] = []

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        return {name: self._player(name) for name in self.points}

    def _player(self, name: str) -> Callable[[Run], Any]:
        if POINTS[name].kind is Kind.AROUND:
            return lambda run: _Held(self.trace, name.removeprefix("around_"))
        return lambda run: self.trace.append(name)


class _Held:
    """A class, not a generator: one that is closed by garbage collection would hide a missing exit."""

    def __init__(self, trace: list[str], span: str) -> None:
        self.trace, self.span = trace, span

    def __enter__(self) -> None:
        self.trace.append(f"enter_{self.span}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.trace.append(f"exit_{self.span}" + (f" {kind.__name__}" if kind else ""))


def tiny_classifier(inputs: int = 4, hidden: int = 8, classes: int = 3, seed: int = 0) -> nn.Module:
    """A small perceptron with fixed weights; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def tiny_data(samples: int = 24, inputs: int = 4, classes: int = 3, seed: int = 0) -> TensorDataset:
    """Points around one centre for each class, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(samples) % classes
    centres = torch.randn(classes, inputs, generator=generator) * 2
    return TensorDataset(centres[targets] + torch.randn(samples, inputs, generator=generator), targets)


def tiny_loader(samples: int = 24, batch_size: int = 8, *, shuffle: bool = False, seed: int = 0) -> DataLoader[Any]:
    return DataLoader(tiny_data(samples, seed=seed), batch_size=batch_size, shuffle=shuffle)
