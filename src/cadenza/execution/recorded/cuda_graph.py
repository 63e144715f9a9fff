"""Steps as CUDA graphs: recorded on a stream of their own, played again with one launch."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.engine.state import GONE, UNWEIGHTED, Later
from cadenza.execution.recorded.graph_buffers import Inputs, Losses
from cadenza.execution.recorded.host_sync import host_waits, recover, unwatched, waiting_is_an_error
from cadenza.execution.recorded.recording import CannotRecord, Outcome, Recording, first_line
from cadenza.execution.recorded.rollback import Rollback
from cadenza.foundation.tree import with_tensors

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


_MODE = "thread_local"


class GraphRecorder:
    """Plays the first steps of a shape on a side stream, then records one; all graphs share one pool of memory."""

    name = "captured"

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool: Any = None
        self.losses: dict[torch.dtype, Losses] = {}

    def warm_up(self, run: Run, opened: Callable[[Run], bool], *, last: bool) -> tuple[bool, str | None]:
        """A real step. In the last one before a recording it is watched whether the host waits for the device."""
        here = torch.cuda.current_stream(run.device)
        self.stream.wait_stream(here)
        run._state.let_go()  # what autograd keeps for them belongs to another stream
        watching: AbstractContextManager[list[str]] = host_waits() if last else nullcontext([])
        with torch.cuda.stream(self.stream), watching as waits, talking(run, unwatched) if last else nullcontext():
            result = opened(run)
        here.wait_stream(self.stream)
        if run._state.loss is not GONE:
            run._state.set_results(with_tensors(run._state.output, Tensor.detach), run._state.loss.detach())
            self._provide_page(run._state.loss)
        return result, f"the step waits for the device: {waits[0]}" if waits else None

    def record(
        self, run: Run, opened: Callable[[Run], bool], callbacks: tuple[Callback, ...], prepare: Callable[[], None]
    ) -> tuple[Recording, bool]:
        """Records the step of this batch without doing it, then plays it."""
        batch, kept, here = run._state.batch, Rollback(run, callbacks), torch.cuda.current_stream(run.device)
        parameters = kept.parameters
        try:
            prepare()
            inputs = Inputs(batch)
            before = list(kept.gradients)
            run._state.let_go()
            run._state.give(inputs.batch)
            tape, result, losses = self._capture(run, opened)
            outcome = Outcome.of(run, result, kept.steps, parameters)
            changed = kept.what_changed()
            if changed is not None:
                raise CannotRecord(changed)
            recording = Graph(tape, inputs, before, parameters, outcome, run._state.loss, run._state.output, losses)
            recording.held = kept.states, kept.tables, kept.attributes
        except BaseException as error:
            torch.cuda.set_stream(here)  # torch does not come back from a capture that the device ended
            if not isinstance(error, CannotRecord):
                recover(run.device, self.pool)
            kept.put_back()
            if isinstance(error, CannotRecord) or not isinstance(error, Exception):
                raise
            raise CannotRecord(first_line(cause_of(error))) from error
        rng = kept.state.rng["cuda"]
        if not torch.equal(rng, torch.cuda.get_rng_state(run.device)):  # recording draws nothing, playing does
            torch.cuda.set_rng_state(rng, run.device)
        recording.take_over(run, batch)
        return recording, result

    def _capture(self, run: Run, opened: Callable[[Run], bool]) -> tuple[Tape, bool, Losses | None]:
        """Records a step. A wait for the device is an error of the host first, before it could spoil the capture."""
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        tape = Tape(self.pool, self.stream)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            with nothing_is_collected(), waiting_is_an_error(), talking(run, tape.cut, only=True), tape.turning:
                result = opened(run)
                losses = self.losses.get(run._state.loss.dtype) if is_number(run._state.loss) else None
                if losses is not None:
                    losses.write(run._state.loss)
        # a capture begins with fills of what its random numbers are counted by, which the device may not have done yet
        torch.cuda.current_stream(run.device).wait_stream(self.stream)
        return tape, result, losses

    def _provide_page(self, loss: Any) -> None:
        """Before a recording: what is made inside one belongs to its graph."""
        if is_number(loss) and loss.dtype not in self.losses:
            self.losses[loss.dtype] = Losses(loss)


def is_number(loss: Any) -> bool:
    """Whether ``loss`` is one number on the device, as nearly always."""
    return type(loss) is Tensor and loss.is_cuda and loss.dim() == 0


class Tape:
    """One graph, or two with what is said to other processes between them."""

    def __init__(self, pool: Any, stream: Any) -> None:
        self.pool, self.graphs = pool, [torch.cuda.CUDAGraph()]
        self.talk: Callable[[], None] | None = None
        self.turning = torch.cuda.graph(self.graphs[0], pool=pool, stream=stream, capture_error_mode=_MODE)

    def cut(self, talk: Callable[[], None]) -> None:
        """Ends the first graph and begins the second."""
        if self.talk is not None:
            raise RuntimeError("gradients are put together more than once in a step")
        self.graphs[0].capture_end()
        self.talk = talk
        self.turning.cuda_graph = second = torch.cuda.CUDAGraph()
        self.graphs.append(second)
        second.capture_begin(self.pool, capture_error_mode=_MODE)

    def player(self) -> Callable[[], None]:
        """What plays it, without the methods of Python around the launches."""
        bare: list[Any] = [super(torch.cuda.CUDAGraph, graph) for graph in self.graphs]
        if self.talk is None:
            launch: Callable[[], None] = bare[0].replay
            return launch
        first, talk, second = bare[0].replay, self.talk, bare[1].replay

        def play() -> None:
            first()
            talk()
            second()

        return play


def talking(
    run: Run, between: Callable[[Callable[[], None]], None], *, only: bool = False
) -> AbstractContextManager[None]:
    """Under many processes: what puts gradients together is handed to ``between``; with ``only`` nothing else talks."""
    return run._state.processes.talking(between, only=only)


def cause_of(error: Exception) -> Exception:
    """What spoiled a capture: the error at its end says only that there was one before."""
    before = error.__context__
    return before if "previous error during capture" in str(error) and isinstance(before, Exception) else error


@contextmanager
def nothing_is_collected() -> Iterator[None]:
    """No garbage is collected inside: an older graph that is let go of while another is recorded spoils it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Graph(Recording):
    """One graph, with the memory from which it reads the batch and in which it leaves what it computed."""

    def __init__(
        self,
        tape: Tape,
        inputs: Inputs,
        before: list[Tensor | None],
        parameters: list[Tensor],
        outcome: Outcome,
        loss: Any,
        output: Any,
        losses: Losses | None,
    ) -> None:
        self.launch = tape.player()
        self.tape, self.inputs, self.losses = tape, inputs, losses
        self.outcome, self.parameters, self.before = outcome, parameters, before
        self.accumulates = any(gradient is not None for gradient in before)
        self.leaves_gradients = any(gradient is not None for gradient in outcome.gradients)
        self.loss = loss.detach() if isinstance(loss, Tensor) else loss
        self.output = with_tensors(output, Tensor.detach) if output is not GONE else GONE

    def take_over(self, run: Run, batch: Any) -> None:
        """After recording: what stands on the host is there already, now the device does its part."""
        run._state.give(batch)
        run.loss_weight = UNWEIGHTED
        self._launch(run)

    def play(self, run: Run) -> bool:
        self.inputs.take(run._state.batch)
        if self.accumulates:
            self._take_gradients()
        self._launch(run)
        self.replays += 1
        if self.leaves_gradients or self.accumulates:
            for parameter, gradient in zip(self.parameters, self.outcome.gradients, strict=True):
                parameter.grad = gradient
        self.outcome.leave(run)
        return self.outcome.result

    def _take_gradients(self) -> None:
        """Gradients that are held lie where the graph adds to them, unless they came from somewhere else."""
        for parameter, mine in zip(self.parameters, self.before, strict=True):
            given = parameter.grad
            if mine is not None and given is not None and given is not mine:
                mine.copy_(given)

    def _launch(self, run: Run) -> None:
        """Loss and output are copied as soon as somebody reads them."""
        output = self.output
        if self.losses is not None:
            run._state.set_loss(self.losses.of(self.launch))
        else:
            self.launch()
            run._state.set_loss(self.loss.clone() if isinstance(self.loss, Tensor) else self.loss)
        run._state.set_output(output if output is GONE else Later(lambda: with_tensors(output, Tensor.clone)))
