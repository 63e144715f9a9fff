"""Where a training takes place: everything that a step takes goes there when a run begins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cadenza import Trainer
from cadenza.engine.lifecycle import follow, move_to
from cadenza.testing import tiny_classifier, tiny_loader


def test_what_an_optimizer_has_loaded_follows_the_weights() -> None:
    weight = nn.Parameter(torch.empty(3, 2, device="meta"))
    optimizer = torch.optim.Adam([weight])
    optimizer.state[weight] = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3, 2), "exp_avg_sq": torch.zeros(3, 2)}
    follow(optimizer)
    devices = {name: part.device.type for name, part in optimizer.state[weight].items()}
    assert devices == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}


def test_what_is_where_it_belongs_is_not_touched() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    states = dict(optimizer.state)
    follow(optimizer)
    assert all(optimizer.state[parameter] is state for parameter, state in states.items())


def test_weights_of_a_criterion_go_along() -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.ones(2))
    move_to(torch.device("meta"), nn.Linear(3, 2), criterion, [])
    assert criterion.weight is not None
    assert criterion.weight.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_training_that_was_loaded_on_the_cpu_goes_on_a_gpu() -> None:
    first, second = tiny_classifier(), tiny_classifier()
    before, after = (torch.optim.Adam(model.parameters(), lr=0.01) for model in (first, second))
    Trainer(first, before, nn.CrossEntropyLoss(), device="cpu").fit(tiny_loader(), epochs=1)
    after.load_state_dict(before.state_dict())
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    Trainer(second, after, criterion, device="cuda").fit(tiny_loader(), epochs=1)
    assert {state["exp_avg"].device.type for state in after.state.values()} == {"cuda"}
