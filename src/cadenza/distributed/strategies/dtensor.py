"""Tensors that are spread over processes: made whole for a checkpoint, and cut into parts again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.foundation.tree import leaves, map_with_path, with_notes

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from cadenza.run import Run


def is_spread(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def stays_spread(value: Any) -> bool:
    """Whether each process stores its own chunk of ``value``: it lies along one line of processes, cut or whole."""
    return is_spread(value) and value.device_mesh.ndim == 1 and not value.placements[0].is_partial()


def holds_spread(tree: Any) -> bool:
    """Whether a tensor in ``tree`` is spread over processes."""
    return holds(tree, is_spread)


def holds(tree: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether there is a ``wanted`` value in ``tree``."""
    return any(wanted(leaf) for _, leaf in leaves(tree))


def made_whole(tree: Any, *, keep: bool, left: Callable[[Any], bool] | None = None) -> Any:
    """``tree`` with whole tensors in main memory in the place of those that are spread, but for those that are to be
    ``left`` so. All processes must call this;
    one that does not ``keep`` has one whole tensor at a time, and gets ``tree`` back."""

    def gather(tensor: Any, path: tuple[Any, ...]) -> Any:
        whole = tensor.detach().full_tensor()
        return whole.cpu() if keep else tensor

    return replaced(tree, is_spread if left is None else lambda value: is_spread(value) and not left(value), gather)


def replaced(tree: Any, wanted: Callable[[Any], bool], make: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """``tree`` with what ``make`` gives for each ``wanted`` value at its path; what holds none is left as it is."""
    return map_with_path(tree, lambda path, leaf: make(leaf, path) if wanted(leaf) else leaf, rebuild=with_notes)


def cut(value: Any, like: Any) -> Any:
    """This process's part of a whole tensor, spread as ``like`` is; what is not spread is left as it is."""
    if not is_spread(like) or is_spread(value) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    # every process has the whole, so nothing is sent
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def cut_state(run: Run, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with the tensors of model, optimizers and gradients spread as those of the run are."""
    now = run.module.state_dict()
    parameters = dict(run.module.named_parameters())
    if not holds_spread(now):
        return state
    optimizers = [_cut_optimizer(*pair) for pair in zip(run.optimizers, state["optimizers"], strict=False)]
    return {
        **state,
        "model": with_notes(state["model"], _cut_each(state["model"], now).items()),
        "gradients": _cut_each(state["gradients"], parameters),
        "optimizers": optimizers + state["optimizers"][len(optimizers) :],
    }


def _cut_each(values: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cut(value, like.get(name)) for name, value in values.items()}


def _cut_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    spread = {
        number: {name: cut(value, parameters[int(number)]) for name, value in one.items()}
        for number, one in state["state"].items()
    }
    return {**state, "state": spread}
