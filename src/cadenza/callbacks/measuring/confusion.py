"""Which classes are taken for which."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import Tensor

from cadenza.callback import Callback, Order, without
from cadenza.callbacks.faults import Faults, epochs_of_others, place_for, tolerant
from cadenza.callbacks.measuring.pass_measure import prefix_of, was_computed, was_cut_short
from cadenza.callbacks.showing.figures import checked_format, keep_figure, new_figure, plain, write_figure
from cadenza.foundation.arguments import function, labels, some_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cadenza.run import Run

Prepare: TypeAlias = "Callable[[Run], tuple[Tensor, Tensor]]"
NORMALISED: dict[str | None, tuple[Any, str]] = {
    None: (None, "samples"),
    "true": (1, "% of the true class"),
    "predicted": (0, "% of the predictions"),
    "all": ((0, 1), "% of all"),
}
"""Over which dimensions the shares add up to all, and what the numbers then are."""


class ConfusionMatrix(Callback, Faults):
    """Counts over each validation pass how often each class was taken for which, and draws it.

    ![A square of numbers, true classes in rows and predicted ones in columns](images/confusion_matrix.png)

    Row t, column p of the matrix is how many samples of class t were predicted to be p. It is counted on the device as
    the batches pass, outside the step, and read once when the pass ends; over all processes together. It is then in
    ``run.store["val/confusion_matrix"]`` (with a loader's name ``"val/<name>/confusion_matrix"``), a tensor of whole
    numbers on the CPU, and after the run in ``trainer.store``. Skipped batches are left out, and a pass that a stop
    cuts short has no result.

    ``classes`` are the names of the classes; without it they are numbers, as many as the model has outputs. Scores of
    shape (N, C, ...) count by the highest one, so pixels are counted too; of a single score, above 0 is class 1; whole
    numbers are classes themselves. ``prepare`` is a function of the run that returns ``(scores or classes, targets)``
    for outputs of another form. Targets that equal ``ignore`` are left out; others that are no class end the run.
    ``normalise`` draws shares in place of counts: "true" of all of that true class, "predicted" of all predicted to
    be that class, "all" of all. ``stages`` are "val", "test" or both.

    ``path`` is the file (png, pdf or svg); ``{epoch}`` and ``{stage}`` in it are filled in. Without it, the file is
    ``confusion-{stage}.png`` in the plots of the run's experiment, else in the folder ``runs``; ``format`` chooses
    "pdf" or "svg" there. With ``on_error="warn"`` a failure switches it off with a warning.

    >>> import cadenza, os, tempfile, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     confusion = ConfusionMatrix(["a", "b", "c"], path=os.path.join(folder, "confusion.png"))
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=[confusion], device="cpu")
    ...     history = trainer.fit(tiny_loader(), tiny_loader(), epochs=8)
    >>> trainer.store["val/confusion_matrix"].sum(1)  # samples of each class
    tensor([8, 8, 8])
    """

    order = Order.MEASURE
    same_on_ranks = ("stages",)

    def __init__(
        self,
        classes: Iterable[str] | None = None,
        *,
        normalise: str | None = None,
        ignore: int = -100,
        prepare: Prepare | None = None,
        stages: Iterable[str] = ("val",),
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,
        on_error: str = "raise",
    ) -> None:
        self.format = checked_format(path, format, self.name)
        if not isinstance(normalise, str | None) or normalise not in NORMALISED:
            raise ValueError(f'{self.name}: normalise is "true", "predicted", "all" or None, not {normalise!r}')
        function(f"{self.name}: prepare", prepare)
        self.stages = some_of(f"{self.name}: stages", stages, ("val", "test"))
        if not isinstance(ignore, int) or isinstance(ignore, bool):
            raise ValueError(f"{self.name}: ignore is the class that is left out, a whole number, not {ignore!r}")
        if path is not None and len(self.stages) > 1 and "{stage}" not in os.fspath(path):
            raise ValueError(f"{self.name}: two stages need two files; write {{stage}} in the path")
        self.classes = None if classes is None else labels(f"{self.name}: classes", classes)
        self.normalise, self.ignore, self.prepare, self.path = normalise, ignore, prepare, path
        self._check_on_error(on_error)
        self._counts: Tensor | None = None

    @classmethod
    def example(cls) -> Self:
        return cls(["no", "yes"])

    def explain(self) -> str:
        many = "as many classes as outputs" if self.classes is None else f"{len(self.classes)} classes"
        return f"{many}, drawn as {f'shares of {self.normalise}' if self.normalise else 'counts'} ({self.format})"

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """Only the points of its stages."""
        return without(super().plays(), ConfusionMatrix, *epochs_of_others(self.stages))

    # Points ---------------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        self._counts = None

    before_val_epoch = before_test_epoch = _begin

    @tolerant
    def after_iter(self, run: Run) -> None:
        if was_computed(run):
            output, targets = self.prepare(run) if self.prepare is not None else (run.output, run.targets)
            many = None if self.classes is None else len(self.classes)
            counts = count_pairs(output, targets, many, ignore=self.ignore)
            self._counts = counts if self._counts is None else self._counts + counts

    @tolerant
    def _end(self, run: Run) -> None:
        counts, self._counts = _over_ranks(self._counts, run), None
        if counts is None or was_cut_short(run):
            return
        matrix = as_matrix(counts.cpu())  # the one wait for the device
        run.store[f"{prefix_of(run)}confusion_matrix"] = matrix
        if run.is_main:
            figure = plot_confusion(matrix, self.classes, normalise=self.normalise, title=_title(run))
            path = place_for(run, self.path, f"confusion-{{stage}}.{self.format}", plot=True)
            keep_figure(run, f"{self.name} {run.stage}", figure, path)

    after_val_epoch = after_test_epoch = _end

    def close(self) -> None:
        self._counts = None


def _title(run: Run) -> str:
    loader = f" loader {run.loader_name}" if run.loader_name else ""
    return f"{run.stage}{loader}, epoch {run.epoch + 1}" if run.mode == "fit" else f"{run.stage}{loader}"


def _over_ranks(counts: Tensor | None, run: Run) -> Tensor | None:
    """The sum over all processes; one that had no batch takes part all the same."""
    if run.world_size == 1:
        return counts
    everywhere: list[Tensor | None] = [None] * run.world_size
    torch.distributed.all_gather_object(everywhere, None if counts is None else counts.cpu())
    found = [one for one in everywhere if one is not None]
    return torch.stack(found).sum(0) if found else None


# Counting -----------------------------------------------------------------------------------------------------------


def confusion_matrix(output: Tensor, targets: Tensor, classes: int | None = None, *, ignore: int = -100) -> Tensor:
    """How often samples of each class (rows) were predicted to be of each class (columns).

    >>> confusion_matrix(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), classes=2)
    tensor([[1, 1],
            [0, 2]])
    """
    return as_matrix(count_pairs(output, targets, classes, ignore=ignore))


def count_pairs(output: Any, targets: Any, classes: int | None, *, ignore: int = -100) -> Tensor:
    """The matrix in one row, with two more numbers behind it: how many were ignored, and how many are no class.

    Nothing here waits for the device, so what is no class is only counted.
    """
    if not isinstance(output, Tensor) or not isinstance(targets, Tensor):
        kinds = f"{type(output).__name__} and {type(targets).__name__}"
        raise TypeError(f"a confusion matrix needs tensors, not {kinds}: give prepare=, a function of the run")
    predicted, found = _predicted(output.detach())
    classes = classes or found
    if classes is None:
        raise ValueError("predictions that are whole numbers do not tell how many classes there are: give classes=")
    if output.dim() > 1 and output.size(1) > 1 and targets.shape == output.shape:
        targets = targets.argmax(1)
    predicted, true = predicted.flatten().long(), targets.detach().flatten().long()
    if predicted.shape != true.shape:
        raise ValueError(f"{predicted.numel()} predictions do not go with {true.numel()} targets")
    known = (true >= 0) & (true < classes) & (predicted >= 0) & (predicted < classes)
    places = torch.where(known, true * classes + predicted, classes * classes + 1)
    places = torch.where(true == ignore, classes * classes, places)
    counts = torch.zeros(classes * classes + 2, dtype=torch.long, device=places.device)
    return counts.index_add_(0, places, torch.ones_like(places))  # bincount would wait for the device


def _predicted(output: Tensor) -> tuple[Tensor, int | None]:
    """The predicted classes, and how many there are if the output tells."""
    if not output.is_floating_point():
        return output, None
    if output.dim() > 1 and output.size(1) > 1:
        return output.argmax(1), output.size(1)
    return (output > 0).long(), 2


def as_matrix(counts: Tensor) -> Tensor:
    """The square matrix in ``counts``; raises if there was anything that is no class."""
    size = int((counts.numel() - 2) ** 0.5)
    if wrong := int(counts[-1]):
        raise ValueError(f"{wrong} targets or predictions are no class from 0 to {size - 1}; ignore= leaves one out")
    return counts[:-2].reshape(size, size)


# The figure ---------------------------------------------------------------------------------------------------------


def plot_confusion(
    matrix: Tensor,
    classes: Sequence[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    normalise: str | None = None,
    title: str = "",
) -> Figure:
    """A matplotlib figure of a confusion matrix, written to ``path`` if there is one."""
    names = [plain(name, 20, tail=7) for name in classes or range(len(matrix))]
    shares, unit = NORMALISED[normalise]
    values = matrix.double() if shares is None else 100 * matrix / matrix.sum(shares, keepdim=True).clamp(min=1)
    side = min(max(0.42 * len(names), 2.4), 9.0)
    figure = new_figure(side + 2.4, side + 1.5)
    axes = figure.subplots()
    top = max(float(values.max()), 1e-9) if shares is None else 100.0
    image = axes.imshow(values.tolist(), cmap="Blues", vmin=0, vmax=top)
    figure.colorbar(image, ax=axes, label=unit, shrink=0.8)
    if len(names) <= 20:
        _write_cells(axes, values.tolist(), top, whole=shares is None)
    _name_axes(axes, names)
    right = float(matrix.diagonal().sum()) / max(int(matrix.sum()), 1)
    axes.set_title(plain(f"{title}{': ' if title else ''}{right:.1%} right", 80), fontsize="medium")
    if path is not None:
        write_figure(figure, path)
    return figure


def _write_cells(axes: Axes, values: list[list[float]], top: float, *, whole: bool) -> None:
    for true, row in enumerate(values):
        for predicted, value in enumerate(row):
            text = f"{value:.0f}" if whole or value in (0, 100) else f"{value:.1f}"
            colour = "white" if value > 0.55 * top else "0.6" if value == 0 else "black"
            axes.text(predicted, true, text, ha="center", va="center", color=colour, fontsize="small")


def _name_axes(axes: Axes, names: list[str]) -> None:
    shown = range(0, len(names), -(-len(names) // 40))  # more would run into each other
    texts = [names[index] for index in shown]
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(shown, texts, fontsize="small", **(slanted if max(map(len, texts)) > 2 else {}))
    axes.set_yticks(shown, texts, fontsize="small")
    axes.set(xlabel="predicted", ylabel="true")
