"""Starting processes: one signature, several engines. Each engine is a module with a function ``start``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from cadenza.distributed.world import World
from cadenza.foundation.arguments import one_of, whole
from cadenza.foundation.suggest import did_you_mean

ENGINES = {
    "local": "cadenza.distributed.launchers.local",
    "ray": "cadenza.distributed.launchers.ray",
    "spark": "cadenza.distributed.launchers.spark",
}


def launch(fn: Callable[..., Any], *args: Any, workers: int = 2, on: str = "local", **options: Any) -> Any:
    """Calls ``fn(*args)`` in ``workers`` processes that know of each other, and returns what rank 0 returned.

    In a process that torchrun, srun or another launcher started, the world is there already and ``fn`` is just called.
    ``on`` says who starts the processes: "local" (this machine), "ray" or "spark". ``results="all"`` returns what each
    rank returned, as a list. An exception of a worker is raised here, with its traceback. Further ``options`` are those
    of the engine. It must not be called while a module is imported that the workers import as well.

    >>> launch(len, [1, 2, 3], workers=1)
    3
    """
    if not callable(fn):
        raise TypeError(f"launch calls a function in each process, not {type(fn).__name__}")
    whole("workers", workers, 1, "is")
    if on not in ENGINES:
        raise ValueError(f"on is one of {', '.join(ENGINES)}, not {on!r}{did_you_mean(str(on), ENGINES)}")
    one_of("results", options.get("results", "main"), ("main", "all"))
    if World.detect().source != "single":
        if options.get("results") == "all":
            raise ValueError('results="all" is for a launch that starts the processes; here another launcher did')
        return fn(*args)
    if workers == 1 and on == "local":
        return [fn(*args)] if options.get("results") == "all" else fn(*args)
    try:
        engine = importlib.import_module(ENGINES[on])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cadenza"):
            raise
        package, extra = (error.name or "").partition(".")[0], "launch" if on == "local" else on
        raise ModuleNotFoundError(
            f"launching on {on!r} needs {package}: pip install 'cadenza[{extra}]'", name=error.name
        ) from error
    return engine.start(fn, args, workers, **options)
