"""What the engine asks of the processes that train together; ``Processes`` answers for one that trains alone.

``cadenza.distributed`` implements them for many processes. The engine knows no more of the others than this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from torch import Tensor

from cadenza.clock import Cadence, Duration

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.stack import Outside, Pass
    from cadenza.run import Run


Granted: TypeAlias = tuple[str, str | None]
"""A request on which the processes have decided, and the reason of a stop."""


class World(Protocol):
    """Which process this is among those that train together."""

    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def alone(self) -> bool: ...


class Strategy(Protocol):
    """How a model is spread over processes; ``begin`` returns the processes of a run."""

    def played(self, callback: Callback, player: Callable[[Run], Any]) -> Callable[[Run], Any]: ...
    def begin(self, run: Run) -> Processes: ...
    def found(self, run: Run, callbacks: Sequence[Callback], look: Callable[..., Any]) -> Any: ...
    def taken(self, run: Run, state: dict[str, Any]) -> dict[str, Any]: ...
    def refresh(self, run: Run, processes: Any) -> None: ...
    def why_not_recorded(self, run: Run, mode: str) -> str | None: ...
    def reduce_apart(self, run: Run, processes: Any) -> None: ...
    def reduce_along(self, processes: Any) -> None: ...


class Processes:
    """A process that trains alone: everybody agrees with it, and it waits for nobody.

    >>> ALONE.from_main(3), ALONE.joined([1], [2])
    (3, ([1], [2]))
    """

    debug = False
    many = False
    """Whether others take part. Where this is asked instead of calling a method, the call would cost each step."""
    size = 1
    """How many there are."""
    crew: Any = None
    """Who saves together, if each process stores its own part of a checkpoint."""

    # Requests -------------------------------------------------------------------------------------------------------

    def ask(self, run: Run, request: str, reason: str | None = None) -> bool:
        """A callback asked for something. Returns whether it is decided now; many processes decide later, together."""
        return True

    def waiting(self, run: Run) -> list[list[Any]]:
        """What was asked here and is not agreed on yet."""
        return []

    def wait_again(self, request: str, rule: str, reason: str | None) -> bool:
        """Asks again for what was waiting when the run was interrupted. Returns whether it is decided now."""
        return True

    def skip(self, run: Run, mask: int) -> int:
        """All agree on the skips in ``mask``. Returns those that are decided now, beside what was asked here."""
        return 0

    def decide(self, run: Run, this: Pass) -> Iterable[Granted]:
        """All decide between two iterations on what was asked."""
        return ()

    def settle(self, run: Run) -> Iterable[Granted]:
        """All decide at the boundary of a pass, an epoch or the run."""
        return ()

    def cadence(self, run: Run, interval: str | Duration) -> Cadence:
        return Cadence(interval, run.clock)

    # Passes ---------------------------------------------------------------------------------------------------------

    def begin_pass(self, run: Run, this: Pass) -> None: ...

    def end_pass(self, run: Run) -> None: ...

    def end_epoch(self, run: Run) -> Iterable[Granted]:
        return ()

    def is_last(self, this: Pass) -> bool | None:
        """Whether no process has a further batch; None if this process looks for itself."""
        return None

    def counts_of(self, this: Pass) -> dict[str, Any]:
        """What a checkpoint keeps of how much the processes have seen in the open pass."""
        return {}

    def restore_counts(self, this: Pass, saved: Mapping[str, Any]) -> None: ...

    def keep_step(self, run: Run, this: Pass, found: bool) -> bool:
        """Whether there is a batch to play here after a fetch that ``found`` one or not."""
        return found

    def begin_round(self, run: Run, this: Pass) -> int:
        """Before the forward. Returns the skips on which all have agreed."""
        return 0

    def count(self, run: Run, this: Pass, samples: int, tokens: int) -> None:
        """Counts a batch."""
        if this.training:
            clock = run.clock
            clock.batches += 1
            clock.samples += samples
            if tokens:
                clock.tokens += tokens

    def over_pass(self, run: Run, this: Pass) -> tuple[Tensor | None, dict[str, Any]]:
        """The mean loss of the pass, and the values over it of what was logged in its iterations."""
        return this.mean.value(), this.logged.values()

    # Values ---------------------------------------------------------------------------------------------------------

    def from_main(self, value: Any) -> Any:
        return value

    def from_any(self, value: Any) -> Any:
        return value

    def joined(self, outputs: list[Any], counts: list[int]) -> tuple[list[Any], list[int]]:
        return outputs, counts

    def collected(self, run: Run, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def log_now(self, run: Run, name: str, value: float | Tensor) -> float | Tensor:
        """The mean over the processes of a value that is logged outside an iteration."""
        return value

    def log_later(self, row: Any, name: str, key: int) -> None:
        """A value of an iteration whose mean over the processes is wanted when the pass ends."""

    # Gradients ------------------------------------------------------------------------------------------------------

    empty = False
    """Whether this process goes along in a round for which it has no batch."""

    def hold_while(self, holds: Callable[[], bool] | None) -> None:
        """``holds`` says before a forward whether its gradients will be held for a later one."""

    def mean_count(self, run: Run, count: float | Tensor, *, samples: bool) -> float | Tensor:
        """What a process has on average of what this one has ``count`` of."""
        return count

    def settle_held(self, run: Run, this: Pass | Outside) -> None:
        """Puts gradients together, before a step, that were held for a batch that did not come."""

    reduces_apart = False
    """Whether gradients are put together after the backward and not in it."""

    def reduce_apart(self, run: Run) -> None:
        """From here on gradients are put together between two parts of a step that can be recorded, and not in them."""

    def reduce_along(self, run: Run) -> None:
        """Takes ``reduce_apart`` back, for the runs to come."""

    def refuse_passed_by(self, run: Run) -> None:
        """Before a backward: the model that puts gradients together must have been called."""

    def weighted(self, run: Run, *, share: bool) -> Tensor:
        """The loss as it is back-propagated."""
        return run.loss * run.loss_weight

    def carry(self, run: Run, loss: Tensor) -> Tensor:
        """``loss`` with what this process has to say to the others."""
        return loss

    def after_backward(self, run: Run) -> None: ...

    def syncs(self, run: Run) -> bool:
        """Whether the gradients of the coming backward are put together."""
        return True

    def has_even_share(self, run: Run) -> bool:
        return True

    @contextmanager
    def talking(self, between: Callable[[Callable[[], None]], None], *, only: bool = False) -> Iterator[None]:
        """``between`` gets what puts gradients together in the middle of a step that is recorded."""
        yield

    # Failures -------------------------------------------------------------------------------------------------------

    def failed(self, run: Run, error: BaseException) -> BaseException:
        """What is to be raised for ``error``: what another process raised first, if one did."""
        return error

    def places(self) -> dict[int, str]:
        """Where the other processes stand, as far as they said."""
        return {}

    def end(self) -> None:
        """The run is over: nothing interrupts it any more."""

    def rest(self) -> None:
        """The run has failed, and its end is played."""


ALONE = Processes()
