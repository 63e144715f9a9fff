"""Names for classes and functions, so that a recipe can say them: ``register_callback`` and so on."""

from __future__ import annotations

from collections.abc import Callable
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
