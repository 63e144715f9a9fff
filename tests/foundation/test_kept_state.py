"""What is kept is restored to the bit and in place, any number of times."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import nn

from cadenza.foundation.generators import RngStates, capture, pack, put_back, same, unpack
from cadenza.foundation.kept_state import KeptState, buffers_kept

CPU = torch.device("cpu")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):

        def closure() -> float:
            optimizer.zero_grad()
            loss = model(torch.rand(5, 3)).square().mean()
            loss.backward()
            return float(loss.detach())

        optimizer.step(closure)


def all_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), model.training))


def identities(optimizer: torch.optim.Optimizer) -> list[int]:
    return [id(value) for state in optimizer.state.values() for value in (state, *state.values())]


def optimizers_of(model: nn.Module) -> list[torch.optim.Optimizer]:
    lr = torch.tensor(0.1)
    return [
        torch.optim.Adam(model.parameters(), lr=lr, foreach=False, capturable=False),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        torch.optim.LBFGS(model.parameters(), max_iter=2),  # its state holds lists that grow
    ]


def test_a_training_goes_on_as_if_the_steps_between_had_not_been() -> None:
    for number in range(3):
        torch.manual_seed(1)
        model = net()
        optimizer = optimizers_of(model)[number]
        train(model, optimizer, 2)
        before, objects = all_of(model, optimizer), identities(optimizer)
        kept = KeptState(CPU)
        kept.keep_training(model, [optimizer], CPU)
        after: list[Any] = []
        for _ in range(2):
            train(model.eval(), optimizer, 3)
            optimizer.param_groups[0]["added"] = 1
            after.append(all_of(model, optimizer))
            kept.restore()
            torch.testing.assert_close(all_of(model, optimizer), before, rtol=0, atol=0)
            assert identities(optimizer)[:1] == objects[:1]
        torch.testing.assert_close(after[0], after[1], rtol=0, atol=0)  # the random numbers were restored as well


def test_an_optimizer_that_had_no_state_has_none_again() -> None:
    model = net()
    for optimizer in optimizers_of(model):
        with KeptState() as kept:
            kept.keep_training(model, [optimizer], CPU)
            train(model, optimizer, 1)
            assert optimizer.state
        assert not optimizer.state


def test_objects_in_a_state_are_copied_and_may_be_changed_twice() -> None:
    state: dict[str, Any] = {"numbers": {1, 2}, "many": [1, {"a": torch.ones(1)}]}
    many, kept = state["many"], KeptState()
    kept.keep_tree(state)
    for _ in range(2):
        state["numbers"].add(3)
        state["many"].append(5)
        state["many"][1]["a"].zero_()
        state["new"] = 1
        kept.restore()
        assert state == {"numbers": {1, 2}, "many": [1, {"a": torch.ones(1)}]}
        assert state["many"] is many


def test_settings_that_are_added_stay_if_they_may() -> None:
    optimizer = torch.optim.SGD(net().parameters(), lr=0.5)
    kept = KeptState()
    kept.keep_settings(optimizer, added=True)
    optimizer.param_groups[0].update(lr=0.1, initial_lr=0.5)
    kept.restore()
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["initial_lr"]) == (0.5, 0.5)


def test_buffers_are_as_before_a_forward_that_replaced_them() -> None:
    norm = nn.BatchNorm1d(2)
    mean, count = norm.running_mean, norm.num_batches_tracked
    assert mean is not None
    assert count is not None
    with buffers_kept(norm):
        norm(torch.rand(4, 2))
        norm.running_mean = torch.full((2,), 7.0)
    assert norm.running_mean is mean
    assert mean.tolist() == [0.0, 0.0]
    assert int(count) == 0


def test_packed_states_of_earlier_versions_are_read() -> None:
    mine = random.Random(3)
    before = capture([mine])
    version, numbers, gauss = mine.getstate()
    python_version, python_numbers, python_gauss = random.getstate()
    earlier = {
        "torch": torch.get_rng_state(),
        "python": {"tuple": [python_version, {"ints": torch.tensor(python_numbers)}, python_gauss]},
        "numpy": None,
        "own": [{"tuple": [version, {"ints": torch.tensor(numbers)}, gauss]}],
    }
    drawn = (mine.random(), random.random(), float(torch.rand(())))
    found = unpack(earlier)
    assert found is not None
    assert same(found, before)
    assert not same(found, capture())
    put_back(found, [mine])
    assert (mine.random(), random.random(), float(torch.rand(()))) == drawn
    torch.testing.assert_close(pack(before)["own"], earlier["own"], rtol=0, atol=0)


def test_states_of_objects_alone_leave_the_generators_of_the_process() -> None:
    mine = random.Random(3)
    alone = unpack(pack(RngStates({}, capture([mine]).own)))
    assert alone is not None
    assert alone.rng == {}
    before, drawn = capture(), mine.random()
    put_back(alone, [mine])
    assert same(before, capture())
    assert mine.random() == drawn
