"""Where graphs read their batch and leave their losses; the same code on any device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cadenza.engine.running_mean import Mean
from cadenza.engine.state import OnPage
from cadenza.execution.recorded import graph_buffers
from cadenza.execution.recorded.graph_buffers import LINES, Inputs, Losses, common_word
from cadenza.foundation.tree import tensors_of, with_tensors

PAIR = (torch.randn(4, 3), torch.arange(4))
TOGETHER: dict[str, tuple[Any, torch.dtype]] = {
    "numbers and classes": (PAIR, torch.int32),
    "a list": ([torch.randn(4, 3), torch.randn(4)], torch.int32),
    "nested": ({"x": torch.randn(2, 2), "more": [torch.ones(2), "a", 3]}, torch.int32),
    "a mask": ((torch.randn(4, 3), torch.tensor([True, False, True, True])), torch.uint8),
    "half precision": ((torch.randn(4, 3).bfloat16(), torch.randn(4).double()), torch.int16),
    "whole numbers": ((torch.arange(6).view(2, 3), torch.arange(2)), torch.int64),
    "two views and no target": (([torch.randn(4, 3), torch.randn(4, 3)], None), torch.int32),
    "by name, and a text": (({"x": torch.randn(4, 3), "y": torch.arange(4)}, "train"), torch.int32),
    "nothing in it": ((torch.randn(0, 3), torch.randn(0)), torch.int32),
    "wants gradients": ((torch.randn(4, 3, requires_grad=True), torch.arange(4)), torch.int32),
}
APART: dict[str, Any] = {
    "one tensor": (torch.randn(4, 3),),
    "one tensor and a text": ([torch.randn(4, 3)], "train"),
    "wants gradients, turned": (torch.randn(3, 4, requires_grad=True).t(), torch.arange(4)),
    "a number": (torch.randn(4, 3), torch.tensor(1.0)),
    "turned": (torch.randn(3, 4).t(), torch.arange(4)),
    "expanded": (torch.randn(1, 3).expand(4, 3), torch.arange(4)),
    "every other": (torch.randn(4, 3), torch.arange(8)[::2]),
    "a column of a table": (torch.randn(4, 3)[:, :1], torch.arange(4)),
    "one row, far apart": (torch.randn(1, 6)[:, ::6], torch.arange(1)),
    "complex": (torch.randn(4, dtype=torch.complex64), torch.arange(4)),
    "large": (torch.randn(graph_buffers.SMALL), torch.arange(4)),
}


def like(batch: Any) -> Any:
    """Another batch of the same shapes and strides."""

    def other(tensor: Tensor) -> Tensor:
        if 0 in tensor.stride():
            return torch.randn(1, 3).expand(4, 3)
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return made.copy_(tensor.detach().flip(0)).requires_grad_(tensor.requires_grad)

    return with_tensors(batch, other)


@pytest.mark.parametrize("name", [*TOGETHER, *APART])
def test_takes_every_batch_of_its_shapes(name: str) -> None:
    batch = TOGETHER[name][0] if name in TOGETHER else APART[name]
    inputs = Inputs(batch)
    for given in (like(batch), batch):
        inputs.take(given)
        taken = list(tensors_of(inputs.batch))
        assert all(torch.equal(mine, one) for mine, one in zip(taken, tensors_of(given), strict=True))
        assert not any(tensor.requires_grad for tensor in [*taken, *inputs.tensors])


@pytest.mark.parametrize("name", TOGETHER)
def test_small_batches_are_taken_in_one_call(name: str) -> None:
    batch, word = TOGETHER[name]
    assert common_word(list(tensors_of(batch))) is word


@pytest.mark.parametrize("name", APART)
def test_others_are_taken_one_by_one(name: str) -> None:
    assert common_word(list(tensors_of(APART[name]))) is None


def test_what_it_was_made_of_stays_as_it_is() -> None:
    batch = (torch.zeros(3), torch.zeros(3, dtype=torch.int64))
    Inputs(batch).take((torch.ones(3), torch.ones(3, dtype=torch.int64)))
    assert not batch[0].any()
    assert not batch[1].any()


def steps(losses: Losses, values: list[float]) -> list[OnPage]:
    return [losses.of(lambda value=value: losses.write(torch.tensor(value))) for value in values]  # type: ignore[misc]


def test_a_loss_stands_over_many_pages() -> None:
    values = [float(number) for number in range(3 * LINES + 5)]
    found = steps(Losses(torch.tensor(0.0)), values)
    assert [one.look().item() for one in found] == values


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 1e-45])
def test_a_loss_is_written_as_it_is(value: float) -> None:
    losses = Losses(torch.tensor(0.0))
    first, second, third = steps(losses, [1.0, value, 2.0])
    written = second.copy()
    assert torch.equal(written.view(torch.int32), torch.tensor(value).view(torch.int32))
    assert (first.copy().item(), third.copy().item()) == (1.0, 2.0)


def test_a_copy_is_nobody_elses() -> None:
    losses = Losses(torch.tensor(0.0))
    (found,) = steps(losses, [1.0])
    copy = found.copy()
    steps(losses, [2.0] * (2 * LINES))
    assert copy.item() == 1.0
    copy.add_(1)
    assert found.look().item() == 1.0


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("before", [0, 5, LINES - 1, LINES, LINES + 1])
def test_a_step_that_is_broken_off_moves_no_other_loss(before: int, written: bool) -> None:
    """By Ctrl-C for example, which may come when the device has its work already."""
    losses = Losses(torch.tensor(0.0))
    values = [float(number) for number in range(before)]
    found = steps(losses, values)

    def broken_off() -> None:
        if written:
            losses.write(torch.tensor(-1.0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        losses.of(broken_off)
    found += steps(losses, [float(number) for number in range(before, 2 * LINES)])
    assert [one.look().item() for one in found] == [float(number) for number in range(2 * LINES)]


@pytest.mark.parametrize("count", [1, LINES, LINES + 1, 700])  # a mean folds what it holds after 512
def test_the_mean_is_that_of_plain_losses(count: int) -> None:
    torch.manual_seed(0)
    values = torch.rand(count).tolist()
    plain, paged = Mean(), Mean()
    losses = Losses(torch.tensor(0.0))
    for value in values:
        plain.add(torch.tensor(value), 3)
        paged.add(steps(losses, [value])[0], 3)
    one, other = plain.value(), paged.value()
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)


def test_the_state_of_a_mean_does_not_change_afterwards() -> None:
    losses, mean = Losses(torch.tensor(0.0)), Mean()
    mean.add(steps(losses, [1.0])[0], 2)
    mean.add(torch.tensor(2.0, dtype=torch.float64), 2)  # of another kind, so that they are not stacked
    state = mean.state_dict()
    steps(losses, [5.0] * (2 * LINES))
    assert [float(loss) for loss in state["losses"]] == [1.0, 2.0]
    resumed = Mean()
    resumed.load_state_dict(state, torch.device("cpu"))
    value = resumed.value()
    assert value is not None
    assert value.item() == 1.5
