"""Keeping parts of a model as they are for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from torch import nn

from cadenza.callback import Callback, Order
from cadenza.clock import Duration
from cadenza.foundation.arguments import check, texts
from cadenza.foundation.suggest import did_you_mean

if TYPE_CHECKING:
    from cadenza.run import Run


class Freeze(Callback):
    """Does not train parts of the model until a moment that you name.

    ``modules`` is a name or a list of names of submodules or parameters, as in ``model.named_parameters()``; ``until``
    says how long they stay frozen, such as ``"3 epochs"`` or ``"500 steps"``, or is a list with one of these for each
    name; None is for good. A dict from names to durations unfreezes layer group after layer group:
    ``Freeze({"stem": "4 epochs", "body": "2 epochs"})``. Where names overlap, a parameter is frozen as long as any of
    them says. Frozen parameters have ``requires_grad = False`` and no gradient while a training epoch lasts, and are as
    before after it, however it ends. The running statistics of BatchNorm still move: see ``FreezeBatchNorm``.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, first = torch.optim.SGD(model.parameters(), lr=0.1), model[0].weight.clone()
    >>> freeze = Freeze("0", until="1 epoch")
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[freeze], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=1)
    >>> torch.equal(model[0].weight, first), model[0].weight.requires_grad
    (True, True)
    """

    order = Order.PREPARE
    same_on_ranks = ("until",)

    def __init__(
        self,
        modules: str | Sequence[str] | Mapping[str, str | Duration | None],
        until: str | Duration | Sequence[str | Duration | None] | None = None,
    ) -> None:
        self.until = _durations(modules, until)
        self._off: list[nn.Parameter] = []
        self._still: list[str] = []
        self._by_iteration = any(duration is not None and duration.unit != "epochs" for duration in self.until.values())

    @classmethod
    def example(cls) -> Self:
        return cls({"0": "1 epoch"})

    def explain(self) -> str:
        return ", ".join(f"{name} {f'until {end}' if end else 'for good'}" for name, end in self.until.items())

    def around_train_epoch(self, run: Run) -> Iterator[None]:
        parameters_of(run.module, self.until)  # refuses names that the model does not have
        self._still = self._frozen_names(run)
        self._off = freeze(parameters_of(run.module, self._still))
        try:
            if not any(parameter.requires_grad for parameter in run.module.parameters()):
                raise RuntimeError("Freeze leaves no parameter to train; name fewer modules")
            yield
        finally:
            self._unfreeze(())

    def before_train_iter(self, run: Run) -> None:
        if self._by_iteration and self._off and (still := self._frozen_names(run)) != self._still:
            self._still = still
            self._unfreeze(parameters_of(run.module, still))

    def _frozen_names(self, run: Run) -> list[str]:
        return [name for name, end in self.until.items() if end is None or not run.clock.reached(end)]

    def _unfreeze(self, but: Iterable[nn.Parameter]) -> None:
        kept = {id(parameter) for parameter in but}
        for parameter in self._off:
            parameter.requires_grad_(id(parameter) not in kept)
        self._off = [parameter for parameter in self._off if id(parameter) in kept]


def freeze(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Turns gradients off for ``parameters``; returns those that had them on.

    >>> layer = nn.Linear(2, 2)
    >>> frozen = freeze(layer.parameters())
    >>> len(frozen), layer.weight.requires_grad
    (2, False)
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
        parameter.grad = None  # an optimizer moves what has a gradient, be it zero
    return trained


def parameters_of(module: nn.Module, names: Iterable[str]) -> list[nn.Parameter]:
    """The parameters with one of these names, and those inside the submodules of these names, each once."""
    found: dict[int, nn.Parameter] = {}
    for name in names:
        inside = [
            p for n, p in module.named_parameters(remove_duplicate=False) if n == name or n.startswith(f"{name}.")
        ]
        if not inside:
            raise ValueError(unknown_part(module, name))
        found.update((id(parameter), parameter) for parameter in inside)
    return list(found.values())


def unknown_part(module: nn.Module, name: str) -> str:
    """What to say when a model has nothing of this name to freeze."""
    known = [n for n, _ in (*module.named_modules(), *module.named_parameters()) if n]
    hint = did_you_mean(name, known, ".", cutoff=0.4)
    parts = ", ".join(n for n, _ in module.named_children()) or "none"
    return f"the model has no parameter in {name!r}{hint} Its parts: {parts}"


_MODULES = "at least one name of a submodule or parameter, or a dict from names to durations"


def _durations(
    modules: str | Sequence[str] | Mapping[str, str | Duration | None],
    until: str | Duration | Sequence[str | Duration | None] | None,
) -> dict[str, Duration | None]:
    if isinstance(modules, Mapping):
        if until is not None:
            raise ValueError("a dict says for each name until when; until is for a list of names")
        pairs = list(modules.items())
    else:
        names = [modules] if isinstance(modules, str) else texts("modules", modules, _MODULES)
        ends = list(until) if isinstance(until, Sequence) and not isinstance(until, str) else [until] * len(names)
        check(len(ends) == len(names), f"until must be one duration, or one for each of the {len(names)} names", until)
        pairs = list(zip(names, ends, strict=True))
    check(pairs and all(isinstance(name, str) and name for name, _ in pairs), f"modules is {_MODULES}", modules)
    for _, end in pairs:
        if not isinstance(end, str | Duration | None):
            meant = 'a duration such as "3 epochs", None, or a list with one of these for each name'
            raise TypeError(f"until is {meant}, not {end if until is None else until!r}")
    return {name: None if end is None else Duration.parse(end, "until") for name, end in pairs}
