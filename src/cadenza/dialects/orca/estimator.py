"""Orca's Estimator: a model that is made by functions, trained on one or several workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from cadenza.dialects.facade import FrontDoor
from cadenza.dialects.orca.checkpoints import load_file, save_file
from cadenza.dialects.orca.ready_callbacks import ModelCheckpoint
from cadenza.dialects.orca.session import Session, Spec, job
from cadenza.dialects.orca.table import DIALECT
from cadenza.distributed import launch

__all__ = ["Estimator"]

BACKENDS = ("local", "ray", "spark")


class Estimator(metaclass=FrontDoor):
    """Made by ``from_torch``. With one local worker everything happens in this process; with several, or another
    backend, each call starts them, and brings the trained state and rank 0's callbacks back.

    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> import torch
    >>> estimator = Estimator.from_torch(
    ...     model=lambda config: tiny_classifier(),
    ...     optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=config["lr"]),
    ...     loss=nn.CrossEntropyLoss(), backend="local", config={"lr": 0.1})
    >>> stats = estimator.fit(lambda config, batch_size: tiny_loader(batch_size=batch_size), epochs=2, batch_size=8)
    >>> [row["batch_count"] for row in stats]
    [3, 3]
    """

    dialect = DIALECT

    def __init__(self, spec: Spec, backend: str, workers: int) -> None:
        self.spec, self.backend, self.workers = spec, backend, workers
        self._session: Session | None = Session(spec) if (backend, workers) == ("local", 1) else None
        self._state: dict[str, Any] | None = None

    @classmethod
    def from_torch(
        cls,
        *,
        model: Callable[..., nn.Module],
        optimizer: Callable[..., Any] | None = None,
        loss: Any = None,
        metrics: Any = None,
        backend: str = "spark",
        config: dict[str, Any] | None = None,
        workers_per_node: int = 1,
        scheduler_creator: Callable[..., Any] | None = None,
        use_tqdm: bool = False,
        model_dir: str | None = None,
        sync_stats: bool = False,
        log_level: int = logging.INFO,
        log_to_driver: bool = True,
    ) -> Estimator:
        """``model(config)``, ``optimizer(model, config)`` and ``scheduler_creator(optimizer, config)`` are functions,
        called in each worker. ``loss`` is a module, a function of output and target, or a function of the config that
        returns one. ``metrics`` are measured in validation. ``log_level`` is that of ``runner.logger``; ``model_dir``
        and ``log_to_driver`` are accepted and change nothing: state and output of the workers come back anyway."""
        for name, made in (("model", model), ("optimizer", optimizer), ("scheduler_creator", scheduler_creator)):
            if made is not None and (isinstance(made, nn.Module) or not callable(made)):
                raise TypeError(f"orca: {name} is a function that makes it in each worker, not {type(made).__name__}")
        if backend not in BACKENDS:
            raise ValueError(f"orca: backend is one of {', '.join(BACKENDS)}, not {backend!r}; horovod is not carried")
        if "batch_size" in (config or {}):
            raise ValueError("orca: batch_size is an argument of fit, evaluate and predict, not of the config")
        if workers_per_node < 1:
            raise ValueError(f"orca: workers_per_node must be at least 1, not {workers_per_node!r}")
        spec = Spec(model, optimizer, loss, metrics, dict(config or {}), scheduler_creator, use_tqdm, sync_stats,
                    backend, log_level)  # fmt: skip
        del model_dir, log_to_driver  # state and output of workers come back by themselves
        return cls(spec, backend, workers_per_node)

    # The work -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        max_steps: int | None = None,
        batch_size: int = 32,
        profile: bool = False,
        reduce_results: bool = True,
        feature_cols: Any = None,
        label_cols: Any = None,
        validation_data: Any = None,
        callbacks: Sequence[Any] | None = None,
    ) -> list[Any]:
        """The statistics of each epoch. ``batch_size`` is that of all workers together. The list of callbacks is not
        changed. With ``reduce_results=False``, a list of all workers' for each epoch."""
        _refuse_columns(feature_cols, label_cols)
        found: list[list[Any]] = self._do(
            "fit", callbacks, data=data, epochs=epochs, steps=max_steps, batch_size=self._share(batch_size),
            profile=profile, valid=validation_data,
        )  # fmt: skip
        return found[0] if reduce_results else [list(rows) for rows in zip(*found, strict=True)]

    def evaluate(
        self,
        data: Any,
        batch_size: int = 32,
        num_steps: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        feature_cols: Any = None,
        label_cols: Any = None,
        callbacks: Sequence[Any] | None = None,
    ) -> Any:
        """Loss and metrics over the data, or over the first ``num_steps`` batches."""
        _refuse_columns(feature_cols, label_cols)
        found = self._do(
            "evaluate", callbacks, data=data, batch_size=self._share(batch_size), num_steps=num_steps, profile=profile
        )
        return found[0] if reduce_results else found

    def predict(
        self,
        data: Any,
        batch_size: int = 32,
        feature_cols: Any = None,
        output_cols: Any = None,
        profile: bool = False,
        callbacks: Sequence[Any] | None = None,
    ) -> Any:
        """The outputs as an array, in the order of the data. It is made in one process: an order over several is not
        defined for a loader."""
        _refuse_columns(feature_cols, output_cols)
        return self._here.predict(callbacks, data=data, batch_size=batch_size, profile=profile)

    def _share(self, batch_size: int) -> int:
        return max(1, batch_size // self.workers)

    @property
    def _here(self) -> Session:
        return self._session or Session(self.spec, self._state)

    def _do(self, what: str, callbacks: Sequence[Any] | None, **given: Any) -> list[Any]:
        """Calls a method of a session: here, or in the workers. What each of them returns."""
        if self._session is not None:
            return [getattr(self._session, what)(callbacks, **given)]
        args = (self.spec, self._state, what, list(callbacks or ()), given)
        found = launch(job, *args, workers=self.workers, on=self.backend, results="all")
        _, self._state, seen = found[0]
        for one, theirs in zip(callbacks or (), seen, strict=True):
            vars(one).update(theirs)
        return [result for result, _, _ in found]

    # State ----------------------------------------------------------------------------------------------------------

    def get_state_dict(self) -> dict[str, Any]:
        """What a checkpoint of this estimator holds."""
        return self._here.state() if self._state is None else self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._session is not None:
            self._session.load(state)
        else:
            self._state = state

    def get_model(self) -> nn.Module:
        """The trained model."""
        return self._here.trainer.model

    def save_checkpoint(self, model_path: str) -> str:
        """Writes model, optimizers, schedulers and counters."""
        save_file(model_path, self.get_state_dict())
        return os.fspath(model_path)

    def load_checkpoint(self, model_path: str) -> None:
        self.load_state_dict(load_file(model_path))

    def save(self, model_path: str, entire: bool = False) -> str:
        """The same. A whole module would be a pickle, which is refused."""
        if entire:
            raise ValueError("orca: entire=True would pickle the module; save the state and keep the model function")
        return self.save_checkpoint(model_path)

    load = load_checkpoint

    @staticmethod
    def latest_checkpoint(checkpoint_dir: str) -> str:
        return ModelCheckpoint.get_latest_checkpoint(checkpoint_dir)

    def __getattr__(self, name: str) -> Any:
        return FrontDoor.__getattr__(type(self), name)  # it is not there, and says so

    def shutdown(self, force: bool = False) -> None:
        """Nothing keeps running between calls; the state stays."""


def _refuse_columns(*given: Any) -> None:
    if any(one is not None for one in given):
        raise ValueError(
            "orca: feature_cols and label_cols select columns of Spark data, which is not carried; give a function "
            "(config, batch_size) that returns a DataLoader, over cadenza.distributed.spark_data(frame, folder, "
            "inputs=..., targets=...) if the data is a DataFrame"
        )
