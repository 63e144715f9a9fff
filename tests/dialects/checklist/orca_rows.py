"""What both of Orca's documents promise: the listed classes, the points, the pseudo-code and the first example."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback as Native
from cadenza import CallbackError, Trainer
from cadenza import MainCallback as NativeMain
from cadenza.dialects.orca import Callback, MainCallBack, MainCallback
from cadenza.testing import tiny_classifier, tiny_loader

from ..documents import Repair, examples, repaired, text_of
from ..open_names import ORCA
from ..rooms import same, trainer_with, weights
from .rows import Checklist

Seen = list[tuple[int, int]]
LISTED = {
    "on_run_begin": "before_run", "on_run_end": "after_run", "on_epoch_begin": "before_epoch",
    "on_epoch_end": "after_epoch", "on_iter_begin": "before_iter", "on_iter_end": "after_iter",
}  # fmt: skip
_BATCHES = [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
_COUNTED = [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]
_ENDS = [(0, 3), (1, 6)]
PLACES: dict[str, Seen] = {
    "before_run": [(0, 0)],
    "after_run": [(2, 6)],
    "before_epoch": [(0, 0), (0, 3), (1, 3), (1, 6)],
    "after_epoch": [(0, 3), (1, 3), (1, 6), (2, 6)],
    "before_iter": [*_BATCHES[:3], (0, 3), *_BATCHES[3:], (1, 6)],
    "after_iter": [*_COUNTED[:3], (0, 3), *_COUNTED[3:], (1, 6)],
    "before_train_epoch": [(0, 0), (1, 3)],
    "after_train_epoch": [(1, 3), (2, 6)],
    "before_train_iter": _BATCHES,
    "after_train_iter": _COUNTED,
    "on_train_forward": _BATCHES,
    "on_iter_forward": [*_BATCHES[:3], (0, 3), *_BATCHES[3:], (1, 6)],
    "on_iter_backward": _BATCHES,
    "on_lr_adjust": _ENDS,
    "before_val_epoch": _ENDS,
    "before_val_iter": _ENDS,
    "on_val_forward": _ENDS,
    "after_val_iter": _ENDS,
    "after_val_epoch": _ENDS,
    **{f"{kind}_pred_{span}": [(0, 0)] for kind in ("before", "after") for span in ("epoch", "iter")},
}
"""How many epochs are finished and how many batches are counted when a hook of Orca is called, in two epochs of three
batches with one of validation, or in a prediction of one."""
NATIVE_PLACES: dict[str, Seen] = PLACES | {
    "before_epoch": [(0, 0), (1, 3)],
    "after_epoch": [(1, 3), (2, 6)],
    "after_train_epoch": _ENDS,
}
"""The points of the same names: an epoch is bracketed once, and a training epoch ends before validation."""


def calls_of(base: type[Any], name: str) -> Seen:
    """Where the loop calls the one method that a user's class overrides."""
    seen: Seen = []

    def method(self: Any, handed: Any) -> None:
        clock = getattr(handed, "clock", None)
        seen.append((clock.epochs, clock.batches) if clock else (handed.epochs, handed.global_step))
        getattr(super(kind, self), name)(handed)

    kind = type("Users", (base,), {name: method})
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=scheduler, callbacks=[kind()], device="cpu")
    if "pred" in name:
        trainer.predict(tiny_loader(8))
    else:
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
    return seen


def space(code: str, **names: Any) -> dict[str, Any]:
    found = {"Callback": Callback, "MainCallback": MainCallback, "MainCallBack": MainCallBack, **ORCA, **names}
    exec(compile(code, "example", "exec"), found)
    return found


def add_listings(rows: Checklist, document: str) -> None:
    """The two classes that the document lists."""
    callback, main = examples(document)[:2]
    for name, point in LISTED.items():
        assert f"def {name}(self, runner)" in callback
        _add_listed(rows, name, point)
    for name in ("on_iter_forward", "on_iter_backward", "on_lr_adjust", "on_train_forward", "on_val_forward"):
        assert f"def {name}(self, runner)" in main
        _add_listed_main(rows, name, main)


def _add_listed(rows: Checklist, name: str, point: str) -> None:
    text = f"`Callback.{name}(self, runner)` of the listing"

    @rows.dialect(text)
    def called() -> None:
        assert calls_of(Callback, name) == PLACES[point]

    @rows.native(text)
    def named() -> None:
        with pytest.raises(CallbackError, match=f"did you mean {point}"):
            trainer_with(type("Old", (Native,), {name: lambda self, run: None})())
        assert calls_of(Native, point) == NATIVE_PLACES[point]


def _add_listed_main(rows: Checklist, name: str, listing: str) -> None:
    text = f"`MainCallback.{name}(self, runner)` of the listing, with its body"

    @rows.both(text)
    def trains_as_ours() -> None:
        listed = space(repaired(listing, Repair("(Callback);", "(Callback):", "a colon")))["MainCallback"]
        body = vars(listed)[name]

        def trained(main: Any) -> list[torch.Tensor]:
            model = tiny_classifier()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=schedule, callbacks=main, device="cpu")
            trainer.fit(tiny_loader(), tiny_loader(8), epochs=3)
            assert [group["lr"] for group in optimizer.param_groups] == [0.0125]
            return weights(model)

        theirs = trained([type("Listed", (MainCallback,), {name: body})()])
        assert same(theirs, trained([NativeMain()]))
        assert same(theirs, trained([MainCallback()]))


def add_points(rows: Checklist, document: str) -> None:
    """The 23 points, by kind; those with a star belong to the main callback."""
    lines = re.findall(r"^\* (\w+) points: (.*)$", text_of(document), re.MULTILINE)
    assert [kind for kind, _ in lines] == ["global", "training", "validation", "prediction"]
    for kind, line in lines:
        for star, name in re.findall(r"(\*?)`(\w+)`", line):
            _add_point(rows, kind, name, main=bool(star))


def _add_point(rows: Checklist, kind: str, name: str, *, main: bool) -> None:
    text = f"point `{name}` ({kind}{', of the main callback' if main else ''})"

    @rows.dialect(text)
    def called() -> None:
        assert calls_of(MainCallback if main else Callback, name) == PLACES[name]
        assert hasattr(Callback, name) is not main

    @rows.native(text)
    def played() -> None:
        assert calls_of(NativeMain if main else Native, name) == NATIVE_PLACES[name]
