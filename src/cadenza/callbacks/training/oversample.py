"""Training on as many samples of rare classes as of common ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from cadenza.callback import Callback, Order
from cadenza.data.loader import loader_like
from cadenza.foundation.arguments import flags

if TYPE_CHECKING:
    from cadenza.run import Run


def balanced(loader: DataLoader[Any], targets: Any = None, *, undersample: bool = False) -> DataLoader[Any]:
    """A loader like ``loader``, all settings kept, that draws each class equally often.

    As many samples an epoch as there are classes times the samples of the largest class; with ``undersample``, of the
    smallest, and then none of them twice.

    >>> data = TensorDataset(torch.arange(6.0), torch.tensor([0, 0, 0, 0, 1, 1]))
    >>> loader = balanced(DataLoader(data, batch_size=4), undersample=True)
    >>> sorted(target for _, targets in loader for target in targets.tolist())
    [0, 0, 1, 1]
    """
    _check(loader)
    classes = class_indices(loader.dataset, targets)
    sampler: Sampler[int]
    if undersample:
        sampler = _FewOfEach(classes, loader.generator)
    else:
        counts = torch.bincount(classes)
        draws = int(counts.max()) * int((counts > 0).sum())
        weights = (1.0 / counts.double())[classes]
        sampler = WeightedRandomSampler(weights.tolist(), draws, generator=loader.generator)
    return loader_like(loader, sampler=sampler)


def _check(loader: Any) -> None:
    if type(loader) is not DataLoader:
        raise TypeError(
            f"only a torch.utils.data.DataLoader itself can be balanced, not {type(loader).__name__}; give that one a "
            "sampler of your own"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError("a loader over an IterableDataset cannot be balanced: it has no samples to choose from")
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        raise TypeError(f"the loader has a sampler of its own, {type(loader.sampler).__name__}, which would be lost")
    if loader.batch_size is None and loader.batch_sampler is not None:
        raise TypeError("the loader has a batch_sampler of its own, which would be lost")


def class_indices(dataset: Dataset[Any], targets: Any = None) -> Tensor:
    """The class of each sample, as whole numbers from 0; ``targets`` says them where the data set does not.

    >>> class_indices(Subset(TensorDataset(torch.zeros(3), torch.tensor([7, 9, 9])), [2, 0]))
    tensor([1, 0])
    """
    labels = _labels(dataset) if targets is None else _listed(targets)
    samples = len(dataset)  # type: ignore[arg-type]
    if len(labels) != samples:
        raise ValueError(f"{len(labels)} targets for a data set of {samples} samples")
    try:
        numbers = {label: number for number, label in enumerate(sorted(set(labels)))}
    except TypeError as error:
        kinds = ", ".join(sorted({type(label).__name__ for label in labels}))
        raise TypeError(f"targets are classes, all of them numbers or all of them texts, not {kinds}") from error
    return torch.tensor([numbers[label] for label in labels])


def _labels(dataset: Any) -> list[Any]:
    if isinstance(dataset, Subset):
        inner = _labels(dataset.dataset)
        return [inner[index] for index in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        return [label for part in dataset.datasets for label in _labels(part)]
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        return _listed(dataset.tensors[-1])
    for name in ("targets", "labels"):
        if hasattr(dataset, name):
            return _listed(getattr(dataset, name))
    raise TypeError(
        f"the classes of {type(dataset).__name__} are not known: it has neither targets nor labels. "
        "Give them: Oversample(targets=[...]), one for each sample"
    )


def _listed(targets: Any) -> list[Any]:
    labels = targets.tolist() if hasattr(targets, "tolist") else list(targets)
    if labels and isinstance(labels[0], list | tuple | dict):
        raise TypeError(f"classes are one label for each sample, not {type(labels[0]).__name__}s")
    return labels


class _FewOfEach(Sampler[int]):
    """As many of each class as the smallest one has, another choice in each epoch, in random order."""

    def __init__(self, classes: Tensor, generator: torch.Generator | None) -> None:
        self.members = [torch.nonzero(classes == number).flatten() for number in range(int(classes.max()) + 1)]
        self.each = min(len(members) for members in self.members)
        self.generator = generator

    def __len__(self) -> int:
        return self.each * len(self.members)

    def __iter__(self) -> Iterator[int]:
        chosen = torch.cat([members[self._order(len(members))[: self.each]] for members in self.members])
        return iter(chosen[self._order(len(chosen))].tolist())

    def _order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator)


class Oversample(Callback):
    """Trains on as many samples of rare classes as of common ones, by drawing the rare ones more often.

    For the duration of each epoch it puts a balanced loader in the place of ``run.train_loader``: a ``DataLoader`` over
    the same data, with every setting kept (workers, ``collate_fn``, pinned memory, generator, persistent workers), and
    a ``WeightedRandomSampler`` in which all classes weigh the same. An epoch has classes times the samples of the
    largest class. With ``undersample=True`` it has classes times the samples of the smallest, exactly so many of each,
    none twice, another choice each epoch.

    ``targets`` is the class of each sample; without it they are taken from the data set: the last tensor of a
    ``TensorDataset``, or its ``targets`` or ``labels``, also through ``Subset`` and ``ConcatDataset``. A loader with a
    sampler of its own is refused, since that would be lost. The draws come from the loader's generator, or else from
    torch's global one.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> criterion = torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, criterion, callbacks=[Oversample()], device="cpu")
    >>> history = trainer.fit(tiny_loader(samples=20), epochs=1)
    >>> trainer.clock.samples  # three classes, of which the largest has seven samples
    21
    """

    order = Order.PREPARE
    owns = frozenset({"sampling"})

    def __init__(self, targets: Sequence[Any] | Tensor | None = None, *, undersample: bool = False) -> None:
        flags(undersample=undersample)
        several = hasattr(targets, "tolist") or (isinstance(targets, Sequence) and not isinstance(targets, str))
        if targets is not None and (not several or not len(targets)):
            raise TypeError(f"targets is a list or tensor with the class of each sample, or None, not {targets!r}")
        self.targets = targets
        self.undersample = undersample
        self._made: tuple[Any, DataLoader[Any]] | None = None

    def explain(self) -> str:
        known = "classes from the data set" if self.targets is None else "classes as given"
        return f"{known}, as many of each as the {'smallest' if self.undersample else 'largest'} has"

    def around_epoch(self, run: Run) -> Iterator[None]:
        if run.train_loader is None:
            raise ValueError(
                f"{self.name} balances run.train_loader, and there is none. In a loop of your own set it and write "
                "run.train() without a loader, or balance the loader with "
                "cadenza.callbacks.training.oversample.balanced"
            )
        own = run.train_loader
        run.train_loader = self._balanced(own)
        try:
            yield
        finally:
            run.train_loader = own

    def _balanced(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """One loader for the whole run, so that its workers may persist."""
        if self._made is None or self._made[0] is not loader:
            self._made = loader, balanced(loader, self.targets, undersample=self.undersample)
        return self._made[1]

    def close(self) -> None:
        self._made = None
