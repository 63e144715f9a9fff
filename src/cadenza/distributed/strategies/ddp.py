"""The whole model in each process, gradients averaged over all."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cadenza.distributed.agreement.process_group import ProcessGroup
from cadenza.distributed.strategies.piggyback import Carrier, Ears, Ride
from cadenza.distributed.strategies.reduction import Buffers, Reduction
from cadenza.distributed.strategies.strategy import Together, on_cuda, same_everywhere, trained
from cadenza.foundation.arguments import flags
from cadenza.foundation.torch_private import communication_hooks
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run


_ONE_BUCKET = 25 * 2**20
"""Gradients of so many bytes go into one bucket, and nothing of their way is hidden behind the backward."""


class DDP(Together):
    """``DistributedDataParallel``. Gradients that are held for a later batch are not reduced before that; evaluation
    calls the module itself, so that processes may have different numbers of batches.

    The flags are those of ``DistributedDataParallel``. ``timeout`` is how many seconds a collective may take.
    ``debug=True`` (or the variable ``CADENZA_DEBUG``) raises when a callback that is not on all ranks begins a
    collective. With ``failure_channel=False`` a process does not hear of another one's failure: it waits until the
    timeout of the collective (see docs/scale.md).

    >>> DDP(static_graph=True)
    DDP(static_graph=True)
    """

    name = "ddp"

    def __init__(
        self,
        *,
        static_graph: bool = False,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
        timeout: float = 1800.0,
        debug: bool | None = None,
        failure_channel: bool = True,
    ) -> None:
        self.flags: dict[str, Any] = {
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "broadcast_buffers": broadcast_buffers,
        }
        flags(**{f"DDP: {name}": flag for name, flag in {**self.flags, "failure_channel": failure_channel}.items()})
        self.failure_channel = failure_channel
        self.bucket_cap_mb, self.timeout, self.debug = bucket_cap_mb, timeout, debug

    def spread(self, run: Run, ensemble: ProcessGroup) -> None:
        if run.mode == "fit" and any(trained(run.module)):
            warn_of_strangers(run)
            self.wrap(run, ensemble)
        elif not ensemble.wrapped and not ensemble.evaluated:
            ensemble.evaluated = True
            same_everywhere(run.module)

    def wrap(self, run: Run, ensemble: ProcessGroup) -> None:
        """Wraps the module, anew if other parameters are trained than before: DDP waits for each it knows of."""
        if ensemble.model is None or ensemble.trained != trained(run.module):
            ensemble.model = ensemble.ride = run.model = None  # type: ignore[assignment]
            module = Carrier(run.module) if self._rides(run) else run.module
            ensemble.model = Wrapped(
                module,
                ensemble,
                device_ids=on_cuda(run.device),
                bucket_cap_mb=self.bucket_cap_mb,
                init_sync=not ensemble.wrapped,
                **as_torch_names(self.flags),
            )
            ensemble.ride = Ride(module, ensemble.world.world_size) if isinstance(module, Carrier) else None
            ensemble.wrapped = True
            note_trained(run.module, ensemble)
        run.model = ensemble.model

    def _rides(self, run: Run) -> bool:
        """Whether numbers can go along with the gradients, in all steps."""
        real = any(one.requires_grad and one.is_floating_point() for one in run.module.parameters())
        return real and not self.flags["find_unused_parameters"] and run.plan.is_default("on_iter_backward")

    def refresh(self, run: Run, ensemble: ProcessGroup) -> None:
        if ensemble.reduction is None:
            self.wrap(run, ensemble)
        elif ensemble.trained != trained(run.module):
            self.reduce_apart(run, ensemble)

    def why_not_recorded(self, run: Run, mode: str) -> str | None:
        if mode == "compiled" or run.world_size == 1:
            return super().why_not_recorded(run, mode)
        if self.flags["find_unused_parameters"]:
            return "find_unused_parameters looks in each step which parameters have gradients"
        if self.flags["static_graph"]:
            return "static_graph lets torch find out in its first step which parameters have gradients"
        if communication_hooks(run.model):
            return "a hook of DistributedDataParallel puts the gradients together"
        if any(isinstance(one, nn.SyncBatchNorm) for one in run.module.modules()):
            return "SyncBatchNorm talks to the other processes in the midst of a step"
        size = sum(one.numel() * one.element_size() for one in run.module.parameters() if one.requires_grad)
        if mode == "auto" and size > _ONE_BUCKET:
            return (
                f"gradients of {size / 2**20:.0f} MiB are put together while the backward runs, which is not recorded "
                '(execution="captured" does both, one after the other)'
            )
        return None

    def reduce_apart(self, run: Run, ensemble: ProcessGroup) -> None:
        if ensemble.reduction is None:
            ensemble.model = ensemble.ride = run.model = None  # type: ignore[assignment]
            gc.collect()  # what torch keeps of a wrapped module ties its backward to a stream that cannot be recorded
            ensemble.buffers = Buffers(run.module) if self.flags["broadcast_buffers"] else None
            run.model = Unwrapped(run.module, ensemble)
        # steps that were recorded before talk as they did then, so all of a run must count as one
        ears = Ears() if ensemble.reduction is None else ensemble.reduction.ears
        ensemble.reduction = Reduction(run.module, ensemble.world.world_size, ears)
        note_trained(run.module, ensemble)

    def reduce_along(self, ensemble: ProcessGroup) -> None:
        ensemble.reduction = ensemble.buffers = None

    def __repr__(self) -> str:
        chosen = {name: flag for name, flag in self.flags.items() if flag != (name == "broadcast_buffers")}
        return f"DDP({', '.join(f'{name}={flag}' for name, flag in chosen.items())})"


def note_trained(module: nn.Module, ensemble: ProcessGroup) -> None:
    ensemble.trained = trained(module)
    ensemble.frozen = {name: one for name, one in module.named_parameters() if not one.requires_grad}


def warn_of_strangers(run: Run) -> None:
    """Tells of trained parameters whose gradients are not put together, such as those of a criterion."""
    known = {id(one) for one in run.module.parameters()}
    groups = [group for optimizer in run.optimizers for group in optimizer.param_groups]
    strangers = [one for group in groups for one in group["params"] if one.requires_grad and id(one) not in known]
    if strangers and run.is_main:
        warn(
            f"the optimizers train parameters that are not in the model ({len(strangers)}), and DDP does not put their "
            "gradients together, so each process will have its own: make them part of the model"
        )


def refuse_thawed(ensemble: ProcessGroup, run: Run) -> None:
    """Gradients of what was frozen when a training pass began are not put together in it."""
    thawed = next((name for name, one in ensemble.frozen.items() if one.requires_grad), None)
    if thawed is not None and run.is_iterating:
        raise RuntimeError(
            f"{thawed} is trained from the midst of an epoch on, but DDP puts together the gradients of what is "
            "trained at its beginning, so the processes would drift apart: change requires_grad between two epochs "
            '(Freeze(until="2 epochs"))'
        )


def as_torch_names(flags: dict[str, Any]) -> dict[str, Any]:
    """``flags`` as DistributedDataParallel calls them: from torch 2.13 on one of them has another name.

    >>> list(as_torch_names({"static_graph": True}))
    ['static_graph']
    """
    known = inspect.signature(DistributedDataParallel).parameters
    other = {"broadcast_buffers": "forward_sync_buffers"} if "forward_sync_buffers" in known else {}
    return {other.get(name, name): flag for name, flag in flags.items()}


class Wrapped(DistributedDataParallel):
    """What is called in training. Whether it reduces is decided at each call; evaluation goes past it."""

    ensemble: ProcessGroup
    inner: Callable[..., Any]
    called = -1
    """The round in which it was called last."""

    def __init__(self, module: torch.nn.Module, ensemble: ProcessGroup, **options: Any) -> None:
        super().__init__(module, **options)
        self.__dict__["ensemble"] = ensemble
        self.__dict__["inner"] = module.module if isinstance(module, Carrier) else module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        run = self.ensemble.run
        if not torch.is_grad_enabled() or run is None or run.stage != "train":
            return self.inner(*inputs, **named)
        refuse_thawed(self.ensemble, run)
        self.called = run.batches_seen
        self.require_backward_grad_sync = self.ensemble.syncs(run)
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]


class Unwrapped(nn.Module):
    """What is called in training where the processes talk before and after it, but not in it."""

    ensemble: ProcessGroup

    def __init__(self, module: nn.Module, ensemble: ProcessGroup) -> None:
        super().__init__()
        self.module = module
        self.__dict__["ensemble"] = ensemble

    def forward(self, *inputs: Any, **named: Any) -> Any:
        run = self.ensemble.run
        if torch.is_grad_enabled() and run is not None and run.stage == "train":
            refuse_thawed(self.ensemble, run)
            self.ensemble.syncs(run)
        return self.module(*inputs, **named)
