"""How the context follows the run: what is put into it at which point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cadenza.data import count_samples, split
from cadenza.dialects.supergradients.meters import AverageMeter

if TYPE_CHECKING:
    from cadenza.dialects.supergradients.context import PhaseContext
    from cadenza.dialects.supergradients.sources import Source
    from cadenza.run import Run


OF_BATCH = ("batch_idx", "inputs", "preds", "target", "loss_log_items", "additional_batch_items", "loss_avg_meter")
"""What a validation or a test leaves as it was after the last batch of training."""


class Upkeep:
    """Puts into the context what a run knows. What does not change is put in once, at the beginning."""

    def __init__(self, context: PhaseContext, source: Source) -> None:
        self.context, self.source = context, source
        self.meter = AverageMeter()
        self.resumed: dict[str, Any] | None = None
        self.inside = False
        self.compute: Any = None
        self.before: dict[str, Any] = {}
        self.found: dict[str, dict[str, float]] = {}

    def points(self, inside: bool) -> dict[str, Callable[[Run], Any]]:
        """What is done at which point; inside a training step only if a callback looks there."""
        played: dict[str, Callable[[Run], Any]] = {
            "before_run": self.training_starts,
            "before_epoch": self.epoch_starts,
            "after_epoch": self.epoch_ends,
        }
        for stage in ("train", "val", "test"):
            played[f"before_{stage}_epoch"] = self.pass_starts
            played[f"before_{stage}_iter"] = self.batch_starts
            played[f"after_{stage}_iter"] = self.batch_ends
            played[f"after_{stage}_epoch"] = self.pass_ends
        played["after_iter"] = self.batch_is_over
        self.inside = inside
        return {**played, "after_loss": self.loss_is_known} if inside else played

    def begin(self, run: Run) -> None:
        """A run begins: everything of the last one is forgotten."""
        context = self.context
        context._stop = False
        self.found.clear()
        of_epochs = ("epoch", "metrics_dict", "metrics_compute_fn", "loss_logging_items_names")
        context.put(**dict.fromkeys((*of_epochs, *OF_BATCH)))
        self.training_starts(run)

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps: whether a stop was asked for, and within a training pass its losses so far."""
        run = self.context.__dict__.get("run")
        inside = run is not None and run.is_open and run.stage == "train"
        return {"stop": self.context._stop, "losses": self.meter.state_dict() if inside else None}

    def take_back(self, state: dict[str, Any]) -> None:
        self.context._stop, self.resumed = bool(state["stop"]), state["losses"]

    def training_starts(self, run: Run) -> None:
        self.context.put(
            net=run.module, optimizer=run.optimizers[0] if run.optimizers else None, criterion=run.criterion,
            train_loader=run.train_loader, valid_loader=run.val_loader, test_loader=run.test_loaders,
            device=str(run.device).removesuffix(":0"), ddp_silent_mode=run.rank != 0, **self.source.fields(run),
        )  # fmt: skip

    def epoch_starts(self, run: Run) -> None:
        self.found.clear()
        self.context.put(epoch=run.epoch, train_loader=run.train_loader, valid_loader=run.val_loader)

    def pass_starts(self, run: Run) -> None:
        """A pass over a loader: its losses are averaged anew."""
        self.meter = AverageMeter()
        if run.stage == "train" and self.resumed is not None:
            self.meter.load_state_dict(self.resumed)
            self.resumed = None
        self.compute = None
        fields = self.context.__dict__
        self.before = {name: fields[name] for name in OF_BATCH} if run.stage != "train" else {}
        if run.stage == "test":
            self.context.put(test_loader=run.loader)

    def batch_starts(self, run: Run) -> None:
        inputs, target, more = unpacked(run.batch)
        self.compute = self.source.metrics(run) if self.compute is None else self.compute
        found = {"batch_idx": run.batch_idx, "inputs": inputs, "target": target, "additional_batch_items": more}
        found |= {"loss_avg_meter": self.meter, "metrics_compute_fn": self.compute, **more}
        if run.stage != "train":
            found["loss_logging_items_names"] = self.source.loss_names(run)
        self.context.__dict__.update(found)

    def loss_is_known(self, run: Run) -> None:
        if run.stage == "train":
            self._take(run)

    def batch_ends(self, run: Run) -> None:
        if "loss" not in run.skipped:
            if not (self.inside and run.stage == "train"):  # otherwise it was taken when it was known
                self._take(run)
            if run.stage == "train":
                self._count(run)

    def batch_is_over(self, run: Run) -> None:
        """Callbacks saw the batch of a validation or a test; only now it counts, as in the original."""
        if run.stage != "train" and "loss" not in run.skipped:
            self._count(run)

    def _count(self, run: Run) -> None:
        self.meter.update(self.context.__dict__["loss_log_items"], count_samples(run.batch)[0])

    def _take(self, run: Run) -> None:
        fields = self.context.__dict__
        fields["preds"], fields["loss_log_items"] = getattr(run, "output", None), self.source.loss_items(run)
        fields["loss_logging_items_names"] = self.source.loss_names(run)

    def pass_ends(self, run: Run) -> None:
        self._log_parts(run)
        found = self.metrics_of(run, str(run.stage), run.loader_name)
        if run.stage == "test" and run.loader_name is not None:  # one of several, whose metrics come together
            named = {f"{run.loader_name}:{name}": value for name, value in found.items()}
            found = {**self.found.get("test", {}), **named}
        self.context.put(metrics_dict=found, **self.before)
        self.found[str(run.stage)] = found

    def _log_parts(self, run: Run) -> None:
        """A loss of several parts is logged in parts, so that one of them can be watched."""
        names, average = self.source.loss_names(run), self.meter.average
        if isinstance(average, tuple) and len(average) > 1:
            loader = f"{run.loader_name}/" if run.loader_name else ""
            for name, value in zip(names, average, strict=False):
                run.log(f"{run.stage}/{loader}{name}", value)

    def epoch_ends(self, run: Run) -> None:
        if self.context._stop:
            run.stop("stop_training was set on the context")

    def metrics_of(self, run: Run, stage: str, loader: str | None) -> dict[str, float]:
        """The metrics of one stage by SuperGradients' names: the loss by its class, others by their own name."""
        prefix = f"{stage}/{loader}/" if loader else f"{stage}/"
        names = self.source.loss_names(run)
        found: dict[str, float] = {}
        for name in run.metrics:
            rest = name.removeprefix(prefix)
            if rest == name or (loader is None and "/" in rest and rest.split("/")[0] in _names(run, stage)):
                continue
            if rest == "loss":
                average = self.meter.average
                items = average if isinstance(average, tuple) and len(average) > 1 else (run.metrics[name],)
                found.update(zip(names, items, strict=False))
            else:
                found[rest] = run.metrics[name]
        return found


def _names(run: Run, stage: str) -> list[str]:
    loaders = {"val": run.val_loader, "test": run.test_loaders}.get(stage)
    return [str(name) for name in loaders] if isinstance(loaders, Mapping) else []


def unpacked(batch: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Inputs, target and a dict of further items: ``(inputs, target)`` or ``(inputs, target, {...})``, else as the
    trainer itself takes a batch apart.

    >>> unpacked((1, 2, {"weight": 3}))
    (1, 2, {'weight': 3})
    """
    if isinstance(batch, list | tuple) and len(batch) == 3 and isinstance(batch[2], Mapping):
        return batch[0], batch[1], dict(batch[2])
    inputs, target = split(batch)
    return inputs, target, {}
