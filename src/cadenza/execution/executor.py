"""How the steps of one run are executed: the user's options, the forms of its optimizers, what records its steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from cadenza.engine.stack import Verbs
from cadenza.execution import eager
from cadenza.execution.recorded.optimizer_form import Form, allowed_form, captured_form, compiled_form
from cadenza.execution.recorded.region import Recorder, Region
from cadenza.execution.recorded.why_not import cycles_momentum, may_be_fused, why_not, why_opened
from cadenza.foundation.arguments import among, check, whole

if TYPE_CHECKING:
    from cadenza.plan import Plan, StageScore
    from cadenza.run import Run


MODES = ("eager", "auto", "captured", "compiled")


@dataclass(frozen=True)
class Execution:
    """How steps are executed. ``Trainer(..., execution="auto")`` is short for ``Execution("auto")``.

    ``mode`` is "eager", "auto", "captured" or "compiled". ``fused`` and ``foreach`` allow torch's form of that name for
    the optimizers, which rounds differently; ``fused=False`` forbids the fused form that a captured step chooses by
    itself. ``channels_last`` lays out the weights of convolutions so, ``tf32`` turns TensorFloat-32 on or off while a
    run is open; None leaves each as it is. ``shapes`` is for how many shapes of a batch a step is kept at a time.

    >>> Execution("captured", fused=True).mode
    'captured'
    """

    mode: str = "eager"
    fused: bool | None = None
    foreach: bool | None = None
    channels_last: bool | None = None
    tf32: bool | None = None
    shapes: int = 8

    def __post_init__(self) -> None:
        among("execution", self.mode, MODES)
        for name in ("fused", "foreach", "channels_last", "tf32"):
            value = getattr(self, name)
            check(value is None or isinstance(value, bool), f"{name} is True, False or None", value)
        if self.fused and self.foreach:
            raise ValueError("an optimizer is stepped in one form: fused=True or foreach=True, not both")
        if self.foreach and self.mode != "eager":
            raise ValueError(f'foreach=True is for "eager"; execution {self.mode!r} chooses its own form')
        if self.fused and self.mode == "compiled":
            raise ValueError('fused=True is not for "compiled": the compiler itself fuses what the optimizer does')
        whole("shapes", self.shapes, 1, "is")

    @classmethod
    def of(cls, value: str | Execution) -> Execution:
        """The options that ``value`` means, which is the name of a mode or options already."""
        if isinstance(value, Execution):
            return value
        if not isinstance(value, str):
            raise TypeError(f"execution is {', '.join(MODES)} or an Execution, not {type(value).__name__}")
        return cls(value)

    @property
    def plain(self) -> bool:
        """Whether there is nothing to do but to play the steps."""
        return self == Execution(shapes=self.shapes)


log = logging.getLogger("cadenza")
WARM_UPS = {"captured": (3, 3), "compiled": (1, 16)}
"""How many steps are played before one is recorded: for the first shape, and for each further one."""


class Executor:
    """Lives as long as a run, over all its plans."""

    def __init__(self, options: Execution, run: Run) -> None:
        self.options, self.run = options, run
        self.mode = options.mode
        self.forms: list[Form] = []
        self.recorder: Recorder | None = None
        self._begun = False
        self._undo: list[Callable[[], None]] = []

    # The verbs ------------------------------------------------------------------------------------------------------

    def verbs(self, score: StageScore) -> Verbs:
        """The verbs of a stage. In training the step is one region, if the mode and all who play in it allow that."""
        verbs = eager.verbs(score)
        if score.stage != "train" or self.mode == "eager" or why_opened(score.plan, self.mode):
            return verbs
        return replace(verbs, train_step=self._fused(score, verbs.train_step))

    def _fused(self, score: StageScore, plain: Callable[[Run], bool]) -> Callable[[Run], bool]:
        """Made with the first step: only then is everything known that ``before_run`` may have changed."""
        chosen: list[Callable[[Run], bool]] = []

        def step(run: Run) -> bool:
            if not chosen:
                chosen.append(self._region(score, plain))
            return chosen[0](run)

        return step

    def _region(self, score: StageScore, plain: Callable[[Run], bool]) -> Callable[[Run], bool]:
        if self.recorder is None:
            return plain
        opened = eager.opened_step(score)
        region = Region(
            score,
            opened,
            plain,
            self.recorder,
            self.forms,
            shapes=self.options.shapes,
            warm_ups=self._warm_ups(self.recorder.name),
            refuse=self._refuse,
            tell=self._tell,
        )
        return region.step

    def _warm_ups(self, recorder: str) -> tuple[int, int]:
        """A DistributedDataParallel of the user sets itself up in its first ten steps, which cannot be recorded."""
        first, further = WARM_UPS[recorder]
        wrapped = isinstance(self.run.model, nn.parallel.DistributedDataParallel)
        return (max(first, 11), further) if wrapped else (first, further)

    # Beginning and end ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Puts the options in force that are no modes."""
        if not self._begun:
            self._begun = True
            self._undo += settle(self.options, self.run)

    def check(self, plan: Plan) -> None:
        """Once ``before_run`` has set everything up: optimizers get their forms, what cannot be is refused or told."""
        if self.run.mode != "fit" or self.options.plain:
            return
        options, device = self.options, self.run.device
        self.run.training_state.told.clear()
        for name in ("fused", "foreach"):
            if self.mode == "eager" and getattr(options, name):
                self.forms = [allowed_form(optimizer, device, name) for optimizer in self.run.optimizers]
        if self.mode != "eager":
            why = why_opened(plan, self.mode)
            if why is not None and self.mode != "auto":
                self._refuse(why)
            self._choose_forms(plan)
        for form in self.forms:
            form.begin()

    def _choose_forms(self, plan: Plan) -> None:
        run, device = self.run, self.run.device
        why = why_not(self.mode, plan)
        if why is None and run.scaler is not None:
            why = "an fp16 scaler decides on the host whether a step is made"
        if why is not None:
            self._refuse(why)
            if self.options.fused:  # allowed for eager steps as well
                self.forms = [allowed_form(one, device, "fused") for one in run.optimizers if may_be_fused(run, one)]
            return
        if self.mode == "compiled":
            from cadenza.execution.recorded.compiled import TraceRecorder

            self.forms = [compiled_form(optimizer, device) for optimizer in run.optimizers]
            self.recorder = TraceRecorder(self.forms)
            return
        from cadenza.execution.recorded.cuda_graph import GraphRecorder

        cycles, fused = cycles_momentum(plan, run), self.options.fused
        self.forms = [captured_form(one, device, fused=fused, cycles=cycles) for one in run.optimizers]
        self.recorder = GraphRecorder(device)
        run._state.processes.reduce_apart(run)

    def end(self) -> None:
        """Takes everything back: the optimizers are the user's own again, memory is let go of."""
        for form in self.forms:
            form.end()
        while self._undo:
            self._undo.pop()()
        self.recorder = None
        self.run._state.processes.reduce_along(self.run)

    # Saying why not -------------------------------------------------------------------------------------------------

    def _refuse(self, why: str) -> None:
        if self.mode != "auto":
            raise RuntimeError(
                f'execution="{self.mode}" is not possible here: {why}. With execution="auto" such steps are played one '
                "by one"
            )
        self._tell(why)

    def _tell(self, why: str) -> None:
        told = self.run.training_state.told
        if why not in told:
            told.append(why)
            log.info("steps are not %s: %s", "captured" if self.mode == "auto" else self.mode, why)


def settle(options: Execution, run: Run) -> list[Callable[[], None]]:
    """Applies the options that are no modes; returns what takes them back."""
    undo: list[Callable[[], None]] = []
    if options.channels_last:
        run.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if options.tf32 is not None and run.device.type == "cuda":
        precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = options.tf32
        undo.append(lambda: torch.set_float32_matmul_precision(precision))
        undo.append(lambda: setattr(torch.backends.cudnn, "allow_tf32", convolutions))
    return undo
