"""Random numbers that are taken out of a traced step are those that it would have drawn itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from cadenza.execution.recorded.cpu_random import take_out, with_draws
from cadenza.execution.recorded.recording import CannotRecord


def several(x: Tensor) -> Tensor:
    dropped = nn.functional.dropout(x.t(), 0.4)
    return dropped.t() * torch.rand_like(x) + torch.randn(4) + torch.randint(0, 9, (6, 1)) + torch.randperm(4)


def in_place(x: Tensor) -> Tensor:
    made = x.clone()
    made[:, ::2].normal_(2.0, 0.5)
    return made * torch.empty(3, 4, 6).permute(1, 2, 0).exponential_().sum(-1).t() + torch.empty(4).random_(5)


def attention(x: Tensor) -> Tensor:
    parts = x.view(1, 1, 6, 4)
    return nn.functional.scaled_dot_product_attention(parts, parts, parts) + torch.rand(4)


def nothing(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(("function", "count"), [(several, 5), (in_place, 3), (attention, 1), (nothing, 0)])
def test_the_numbers_are_the_same(function: Callable[[Tensor], Tensor], count: int) -> None:
    x = torch.arange(24.0).view(6, 4)
    graph = make_fx(function, tracing_mode="real")(x)
    draws = take_out(graph)
    assert len(draws) == count
    played = with_draws(graph, draws)
    for seed in range(3):
        torch.manual_seed(seed)
        expected, after = function(x), torch.rand(1)
        torch.manual_seed(seed)
        assert torch.equal(played(x), expected)
        assert torch.equal(torch.rand(1), after)


def test_none_is_drawn_inside_any_more() -> None:
    graph = make_fx(several, tracing_mode="real")(torch.zeros(6, 4))
    draws = [draw() for draw in take_out(graph)]
    torch.manual_seed(0)
    first = graph(torch.zeros(6, 4), *draws)
    torch.manual_seed(1)
    assert torch.equal(first, graph(torch.zeros(6, 4), *draws))


@pytest.mark.parametrize(
    "function", [lambda x: torch.bernoulli(x / 24), lambda x: torch.multinomial(x, 2), lambda x: torch.poisson(x)]
)
def test_numbers_that_depend_on_values_stay_inside(function: Callable[[Tensor], Tensor]) -> None:
    graph = make_fx(function, tracing_mode="real")(torch.arange(24.0).view(6, 4))
    with pytest.raises(CannotRecord, match=r"draws random numbers by aten\.\w+.*, from values"):
        take_out(graph)


def test_on_a_device_they_stay_inside_whatever_form_they_have() -> None:
    graph = make_fx(lambda x: torch.native_dropout(x, 0.5, True), tracing_mode="real")(torch.zeros(6, 4, device="meta"))
    assert take_out(graph) == []
