"""Where Oversample finds the class of each sample, and what it says when it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from cadenza.callbacks.training.oversample import class_indices


class _WithTargets(Dataset[Any]):
    targets = (0, 0, 0, 1)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return index


class _WithLabels(Dataset[Any]):
    labels = ("b", "a", "b")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return index


class _Unknown(_WithLabels):
    labels = property()  # type: ignore[assignment]


def test_classes_are_found_in_the_usual_places() -> None:
    tensors = TensorDataset(torch.zeros(3), torch.tensor([5, 9, 5]))
    assert class_indices(tensors).tolist() == [0, 1, 0]
    assert class_indices(Subset(tensors, [1, 1, 0])).tolist() == [1, 1, 0]
    assert class_indices(ConcatDataset([tensors, Subset(tensors, [1])])).tolist() == [0, 1, 0, 1]
    assert class_indices(_WithLabels()).tolist() == [1, 0, 1]
    assert class_indices(_WithTargets()).tolist() == [0, 0, 0, 1]
    assert class_indices(_Unknown(), ["x", "x", "y"]).tolist() == [0, 0, 1]
    assert class_indices(_Unknown(), torch.tensor([2, 1, 2])).tolist() == [1, 0, 1]


def test_classes_that_are_not_known_or_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match=r"classes of _Unknown are not known.*Oversample\(targets="):
        class_indices(_Unknown())
    with pytest.raises(ValueError, match="2 targets for a data set of 3 samples"):
        class_indices(_WithLabels(), [0, 1])
    with pytest.raises(TypeError, match="one label for each sample, not lists"):
        class_indices(_WithLabels(), torch.zeros(3, 2))
