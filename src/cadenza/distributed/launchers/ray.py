"""Workers that Ray Train starts, on this machine or on a cluster, and starts again when they die, if that is wanted."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import secrets
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer

from cadenza.distributed.launchers.extra_callbacks import accompanied
from cadenza.distributed.launchers.ray_report import RayReport
from cadenza.distributed.launchers.result_socket import PostOffice
from cadenza.distributed.launchers.task import Errand, collect, raise_first
from cadenza.foundation.arguments import whole
from cadenza.foundation.environment import environment_with

_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""What the processes of a Ray that is started here get: nothing is told to anybody outside, devices stay visible."""


def start(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    workers: int,
    *,
    results: str = "main",
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    address: str | None = None,
    storage: str | os.PathLike[str] | None = None,
    name: str | None = None,
    restarts: int = 0,
    cpus: float = 1,
    gpus: float | None = None,
) -> Any:
    """Runs ``fn`` in the workers of a ``TorchTrainer``, and returns what rank 0 returned, or all of them.

    ``address`` is that of a Ray cluster; without it, the Ray to which this process is connected is used, else one is
    started here for the time of the launch. ``storage`` is the folder or URL where Ray keeps metrics and checkpoints
    under ``name``. When a worker dies or fails, all are started again, ``restarts`` times at most. Each gets ``cpus``,
    and ``gpus``: one, if there are enough and nothing is said. The options of "local" mean the same here.
    """
    whole("restarts", restarts, 0, "is")
    with cluster(address, workers * cpus), folder(storage) as place, PostOffice(_host()) as post:
        errand = Errand.of(fn, args, post, environment, timeout)
        each = {"CPU": cpus, **_gpus(workers, gpus)}
        trainer = TorchTrainer(
            work,
            train_loop_config={"errand": pickle.dumps(errand), "keep": storage is not None},
            scaling_config=train.ScalingConfig(num_workers=workers, use_gpu="GPU" in each, resources_per_worker=each),
            run_config=train.RunConfig(
                name=name or f"cadenza-{secrets.token_hex(4)}",
                storage_path=place,
                failure_config=train.FailureConfig(max_failures=restarts),
            ),
            torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if "GPU" in each else "gloo"),
        )
        return _fit(trainer, post, workers, results)


def _fit(trainer: Any, post: PostOffice, workers: int, wanted: str) -> Any:
    """Waits for Ray in a thread of its own: in the main one it would take Ctrl-C for itself, which then is lost."""
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            failed.append(error)

    waiting = threading.Thread(target=wait, name="cadenza waits for Ray", daemon=True)
    waiting.start()
    waiting.join()
    if failed and not isinstance(failed[0], train.TrainingFailedError):
        raise failed[0]
    if failed:
        raise_first(post, workers, failed[0])
    return collect(post, workers, wanted)


def work(config: dict[str, Any]) -> None:
    """What each worker does. Every trainer that it makes reports to Ray."""
    with accompanied(functools.partial(RayReport, checkpoints=config["keep"])):
        pickle.loads(config["errand"]).run(train.get_context().get_world_rank())


@contextlib.contextmanager
def cluster(address: str | None, cpus: float) -> Iterator[None]:
    """Ray, as long as it is needed: the one that is there stays, and one that is started here is ended."""
    if ray.is_initialized():
        if address is not None:
            raise ValueError(f"this process is connected to a Ray already; leave address={address!r} out")
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    sizes: dict[str, Any] = {} if address else {"num_cpus": max(1, round(cpus)), "include_dashboard": False}
    with own_signals():  # a SIGTERM meanwhile lets Ray end its processes
        with warnings.catch_warnings(), environment_with(_QUIET):
            warnings.simplefilter("ignore")  # what Ray says of its own future is not the user's concern
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **sizes)
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Whatever Ray does with the signals of this process is undone afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in known.items():
            if handler is not None:
                signal.signal(number, handler)


@contextlib.contextmanager
def folder(storage: str | os.PathLike[str] | None) -> Iterator[str]:
    """Where Ray keeps what it is told: the place that was given, else one that is removed at the end."""
    if storage is not None:
        place = os.fspath(storage)
        yield place if "://" in place else os.path.abspath(place)
        return
    with tempfile.TemporaryDirectory(prefix="cadenza-ray-", ignore_cleanup_errors=True) as place:
        yield place


def _host() -> str:
    """The address of this machine at which Ray's other machines reach it."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _gpus(workers: int, wanted: float | None) -> dict[str, float]:
    if wanted is None:
        there = ray.cluster_resources()  # type: ignore[no-untyped-call]
        wanted = 1 if there.get("GPU", 0) >= workers else 0
    return {"GPU": wanted} if wanted else {}
