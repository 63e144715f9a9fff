"""Metrics over whole passes, measured batch by batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch

from cadenza.callback import Callback
from cadenza.callbacks.measuring.metric_states import FunctionMean, ObjectState, Value, exact, is_object, spread
from cadenza.callbacks.measuring.pass_measure import PassMeasure, Prepare, prefix_of
from cadenza.callbacks.measuring.per_sample import accuracy

if TYPE_CHECKING:
    from cadenza.run import Run

Function: TypeAlias = Callable[[Any, Any], Any]


class Metrics(PassMeasure, Callback):
    """Measures over whole passes, with torchmetrics objects or with functions of output and targets.

    ``metrics`` is a dict of names. Each value is a function ``f(output, targets)`` that returns one value a sample
    (a tensor whose first dimension is the batch) or one for the batch, or an object with ``update(output, targets)``,
    ``compute()`` and ``reset()``, such as those of torchmetrics. The mean of a function is weighted by samples: with
    one value a sample it is that of the whole set at once, however the batches are cut and over all processes. An
    object is copied for each stage and loader and moved to the device; yours is not touched. Under many processes an
    object of torchmetrics puts their states together by itself.

    ``stages`` says which passes are measured, some of "train", "val" and "test": validation and test if it is left
    out. A metric is called ``val/accuracy``, with several loaders ``val/<loader>/accuracy``; an object whose result is
    a dict or a row of numbers gives ``val/<name>/<key>``. An output keeps its type: a metric can read ``output.logits``
    of a model of transformers, and the ready functions, such as ``accuracy``, find ``logits`` by themselves.
    ``prepare`` is a function of the run that returns ``(output, targets)``, for batches or outputs of another form.
    With ``on_error="warn"`` a metric that raises is left out for the rest of the
    run, with a warning; otherwise it ends the run with a note that names it.

    It plays after each batch, outside the step, and does not wait for the device. (Objects of torchmetrics may: they
    check what they get, unless made with ``validate_args=False``, and some count on the host. Some also guess from each
    batch whether scores are logits, so give those probabilities.) In training it sees the outputs that the steps were
    made from. Skipped batches are left out, and a validation that a stop cuts short has no result. A checkpoint in the
    middle of a pass keeps what was measured so far, if the objects have ``state_dict``.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> metrics = Metrics({"accuracy": accuracy}, stages={"train", "val"})
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[metrics], device="cpu")
    >>> history = trainer.fit(tiny_loader(), tiny_loader(10, batch_size=4), epochs=3)
    >>> len(history["val/accuracy"]), 0 <= history["train/accuracy"][-1] <= 1
    (3, True)
    """

    same_on_ranks = ("metrics", "stages")

    def __init__(
        self,
        metrics: Mapping[str, Function | Any],
        *,
        stages: Iterable[str] = ("val", "test"),
        prepare: Prepare | None = None,
        on_error: str = "raise",
    ) -> None:
        super().__init__(stages, prepare, on_error)
        if not isinstance(metrics, Mapping) or not metrics:
            raise TypeError(f'metrics is a dict such as {{"accuracy": accuracy}}, not {metrics!r}')
        for name, metric in metrics.items():
            check(name, metric)
        self.metrics = dict(metrics)
        self.off: set[str] = set()
        self._copies: dict[tuple[str, str], Any] = {}

    @classmethod
    def example(cls) -> Self:
        return cls({"accuracy": accuracy}, stages={"train", "val"})

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        measured = [prefix for prefix in prefixes if prefix.split("/")[0] in (self.stages or ())]
        return [f"{prefix}{name}{rest}" for prefix in measured for name in self.metrics for rest in ("", "/*")]

    def explain(self) -> str:
        return f"{', '.join(self.metrics)} over {', '.join(sorted(self.stages or ()))}"

    def before_run(self, run: Run) -> None:
        self.off.clear()

    def new_tally(self, run: Run) -> Group:
        prefix = prefix_of(run)
        return Group(self, {name: self._state(prefix, name, run.device) for name in self.metrics})

    def _state(self, prefix: str, name: str, device: torch.device) -> FunctionMean | ObjectState:
        metric = self.metrics[name]
        if not is_object(metric):
            return FunctionMean(metric)
        if (prefix, name) not in self._copies:
            self._copies[prefix, name] = metric.clone() if hasattr(metric, "clone") else copy.deepcopy(metric)
        return ObjectState(self._copies[prefix, name], device)

    def give_up(self, error: Exception) -> None:
        names = [name for name in self.metrics if name not in self.off]
        self.off.update(names)
        self.switch_off(f"output and targets for {', '.join(names)}", error)

    def has_given_up(self) -> bool:
        return bool(self.off) and len(self.off) == len(self.metrics)

    def leave_out(self, name: str, error: Exception, advice: str = "") -> None:
        self.off.add(name)
        self.switch_off(f"the metric {name!r}", error, advice)


class Group:
    """All metrics of one open pass."""

    def __init__(self, owner: Metrics, states: dict[str, FunctionMean | ObjectState]) -> None:
        self.owner, self.states = owner, states

    def add(self, output: Any, targets: Any, samples: int) -> None:
        off = self.owner.off
        for name, state in self.states.items():
            if name not in off:
                try:
                    state.add(output, targets, samples)
                except Exception as error:
                    self.owner.leave_out(name, error, self.owner.advice(output, targets))

    def results(self, run: Run) -> dict[str, Value]:
        if run.world_size > 1:
            self._add_up(run)
        found: dict[str, Value] = {}
        for name, state in self.states.items():
            if state.weight and name not in self.owner.off:
                try:
                    found.update(spread(name, state.result()))
                except Exception as error:
                    self.owner.leave_out(name, error)
        return found

    def _add_up(self, run: Run) -> None:
        """Sums and weights over all processes, in one reduction. What failed in one of them is left out in all."""
        dtype = exact(run.device)
        totals = torch.stack([state.total.to(run.device, dtype) for state in self.states.values()])
        counts = [[state.weight, name in self.owner.off] for name, state in self.states.items()]
        table = torch.cat([totals.unsqueeze(1), torch.tensor(counts, dtype=dtype, device=run.device)], dim=1)
        torch.distributed.all_reduce(table)
        for (name, state), (weight, failed) in zip(self.states.items(), table[:, 1:].tolist(), strict=True):
            state.weight = int(weight)
            if failed and name not in self.owner.off:
                self.owner.leave_out(name, RuntimeError("it failed in another process"))
        for state, total in zip(self.states.values(), table[:, 0], strict=True):
            state.total = total

    def state_dict(self) -> dict[str, Any]:
        return {name: state.state_dict() for name, state in self.states.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.states.keys() & state.keys():
            self.states[name].load_state_dict(state[name])


def check(name: object, metric: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a metric is a text, not {name!r}")
    if name == "loss":
        raise ValueError("the run itself measures the loss; give the metric another name")
    if isinstance(metric, type):
        raise TypeError(f"{metric.__name__} is a class; give an instance of it as the metric {name!r}")
    if not is_object(metric) and not callable(metric):
        raise TypeError(
            f"the metric {name!r} is a function of output and targets or an object with update, compute and reset, "
            f"not {type(metric).__name__}"
        )
