"""Names for classes and functions, so that a recipe can say them, and what is built from such a name.

An object is said by a name, ``{name: arguments}``, ``{_target_: path, ...}``, or is there already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from cadenza.dialects.supergradients.table import REFUSED
from cadenza.dialects.table import nearest
from cadenza.foundation.suggest import suggestion
from cadenza.recipes.registry import Registry

Registered = TypeVar("Registered", bound=Callable[..., Any])

REGISTRIES: dict[str, Registry] = {}
"""One registry for each kind of thing that a recipe names. Case and separators do not matter in a name."""


def _registering(kind: str) -> Callable[..., Callable[[Registered], Registered]]:
    """The decorator for one kind."""
    REGISTRIES[kind] = Registry(kind)

    def register(name: str | None = None, deprecated_name: str | None = None) -> Callable[[Registered], Registered]:
        """Puts a class or function under ``name``, or under its own name; ``deprecated_name`` stands for it, too."""
        if callable(name):
            raise TypeError(f"register_{kind} is called: write @register_{kind}() above the definition")

        def put(made: Registered) -> Registered:
            for one in (name or made.__name__, deprecated_name):
                if one is not None:
                    REGISTRIES[kind].register(made, one)
            return made

        return put

    register.__name__ = f"register_{kind}"
    return register


register_model = _registering("model")
register_kd_model = _registering("kd_model")
register_detection_module = _registering("detection_module")
register_metric = _registering("metric")
register_loss = _registering("loss")
register_dataloader = _registering("dataloader")
register_callback = _registering("callback")
register_transform = _registering("transform")
register_dataset = _registering("dataset")
register_pre_launch_callback = _registering("pre_launch_callback")
register_unet_backbone_stage = _registering("unet_backbone_stage")
register_unet_up_block = _registering("unet_up_block")
register_target_generator = _registering("target_generator")
register_lr_scheduler = _registering("lr_scheduler")
register_lr_warmup = _registering("lr_warmup")
register_sg_logger = _registering("sg_logger")
register_collate_function = _registering("collate_function")
register_sampler = _registering("sampler")
register_optimizer = _registering("optimizer")
register_processing = _registering("processing")

__all__ = [f"register_{kind}" for kind in REGISTRIES]


def find(kind: str, name: str) -> Any:
    """What is registered as ``name``."""
    registry = REGISTRIES[kind]
    if name not in registry and name in REFUSED:
        raise KeyError(f"supergradients: {name} is not carried: {REFUSED[name]}")
    if name not in registry:
        hint = suggestion(nearest(name, registry), ".")
        known = ", ".join(registry) or "none"
        raise KeyError(f"supergradients: no {kind} is registered as {name!r}{hint} Registered: {known}")
    return registry[name].load()


def build(kind: str, said: Any, **more: Any) -> Any:
    """What ``said`` means, made with its arguments and with ``more``. An object is returned as it is.

    >>> from cadenza.dialects.supergradients.early_stop import EarlyStop
    >>> build("callback", {"EarlyStop": {"phase": "TRAIN_EPOCH_END", "monitor": "loss"}}).monitor
    'loss'
    """
    if isinstance(said, str):
        return find(kind, said)(**more)
    if isinstance(said, Mapping):
        if "_target_" in said:
            return located(str(said["_target_"]))(**{**_without(said, "_target_"), **more})
        if len(said) != 1:
            names = ", ".join(map(str, said))
            raise ValueError(f"supergradients: a {kind} is said as {{name: arguments}} with one name, not {names}")
        name, arguments = next(iter(said.items()))
        return find(kind, str(name))(**{**dict(arguments or {}), **more})
    return said


def located(path: str) -> Any:
    """What a dotted path leads to."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _without(said: Mapping[Any, Any], key: str) -> dict[str, Any]:
    return {str(name): value for name, value in said.items() if name != key}


def watched_name(said: str, losses: list[str], metrics: Mapping[str, Any]) -> str:
    """The name under which the run logs what ``metric_to_watch`` says: a loss, a metric, or a part of one. Case and
    separators do not matter.

    >>> watched_name("crossentropyloss", ["CrossEntropyLoss"], {})
    'val/loss'
    >>> watched_name("accuracy", ["CrossEntropyLoss"], {"Accuracy": None})
    'val/Accuracy'
    """
    known = [*losses, *(part for name, one in metrics.items() for part in getattr(one, "component_names", [name]))]
    if len(losses) == 1 and (part := re.fullmatch(rf"{plainly(losses[0])}loss(\d+)", plainly(said))):
        return f"val/{losses[0]}/loss_{part[1]}"  # of a loss whose parts have no names
    found = next((name for name in known if plainly(name) == plainly(said)), None)
    if found is None:
        hint = suggestion(nearest(said, known), ".")
        raise ValueError(f"supergradients: metric_to_watch is {said!r}{hint} There are {', '.join(known)}")
    if found in losses:
        return "val/loss" if len(losses) == 1 else f"val/{found}"
    return f"val/{found}"


def plainly(name: object) -> str:
    """A name without case and separators."""
    return "".join(letter for letter in str(name).lower() if letter.isalnum())
