"""A Spark DataFrame as the data of a training: written once as Parquet, read by every rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset


def spark_data(
    frame: Any,
    folder: str | os.PathLike[str],
    *,
    inputs: str | Sequence[str],
    targets: str | Sequence[str] | None = None,
) -> ParquetData:
    """Writes a Spark DataFrame to ``folder`` as Parquet, and returns it as a data set for a ``DataLoader``.

    The folder must not exist yet, and every rank must see it. Only the columns that are named are written.
    """
    columns = [*_listed(inputs), *(_listed(targets) if targets is not None else [])]
    frame.select(*columns).write.mode("errorifexists").parquet(os.fspath(folder))
    return ParquetData(folder, inputs=inputs, targets=targets)


class ParquetData(Dataset[Any]):
    """The rows of the Parquet files in a folder, in the order of their names: pairs of inputs and targets, or inputs
    alone. A column of numbers or of lists of one length is a tensor; several columns are put together into one vector.
    Numbers with a fraction get torch's default type.

    It travels as the name of the folder. Each process reads the columns when it needs the first row, and keeps them.

    >>> import pyarrow, pyarrow.parquet, tempfile
    >>> file = tempfile.mkdtemp() + "/one.parquet"
    >>> pyarrow.parquet.write_table(pyarrow.table({"x": [0.5, 1.5], "y": [2.0, 4.0], "label": [0, 1]}), file)
    >>> data = ParquetData(file, inputs=["x", "y"], targets="label")
    >>> len(data), data[1]
    (2, (tensor([1.5000, 4.0000]), tensor(1)))
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        inputs: str | Sequence[str],
        targets: str | Sequence[str] | None = None,
    ) -> None:
        self.folder = os.fspath(folder)
        self.inputs, self.targets = inputs, targets
        self._length: int | None = None
        self._read: tuple[Tensor, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_read": None}

    def __len__(self) -> int:
        if self._length is None:
            self._length = int(self._source().count_rows())
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._sample([tensor[index] for tensor in self._tensors()])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A whole batch at once, which is how ``DataLoader`` asks."""
        chosen = torch.as_tensor(indices)
        columns = [tensor[chosen].unbind() for tensor in self._tensors()]
        return [self._sample(row) for row in zip(*columns, strict=True)]

    @staticmethod
    def _sample(parts: Sequence[Tensor]) -> Any:
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _tensors(self) -> tuple[Tensor, ...]:
        if self._read is None:
            self._read = tuple(self._together(part) for part in (self.inputs, self.targets) if part is not None)
        return self._read

    def _together(self, columns: str | Sequence[str]) -> Tensor:
        names = _listed(columns)
        table = self._source().to_table(columns=names)
        parts = [to_tensor(name, table.column(name).combine_chunks()) for name in names]
        if isinstance(columns, str):
            return parts[0]
        return torch.cat([part.unsqueeze(1) if part.ndim == 1 else part for part in parts], 1)

    def _source(self) -> Any:
        try:
            from pyarrow import dataset
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"reading Parquet needs {error.name}: pip install 'cadenza[spark]'", name=error.name
            ) from error
        found = dataset.dataset(self.folder, format="parquet")
        missing = [
            name for name in (*_listed(self.inputs), *_listed(self.targets or [])) if name not in found.schema.names
        ]
        if missing:
            raise ValueError(f"{self.folder} has no column {missing[0]!r}; it has {', '.join(found.schema.names)}")
        return found


def to_tensor(name: str, column: Any) -> Tensor:
    """A column of numbers, or of lists of numbers of one length, as a tensor."""
    import numpy
    from pyarrow import types

    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} values that are missing; fill or drop them in Spark")
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = to_tensor(name, column.flatten())
        sizes = set(column.value_lengths().unique().to_pylist())
        if len(sizes) > 1:
            raise ValueError(f"column {name!r} holds lists of different lengths, from {min(sizes)} to {max(sizes)}")
        return inner.reshape(len(column), -1)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise TypeError(f"column {name!r} holds {kind}, of which no tensor can be made; turn it into numbers in Spark")
    values = torch.from_numpy(numpy.array(column.to_numpy(zero_copy_only=False)))
    return values.to(torch.get_default_dtype()) if values.is_floating_point() else values


def _listed(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)
