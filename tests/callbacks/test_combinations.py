"""Callbacks together: the weights are those of a loop written by hand that does the same.

All pairs of clipping, accumulation, bf16, an average, a schedule and skipping of NaN batches, and ten triples. They are
equal to the last bit. (That the gradient of a window is that of one big batch stands in ``test_accumulate_exact.py``.)
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from cadenza import Callback, Trainer
from cadenza.callbacks import EMA, Accumulate, CosineSchedule, GradientClip, NaNGuard, Precision
from cadenza.testing import tiny_classifier, tiny_data

FEATURES = ("clip", "accumulate", "bf16", "ema", "schedule", "nan")
EPOCHS, LR, NORM, DECAY, WINDOW, SIZES = 3, 0.2, 0.3, 0.8, 2, (7, 3, 5, 7, 2)
PAIRS = list(combinations(FEATURES, 2))
TRIPLES = list(combinations(FEATURES, 3))[::2]


def batches() -> list[tuple[Tensor, Tensor]]:
    inputs, targets = tiny_data(sum(SIZES)).tensors
    return list(zip(inputs.split(SIZES), targets.split(SIZES), strict=True))


def spoilt(data: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(inputs.clone().fill_(math.nan) if index == 2 else inputs, t) for index, (inputs, t) in enumerate(data)]


def data_for(features: tuple[str, ...]) -> list[tuple[Tensor, Tensor]]:
    return spoilt(batches()) if "nan" in features else batches()


def length_of(features: tuple[str, ...]) -> int:
    """Steps of the whole training, which the schedule must know."""
    seen = len(SIZES) - ("nan" in features)
    return EPOCHS * (-(-seen // WINDOW) if "accumulate" in features else seen)


def callbacks_for(features: tuple[str, ...]) -> dict[str, Callback]:
    made = {
        "clip": GradientClip(norm=NORM),
        "accumulate": Accumulate(WINDOW),
        "bf16": Precision("bf16"),
        "ema": EMA(DECAY),
        "schedule": CosineSchedule(final_ratio=0.1, length=f"{length_of(features)} steps"),
        "nan": NaNGuard("skip", snapshot_every=None),
    }
    return {name: callback for name, callback in made.items() if name in features}


def windows(features: tuple[str, ...]) -> list[list[tuple[Tensor, Tensor]]]:
    """The batches of one epoch, those of each step together; one with a NaN gives no gradient and is left out."""
    usable = [batch for batch in data_for(features) if not batch[0].isnan().any()]
    size = WINDOW if "accumulate" in features else 1
    return [usable[start : start + size] for start in range(0, len(usable), size)]


def by_hand(features: tuple[str, ...]) -> tuple[nn.Module, dict[str, Tensor]]:
    model, criterion = tiny_classifier(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step, total = 0, length_of(features)
    for _ in range(EPOCHS):
        for window in windows(features):
            if "schedule" in features:
                lr = LR * (0.1 + 0.9 * (1 + math.cos(math.pi * step / total)) / 2)
                optimizer.param_groups[0]["lr"] = lr
            first, samples = len(window[0][1]), sum(len(targets) for _, targets in window)
            for inputs, targets in window:
                with torch.autocast("cpu", torch.bfloat16) if "bf16" in features else nullcontext():
                    loss = criterion(model(inputs), targets)
                (loss * (len(targets) / first)).backward()
            for parameter in model.parameters():
                parameter.grad *= first / samples
            if "clip" in features:
                nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            for name, tensor in model.state_dict().items():
                average[name].lerp_(tensor, 1 - DECAY)
    return model, average


@pytest.mark.filterwarnings("ignore:NaNGuard")
@pytest.mark.parametrize("features", PAIRS + TRIPLES, ids="-".join)
def test_together_they_do_what_a_loop_by_hand_does(features: tuple[str, ...]) -> None:
    callbacks = callbacks_for(features)
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=list(callbacks.values()), device="cpu")
    trainer.fit(data_for(features), epochs=EPOCHS)
    wanted, average = by_hand(features)
    assert trainer.clock.steps == length_of(features)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
        if "ema" in features:
            assert torch.equal(callbacks["ema"].average[name], average[name])


def test_ten_triples_and_all_pairs_are_played() -> None:
    assert len(PAIRS) == 15
    assert len(TRIPLES) == 10


@pytest.mark.filterwarnings("ignore:NaNGuard")
def test_the_order_of_the_list_does_not_matter() -> None:
    results = []
    for turn in (1, -1):
        model = tiny_classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        callbacks = list(callbacks_for(FEATURES).values())[::turn]
        trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
        trainer.fit(data_for(FEATURES), epochs=EPOCHS)
        results.append(model.state_dict())
    for name, tensor in results[0].items():
        assert torch.equal(tensor, results[1][name])
