"""The model spread over all processes: each keeps a part of every parameter, its gradient and its optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.optim import Optimizer

from cadenza.distributed.agreement.process_group import ProcessGroup
from cadenza.distributed.sharded.sharding import put_back
from cadenza.distributed.strategies.dtensor import cut_state
from cadenza.distributed.strategies.strategy import Together, same_everywhere
from cadenza.foundation.arguments import among, one_of

if TYPE_CHECKING:
    from cadenza.run import Run

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class FSDP(Together):
    """``fully_shard`` (FSDP2). Each process keeps one part of the weights and gathers the rest while it needs it.

    ``units`` says what is gathered at once: classes of modules, such as ``[nn.TransformerEncoderLayer]``; without it
    every member of a ``ModuleList``, and the rest together. ``mixed_precision`` is "bf16", "fp16" or a
    ``MixedPrecisionPolicy``: with a text, gradients are still added up in float32. ``offload=True`` keeps the parts on
    the CPU. The optimizers that the trainer got are made to hold the parts. With ``checkpoints="sharded"`` each process
    writes its own part of a checkpoint, into a folder that all of them reach; with ``"whole"`` rank 0 gathers and
    writes all, for folders that only its machine has. ``timeout`` and ``debug`` are as in DDP.

    >>> FSDP(mixed_precision="bf16").policy.param_dtype
    torch.bfloat16
    """

    name = "fsdp"
    lockstep = True

    def __init__(
        self,
        *,
        units: Iterable[type[nn.Module]] | None = None,
        mixed_precision: str | MixedPrecisionPolicy | None = None,
        reshard_after_forward: bool | int | None = None,
        offload: bool = False,
        checkpoints: str = "sharded",
        timeout: float = 1800.0,
        debug: bool | None = None,
    ) -> None:
        if isinstance(mixed_precision, str):
            among("mixed_precision", mixed_precision, _FORMATS)
            mixed_precision = MixedPrecisionPolicy(_FORMATS[mixed_precision], torch.float32)
        one_of("checkpoints", checkpoints, ("sharded", "whole"))
        self.sharded = checkpoints == "sharded"
        self.policy = mixed_precision or MixedPrecisionPolicy()
        self.units = None if units is None else tuple(units)
        self.reshard_after_forward, self.offload = reshard_after_forward, offload
        self.timeout, self.debug = timeout, debug

    def spread(self, run: Run, ensemble: ProcessGroup) -> None:
        if ensemble.model is None:
            same_everywhere(run.module)
            before = dict(run.module.named_parameters(remove_duplicate=False))
            self._shard(run.module, run.device)
            for optimizer in run.optimizers:
                follow_parameters(optimizer, before, dict(run.module.named_parameters(remove_duplicate=False)))
            run.module.register_forward_pre_hook(_Syncing(ensemble), prepend=True)
            ensemble.model = run.module
        run.model = ensemble.model

    def taken(self, run: Run, state: dict[str, Any]) -> dict[str, Any]:
        return cut_state(run, put_back(run, state) if "shards" in state else state)

    def _shard(self, module: nn.Module, device: torch.device) -> None:
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        offload = CPUOffloadPolicy() if self.offload else OffloadPolicy()
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": self.policy, "offload_policy": offload}
        # the root as well: otherwise an evaluation would leave it gathered, and who changes weights then changes a copy
        options["reshard_after_forward"] = True if self.reshard_after_forward is None else self.reshard_after_forward
        for part in self._parts(module):
            fully_shard(part, **options)
        fully_shard(module, **options)

    def _parts(self, module: nn.Module) -> list[nn.Module]:
        """What is gathered at once, innermost first."""
        if self.units is not None:
            return [part for part in reversed(list(module.modules())) if isinstance(part, self.units)]
        lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
        return [member for part in reversed(lists) for member in part if any(True for _ in member.parameters())]


class _Syncing:
    """Before each forward: whether the gradients of its backward are put together."""

    def __init__(self, ensemble: ProcessGroup) -> None:
        self.ensemble = ensemble

    def __call__(self, module: nn.Module, *_: Any) -> None:
        run = self.ensemble.run
        if run is not None and run.stage == "train" and torch.is_grad_enabled() and isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(self.ensemble.syncs(run))


def follow_parameters(optimizer: Optimizer, before: Mapping[str, Tensor], after: dict[str, Any]) -> None:
    """Lets ``optimizer`` hold the parameters that took the places of those it was made with, and its state too."""
    places = {id(parameter): name for name, parameter in before.items()}
    for group in optimizer.param_groups:
        for place, old in enumerate(group["params"]):
            name = places.get(id(old))
            if name is None:
                raise ValueError(
                    "the optimizer holds a parameter that is not in the model, which FSDP cannot spread: make it from "
                    "model.parameters()"
                )
            new = group["params"][place] = after[name]
            if old in optimizer.state:
                optimizer.state[new] = _spread_state(optimizer.state.pop(old), new)


def _spread_state(state: dict[str, Any], like: Any) -> dict[str, Any]:
    """Tensors of the parameter's shape are spread as it is; others, such as the number of steps, stay."""
    return {
        key: distribute_tensor(value, like.device_mesh, like.placements)
        if isinstance(value, Tensor) and value.shape == like.shape
        else value
        for key, value in state.items()
    }
