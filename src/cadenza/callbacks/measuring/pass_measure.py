"""What is measured over a whole pass: it begins, takes up batches, ends with results, and can go on after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from cadenza.callback import Order
from cadenza.data.batch import describe
from cadenza.foundation.arguments import function, one_of, some_of
from cadenza.foundation.tree import Pairs, entries, map_tree, rebuilt
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run

MEASURED = ("train", "val", "test")
Value: TypeAlias = float | Tensor
Prepare: TypeAlias = "Callable[[Run], tuple[Any, Any]]"


class Tally(Protocol):
    """What one open pass has gathered so far."""

    def add(self, output: Any, targets: Any, samples: int) -> None: ...
    def results(self, run: Run) -> Mapping[str, Value]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PassMeasure:
    """The points of a callback that measures passes; it stands before ``Callback`` in the bases of one.

    It plays after the iteration, where the output is still there, so the training step stays closed.
    """

    name: str
    order: int = Order.MEASURE
    stages: frozenset[str] | set[str] | None

    def __init__(self, stages: Iterable[str], prepare: Prepare | None, on_error: str) -> None:
        self.stages = checked_stages(stages)
        function("prepare", prepare, "a function of the run that returns output and targets")
        one_of("on_error", on_error, ("raise", "warn"))
        self.prepare, self.on_error = prepare, on_error
        self._open: dict[str, Tally] = {}
        self._loaded: dict[str, dict[str, Any]] = {}

    def new_tally(self, run: Run) -> Tally:
        """An empty tally for the pass that begins."""
        raise NotImplementedError  # pragma: no cover

    def give_up(self, error: Exception) -> None:
        """Nothing can be measured; ends in ``switch_off``."""
        raise NotImplementedError  # pragma: no cover

    def has_given_up(self) -> bool:
        raise NotImplementedError  # pragma: no cover

    def wants(self, run: Run) -> bool:
        """Whether the open pass is to be measured."""
        return run.stage in (self.stages or ())

    # Points ---------------------------------------------------------------------------------------------------------

    def after_register(self, run: Run) -> None:
        self._open.clear()

    def _begin(self, run: Run) -> None:
        if self.wants(run):
            self._open_tally(run)

    before_train_epoch = before_val_epoch = before_test_epoch = _begin

    def after_iter(self, run: Run) -> None:
        if self.wants(run) and was_computed(run):
            self.take(run, self._open.get(prefix_of(run)) or self._open_tally(run))

    def take(self, run: Run, tally: Tally) -> None:
        """Adds this batch to ``tally``, without a graph, which a metric with weights of its own would keep."""
        if self.has_given_up():
            return
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)  # twice a call costs less than the context of no_grad
        try:
            self._take(run, tally)
        finally:
            torch.set_grad_enabled(before)

    def _take(self, run: Run, tally: Tally) -> None:
        try:
            output, targets = self.prepare(run) if self.prepare is not None else (run.output, run.targets)
        except Exception as error:
            self.give_up(error)
        else:
            tally.add(detached(output), detached(targets), run.main.count(run)[0])

    def advice(self, output: Any, targets: Any) -> str:
        """What to do about output and targets that cannot be measured; nothing if ``prepare`` made them."""
        if self.prepare is not None:
            return ""
        got = f"{describe(output, types=True)} and {describe(targets, types=True)}"
        return f"; it got {got}, and prepare=, a function of the run, may return another (output, targets)"

    def _end(self, run: Run) -> None:
        prefix = prefix_of(run)
        tally = self._open.pop(prefix, None)
        if tally is None and prefix in self._loaded and self.wants(run):
            self._open_tally(run)  # the run went on behind the last batch of the pass
            tally = self._open.pop(prefix)
        if tally is None or was_cut_short(run):
            return
        for name, value in tally.results(run).items():
            run.log(prefix + name, value)

    after_train_epoch = after_val_epoch = after_test_epoch = _end

    def close(self) -> None:
        self._open.clear()

    def _open_tally(self, run: Run) -> Tally:
        """A tally for the open pass; it goes on from a loaded state, if there is one for this pass."""
        prefix = prefix_of(run)
        tally = self._open[prefix] = self.new_tally(run)
        if prefix in self._loaded:
            tally.load_state_dict(self._loaded.pop(prefix))
        return tally

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What the open passes have gathered; between passes there is nothing to keep."""
        return {"passes": {**self._loaded, **{prefix: tally.state_dict() for prefix, tally in self._open.items()}}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open.clear()
        self._loaded = dict(state["passes"])

    def switch_off(self, what: str, error: Exception, advice: str = "") -> None:
        """Names ``what`` in a note and lets ``error`` end the run, or says that ``what`` is measured no more."""
        if self.on_error == "raise":
            error.add_note(f'cadenza: it was {what} of {self.name}{advice}; on_error="warn" goes on without it')
            raise error
        warn(f"{self.name} goes on without {what}: {type(error).__name__}: {error}{advice}")


def checked_stages(stages: Iterable[str]) -> frozenset[str]:
    """The stages as a set; anything else than some of train, val and test is refused."""
    return some_of("stages", stages, MEASURED)


def prefix_of(run: Run) -> str:
    """What the names of this pass begin with: ``val/``, or with a named loader ``val/<name>/``."""
    return f"{run.stage}/{run.loader_name}/" if run.loader_name else f"{run.stage}/"


def was_computed(run: Run) -> bool:
    """Whether this batch has an output that counts: a skipped one does not, as in the mean of the loss."""
    if run.skipped and run.skipped & {"forward", "loss"}:
        return False
    return hasattr(run, "output") or hasattr(run, "loss")  # with a loss alone, reading the output says what is wrong


def was_cut_short(run: Run) -> bool:
    """Whether a stop ended this validation or test before its last batch, so that it has no result."""
    return run.stage != "train" and run.stop_reason is not None and not run.is_pass_complete


def detached(value: Any) -> Any:
    """``value`` without its graph; mappings, lists and tuples are gone through and keep their types."""
    return map_tree(value, _detached, rebuild=_rebuilt_if_changed)


def _rebuilt_if_changed(value: Any, pairs: Pairs) -> Any:
    """Without a graph, as in validation, the output is handed over as the model returned it, whatever its type is."""
    pairs = list(pairs)
    if all(new is old for (_, new), (_, old) in zip(pairs, entries(value) or (), strict=True)):
        return value
    try:
        return rebuilt(value, pairs)
    except Exception:
        if not isinstance(value, Mapping):
            raise
        return dict(pairs)  # of a kind that only its own library can make


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) and value.requires_grad else value
