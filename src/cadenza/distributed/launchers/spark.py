"""Workers that Spark's TorchDistributor starts: beside the driver, or as the tasks of a barrier stage of a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

from cadenza.distributed.launchers.result_socket import PostOffice
from cadenza.distributed.launchers.task import Errand, carry_out, collect, raise_first
from cadenza.foundation.environment import environment_with


def start(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    workers: int,
    *,
    results: str = "main",
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    session: Any = None,
    barrier: bool | None = None,
    gpus: bool = False,
) -> Any:
    """Runs ``fn`` in the workers of a ``TorchDistributor``, and returns what rank 0 returned, or all of them.

    ``session`` is a SparkSession; without it the active one is used, else one is started here for the time of the
    launch. With ``barrier`` the workers are tasks on the executors, otherwise processes beside the driver; if it is not
    said, they are tasks unless Spark runs on this machine alone. With ``gpus`` each has one, as Spark is configured to
    give them. The options of "local" mean the same here.
    """
    with active(session, workers) as spark:
        tasks = not is_local(spark) if barrier is None else barrier
        with PostOffice(_host(spark)) as post, quiet():
            errand = Errand.of(fn, args, post, environment, timeout)
            try:
                distributor = TorchDistributor(num_processes=workers, local_mode=not tasks, use_gpu=gpus)
                distributor.run(carry_out, pickle.dumps(errand))
            except Exception as error:
                raise_first(post, workers, error)
            return collect(post, workers, results)


@contextlib.contextmanager
def active(session: Any, workers: int) -> Iterator[Any]:
    """The session that is there, else one of its own, which is stopped at the end."""
    there = session or SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    made = make_session(workers)
    try:
        yield made
    finally:
        made.stop()


def make_session(workers: int) -> Any:
    """A Spark on this machine with as many cores as workers. It listens on the loopback only, and has no pages."""
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise RuntimeError(
            "launching on 'spark' needs Java, which was not found: install a Java runtime of version 17 or later and "
            "put it on the PATH or into JAVA_HOME"
        )
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder: Any = SparkSession.builder.master(f"local[{workers}]").appName("cadenza")
    with environment_with({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}):
        return builder.config(map=settings).getOrCreate()


def is_local(spark: Any) -> bool:
    master = str(spark.conf.get("spark.master", ""))
    return master == "local" or master.startswith("local[")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Spark's distributor tells when it begins and ends, and torchrun that it chose a number of threads: left out."""
    logger = logging.getLogger("TorchDistributor")
    known = logger.disabled
    logger.disabled = True
    try:
        with environment_with({"OMP_NUM_THREADS": "1"}):
            yield
    finally:
        logger.disabled = known


def _host(spark: Any) -> str:
    """The address of the driver at which executors reach it."""
    return "127.0.0.1" if is_local(spark) else str(spark.conf.get("spark.driver.host"))
