"""Pictures of what a model predicts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from cadenza.callback import Callback, Order, without
from cadenza.callbacks.faults import Faults, epochs_of_others, place_for, tolerant
from cadenza.callbacks.measuring.pass_measure import was_computed
from cadenza.callbacks.showing import predictions
from cadenza.callbacks.showing.figures import checked_format, keep_figure
from cadenza.callbacks.showing.image_grid import Look, Sample, draw_samples
from cadenza.callbacks.showing.predictions import Boxes, Label, Mask
from cadenza.data import to_device
from cadenza.foundation.arguments import check, function, is_number, is_whole, labels, some_of

if TYPE_CHECKING:
    from cadenza.run import Run

TASKS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any], int]] = {
    "classification": (Label, predictions.decode_labels, predictions.true_labels, 16),
    "detection": (Boxes, predictions.decode_boxes, predictions.true_boxes, 6),
    "segmentation": (Mask, predictions.decode_masks, predictions.true_masks, 4),
}
"""For each task what a prediction is, how output and targets are decoded, and how many images are shown."""


class Visualize(Callback, Faults):
    """Draws the first images of each validation pass with what was predicted and what is true.

    ``task`` is "classification" (the predicted class and how sure it is; green if right, else red with the true one):

    ![A grid of small images with classes above them](images/visualize_classification.png)

    "detection" (boxes with class and score, true ones dashed):

    ![Images with boxes](images/visualize_detection.png)

    or "segmentation" (the predicted mask over the image beside the true one, with the share of right pixels):

    ![Images with masks](images/visualize_segmentation.png)

    Of each pass the first ``n`` images are kept on the device and drawn when it ends; it plays outside the step.
    ``classes`` are the names of the classes. ``mean`` and ``std``, numbers or one for each channel, are those by which
    the inputs were normalised; without them images that leave the range from 0 to 1 are shown from darkest to
    brightest.

    ``decode`` is a function of ``run.output`` that returns one entry for each image: a class or ``(class, score)``; a
    dict with ``boxes`` (left, top, right, bottom in pixels), ``labels`` and ``scores``; or a mask of classes.
    ``decode_targets`` does the same with ``run.targets``, and ``images`` turns ``run.inputs`` into images of shape
    (C, H, W). Without them the usual forms are understood: scores of shape (N, C) or (N, C, H, W), a dict of boxes for
    each image. Boxes with a score below ``threshold`` are not drawn; class ``background`` is not painted, and pixels
    of class ``ignore`` are not counted. ``stages`` are "val", "test" or both.

    ``path`` is the file (png, pdf or svg); ``{epoch}``, ``{step}`` and ``{stage}`` in it are filled in. Without it, the
    files are ``predictions-{stage}-{epoch}.png`` in the plots of the run's experiment, else in the folder ``runs``;
    ``format`` chooses "pdf" or "svg" there. With ``on_error="warn"`` a failure switches it off with a warning.

    >>> import cadenza, os, tempfile, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    >>> data = [(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))]
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     show = Visualize("classification", classes=["cat", "dog"], path=os.path.join(folder, "{epoch}.png"))
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=[show], device="cpu")
    ...     history = trainer.fit(data, data, epochs=2)
    ...     sorted(os.listdir(folder))
    ['000.png', '001.png']
    """

    order = Order.REPORT
    ranks = "main"

    def __init__(
        self,
        task: str,
        n: int | None = None,
        *,
        classes: Iterable[str] | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        decode: Callable[[Any], Sequence[Any]] | None = None,
        decode_targets: Callable[[Any], Sequence[Any]] | None = None,
        images: Callable[[Any], Sequence[Tensor]] | None = None,
        threshold: float = 0.5,
        background: int | None = 0,
        ignore: int = 255,
        stages: Iterable[str] = ("val",),
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,
        on_error: str = "raise",
    ) -> None:
        self.format = checked_format(path, format, self.name)
        check(isinstance(task, str) and task in TASKS, f"{self.name}: task is {', '.join(TASKS)}", task)
        check(n is None or (is_whole(n, 1) and n <= 100), f"{self.name}: n is a whole number from 1 to 100", n)
        check(is_number(threshold), f"{self.name}: threshold is a score, a finite number", threshold)
        for what, given in (("decode", decode), ("decode_targets", decode_targets), ("images", images)):
            function(f"{self.name}: {what}", given, "a function or None")
        self.stages = some_of(f"{self.name}: stages", stages, ("val", "test"))
        self.task, self.n, self.path = task, n or TASKS[task][3], path
        self.decode, self.decode_targets, self.images = decode, decode_targets, images
        names = None if classes is None else labels(f"{self.name}: classes", classes)
        _check_look(self.name, mean, std, background, ignore)
        self.look = Look(names, mean, std, threshold, background, ignore)
        self._check_on_error(on_error)
        self._samples: list[Sample] = []

    @classmethod
    def example(cls) -> Self:
        return cls("classification", 2, images=lambda inputs: inputs.reshape(len(inputs), 1, 2, -1))

    def explain(self) -> str:
        return f"{self.task}, the first {self.n} images of {' and '.join(sorted(self.stages or ()))} ({self.format})"

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """Only the points of its stages."""
        return without(super().plays(), Visualize, *epochs_of_others(self.stages))

    # Points ---------------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        self._samples = []

    before_val_epoch = before_test_epoch = _begin

    @tolerant
    def after_iter(self, run: Run) -> None:
        missing = self.n - len(self._samples)
        if missing > 0 and was_computed(run):
            with torch.no_grad():
                self._samples += self._take(run, missing)

    @tolerant
    def _end(self, run: Run) -> None:
        samples, self._samples = self._samples, []
        if samples:
            host = torch.device("cpu")
            here = [
                Sample(one.image.to(host), to_device(one.predicted, host), to_device(one.true, host)) for one in samples
            ]
            where = f"{run.stage}{f' loader {run.loader_name}' if run.loader_name else ''}"
            figure = draw_samples(here, self.look, f"{where}, epoch {run.epoch + 1}, step {run.clock.steps}")
            path = place_for(run, self.path, f"predictions-{{stage}}-{{epoch}}.{self.format}", plot=True)
            keep_figure(run, f"{self.name} {run.stage}", figure, path)

    after_val_epoch = after_test_epoch = _end

    def close(self) -> None:
        self._samples = []

    # What is kept ---------------------------------------------------------------------------------------------------

    def _take(self, run: Run, most: int) -> list[Sample]:
        images = (self.images or predictions.find_images)(run.inputs)
        kind, decode, decode_targets, _ = TASKS[self.task]
        if self.decode is None and self.look.classes is not None and kind is not Boxes:
            self._check_names(self.look.classes, predictions.class_count(run.output))
        predicted = as_entries((self.decode or decode)(run.output), kind)
        targets = run.targets
        true = None if targets is None else as_entries((self.decode_targets or decode_targets)(targets), kind)
        for what, many in (("predictions", predicted), ("targets", true)):
            if many is not None and len(many) != len(images):
                raise ValueError(f"{len(images)} images have {len(many)} {what}; decode returns one for each image")
        return [
            Sample(images[row].detach().clone(), copied(predicted[row]), None if true is None else copied(true[row]))
            for row in range(min(most, len(images)))
        ]

    def _check_names(self, names: Sequence[str], count: int | None) -> None:
        if count is not None and count != len(names):
            given = ", ".join(names)
            raise ValueError(
                f"{self.name}: the model tells {count} classes apart, but classes has {len(names)}: {given}"
            )


def as_entries(found: Any, kind: type) -> list[Any]:
    """What a function of the user returned, as a list of ``Label``, ``Boxes`` or ``Mask``."""
    entries = []
    for one in found:
        if isinstance(one, kind):
            entries.append(one)
        elif kind is Boxes:
            entries.append(Boxes(one["boxes"], one["labels"], one.get("scores")))
        elif isinstance(one, tuple | list) and kind is Label:
            entries.append(Label(torch.as_tensor(one[0]), torch.as_tensor(one[1])))
        else:
            entries.append(kind(torch.as_tensor(one)))
    return entries


def copied(entry: Any) -> Any:
    """A copy of an entry: what the model returned may be overwritten by the next batch."""
    parts = {name: part for name, part in vars(entry).items() if part is not None}
    return type(entry)(**{name: torch.as_tensor(part).detach().clone() for name, part in parts.items()})


def _check_look(who: str, mean: Any, std: Any, background: object, ignore: object) -> None:
    _check_channels(f"{who}: mean is a number", mean, -math.inf)
    _check_channels(f"{who}: std is a number above 0", std, 0)
    none = background is None
    check(none or is_whole(background, -math.inf), f"{who}: background is the number of a class or None", background)
    check(is_whole(ignore, -math.inf), f"{who}: ignore is the number of a class", ignore)


def _check_channels(says: str, value: Any, above: float) -> None:
    plain = value.tolist() if hasattr(value, "tolist") else value
    channels = list(plain) if isinstance(plain, Sequence) and not isinstance(plain, str) and plain else [plain]
    good = value is None or all(is_number(one) and one > above for one in channels)
    check(good, f"{says}, or one for each channel, or None", value)
