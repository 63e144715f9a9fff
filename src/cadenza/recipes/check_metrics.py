"""Whether the metrics that callbacks watch will be there, as far as that can be known before a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cadenza.callback import Callback
from cadenza.callbacks import Metrics
from cadenza.recipes.errors import did_you_mean

_MEASURING = ("Evaluate", "ActivationStats", "GradientStats", "Throughput", "Timer", "GradientClip", "ConfusionMatrix")
"""Shipped callbacks that log names of their own under the name of a stage."""


def unknown_monitor(callbacks: Mapping[str, Callback], stages: Iterable[str]) -> tuple[str, str] | None:
    """The first callback that watches a metric nobody measures, and what to say of it.

    Only what is certain is told: a callback of the user's, or one that logs under other names, may measure anything.
    """
    known = {f"{stage}/loss" for stage in stages}
    for callback in callbacks.values():
        if isinstance(callback, Metrics):
            known |= {f"{stage}/{name}" for stage in callback.stages or () for name in callback.metrics}
    for label, callback in callbacks.items():
        name = callback.monitor
        if name is None or name in known:
            continue
        stage, slash, _ = name.partition("/")
        if slash and stage in ("val", "test") and stage not in stages:
            return label, f"it watches {name!r}, but the recipe has no data.{stage}"
        if slash and stage in ("train", "val", "test") and not _could_log(callbacks.values()):
            return label, f"it watches {name!r}, which nobody measures{did_you_mean(name, known)}"
    return None


def _could_log(callbacks: Iterable[Callback]) -> bool:
    classes = [type(callback) for callback in callbacks]
    return any(
        not cls.__module__.startswith("cadenza.callback") or cls.__name__ in _MEASURING or _holds_others(cls)
        for cls in classes
    )


def _holds_others(cls: type) -> bool:
    return cls.__name__ == "When"
