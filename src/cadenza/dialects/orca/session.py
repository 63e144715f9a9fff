"""What one worker of an Estimator does: it makes the model, and trains, evaluates or predicts with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils.data.distributed import DistributedSampler

from cadenza.callbacks import Metrics, SubsetRun
from cadenza.dialects.orca.callback import MainCallback, make_only_mainCallback
from cadenza.dialects.orca.checkpoints import state_of, take_state
from cadenza.dialects.orca.metrics import Metric
from cadenza.dialects.orca.ready_callbacks import MaxstepsCallback, TqdmCallback, is_tqdm_exists
from cadenza.dialects.orca.runner import SameOrder, with_sampler
from cadenza.dialects.orca.section import OrcaSection, number_of_samples
from cadenza.distributed.world import World
from cadenza.trainer import Trainer

if TYPE_CHECKING:
    from cadenza.run import Run

Given: TypeAlias = "Sequence[Any] | None"


@dataclass(frozen=True)
class Spec:
    """What ``Estimator.from_torch`` was given; it travels to the workers."""

    model: Callable[..., Any]
    optimizer: Callable[..., Any] | None
    loss: Any
    metrics: Any
    config: dict[str, Any]
    scheduler_creator: Callable[..., Any] | None
    use_tqdm: bool
    sync_stats: bool
    backend: str
    log_level: int


class Session:
    """One trainer, and the runner that callbacks see in all its calls."""

    def __init__(self, spec: Spec, state: dict[str, Any] | None = None) -> None:
        self.spec = spec
        model = spec.model(spec.config)
        optimizer = None if spec.optimizer is None else spec.optimizer(model, spec.config)
        scheduler = None if spec.scheduler_creator is None else spec.scheduler_creator(optimizer, spec.config)
        self.section = OrcaSection()
        runner = self.section.facade
        runner.backend, runner.config, runner.sync_stats = spec.backend, spec.config, spec.sync_stats
        runner.logger.setLevel(spec.log_level)
        measured = Metric.convert_metrics_dict(spec.metrics)
        runner.metrics = list(measured.values())
        native = [Metrics(measured, prepare=self._measured)] if measured else []
        self.trainer = Trainer(
            model, optimizer, made_loss(spec.loss, spec.config), scheduler=scheduler, callbacks=[self.section, *native]
        )
        if state is not None:
            self.load(state)

    def fit(
        self, callbacks: Given, *, data: Any, valid: Any, epochs: int, steps: int | None, batch_size: int, profile: bool
    ) -> list[dict[str, Any]]:
        timers = self.section.time(profile)
        own = [*(callbacks or ())]
        if steps is not None:
            own.append(MaxstepsCallback(steps))
        loader, val_loader = self.shuffled(data, batch_size), self.shuffled(valid, batch_size, SameOrder)
        with taking_part(self, own):
            self.trainer.fit(loader, val_loader, epochs=epochs)
        for row in self.section.rows if profile else ():
            row["profile"] = timers.stats()
        return self.section.rows

    def evaluate(
        self, callbacks: Given, *, data: Any, batch_size: int, num_steps: int | None, profile: bool
    ) -> dict[str, Any]:
        loader = self.loader(data, batch_size)
        self.section.facade.num_steps = num_steps
        timers = self.section.time(profile)
        own = [*(callbacks or ())]
        if num_steps is not None:
            own.append(SubsetRun(None, num_steps, None))  # so many batches of each worker
        with taking_part(self, own):
            found = self.trainer.validate(loader)
        del self.section.facade.num_steps
        row: dict[str, Any] = {name.removeprefix("val/"): value for name, value in found.items()}
        row |= {"num_samples": _number_measured(loader, num_steps), "val_loss": row.pop("loss")}
        return row | ({"profile": timers.stats()} if profile else {})

    def predict(self, callbacks: Given, *, data: Any, batch_size: int, profile: bool) -> Any:
        loader = self.loader(data, batch_size)
        with taking_part(self, callbacks or ()):
            found = self.trainer.predict(loader)
        return found.numpy() if isinstance(found, torch.Tensor) else found

    def shuffled(self, data: Any, batch_size: int, kind: Any = DistributedSampler) -> Any:
        world = World.detect()
        return with_sampler(self.loader(data, batch_size), world.rank, world.world_size, kind=kind)

    def loader(self, data: Any, batch_size: int) -> Any:
        """The loader behind ``data``: what a function ``(config, batch_size)`` returns, or a loader as it is."""
        if data is None:
            return None
        if isinstance(data, FunctionType) or inspect.ismethod(data):
            return data(self.spec.config, batch_size)
        if hasattr(data, "__iter__") and not isinstance(data, str | dict):
            return data
        raise TypeError(
            f"orca: data is a function (config, batch_size) that returns a DataLoader, or a loader, not "
            f"{type(data).__name__}; a Spark DataFrame becomes one by cadenza.distributed.spark_data, Ray data is not "
            "carried"
        )

    def _measured(self, run: Run) -> tuple[Any, Any]:
        """What metrics are given: a forward of the user's may have set another target."""
        return run.output, getattr(self.section.facade, "target", run.targets)

    def state(self) -> dict[str, Any]:
        training = self.trainer._training
        return state_of(training) | {"global_step": training.clock.batches}

    def load(self, state: dict[str, Any]) -> None:
        take_state(self.trainer._training, state)
        self.trainer.clock.batches = state.get("global_step", self.trainer.clock.batches)


def _number_measured(loader: Any, num_steps: int | None) -> int | None:
    """How many samples an evaluation looks at, if the loader can tell."""
    samples, size = number_of_samples(loader), getattr(loader, "batch_size", None)
    if num_steps is None or samples is None:
        return samples
    return None if size is None else min(samples, num_steps * size * World.detect().world_size)


@contextmanager
def taking_part(session: Session, callbacks: Sequence[Any]) -> Iterator[None]:
    """Callbacks are in the trainer for the time of one call, the main callback in front."""
    main, *_ = make_only_mainCallback([one for one in callbacks if hasattr(one, "dialect")])
    rest = [one for one in callbacks if not isinstance(one, MainCallback)]
    progress = [TqdmCallback()] if session.spec.use_tqdm and not is_tqdm_exists(rest) else []
    with ExitStack() as stack:
        for one in [main, *rest, *progress]:
            session.trainer.add(one)
            stack.callback(session.trainer.remove, one)
        yield


def made_loss(loss: Any, config: dict[str, Any]) -> Any:
    """A function of one argument makes the loss from the config; anything else is the loss."""
    if isinstance(loss, FunctionType) and len(inspect.signature(loss).parameters) == 1:
        return loss(config)
    return loss


def job(
    spec: Spec, state: dict[str, Any] | None, what: str, callbacks: list[Any], given: dict[str, Any]
) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
    """One call in one worker: its result, the state afterwards, and what the callbacks hold by then."""
    session = Session(spec, state)
    result = getattr(session, what)(callbacks, **given)
    return result, session.state(), [vars(one) for one in callbacks]
