"""The state that fastai callbacks share, kept up to date once for all of them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.dialects.adapter import Adapter, Player, Section
from cadenza.dialects.facade import Facade
from cadenza.dialects.fastai.answers import take
from cadenza.dialects.fastai.optimizer import OptimWrapper
from cadenza.dialects.fastai.table import DIALECT
from cadenza.dialects.numeric import numpy as np

if TYPE_CHECKING:
    from cadenza.run import Run

_BETA = 0.98
METRIC_PLACE = -1000
"""Metrics are called before all callbacks, and in validation alone."""


class Spread:
    """A loss that gets each of several targets as an argument."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, output: Any, target: Any) -> Any:
        return self.loss(output, *(target if isinstance(target, list | tuple) else [target]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loss"], name)


class State(Facade, dialect=DIALECT):
    """fastai hands over keywords; this stands for them where one object is needed."""


class Bar:
    """What is left of a progress bar: it writes lines."""

    def write(self, line: Any, table: bool = False) -> None:
        words = line if isinstance(line, list | tuple) else [str(line)]
        sys.stdout.write("  ".join(f"{word:<12}" for word in words).rstrip() + "\n")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"fastai: pbar has write(text) alone, not {name!r}")


class FastaiSection(Section):
    """Keeps the keywords: ``values`` is what every hook is called with."""

    dialect = DIALECT
    facade_class = State
    stages = frozenset({"train", "val", "pred"})

    def __init__(self, spreads: bool = False) -> None:
        super().__init__()
        self.spreads = spreads  # a Learner spreads a list of inputs over its model, one of targets over its loss
        self.values: dict[str, Any] = {}
        self.metrics: list[Any] = []
        self.metrics_names: list[str] = []
        self.pbar = Bar()
        self.adapters: weakref.WeakSet[Adapter] = weakref.WeakSet()
        self._optimizer: OptimWrapper | None = None
        self._first_epoch = self._first_batch = self._seen = 0
        self._moving: Tensor | None = None
        self._restored = False
        self.ends_batches = True  # pred_batch calls no on_batch_end

    @property
    def optimizer(self) -> OptimWrapper:
        """The run's optimizer with ``lr``, ``mom`` and ``wd``."""
        if self._optimizer is None or self._optimizer.opt is not self.run.optimizer:
            self._optimizer = OptimWrapper(self.run.optimizer)
        return self._optimizer

    @property
    def asks(self) -> frozenset[str]:  # type: ignore[override]
        """What its callbacks declare: it asks for those of them that ask before their place, or late."""
        return frozenset(request for one in self.adapters for request in one.asks)

    def bookkeeping(self) -> dict[str, Player]:
        return {
            "before_run": self._begin,
            "around_run": self._jump,
            "before_train_epoch": self._begin_epoch,
            "before_val_epoch": self._begin_validation,
            "before_train_iter": self._begin_batch,
            "before_val_iter": self._begin_batch,
            "before_pred_iter": self._begin_batch,
            "around_train_iter": self._owed,
            "after_forward": self._answered,
            **({"before_forward": self._spread_inputs, "before_loss": self._spread} if self.spreads else {}),
            "after_loss": self._lost,
            "before_backward": self._before_backward,
            "after_backward": self._after_backward,
            "after_step": self._after_step,
            "before_zero_grad": self._before_zero_grad,
            "after_train_iter": self._end_batch,
            "after_val_iter": self._end_batch,
            "after_train_epoch": self._end_train_pass,
            "after_val_epoch": self._end_validation,
            "after_epoch": self._end_epoch,
        }

    # What is true at each point ---------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        if not self._restored:
            self._first_epoch, self._first_batch = run.clock.epochs, run.clock.batches
            self._moving, self._seen = None, 0
        self._restored = False
        epochs = 1 if run.num_epochs is None else run.num_epochs - self._first_epoch
        self.values.clear()
        self.values.update(dict.fromkeys(("epoch", "iteration", "num_batch"), 0), skip_validate=False)
        self.values.update(n_epochs=epochs, pbar=self.pbar, metrics=self.metrics)

    def _jump(self, run: Run) -> None:
        """Every on_train_begin was called: if one returned an epoch, training begins there."""
        epoch = self.values["epoch"]
        if run.mode == "fit" and epoch:
            run.clock.epochs += epoch
            for member in self.members:
                member.foreign.jump_to_epoch(epoch)  # type: ignore[attr-defined]

    def epochs_done(self, run: Run) -> int:
        return run.clock.epochs - self._first_epoch

    def _begin_epoch(self, run: Run) -> None:
        self.values.update(epoch=run.epoch - self._first_epoch, num_batch=0, stop_training=False)

    def _begin_validation(self, run: Run) -> None:
        if run.mode == "validate":
            self.values.update(stop_training=False)

    def _begin_batch(self, run: Run) -> None:
        values = self.values
        values["last_input"], values["last_target"] = run.inputs, run.targets
        values["train"] = training = run.stage == "train"
        values["stop_epoch"] = values["skip_step"] = values["skip_zero"] = values["skip_bwd"] = False
        if training:
            values["iteration"] = run.clock.batches - self._first_batch
            values["num_batch"] = run.batch_idx
            self.backward_ended = self.step_ended = False

    def _answered(self, run: Run) -> None:
        self.values["last_output"] = run.output

    def _spread_inputs(self, run: Run) -> None:
        inputs = run.inputs
        if isinstance(inputs, list | tuple) and len(run.batch) == 2:
            run.batch = (*inputs, run.targets)

    def _spread(self, run: Run) -> None:
        if isinstance(run.targets, list | tuple) and not isinstance(run.criterion, Spread):
            run.criterion = Spread(run.criterion)

    def _lost(self, run: Run) -> None:
        """The loss is there: it and its fading mean are shown from now on. No device is waited for."""
        if run.stage != "train":
            return
        loss = run.loss.detach()
        self._seen += 1
        self._moving = loss * (1 - _BETA) if self._moving is None else self._moving.lerp(loss, 1 - _BETA)
        self.values["last_loss"] = run.loss
        self.values["smooth_loss"] = self._moving / (1 - _BETA**self._seen)

    def _before_backward(self, run: Run) -> None:
        if self.values["skip_bwd"]:
            run.skip_backward()

    def _after_backward(self, run: Run) -> None:
        self.backward_ended = True
        if self.values["skip_step"]:
            run.skip_step()
        if self.values["skip_zero"]:
            run.skip_zero_grad()

    def _after_step(self, run: Run) -> None:
        self.step_ended = True

    def _before_zero_grad(self, run: Run) -> None:
        if "step" in run.skipped and not self.step_ended:
            self.step_ended = True
            self.call("on_step_end", run)

    def _owed(self, run: Run) -> Iterator[None]:
        """At the end of an iteration: the hooks that the original calls although their action was skipped."""
        yield
        if "forward" in run.skipped or "loss" in run.skipped:
            return
        if not self.backward_ended:
            self.call("on_backward_end", run)
        if not self.step_ended:
            self.call("on_step_end", run)

    def _end_batch(self, run: Run) -> None:
        loss = getattr(run, "loss", None)
        if loss is not None:
            self.values["last_loss"] = loss.detach()

    def _end_train_pass(self, run: Run) -> None:
        self.values["iteration"] = run.clock.batches - self._first_batch
        self.values["num_batch"] = run.batches_seen
        if self.values["skip_validate"]:
            run.skip_validation()

    def _end_validation(self, run: Run) -> None:
        if run.mode == "validate":
            self.values["last_metrics"] = [np.float64(run.metrics["val/loss"])]

    def _end_epoch(self, run: Run) -> None:
        self.values["last_metrics"] = [np.float64(run.metrics["val/loss"]) if run.measured("val/loss") else None]
        if self.values["stop_training"]:
            run.stop("stop_training")

    # A run that is resumed goes on with its numbers -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        moving = None if self._moving is None else self._moving.clone()
        return {"epoch": self._first_epoch, "batch": self._first_batch, "seen": self._seen, "moving": moving}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first_epoch, self._first_batch, self._seen = state["epoch"], state["batch"], state["seen"]
        self._moving = None if state["moving"] is None else state["moving"].clone()
        self._restored = not self.is_open  # the run that is about to begin keeps them

    # Calling, and what is returned ------------------------------------------------------------------------------------

    def call(self, hook: str, run: Run) -> None:
        """Calls a hook of all callbacks, in order."""
        for member in self.members:
            caller = getattr(member, "callers", {}).get(hook)
            if caller is not None:
                result = caller(self.values)
                if result is not None:
                    self.take(member, hook, result, run, late=True)

    def take(self, member: Adapter, hook: str, result: Any, run: Run, *, late: bool = False) -> None:
        """Does what a hook returned. ``late``: its action is over."""
        take(self.values, member, hook, result, run, late)
