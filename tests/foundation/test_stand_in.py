"""Functions of the whole process that stand-ins replace for a while, also for two trainers in two threads."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import torch
from torch import nn

from cadenza import Trainer
from cadenza.experiment import Experiment
from cadenza.foundation.stand_in import StandIn
from cadenza.testing import tiny_classifier, tiny_loader


class Owner:
    def greet(self, name: str) -> str:
        return f"hello {name}"


def standing() -> StandIn:
    return StandIn(Owner, "greet", lambda greet, tell: lambda self, name: "taken" if tell(name) else greet(self, name))


def test_listeners_come_and_go_in_any_order() -> None:
    original, one, heard = Owner.greet, standing(), ([], [])  # type: ignore[var-annotated]
    first, second = one.heard_by(heard[0].append), one.heard_by(heard[1].append)
    first.__enter__()
    second.__enter__()
    Owner().greet("a")
    first.__exit__(None, None, None)
    Owner().greet("b")
    second.__exit__(None, None, None)
    assert Owner.greet is original
    assert heard == (["a"], ["a", "b"])


def test_a_listener_may_take_a_call() -> None:
    with standing().heard_by(lambda name: name == "you"):
        assert (Owner().greet("you"), Owner().greet("us")) == ("taken", "hello us")


def test_what_another_put_in_its_place_stays() -> None:
    original = Owner.greet
    try:
        with standing().heard_by(lambda name: None):
            Owner.greet = lambda self, name: "other"  # type: ignore[method-assign]
        assert Owner().greet("you") == "other"
    finally:
        Owner.greet = original  # type: ignore[method-assign]


def test_two_trainers_in_two_threads_leave_the_warnings_of_python_as_they_were(tmp_path: Path) -> None:
    shown, meet, errors = warnings.showwarning, threading.Barrier(2, timeout=60), list[BaseException]()

    def train(name: str) -> None:
        try:
            model = tiny_classifier()
            experiment = Experiment("p", name, root=tmp_path)
            trainer = Trainer(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                nn.CrossEntropyLoss(),
                device="cpu",
                experiment=experiment,
            )
            trainer.on("before_epoch")(lambda run: meet.wait() and None)  # both are open
            trainer.fit(tiny_loader(), epochs=2)
        except BaseException as error:
            errors.append(error)
            meet.abort()

    threads = [threading.Thread(target=train, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert warnings.showwarning is shown
