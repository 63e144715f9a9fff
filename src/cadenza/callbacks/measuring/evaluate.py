"""Results over whole sets: predictions are collected, and a package computes what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from cadenza.callback import Callback, without
from cadenza.callbacks.measuring.pass_measure import PassMeasure, Prepare, Value
from cadenza.callbacks.measuring.result_packages import READY, ClassificationResults, named_results
from cadenza.clock import Duration
from cadenza.data import gather, to_device
from cadenza.foundation.arguments import loader as loader_or_none
from cadenza.foundation.arguments import one_of, text
from cadenza.history import as_scalar

if TYPE_CHECKING:
    from cadenza.run import Run

_CPU = torch.device("cpu")


class Evaluate(PassMeasure, Callback):
    """Collects predictions and targets over a pass and logs the results that a package computes from all of them.

    ``package`` is a ``ResultPackage``: ``ClassificationResults``, ``BinaryResults``, ``RegressionResults``, your own
    (anything with ``compute(predictions, targets)`` that returns a dict of numbers), or several put together with
    ``+``. The results are called ``val/accuracy`` and so on, with several loaders ``val/<loader>/accuracy``; they stand
    in ``run.metrics`` and in the history. Under many processes the package gets what all of them collected.

    ``stages`` says in which passes it collects, some of "train", "val" and "test"; in training these are the outputs
    that the steps were made from. With ``loader`` it goes over that loader by itself instead, at the end of each
    training epoch and before validation, with the model in eval mode and the weights as they are, and calls the results
    ``<name>/accuracy``. ``every`` says in which epochs, such as "2 epochs" for every second one; ``trainer.validate``
    and ``trainer.test`` always evaluate. ``move`` says when predictions go to the CPU: "end", all at once at the end of
    the pass, or "batch", which waits for the device after every batch but keeps its memory free. ``prepare`` is a
    function of the run that returns ``(output, targets)``, for batches or outputs of another form. With
    ``on_error="warn"`` a package that raises is left out for the rest of the run, with a warning; otherwise it ends the
    run with a note that names it.

    It plays after each batch, outside the step. Skipped batches are left out, and a validation that a stop cuts short
    has no result. A checkpoint in the middle of a pass keeps what was collected so far.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> evaluate = Evaluate(ClassificationResults(), every="2 epochs")
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[evaluate], device="cpu")
    >>> history = trainer.fit(tiny_loader(), tiny_loader(10, batch_size=4), epochs=4)
    >>> len(history["val/f1"])
    2
    """

    same_on_ranks = ("every", "stages")

    def __init__(
        self,
        package: Any,
        *,
        stages: Iterable[str] = ("val",),
        every: str | Duration = "1 epoch",
        loader: Iterable[Any] | None = None,
        name: str = "eval",
        move: str = "end",
        prepare: Prepare | None = None,
        on_error: str = "raise",
    ) -> None:
        super().__init__(stages, prepare, on_error)
        if isinstance(package, type) or not callable(getattr(package, "compute", None)):
            raise TypeError(f"package is an object with compute(predictions, targets), not {package!r}")
        self.every = Duration.interval(every, "every")
        if self.every.unit != "epochs":
            raise ValueError(f'every counts epochs, such as "2 epochs", not {self.every.unit}')
        one_of("move", move, ("end", "batch"))
        loader_or_none("loader", loader)
        text("name", name, "what the results of a loader are called by")
        self.package, self.loader, self.prefix, self.move = package, loader, f"{name}/", move
        if loader is not None:
            self.name, self.stages = f"{type(self).__name__}({name})", None
        self._off = False

    @classmethod
    def example(cls) -> Self:
        return cls(ClassificationResults(), stages={"train", "val"})

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        """What a package of the user's computes is known only when it has."""
        names = self.package.known_names() if type(self.package) in READY else ["*"]
        if self.loader is not None:
            prefixes = [self.prefix]
        else:
            prefixes = [prefix for prefix in prefixes if prefix.split("/")[0] in (self.stages or ())]
        return [f"{prefix}{name}{rest}" for prefix in prefixes for name in names for rest in ("", "/*")]

    def explain(self) -> str:
        where = f"{self.prefix}* of a loader" if self.loader is not None else ", ".join(sorted(self.stages or ()))
        return f"{self.package} over {where}, every {self.every}"

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """With a loader of its own it looks at no pass of the run."""
        played = super().plays()
        unneeded = () if self.loader is None else played.keys() - {"before_run", "after_train_epoch"}
        return without(played, Evaluate, *unneeded)

    def before_run(self, run: Run) -> None:
        self._off = False

    # Passes ---------------------------------------------------------------------------------------------------------

    def wants(self, run: Run) -> bool:
        return self.loader is None and super().wants(run) and self._is_due(run)

    def _is_due(self, run: Run) -> bool:
        return run.mode != "fit" or (run.epoch + 1) % self.every.amount == 0

    def new_tally(self, run: Run) -> Collected:
        return Collected(self, run.device)

    def after_train_epoch(self, run: Run) -> None:
        if self.loader is None:
            super().after_train_epoch(run)
        elif self._is_due(run) and run.stop_reason is None and not self._off:
            collected = Collected(self, run.device)
            run.predict(self._collecting(run, self.loader, collected))
            for name, value in collected.results(run).items():
                run.log(self.prefix + name, value)

    def _collecting(self, run: Run, loader: Iterable[Any], into: Collected) -> Iterator[Any]:
        """The batches of ``loader``; when the next is asked for, the output of the last one is there."""
        for batch in loader:
            yield batch
            self.take(run, into)

    # What fails -----------------------------------------------------------------------------------------------------

    def give_up(self, error: Exception) -> None:
        self._off = True
        self.switch_off(f"{self.package}", error)

    def has_given_up(self) -> bool:
        return self._off

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self.loader is None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.loader is None:
            super().load_state_dict(state)


class Collected:
    """The predictions and targets of one pass so far."""

    def __init__(self, owner: Evaluate, device: torch.device) -> None:
        self.owner = owner
        self.device = _CPU if owner.move == "batch" else device
        self.outputs: list[Any] = []
        self.targets: list[Any] = []
        self.counts: list[int] = []

    def add(self, output: Any, targets: Any, samples: int) -> None:
        if self.owner.move == "batch":  # it waits for the device, as the user asked
            output, targets = to_device(output, _CPU), to_device(targets, _CPU)
        self.outputs.append(output)
        self.targets.append(targets)
        self.counts.append(samples)

    def results(self, run: Run) -> dict[str, Value]:
        if run.world_size > 1:
            self._join_processes(run)
        if not self.counts or self.owner.has_given_up():
            return {}
        try:
            predictions = to_device(gather(self.outputs, self.counts), _CPU)
            targets = to_device(gather(self.targets, self.counts), _CPU)
            found = named_results(self.owner.package, predictions, targets)
            if "loss" in found:
                raise ValueError("'loss' is what the run itself measures; the package needs another name or a prefix")
            return {name: as_scalar(name, value) for name, value in found.items()}
        except Exception as error:
            self.owner.give_up(error)
            return {}

    def _join_processes(self, run: Run) -> None:
        """Takes in what the other processes collected, in the order of ranks; if one gave up, all do."""
        mine = (to_device(self.outputs, _CPU), to_device(self.targets, _CPU), self.counts, self.owner.has_given_up())
        everyone: list[Any] = [None] * run.world_size
        torch.distributed.all_gather_object(everyone, mine)
        self.outputs, self.targets, self.counts = (
            [one for part in everyone for one in part[place]] for place in range(3)
        )
        if any(part[3] for part in everyone) and not self.owner.has_given_up():
            self.owner.give_up(RuntimeError("it failed in another process"))

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if self.outputs and all(isinstance(one, Tensor) and one.dim() for one in (*self.outputs, *self.targets)):
            outputs, targets = gather(self.outputs), gather(self.targets)
            if isinstance(outputs, Tensor) and isinstance(targets, Tensor):  # one long tensor is stored, not many
                self.outputs, self.targets, self.counts = [outputs], [targets], [sum(self.counts)]
        return {"outputs": list(self.outputs), "targets": list(self.targets), "counts": list(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.outputs, self.targets = (to_device(list(state[name]), self.device) for name in ("outputs", "targets"))
        self.counts = list(state["counts"])
