"""When a run has ended, in order or not, the trainer keeps nothing of its last iteration alive."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.processes import run
from torch import nn

from cadenza import Callback, Run, Trainer
from cadenza.testing import Recorder, tiny_classifier, tiny_loader


def made(*callbacks: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


class Weak(Callback):
    """Remembers what each iteration held, without holding it."""

    def __init__(self) -> None:
        self.seen: list[Callable[[], Any]] = []

    def after_forward(self, run: Run) -> None:
        self.seen += [weakref.ref(run.batch[0]), weakref.ref(run.output)]

    def alive(self) -> int:
        gc.collect()
        return sum(reference() is not None for reference in self.seen)


class Fresh:
    """New tensors for each batch, which nobody else holds."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in tiny_loader():
            yield x.clone(), y.clone()


VERBS: dict[str, Callable[[Trainer], Any]] = {
    "fit": lambda trainer: trainer.fit(Fresh(), epochs=1),
    "fit with validation": lambda trainer: trainer.fit(Fresh(), Fresh(), epochs=1),
    "validate": lambda trainer: trainer.validate(Fresh()),
    "predict": lambda trainer: (trainer.predict(Fresh()), None)[1],
}


@pytest.mark.parametrize("verb", VERBS)
def test_after_an_orderly_end(verb: str) -> None:
    weak = Weak()
    trainer = made(weak)
    VERBS[verb](trainer)
    assert weak.seen
    assert weak.alive() == 0


@pytest.mark.parametrize("point", ["after_forward", "after_backward", "after_train_iter"])
def test_after_an_error_that_was_caught(point: str) -> None:
    """So that who runs out of memory can try again with a smaller batch."""
    weak = Weak()
    trainer = made(weak)
    trainer.on(point)(lambda run: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        trainer.fit(Fresh(), epochs=1)
    assert weak.seen
    assert trainer.clock.epochs == 0
    assert weak.alive() == 0


def test_a_logged_value_does_not_keep_the_tensor_it_was_cut_from() -> None:
    trainer, sizes = made(), []

    @trainer.on("after_forward")
    def log(run: Run) -> None:
        run.log("first", run.output[0, 0])
        sizes.append(run.metrics.raw()["first"].untyped_storage().nbytes())

    trainer.fit(tiny_loader(), epochs=1)
    assert sizes == [4, 4, 4]


def test_a_removed_callback_is_let_go() -> None:
    recorder = Recorder()
    trainer = made(recorder)
    trainer.fit(tiny_loader(), epochs=1)
    trainer.remove(recorder)
    reference = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert reference() is None


def test_a_trainer_that_is_let_go_is_gone() -> None:
    trainer = made(Recorder())
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    reference = weakref.ref(trainer.model)
    del trainer
    gc.collect()
    assert reference() is None


MANY_FITS = """
import sys
import torch
from cadenza import Trainer
from cadenza.testing import tiny_classifier, tiny_loader

model = tiny_classifier()
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(), device="cpu")
loader, counts = tiny_loader(), []

def count(frame, event, argument):
    counts[-1] += event in ("call", "c_call")

for number in range(60):
    counts.append(0)
    sys.setprofile(count if number in (2, 59) else None)
    trainer.fit(loader, epochs=1)
    sys.setprofile(None)
print(counts[2], counts[59])
"""


def test_a_later_fit_makes_as_many_calls_as_an_early_one() -> None:
    """What a trainer keeps from one fit to the next must not slow the fits after it. In a process of its own, where
    nothing that other tests left is counted, or freed meanwhile."""
    found = run(MANY_FITS)
    assert found.returncode == 0, found.stderr
    early, late = map(int, found.stdout.split())
    assert 0 < late < 1.05 * early  # a garbage collection may add some
