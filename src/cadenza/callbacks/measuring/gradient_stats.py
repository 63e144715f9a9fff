"""How large and how alive the gradients of each layer are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from cadenza.callback import Callback, Order, without
from cadenza.clock import Duration
from cadenza.foundation.arguments import one_of
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run

Groups: TypeAlias = int | Callable[[str], str | None]
WHOLE = "all"


class GradientStats(Callback):
    """Logs norm, mean, standard deviation and share of zeros of the gradients, for each layer and for all together.

    The values of the group ``0`` are logged as ``train/gradients/0/norm``, ``/mean``, ``/std`` and ``/zeros``, those of
    all parameters under ``all``. They are taken over all elements of the group at once (the deviation divides by their
    number) and stay on their device until somebody reads them. Parameters without a gradient do not count.

    ``every`` says at which steps, such as "50 steps": the 50th, the 100th and so on. ``groups`` says what is taken
    together: a number of parts of the parameter's name (1: the children of the model, 2: the children of these), or a
    function from the parameter's name to the name of its group, None to leave it out. ``at="before_step"`` looks at
    what the optimizer is about to use: accumulated over all held batches, unscaled, and clipped if there is a clip (its
    ``log=True`` tells the norm before). ``at="after_backward"`` looks at what has gathered after each batch of such a
    step, as it is: scaled in fp16, and added to those of the batches held before. Looking opens a fused step.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[GradientStats(every="2 steps")], device="cpu")
    >>> history = trainer.fit(tiny_loader(48), epochs=1)
    >>> [name for name in history.names() if name.endswith("norm")]
    ['train/gradients/0/norm', 'train/gradients/2/norm', 'train/gradients/all/norm']
    >>> len(history.iters), len(history["train/gradients/all/norm"])  # in three of the steps, and over the epoch
    (3, 1)
    """

    order = Order.MEASURE
    same_on_ranks = ("every", "at")
    stages = frozenset({"train"})
    passive = True

    def __init__(self, every: str | Duration = "50 steps", *, groups: Groups = 1, at: str = "before_step") -> None:
        self.every = in_steps(every)
        one_of("at", at, ("before_step", "after_backward"))
        self.groups, self.at = checked_groups(groups), at
        self._seen = False
        self._first_step = 0

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """Only where it is to look: whoever plays inside the step opens it."""
        other = {"before_step": "after_backward", "after_backward": "before_step"}[self.at]
        return without(super().plays(), GradientStats, other)

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        return ["train/gradients/*"]

    def explain(self) -> str:
        return f"every {self.every} at {self.at}"

    def after_register(self, run: Run) -> None:
        self._seen, self._first_step = False, run.clock.steps

    def before_step(self, run: Run) -> None:
        if self.at == "before_step":
            self._look(run)

    def after_backward(self, run: Run) -> None:
        if self.at == "after_backward":
            self._look(run)

    def _look(self, run: Run) -> None:
        if (run.clock.steps + 1) % self.every.amount:
            return
        found = gradient_stats(run.module.named_parameters(), groups=self.groups)
        self._seen = self._seen or bool(found)
        run.log({f"train/gradients/{at}/{name}": value for at, each in found.items() for name, value in each.items()})

    def after_run(self, run: Run) -> None:
        due = run.clock.steps // self.every.amount > self._first_step // self.every.amount
        if run.mode == "fit" and due and not self._seen:
            warn(
                f"{self.name} saw no gradients at {self.at}: if {run.main.name}.on_iter_backward steps the optimizer "
                "itself, let it only call run.loss.backward()"
            )


def gradient_stats(parameters: Iterable[tuple[str, Tensor]], *, groups: Groups = 1) -> dict[str, dict[str, Tensor]]:
    """Norm, mean, standard deviation and share of zeros of the gradients of named parameters, by group and for ``all``;
    tensors, so that the device is not waited for.

    >>> weight = torch.zeros(4, requires_grad=True)
    >>> weight.grad = torch.tensor([0.0, 0.0, 3.0, 4.0])
    >>> stats = gradient_stats([("fc.weight", weight)])
    >>> stats["fc"]["norm"], stats["fc"]["zeros"]
    (tensor(5.), tensor(0.5000))
    """
    name_of = groups if callable(groups) else by_parts(groups)
    found: dict[str, list[Tensor]] = {}
    for name, parameter in parameters:
        group = name_of(name)
        if group is not None and parameter.grad is not None and parameter.grad.numel():
            found.setdefault(group, []).append(parameter.grad.detach())
    with torch.no_grad():
        moments = {group: [_Moments(gradient) for gradient in gradients] for group, gradients in found.items()}
        if moments and WHOLE not in moments:
            moments[WHOLE] = [one for several in moments.values() for one in several]
        return {group: _together(several) for group, several in moments.items()}


class _Moments:
    """What is needed of one gradient, still on its device."""

    def __init__(self, gradient: Tensor) -> None:
        gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient  # as two numbers
        self.size = gradient.numel()
        if gradient.is_sparse:
            # Adding up entries of the same place needs their number on the host: this waits for the device.
            values = gradient.coalesce().values()
            gradient = values if values.numel() else values.new_zeros(1)
        gradient = gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient
        self.variance, self.mean = torch.var_mean(gradient, correction=0)
        if gradient.numel() < self.size:  # the places that a sparse gradient leaves out are zeros
            share = gradient.numel() / self.size
            self.variance = share * (self.variance + (1 - share) * self.mean.square())
            self.mean = share * self.mean
        self.norm = torch.linalg.vector_norm(gradient)
        self.filled = torch.count_nonzero(gradient)


def _together(several: list[_Moments]) -> dict[str, Tensor]:
    size, device = sum(one.size for one in several), several[0].mean.device
    kind = torch.float64 if any(one.mean.dtype == torch.float64 for one in several) else torch.float32
    shares = torch.tensor([one.size / size for one in several], dtype=kind).to(device, non_blocking=True)
    means, variances, norms, filled = (
        torch.stack([getattr(one, name).to(device, kind) for one in several])
        for name in ("mean", "variance", "norm", "filled")
    )
    mean = (means * shares).sum()
    return {
        "norm": torch.linalg.vector_norm(norms),
        "mean": mean,
        "std": ((variances + (means - mean).square()) * shares).sum().sqrt(),
        "zeros": 1 - filled.sum() / size,
    }


# Arguments ----------------------------------------------------------------------------------------------------------


def in_steps(every: str | Duration) -> Duration:
    """An interval that counts steps; anything else is refused."""
    interval = Duration.interval(every, "every")
    if interval.unit != "steps":
        raise ValueError(f'every counts steps, such as "50 steps", not {interval.unit}: {every!r}')
    return interval


def checked_groups(groups: Groups) -> Groups:
    whole = isinstance(groups, int) and not isinstance(groups, bool) and groups >= 1
    if not whole and not callable(groups):
        raise ValueError(f"groups is a whole number of at least 1, or a function of a parameter's name, not {groups!r}")
    return groups


def by_parts(parts: int) -> Callable[[str], str | None]:
    """Groups parameters by the first ``parts`` parts of their name, the last part left out.

    >>> [by_parts(1)(name) for name in ("layer1.0.weight", "bias")], by_parts(2)("layer1.0.weight")
    (['layer1', 'model'], 'layer1.0')
    """
    checked_groups(parts)
    return lambda name: ".".join(name.split(".")[:-1][:parts]) or "model"
