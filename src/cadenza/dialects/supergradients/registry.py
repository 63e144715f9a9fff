"""Names for classes and functions, so that a recipe can say them: ``register_callback`` and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

Registered = TypeVar("Registered", bound=Callable[..., Any])


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


class Registry:
    """Objects of one kind under names. Case and separators do not matter when a name is looked up.

    >>> shapes = Registry("shape")
    >>> @shapes.register("RoundThing")
    ... class Circle: ...
    >>> shapes.find("round_thing") is Circle, "round-thing" in shapes
    (True, True)
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.named: dict[str, Any] = {}

    def register(
        self, name: str | None = None, deprecated_name: str | None = None
    ) -> Callable[[Registered], Registered]:
        """A decorator that puts a class or function under ``name``, or under its own name."""
        if callable(name):
            raise TypeError(f"register_{self.kind} is called: write @register_{self.kind}() above the definition")

        def put(made: Registered) -> Registered:
            for one in (name or made.__name__, deprecated_name):
                if one is not None:
                    self.add(one, made)
            return made

        return put

    def add(self, name: str, made: Any) -> None:
        taken = self.named.get(name)
        if taken is not None and not _same(taken, made):
            raise ValueError(
                f"supergradients: the {self.kind} {name!r} is already registered as "
                f"{taken.__module__}.{taken.__qualname__}; give this one another name"
            )
        self.named[name] = made

    def find(self, name: str) -> Any:
        """What stands under ``name``."""
        if name in self.named:
            return self.named[name]
        alike = [known for known in self.named if _plain(known) == _plain(name)]
        if alike:
            return self.named[alike[0]]
        near = get_close_matches(name, list(self.named), n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known_ones = ", ".join(sorted(self.named)) or "none"
        raise KeyError(f"supergradients: no {self.kind} is registered as {name!r}{hint} Registered: {known_ones}")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and any(_plain(known) == _plain(name) for known in self.named)

    def __iter__(self) -> Iterator[str]:
        return iter(self.named)


def _same(one: Any, other: Any) -> bool:
    """Whether it is the same definition, as when a module is run again under another name."""
    return one is other or (one.__qualname__ == other.__qualname__ and _code(one) == _code(other))


def _code(made: Any) -> tuple[str | None, int | None]:
    from inspect import getsourcefile, getsourcelines

    try:
        return getsourcefile(made), getsourcelines(made)[1]
    except (OSError, TypeError):
        return made.__module__, None


KINDS = (
    "model",
    "kd_model",
    "detection_module",
    "metric",
    "loss",
    "dataloader",
    "callback",
    "transform",
    "dataset",
    "pre_launch_callback",
    "unet_backbone_stage",
    "unet_up_block",
    "target_generator",
    "lr_scheduler",
    "lr_warmup",
    "sg_logger",
    "collate_function",
    "sampler",
    "optimizer",
    "processing",
)
REGISTRIES: dict[str, Registry] = {kind: Registry(kind) for kind in KINDS}
"""One registry for each kind of thing that a recipe names."""

register_model = REGISTRIES["model"].register
register_kd_model = REGISTRIES["kd_model"].register
register_detection_module = REGISTRIES["detection_module"].register
register_metric = REGISTRIES["metric"].register
register_loss = REGISTRIES["loss"].register
register_dataloader = REGISTRIES["dataloader"].register
register_callback = REGISTRIES["callback"].register
register_transform = REGISTRIES["transform"].register
register_dataset = REGISTRIES["dataset"].register
register_pre_launch_callback = REGISTRIES["pre_launch_callback"].register
register_unet_backbone_stage = REGISTRIES["unet_backbone_stage"].register
register_unet_up_block = REGISTRIES["unet_up_block"].register
register_target_generator = REGISTRIES["target_generator"].register
register_lr_scheduler = REGISTRIES["lr_scheduler"].register
register_lr_warmup = REGISTRIES["lr_warmup"].register
register_sg_logger = REGISTRIES["sg_logger"].register
register_collate_function = REGISTRIES["collate_function"].register
register_sampler = REGISTRIES["sampler"].register
register_optimizer = REGISTRIES["optimizer"].register
register_processing = REGISTRIES["processing"].register
