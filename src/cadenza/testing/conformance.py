"""Checks that every callback should pass; ``cadenza.testing.check_callback`` runs them on yours."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza.callback import Callback
from cadenza.foundation.rng import rng_kept, rng_state, seed_everything
from cadenza.foundation.tree import leaves
from cadenza.main_callback import MainCallback
from cadenza.points import ITERATION, POINTS, REQUESTS, Kind
from cadenza.when import When

if TYPE_CHECKING:
    from cadenza.run import Run
    from cadenza.trainer import Trainer


class _Planned(Exception):
    """Raised on purpose."""


class _Actor(Callback):
    """Does something at one point: asks, or raises."""

    def __init__(self, point: str, act: Callable[[Run], None]) -> None:
        self.point, self.act, self.acted = point, act, 0

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        return {self.point: self._play}

    def _play(self, run: Run) -> None:
        self.acted += 1
        self.act(run)


def check_callback(
    callback: Callback | Callable[[], Callback], make_trainer: Callable[..., Trainer] | None = None
) -> None:
    """Raises an AssertionError that says what is wrong, if ``callback`` does not behave as a callback should.

    Its state goes through ``state_dict`` and back and is made of tensors, numbers and texts. Under a ``When`` that
    never opens, weights and random numbers are as without it. It survives every request, a stop and an exception, at
    every point. A callback that cannot be copied is given as a function that makes one; ``make_trainer(callbacks)``
    gives the trainer to use in place of a tiny classifier.

    >>> from cadenza.testing import Recorder
    >>> check_callback(Recorder())
    """
    make = callback if not isinstance(callback, Callback) else lambda: copy.deepcopy(callback)
    trainer_of = make_trainer or _tiny_trainer
    with rng_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # to warn of such a training is right
        _check_state(make, trainer_of)
        if not isinstance(make(), MainCallback):
            _check_inactive(make, trainer_of)
        for point, act, wanted in _mishaps():
            _check_survives(make, trainer_of, point, act, wanted)


def _check_state(make: Callable[[], Callback], trainer_of: Callable[..., Trainer]) -> None:
    first, second = make(), make()
    _fit(trainer_of([first]), epochs=2)
    state = first.state_dict()
    assert isinstance(state, dict), f"{first.name}.state_dict() must return a dict, not {type(state).__name__}"
    for path, value in _leaves(state):
        assert _storable(value), (
            f"{first.name}.state_dict(){path} is a {type(value).__name__}; only tensors and JSON are stored"
        )
    second.load_state_dict(copy.deepcopy(state))
    again = dict(_leaves(second.state_dict()))
    for path, value in _leaves(state):
        same = path in again and _equal(value, again[path])
        assert same, f"{first.name}: state{path} does not survive load_state_dict"


def _leaves(state: Any) -> Iterator[tuple[str, Any]]:
    return (("".join(f"[{key!r}]" for key in path), leaf) for path, leaf in leaves(state))


def _storable(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return bool(one == other)


def _check_inactive(make: Callable[[], Callback], trainer_of: Callable[..., Trainer]) -> None:
    callback = make()
    bare, limited = trainer_of([]), trainer_of([When(callback, start="1000000 epochs")])
    states = []
    for trainer in (bare, limited):
        seed_everything(0)
        _fit(trainer, epochs=2)
        states.append(rng_state())
    for (name, one), other in zip(bare.model.state_dict().items(), limited.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), f"{callback.name} changed {name} although its window never opened"
    assert torch.equal(states[0]["torch"], states[1]["torch"]), (
        f"{callback.name} drew random numbers outside its window"
    )
    assert states[0]["python"] == states[1]["python"], f"{callback.name} drew random numbers outside its window"


def _mishaps() -> Iterator[tuple[str, Callable[[Run], None], str]]:
    """Every request, a stop and an exception, at every point of a fit at which it can be."""
    for name in ITERATION["train"]:
        for request in REQUESTS.values():
            wanted = request.scope == "iter" and POINTS[name].takes(request.name, "train")
            if wanted and POINTS[name].kind in (Kind.BEFORE, Kind.AFTER):
                yield name, _asking(request.name, "train"), request.name
    for stage in ("val", "test"):
        yield f"before_{stage}_iter", _asking("skip_batch"), "skip_batch"
    yield "before_train_iter", _asking("end_epoch"), "end_epoch"
    yield "after_train_epoch", _asking("skip_validation"), "skip_validation"
    for name, point in POINTS.items():
        if point.kind in (Kind.BEFORE, Kind.AFTER) and "pred" not in name:
            yield name, _asking("stop"), "stop"
            yield name, _raise, "an exception"


def _asking(request: str, stage: str | None = None) -> Callable[[Run], None]:
    """Asks, with ``stage`` only while that plays: points such as before_forward stand in all of them."""

    def ask(run: Run) -> None:
        if stage in (None, run.stage):
            getattr(run, request)()

    return ask


def _raise(run: Run) -> None:
    raise _Planned


def _check_survives(
    make: Callable[[], Callback],
    trainer_of: Callable[..., Trainer],
    point: str,
    act: Callable[[Run], None],
    wanted: str,
) -> None:
    callback, actor = make(), _Actor(point, act)
    what = f"{callback.name} does not survive {wanted} at {point}"
    trainer = trainer_of([callback, actor])
    try:
        _fit(trainer)
    except _Planned as error:
        further = [note for note in error.__notes__ if note.startswith("cadenza: then")]
        assert not further, f"{what}: {'; '.join(further)}"
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert torch.is_grad_enabled(), f"{what}: it left gradients off"
    assert not torch.is_inference_mode_enabled(), f"{what}: it left inference mode on"
    assert not torch.is_autocast_enabled("cpu"), f"{what}: it left autocast on"


def _fit(trainer: Trainer, epochs: int = 1) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(7, 4, generator=generator)
    loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=4)
    trainer.fit(loader, loader, epochs=epochs, test_loaders=loader)


def _tiny_trainer(callbacks: list[Callback]) -> Trainer:
    from cadenza.trainer import Trainer

    with rng_kept():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
