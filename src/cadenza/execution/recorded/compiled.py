"""Steps as compiled code: one step is traced operation by operation, and the whole list is compiled.

What is traced is the real step with everything in it, backward and optimizer included, as it runs on the real tensors:
all of these that the step reads or writes become inputs of the compiled function, which changes them in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cadenza.engine.state import GONE, UNWEIGHTED, Later
from cadenza.execution.recorded.cpu_random import take_out, with_draws
from cadenza.execution.recorded.host_sync import ReadingIsAnError, said_of
from cadenza.execution.recorded.optimizer_form import Form
from cadenza.execution.recorded.recording import CannotRecord, Outcome, Recording, Uncompiled, first_line
from cadenza.execution.recorded.rollback import Rollback, modules_of, parameters_of
from cadenza.foundation.kept_state import write_back
from cadenza.foundation.rng import rng_kept, rng_state, set_rng_state
from cadenza.foundation.torch_private import TorchDispatchMode, compile_graph
from cadenza.foundation.tree import tensors_of, with_tensors

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


class Touched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the tensors that operations inside take and that were not made inside, with their first values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: dict[int, Tensor] = {}  # held, so that no other tensor gets the same identity

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_of((args, kwargs or {})):
            if id(tensor) not in self._made and id(tensor) not in self.found:
                self.found[id(tensor)] = (tensor, tensor.detach().clone())
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result if isinstance(result, list | tuple) else (result,)):
            if id(tensor) not in self.found:
                self._made[id(tensor)] = tensor
        return result


class TraceRecorder:
    """Traces a real step, and compiles it for all further ones of its kind."""

    name = "compiled"

    def __init__(self, forms: list[Form]) -> None:
        self.forms = forms

    def warm_up(self, run: Run, opened: Callable[[Run], bool], *, last: bool) -> tuple[bool, str | None]:
        """A real step, as it is."""
        return opened(run), None

    def record(
        self, run: Run, opened: Callable[[Run], bool], callbacks: tuple[Callback, ...], prepare: Callable[[], None]
    ) -> tuple[Recording, bool]:
        """Does the step of this batch and traces it meanwhile, then compiles the trace."""
        batch = run._state.batch
        run._state.give(each_its_own(batch))
        apart = run._state.batch is not batch
        try:
            with plain_lstms(run):
                return self._record(run, opened, callbacks, prepare)
        finally:
            if apart:
                run._state.give(batch)

    def _record(
        self, run: Run, opened: Callable[[Run], bool], callbacks: tuple[Callback, ...], prepare: Callable[[], None]
    ) -> tuple[Recording, bool]:
        prepare()
        kept = Rollback(run, callbacks)
        touched = self._touched(run, opened, kept)
        try:
            with self._putting_on():
                graph, result, outputs = trace(run, opened, touched)
            changed = kept.what_changed()
            if changed is not None:
                raise CannotRecord(changed)
        except BaseException as error:
            kept.put_back()
            if isinstance(error, CannotRecord) or not isinstance(error, Exception):
                raise
            raise CannotRecord(said_of(error)) from error
        kept.state.values.clear()  # nothing is put back from here on
        outcome = Outcome.of(run, result, kept.steps, kept.parameters)
        try:
            compiled = self._compiled(graph, touched, kept)
        except CannotRecord as error:
            raise Uncompiled(str(error), result) from error
        except Exception as error:  # the step itself was done, and well
            raise Uncompiled(first_line(error), result) from error
        run.loss_weight = UNWEIGHTED
        return Compiled(run, compiled, touched, kept, outcome, outputs), result

    def _compiled(self, graph: Any, touched: list[Tensor], kept: Rollback) -> Callable[..., Any]:
        """The traced step as a function of the tensors that it takes, tried out; nothing is changed by that."""
        inputs, device = [tensor.detach() for tensor in touched], kept.run.device
        with rng_kept(device):
            draws = take_out(graph)
            compiled = with_draws(compile_graph(graph, [*inputs, *(draw() for draw in draws)]), draws)
        after = rng_state(device, host=False)
        with rng_kept(device):
            set_rng_state(kept.state.rng, device)
            try_out(compiled, inputs)
            now = rng_state(device, host=False)
            if not all(torch.equal(after[name], now[name]) for name in after):
                raise CannotRecord("the step sets a random number generator back, as torch.utils.checkpoint does")
        return compiled

    def _touched(self, run: Run, opened: Callable[[Run], bool], kept: Rollback) -> list[Tensor]:
        """The tensors from outside that a step takes, found by doing it once and undoing it."""
        mode = Touched()
        try:
            with self._putting_on(), mode:
                opened(run)
        except Exception as error:
            raise CannotRecord(first_line(error)) from error
        finally:
            kept.state.values = list(mode.found.values())
            kept.put_back()
        return [tensor for tensor, _ in kept.state.values]

    @contextmanager
    def _putting_on(self) -> Iterator[None]:
        """The optimizers in the form that can be traced."""
        slept = [form.dormant for form in self.forms]
        try:
            for form in self.forms:
                form.dormant, form.traced = False, True
            yield
        finally:
            for form, dormant in zip(self.forms, slept, strict=True):
                form.dormant, form.traced = dormant, False


@contextmanager
def plain_lstms(run: Run) -> Iterator[None]:
    """On the CPU oneDNN plays an LSTM as one operation, which cannot be traced; without it there are plain ones."""
    onednn: Any = torch.backends.mkldnn
    enabled = onednn.enabled
    if any(isinstance(module, nn.LSTM) for module in modules_of(run)):
        onednn.enabled = False
    try:
        yield
    finally:
        onednn.enabled = enabled


def each_its_own(batch: Any) -> Any:
    """``batch``, with no tensor in two places: in the next one there may be two tensors.

    >>> one = torch.ones(1)
    >>> apart = each_its_own((one, one))
    >>> apart[0] is one, apart[1] is one, each_its_own(apart) is apart
    (True, False, True)
    """
    given = list(tensors_of(batch))
    if len({id(tensor) for tensor in given}) == len(given):
        return batch
    seen: set[int] = set()

    def own(tensor: Tensor) -> Tensor:
        known = id(tensor) in seen
        seen.add(id(tensor))
        return tensor.detach() if known and not tensor.requires_grad else tensor

    return with_tensors(batch, own)


def trace(run: Run, opened: Callable[[Run], bool], touched: list[Tensor]) -> tuple[Any, bool, list[Tensor | None]]:
    """Does the step. Returns its operations as a graph whose inputs are ``touched``, what it said, and the tensors
    that the graph returns: loss, those of the output, then new gradients."""
    from torch.fx.experimental.proxy_tensor import make_fx

    said: dict[str, Any] = {}

    def step(*_: Tensor) -> list[Tensor]:
        said["result"] = opened(run)
        said["outputs"] = _outputs(run, {id(tensor) for tensor in touched})
        return [tensor for tensor in said["outputs"] if tensor is not None]

    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(ReadingIsAnError())
        graph = make_fx(step, tracing_mode="real")(*touched)
    return graph, said["result"], said["outputs"]


def _outputs(run: Run, known: set[int]) -> list[Tensor | None]:
    parameters = parameters_of(run)
    new = [p.grad if p.grad is not None and id(p.grad) not in known else None for p in parameters]
    output = () if run._state.output is GONE else run._state.output
    return [run._state.loss.detach(), *(tensor.detach() for tensor in tensors_of(output)), *new]


class Compiled(Recording):
    """One compiled step, with the tensors that it takes."""

    def __init__(
        self,
        run: Run,
        compiled: Callable[..., Any],
        touched: list[Tensor],
        kept: Rollback,
        outcome: Outcome,
        outputs: list[Tensor | None],
    ) -> None:
        self.compiled, self.outcome, self.parameters = compiled, outcome, kept.parameters
        self.inputs: list[Any] = [tensor.detach() for tensor in touched]
        places = {id(tensor): place for place, tensor in enumerate(touched)}
        self.of_batch = [(places[id(t)], i) for i, t in enumerate(tensors_of(run._state.batch)) if id(t) in places]
        held = enumerate(kept.gradients)
        self.of_gradients = [(places[id(g)], i) for i, g in held if g is not None and id(g) in places]
        for place, _ in (*self.of_batch, *self.of_gradients):
            self.inputs[place] = None
        self.returned = [tensor is not None for tensor in outputs]
        self.output = GONE if run._state.output is GONE else with_tensors(run._state.output, lambda tensor: _EMPTY)
        self.tensors = sum(1 for _ in tensors_of(() if run._state.output is GONE else run._state.output))
        self.clears = all(gradient is None for gradient in outcome.gradients)

    def play(self, run: Run) -> bool:
        inputs = self.inputs.copy()
        if self.of_batch:
            given = list(tensors_of(run._state.batch))
            for place, index in self.of_batch:
                inputs[place] = given[index]
        for place, index in self.of_gradients:
            gradient = self.parameters[index].grad
            inputs[place] = None if gradient is None else gradient.detach()
        with torch.no_grad():
            results = iter(self.compiled(*inputs))
        self.replays += 1
        outputs = [next(results) if there else None for there in self.returned]
        self._leave_gradients(outputs[1 + self.tensors :])
        self.outcome.leave(run)
        run._state.set_loss(outputs[0])
        run._state.set_output(self.output)
        if self.output is not GONE:
            parts = outputs[1 : 1 + self.tensors]
            run._state.set_output(parts[0] if self.output is _EMPTY else Later(lambda: _filled(self.output, parts)))
        return self.outcome.result

    def _leave_gradients(self, new: list[Tensor | None]) -> None:
        if self.clears and not self.of_gradients:
            return
        for parameter, kept, made in zip(self.parameters, self.outcome.gradients, new, strict=True):
            if kept is None:
                parameter.grad = None
            elif made is not None:
                parameter.grad = made


_EMPTY = torch.empty(0)
"""Stands for a tensor in the structure of an output."""


def _filled(structure: Any, tensors: list[Any]) -> Any:
    given = iter(tensors)
    return with_tensors(structure, lambda _: next(given))


def try_out(compiled: Callable[..., Any], inputs: list[Tensor]) -> None:
    """Runs ``compiled`` once and undoes what it did: there is code that is compiled and fails when it runs."""
    values = [(tensor, tensor.clone()) for tensor in inputs]
    try:
        with torch.no_grad():
            compiled(*inputs)
    finally:
        write_back(values)
