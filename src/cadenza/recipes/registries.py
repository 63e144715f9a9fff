"""One registry for each kind of object, the names that are there from the beginning, and ``register``.

Nothing is imported until a name of that kind is looked up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from cadenza.recipes.errors import RecipeError, did_you_mean
from cadenza.recipes.registry import KINDS, Entry, Registry, Table, Thing, snake

_READY = "cadenza.recipes.ready"

MODELS = {
    "mlp": f"{_READY}.models:MLP",
    "cnn": f"{_READY}.models:CNN",
    "characters": f"{_READY}.models:CharacterModel",
    "segmenter": f"{_READY}.models:Segmenter",
    "rivals": f"{_READY}.gan:Rivals",
}
DATASETS = {
    "digits": f"{_READY}.datasets:Digits",
    "diabetes": f"{_READY}.datasets:Diabetes",
    "text": f"{_READY}.text:PythonText",
    "shapes": f"{_READY}.datasets:Shapes",
    "cloud": f"{_READY}.gan:Cloud",
}
PARTS = {
    "mail": "cadenza.callbacks.showing.notify_channels:Mail",
    "webhook": "cadenza.callbacks.showing.notify_channels:Webhook",
    "command": "cadenza.callbacks.showing.notify_channels:Command",
    "real_and_made": f"{_READY}.gan:real_and_made",
}
"""What stands only inside of others, and is of no kind that users register."""
LOADERS = {"data_loader": "torch.utils.data:DataLoader"}
_HOLDS: Mapping[str, Mapping[str, str]] = {
    "Metrics": {"metrics": "metric"},
    "BatchSizeFinder": {"callbacks": "callback"},
    "Evaluate": {"package": "metric"},
    "Notify": {"channels": "part"},
}


def callbacks() -> Table:
    """Every callback that the package exports, and those of the ready recipes."""
    import cadenza.callbacks
    from cadenza.callback import Callback

    table: dict[str, str | Entry] = {
        "main_callback": "cadenza:MainCallback",
        "watch": "cadenza:Watch",
        "when": Entry("when", place="cadenza:When", holds={"callback": "callback"}),
        "in_turn": f"{_READY}.gan:InTurn",
        "report": "cadenza.experiment:Report",
    }
    for name in cadenza.callbacks.__all__:
        thing = getattr(cadenza.callbacks, name)
        if inspect.isclass(thing) and issubclass(thing, Callback):
            place = f"cadenza.callbacks:{name}"
            table[snake(name)] = Entry(snake(name), place=place, holds=_HOLDS.get(name, {}))
    return table


def losses() -> Table:
    """The losses of torch, with and without ``_loss`` at the end."""
    import torch.nn.modules.loss as losses

    table: dict[str, str | Entry] = {}
    for name in losses.__all__:
        if name.endswith("2d"):  # an old name that only warns
            continue
        short = snake(name.removesuffix("Loss"))
        table[short] = f"torch.nn:{name}"
        table[f"{short}_loss"] = f"torch.nn:{name}"
    return table


def optimizers() -> Table:
    import torch

    return _classes("torch.optim", torch.optim, torch.optim.Optimizer, str.lower)


def schedulers() -> Table:
    from torch.optim import lr_scheduler

    return _classes("torch.optim.lr_scheduler", lr_scheduler, lr_scheduler.LRScheduler)


def _classes(place: str, module: object, parent: type, spell: Callable[[str], str] = snake) -> Table:
    found = inspect.getmembers(module, lambda thing: inspect.isclass(thing) and issubclass(thing, parent))
    return {spell(name): f"{place}:{name}" for name, cls in found if cls is not parent and not name.startswith("_")}


def metrics() -> Table:
    """The measures of one batch, and the packages of results for ``Evaluate``."""
    names = ("accuracy", "top_k_accuracy", "mean_absolute_error", "mean_squared_error")
    packages = ("BinaryResults", "ClassificationResults", "RegressionResults")
    table = {name: f"cadenza.callbacks:{name}" for name in names}
    table |= {snake(name): f"cadenza.callbacks:{name}" for name in packages}
    return table | {"overlap": f"{_READY}.models:overlap", "cloud_distance": f"{_READY}.gan:cloud_distance"}


TRACKERS = {
    "csv": "cadenza.experiment:CSV",
    "tensorboard": "cadenza.experiment:TensorBoard",
    "mlflow": "cadenza.experiment:MLflow",
    "wandb": "cadenza.experiment:WandB",
    "trackio": "cadenza.experiment:Trackio",
}

TABLES: Mapping[str, Callable[[], Table]] = {
    "model": lambda: MODELS,
    "loss": losses,
    "optimizer": optimizers,
    "scheduler": schedulers,
    "dataset": lambda: DATASETS,
    "loader": lambda: LOADERS,
    "metric": metrics,
    "callback": callbacks,
    "tracker": lambda: TRACKERS,
}


REGISTRIES: dict[str, Registry] = {kind: Registry(kind, TABLES.get(kind)) for kind in KINDS}


def registry(kind: str) -> Registry:
    """The registry of a kind.

    >>> "early-stopping" in registry("callback"), registry("optimizer")["AdamW"].path
    (True, 'torch.optim.AdamW')
    """
    if kind not in REGISTRIES:
        raise RecipeError(f"there is no kind {kind!r} of objects{did_you_mean(kind, KINDS)}")
    return REGISTRIES[kind]


def register(kind: str, name: str | None = None, *, holds: Mapping[str, str] | None = None) -> Callable[[Thing], Thing]:
    """A decorator that gives a class or a function a name in recipes.

    Without ``name`` it is the object's own: ``SaveFirst`` becomes ``save_first``. A second object under a taken name
    is refused. ``holds`` says which arguments are registered objects again: ``{"metrics": "metric"}``.

    >>> from cadenza import Callback
    >>> @register("callback", name="my_greeting")
    ... class Greeting(Callback):
    ...     def before_run(self, run): print("hello")
    >>> registry("callback")["My-Greeting"].load() is Greeting
    True
    """
    names = registry(kind)
    if callable(name):
        raise TypeError(f'write @register("{kind}") or @register("{kind}", name="...")')
    for argument, inner in (holds or {}).items():
        if inner not in REGISTRIES:
            raise RecipeError(f"{argument!r} cannot hold a {inner!r}{did_you_mean(inner, KINDS)}")

    def add(thing: Thing) -> Thing:
        return names.register(thing, name, holds=holds)

    return add
