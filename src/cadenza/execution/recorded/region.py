"""From forward to zero_grad as one region: which steps are alike, which of them are recorded, and when they are not."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cadenza.callback import Callback
from cadenza.engine.state import UNWEIGHTED
from cadenza.execution.recorded.module_attributes import look_of
from cadenza.execution.recorded.optimizer_form import Form
from cadenza.execution.recorded.recording import (
    CannotRecord,
    Recording,
    Uncompiled,
    are_the_same,
    places,
    settings_of,
    states_of,
)
from cadenza.execution.recorded.rollback import modules_of, parameters_of
from cadenza.foundation.torch_private import MODULES, PARAMETERS, buffers_in, tables_of
from cadenza.foundation.tree import Unknown, shape_of, what_hides_tensors

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run

log = logging.getLogger("cadenza")
_VARIANTS = 64
"""How many steps of one shape are kept that differ in what callbacks do, such as the places in a window."""
_KINDS = 1024
"""How many kinds of steps are counted; with more, each step is as good as one of its own."""
_PAYS_OFF = 20
"""A recording that was let go of before it was played so often did not pay."""


class Recorder(Protocol):
    """What records steps."""

    name: str

    def warm_up(self, run: Run, opened: Callable[[Run], bool], *, last: bool) -> tuple[bool, str | None]: ...

    def record(
        self, run: Run, opened: Callable[[Run], bool], callbacks: tuple[Callback, ...], prepare: Callable[[], None]
    ) -> tuple[Recording, bool]: ...


class Region:
    """The steps of one plan, recorded by shape. Whatever is out of the ordinary is played step by step instead."""

    def __init__(
        self,
        score: StageScore,
        opened: Callable[[Run], bool],
        eager: Callable[[Run], bool],
        recorder: Recorder,
        forms: list[Form],
        *,
        shapes: int,
        warm_ups: tuple[int, int],
        refuse: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self.eager, self.tell = eager, tell
        self.opened, self.recorder, self.forms, self.refuse = opened, recorder, forms, refuse
        self.shapes, self.warm_ups = shapes, warm_ups
        self.recordings: OrderedDict[Hashable, dict[Hashable, Recording]] = OrderedDict()
        self.seen: dict[Hashable, int] = {}
        self.wasted = 0
        self.closed = False
        """Whether all steps are played one by one from here on."""
        self.full = False
        """Whether no further shape is recorded."""
        self.shapes_seen: set[Hashable] = set()
        inside = _inside(score)
        self.callbacks = tuple(callback for callback in inside if callback.capturable)
        self._asked = [one.recorded_as for one in self.callbacks if _has_its_own(one, "recorded_as")]
        self._told = [one.played_again for one in self.callbacks if _has_its_own(one, "played_again")]
        self._settings = [settings_of(form) for form in forms]
        self._of_pass: Any = None
        self._modules: list[Any] = []
        self._held: list[Iterable[Any]] = []
        self._parts: list[Any] = []  # model, criterion, and all modules and parameters in them
        self._tables: list[dict[str, Any]] = []
        self._buffers: list[Any] = []
        self._left: list[Any] = []  # the buffers as the last step left them
        self._parameters: list[Any] = []
        self._states: list[dict[str, Any]] = []  # held, so that no other one gets the same identity
        self._recorded_states: list[int] = []
        self._looks: dict[Hashable, int] = {}
        self._look = 0
        self._adjust_lr = score.plan.adjust_lr if score.plan.lr_every == "iter" else None

    def step(self, run: Run) -> bool:
        """The verb ``train_step``."""
        if run._state.asked or self.closed or run.scaler is not None or run.loss_weight is not UNWEIGHTED:
            return self.eager(run)
        if not run._state.processes.has_even_share(run):
            return self._weighted(run)
        result = self._ordinary(run)
        if result and self._adjust_lr is not None:
            self._adjust_lr(run)
        return result

    def _weighted(self, run: Run) -> bool:
        """A step whose batch counts more or less than those of the other processes."""
        if run._state.current.samples_of_all is None:
            self._close("the processes tell each other in each step how large their batches are; nobody knows before")
        return self.eager(run)

    def _ordinary(self, run: Run) -> bool:
        try:
            shape = shape_of(run._state.batch)
            self._look_at_states(run)
            kind = self._kind(run)
            variants = self.recordings.get(shape)
            recording = None if variants is None else variants.get(kind)
        except (Unknown, TypeError) as error:
            return self._give_up(run, f"{error}, which cannot be recorded")
        if recording is None:
            result = self._approach(run, shape, kind)
            self._left = self._buffers_now()
            return result
        if len(self.recordings) > 1:
            self.recordings.move_to_end(shape)
        for form in self.forms:
            form.fill()
        result = recording.play(run)
        for tell in self._told:
            tell(run)
        return result

    # What makes two steps alike -------------------------------------------------------------------------------------

    def _kind(self, run: Run) -> Hashable:
        """Everything on the host that shapes a step, beside the batch."""
        if run._state.current is not self._of_pass or not are_the_same(self._parts_now(run), self._parts):
            self._of_pass = run._state.current
            self._modules = modules_of(run)
            tables = [tables_of(module, PARAMETERS, MODULES).values() for module in self._modules]
            self._held = [table.values() for table in chain.from_iterable(tables) if table]
            self._parts = self._parts_now(run)
            self._tables = [table for table in map(buffers_in, self._modules) if table]
            self._buffers = self._left = []
            self._parameters = parameters_of(run)
            # once for each pass: to compare them in each step would take longer than many a recorded step
            look = id(run.model), id(run.criterion), look_of(self._modules)
            self._look = self._looks.setdefault(look, len(self._looks))
        buffers = self._buffers_now()
        if not are_the_same(buffers, self._left):  # replaced between two steps, and not by the model itself
            self._buffers = self._left = buffers
        return (
            run._state.held,
            run._state.processes.syncs(run),
            self._look,
            tuple([module.training for module in self._modules]),
            tuple([(p.data_ptr(), p.requires_grad, p.grad is None) for p in self._parameters]),
            tuple([buffer if buffer is None else buffer.data_ptr() for buffer in self._buffers]),
            tuple([settings() for settings in self._settings]),
            tuple([ask(run) for ask in self._asked]),
            torch.is_autocast_enabled(run.device.type),
        )

    def _parts_now(self, run: Run) -> list[Any]:
        return [run.model, run.criterion, *chain.from_iterable(self._held)]

    def _buffers_now(self) -> list[Any]:
        return [buffer for table in self._tables for buffer in table.values()]

    def _look_at_states(self, run: Run) -> None:
        """A recorded step knows the tensors in which its optimizers keep their state. If somebody put others there, or
        none, nothing that is recorded is good any more. Each tensor is looked at once for each pass only."""
        states = states_of(self.forms)
        if are_the_same(states, self._states) and (
            run._state.current is self._of_pass or places(states) == self._recorded_states
        ):
            return
        self._states = states
        if self.recordings:
            self.recordings.clear()
            self.seen.clear()

    # Getting there --------------------------------------------------------------------------------------------------

    def _approach(self, run: Run, shape: Hashable, kind: Hashable) -> bool:
        """The first steps of a kind are played; then one is recorded."""
        if self.full:
            return self.opened(run)
        self.shapes_seen.add(shape)
        if len(self.shapes_seen) > 4 * self.shapes:
            return self._stay(run, self._of_shapes())
        if len(self.seen) >= _KINDS:
            return self._stay(run, f"steps differ in what the host holds for them: {_KINDS} kinds of steps so far")
        key = (shape, kind)
        count = self.seen[key] = self.seen.get(key, 0) + 1
        needed = self.warm_ups[0] if not self.recordings else self.warm_ups[1]
        if count <= needed:
            result, why_not = self.recorder.warm_up(run, self.opened, last=count == needed)
            hides = what_hides_tensors(run._state.output) if count == 1 else None
            if hides is not None and why_not is None:
                why_not = f"the output is or holds a {hides}, in which tensors cannot be followed; a dict would do"
            if why_not is not None:
                self._close(why_not)
            return result
        return self._record(run, shape, kind)

    def _record(self, run: Run, shape: Hashable, kind: Hashable) -> bool:
        if len(self.recordings.get(shape, ())) >= _VARIANTS:
            return self._stay(run, f"steps of one shape differ in what the host holds for them: {_VARIANTS} are kept")
        if shape not in self.recordings and not self._has_room():
            return self._stay(run, self._of_shapes())
        try:
            recording, result = self.recorder.record(run, self.opened, self.callbacks, self._prepare)
        except Uncompiled as error:
            self._close(str(error))
            return error.result
        except CannotRecord as error:
            return self._give_up(run, str(error))
        self.recordings.setdefault(shape, {})[kind] = recording
        self._states = states_of(self.forms)
        self._recorded_states = places(self._states)
        return result

    def _prepare(self) -> None:
        for form in self.forms:
            form.fill()

    def _has_room(self) -> bool:
        """Lets go of the shape that was not in use for longest, unless that happens too often to pay."""
        if len(self.recordings) >= self.shapes:
            _, old = self.recordings.popitem(last=False)
            self.wasted += all(one.replays < _PAYS_OFF for one in old.values())
        return self.wasted <= 2

    def _stay(self, run: Run, why: str) -> bool:
        """Keeps what is recorded; all else is played step by step from here on."""
        self.full, self.closed = True, not self.recordings
        self.tell(why)
        return self.opened(run)

    def _of_shapes(self) -> str:
        return f"dynamic shapes: {len(self.shapes_seen)} shapes of batches so far, of which {self.shapes} are kept"

    def _give_up(self, run: Run, why: str) -> bool:
        self._close(why)
        return self.opened(run)

    def _close(self, why: str) -> None:
        """From here on steps are played one by one, with the optimizers in the same form."""
        self.closed = True
        self.recordings.clear()
        self.refuse(why)


def _inside(score: StageScore) -> list[Callback]:
    plan = score.plan
    found: dict[int, Callback] = {}
    for point in inside_points():
        found.update({id(callback): callback for callback in plan.callbacks_at(point, "train")})
    return list(found.values())


def inside_points() -> list[str]:
    """The points inside the step."""
    spans = ("forward", "loss", "backward", "step", "zero_grad")
    return [f"{kind}_{span}" for span in spans for kind in ("before", "around", "after")]


def _has_its_own(callback: Callback, name: str) -> bool:
    """Whether ``callback`` wants to be asked before a recorded step, or told after it."""
    return getattr(type(callback), name) is not getattr(Callback, name)
