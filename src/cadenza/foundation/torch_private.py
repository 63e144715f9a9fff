"""Uses what torch does not document: the only module that touches its private names.

Each name here may change with any release of torch, and ``tests/foundation/test_torch_private.py`` has a test for each
that fails if it does. A public way takes its place as soon as there is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._ops import OpOverload as OpOverload
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory as pin_memory

# Many tensors in one call. They are torch's own functions, so that a step is not one call longer. -------------------

foreach_add = torch._foreach_add
foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_lerp_ = torch._foreach_lerp_
foreach_mul = torch._foreach_mul
foreach_mul_ = torch._foreach_mul_
foreach_neg = torch._foreach_neg
foreach_norm = torch._foreach_norm
foreach_sub_ = torch._foreach_sub_
fused_adam_: Callable[..., None] = torch._fused_adam_
fused_adamw_: Callable[..., None] = torch._fused_adamw_

# Tensors ------------------------------------------------------------------------------------------------------------

version_of: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor was changed in place. Autograd counts it; an inference tensor has none and raises."""

# Schedulers ---------------------------------------------------------------------------------------------------------


def inner_schedulers(scheduler: object) -> list[Any]:
    """Those that a ``SequentialLR`` or ``ChainedScheduler`` calls; none of another."""
    return list(getattr(scheduler, "_schedulers", ()))


# Modules ------------------------------------------------------------------------------------------------------------

PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
TABLES = (PARAMETERS, BUFFERS, MODULES, "_non_persistent_buffers_set")
"""Attributes in which a module holds its parts."""


BatchNorm = nn.modules.batchnorm._BatchNorm
"""What all kinds of ``nn.BatchNorm`` derive from."""
RunningNorm = nn.modules.batchnorm._NormBase
"""What all norms with running statistics derive from."""


def tables_of(module: nn.Module, *names: str) -> dict[str, dict[str, Any]]:
    """Where it holds its parts; those of a scripted module cannot be replaced, so there is nothing to look at."""
    tables = {name: vars(module).get(name) for name in names}
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


def parameters_in(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The table in which a module itself holds its parameters, to look at or to replace them, without those inside."""
    return module._parameters


def buffers_in(module: nn.Module) -> dict[str, Tensor | None]:
    """The table in which a module itself holds its buffers; also those that are None."""
    return module._buffers


def compiled_call(module: nn.Module) -> Any:
    """What ``module.compile()`` calls in place of the forward; None if it was not compiled."""
    return module._compiled_call_impl


def set_compiled_call(module: nn.Module, call: Any) -> None:
    """Undoes ``module.compile()``, which torch cannot."""
    module._compiled_call_impl = call


def versions_in(state: Any) -> Any:
    """The versions of the modules that ``state_dict()`` writes on its dict and ``load_state_dict`` looks at."""
    return getattr(state, "_metadata", None)


def set_versions(state: Any, versions: Any) -> None:
    state._metadata = versions


# Optimizers ---------------------------------------------------------------------------------------------------------


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether something was registered with ``register_step_pre_hook`` or ``register_step_post_hook``."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def step_quickly(optimizer: Optimizer) -> None:
    """``optimizer.step()`` without what torch wraps around it for hooks and profilers, if there are none. Torch marks
    the wrapper as ``hooked``, and it holds the step itself as ``__wrapped__``."""
    step = type(optimizer).step
    if (
        getattr(step, "hooked", False)
        and not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        and not (_global_optimizer_pre_hooks or _global_optimizer_post_hooks)
        and "step" not in vars(optimizer)  # as a scheduler replaces it, to see whether it was called
        and not _profiler_enabled()
    ):
        step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    else:
        optimizer.step()


def step_traced(optimizer: Optimizer) -> None:
    """``optimizer.step()`` as torch's compiler sees it: without records for profilers, and nothing is read. Torch's
    optimizers ask ``torch.compiler.is_compiling()``, which reads the flag, whether they may read a tensor."""
    flag = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    finally:
        torch.compiler._is_compiling_flag = flag


def pass_on_scheduler_mark(inner: Any, step: Any) -> None:
    """Marks ``step``, which takes the place of ``inner``, as counted, if that is: torch's schedulers look for it and
    warn of an optimizer whose step was replaced."""
    if hasattr(inner, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True


def note_step(optimizer: Optimizer) -> None:
    """Tells torch's schedulers that the optimizer was stepped, as its wrapped step does."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def schedulers_in(scheduler: Any) -> tuple[list[Any], list[int]]:
    """The parts of a ``SequentialLR`` or ``ChainedScheduler``, and when the next one takes over."""
    return list(scheduler._schedulers), list(getattr(scheduler, "_milestones", ()))


def keep_quiet_about_capturable(optimizer: Optimizer) -> None:
    """Keeps an optimizer with ``capturable=True`` from warning of each step that is not captured."""
    optimizer._warned_capturable_if_run_uncaptured = True


def found_infs(scaler: Any, optimizer: Optimizer) -> Iterable[Tensor]:
    """Whether gradients of ``optimizer`` were not finite when ``scaler`` unscaled them: one tensor a device, above 0 if
    so. The public way to ask, the scale after the update, comes too late to step all optimizers or none."""
    found: dict[Any, Tensor] = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return found.values()


# Loaders ------------------------------------------------------------------------------------------------------------


def live_iterator(loader: DataLoader[Any] | None) -> Any:
    """The iterator that a DataLoader with persistent workers keeps from one pass to the next, or None."""
    return None if loader is None else loader._iterator


def replace_parts(loader: DataLoader[Any], **parts: Any) -> None:
    """Gives a copy of a DataLoader other parts and an iterator of its own. A DataLoader refuses to have them set, with
    good reason for the user's own."""
    loader.__dict__.update(_iterator=None, **parts)


def end_workers(iterator: Any) -> None:
    """Ends the workers of a DataLoader's iterator now, if it has any. Left to the garbage collector, they would live as
    long as the traceback of an error, and an interpreter that ends waits for them."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


def collates_tensors_plainly() -> bool:
    """Whether ``default_collate`` stacks tensors as torch does; a program may have registered another function."""
    return default_collate_fn_map.get(Tensor) is collate_tensor_fn


# Processes ----------------------------------------------------------------------------------------------------------


def broadcast_together(tensors: list[Tensor], at_once: int) -> None:
    """Gives all processes the tensors of rank 0, packed into messages of ``at_once`` bytes, as DDP does for buffers."""
    dist._broadcast_coalesced(dist.group.WORLD, tensors, at_once, 0)  # type: ignore[attr-defined, arg-type]


def communication_hooks(model: Any) -> Any:
    """What was registered with ``register_comm_hook`` of DistributedDataParallel; nothing for another module."""
    return getattr(model, "_comm_hooks", None)


# Graphs and the compiler --------------------------------------------------------------------------------------------

COMPILER = "torch._dynamo"
"""The module of the compiler, which takes seconds to import."""


def cpu_attention() -> Any:
    """The operation that ``scaled_dot_product_attention`` chooses on a CPU."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def arguments_of(operation: Any) -> list[Any]:
    """The parameters of an operation, each with ``name`` and ``default_value``."""
    found: list[Any] = operation._schema.arguments
    return found


def compile_graph(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
    """The compiled form of ``graph``. Random numbers are drawn as they would be without the compiler."""
    from torch._inductor import compile as inductor
    from torch._inductor import config

    with torch.no_grad(), config.patch(fallback_random=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler about itself
        compiled: Callable[..., Any] = inductor(graph, list(inputs))
        return compiled


def end_allocating_to_pool(device: torch.device, pool: Any) -> None:
    """Ends what a capture began that failed: allocations of a CUDA device go to its pool no longer."""
    torch._C._cuda_endAllocateToPool(device.index or 0, pool)
