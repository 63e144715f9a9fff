"""The loop of the blog that simplified fastai, for callbacks of any class."""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from cadenza.dialects.fastai.adapter import caller
from cadenza.dialects.fastai.callback import Callback
from cadenza.dialects.fastai.table import DIALECT
from cadenza.registration.checks import CallbackError
from cadenza.trainer import Trainer


def adapted(callback: Any) -> Callback:
    """``callback`` as it is, or if its class is not derived from ``Callback``, one that calls its methods. It gets the
    model and the optimizer of the run as attributes, unless it has its own.

    >>> class Clip:
    ...     def on_backward_end(self): ...
    >>> type(adapted(Clip())).__mro__[1].__name__
    'Callback'
    """
    if isinstance(callback, Callback):
        return callback
    kind = type(callback).__name__
    names = [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name))]
    unknown = [name for name in names if DIALECT.hook(name) is None]
    if unknown or not names:
        why = DIALECT.not_carried(unknown[0], "hook") if unknown else "no hooks"
        raise CallbackError(f"{why} ({kind})")
    made: Callback = type(kind, (Callback,), {"_order": getattr(callback, "_order", 0)})()
    vars(made).update({name: getattr(callback, name) for name in names})

    begun = caller(callback.on_train_begin) if "on_train_begin" in names else lambda state: None

    def begin(**state: Any) -> Any:
        for name in ("model", "optimizer"):
            if not hasattr(callback, name):
                setattr(callback, name, getattr(made, name))
        return begun(state)

    vars(made)["on_train_begin"] = begin
    return made


def train(
    train_dl: Iterable[Any], model: nn.Module, epochs: int, optimizer: Optimizer, loss_func: Function[..., Any],
    callback: Any = (),
) -> None:  # fmt: skip
    """The blog's ``train``: ``callback`` is one or a list of them, of any class that has its methods."""
    wanted = callback if isinstance(callback, list | tuple) else [callback]
    Trainer(model, optimizer, loss_func, callbacks=[adapted(one) for one in wanted]).fit(train_dl, epochs=epochs)
