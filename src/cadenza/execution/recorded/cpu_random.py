"""The random numbers of a compiled step: on the CPU they are drawn before it, as the step itself would draw them.

A compiler may draw in another order, or fill memory that is laid out in another way, and the numbers would be others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from cadenza.execution.recorded.recording import CannotRecord
from cadenza.foundation.torch_private import OpOverload, arguments_of, tree_leaves

Draw = Callable[[], Tensor]


def take_out(graph: GraphModule) -> list[Draw]:
    """Takes the draws out of ``graph``, which gets one more input for each. Returns them in their order.

    Raises ``CannotRecord`` if what is drawn depends on values that are known only inside the step.
    """
    draws: list[Draw] = []
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node in list(graph.graph.nodes):
        if _is_random(node):
            draws.append(_draw_of(node))
            with graph.graph.inserting_after(inputs[-1]):
                inputs.append(graph.graph.placeholder(f"drawn_{len(draws)}"))
            inputs[-1].meta = dict(node.meta)
            _replace(node, inputs[-1])
    if draws:
        graph.recompile()
    return draws


def with_draws(compiled: Callable[..., Any], draws: list[Draw]) -> Callable[..., Any]:
    """``compiled``, which draws its last inputs itself."""
    if not draws:
        return compiled
    return lambda *inputs: compiled(*inputs, *[draw() for draw in draws])


def _is_random(node: Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    made = tree_leaves(node.meta.get("val"))
    on_gpu = any(isinstance(value, Tensor) and value.device.type != "cpu" for value in made)
    seeded = torch.Tag.nondeterministic_seeded in node.target.tags or _name(node) == "random_"
    return seeded and not on_gpu and not _is_without_dropout(node)


def _is_without_dropout(node: Node) -> bool:
    """An attention, which draws nothing then."""
    for place, argument in enumerate(arguments_of(node.target)):
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return bool(given == 0)
    return False


def _draw_of(node: Node) -> Draw:
    """Draws what ``node`` draws, into memory of the same layout; what was in it before does not count."""
    target: Any = node.target
    drawn = node.meta["val"]
    if not node.all_input_nodes:
        return partial(target, *node.args, **node.kwargs)
    if node.all_input_nodes != [node.args[0]] or not (_is_in_place(node) or _name(node).endswith("_like")):
        raise CannotRecord(f"the step draws random numbers by {target}, from values that are known only inside it")
    size, stride, dtype = drawn.shape, drawn.stride(), drawn.dtype
    args, kwargs = node.args[1:], node.kwargs

    def draw() -> Tensor:
        result: Tensor = target(torch.empty_strided(size, stride, dtype=dtype), *args, **kwargs)
        return result

    return draw


def _name(node: Node) -> str:
    return str(node.target).split(".")[1]


def _is_in_place(node: Node) -> bool:
    return _name(node).endswith("_")


def _replace(node: Node, drawn: Node) -> None:
    graph = node.graph
    if _is_in_place(node):
        with graph.inserting_before(node):
            filled = graph.call_function(torch.ops.aten.copy_.default, (node.args[0], drawn))
        filled.meta = dict(node.meta)
        drawn = filled
    node.replace_all_uses_with(drawn)
    graph.erase_node(node)
