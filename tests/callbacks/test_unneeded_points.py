"""Callbacks leave out points that their arguments do not need, but not what a subclass does there."""

from __future__ import annotations

import pytest
import torch

from cadenza import Trainer, Watch
from cadenza.callbacks import (
    ClassificationResults,
    ConfusionMatrix,
    Evaluate,
    ExtremeBatches,
    GradientStats,
    LRMonitor,
    MemoryMonitor,
    MixUp,
    NaNGuard,
    Notify,
    Throughput,
    Timer,
    Visualize,
)
from cadenza.callbacks.showing.notify_channels import Command
from cadenza.testing import Recorder, tiny_classifier, tiny_loader

UNNEEDED = [
    (LRMonitor, (), {}, "after_train_iter"),
    (MemoryMonitor, (), {}, "after_train_iter"),
    (Throughput, (), {}, "after_train_iter"),
    (Timer, (), {}, "after_train_iter"),
    (ConfusionMatrix, (), {"stages": ["test"]}, "before_val_epoch"),
    (ConfusionMatrix, (), {"stages": ["test"]}, "after_val_epoch"),
    (Visualize, ("classification",), {"stages": ["test"]}, "before_val_epoch"),
    (Visualize, ("classification",), {"stages": ["test"]}, "after_val_epoch"),
    (GradientStats, ("1 step",), {"at": "before_step"}, "after_backward"),
    (GradientStats, ("1 step",), {"at": "after_backward"}, "before_step"),
    (NaNGuard, ("stop",), {"snapshot_every": None, "watch": "both"}, "before_backward"),
    (NaNGuard, ("stop",), {"snapshot_every": None, "watch": "both"}, "before_step"),
    (NaNGuard, ("skip",), {"snapshot_every": None, "watch": "both"}, "after_step"),
    (MixUp, (), {"soft": 3, "seed": 0}, "before_loss"),
    (MixUp, (), {"soft": 3, "seed": 0}, "after_loss"),
    (ExtremeBatches, (), {}, "after_log"),
    (Notify, (Command(["true"]),), {"on": ["error"]}, "after_best"),
    (Evaluate, (ClassificationResults(),), {"loader": tiny_loader()}, "after_val_epoch"),
]
NAMES = [f"{kind.__name__}-{point}" for kind, _, _, point in UNNEEDED]


def fit(*callbacks):
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch("train/loss")
    trainer = Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[watch, *callbacks], device="cpu")
    return trainer.fit(tiny_loader(), tiny_loader(), epochs=2)


@pytest.mark.parametrize(("kind", "args", "options", "point"), UNNEEDED, ids=NAMES)
def test_what_a_subclass_does_at_a_point_that_is_left_out_is_played(kind, args, options, point):
    calls = []

    def play(self, run):
        getattr(kind, point)(self, run)
        calls.append(point)

    more, recorder = type("More", (kind,), {point: play})(*args, **options), Recorder([point])
    recorder.stages = more.stages
    history = fit(more, recorder)
    assert calls == recorder.trace != []

    plain = kind(*args, **options)
    assert point not in plain.plays()
    alone = fit(plain)
    assert history["train/loss"] == alone["train/loss"]
    assert {name: len(history[name]) for name in history.names()} == {name: len(alone[name]) for name in alone.names()}


@pytest.mark.parametrize(("kind", "args", "options", "point"), UNNEEDED, ids=NAMES)
def test_what_was_put_on_the_instance_at_such_a_point_is_played(kind, args, options, point):
    callback, calls = kind(*args, **options), []
    setattr(callback, point, calls.append)
    callback.plays()[point]("run")
    assert calls == ["run"]
