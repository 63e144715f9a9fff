"""The loaders of a Learner."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Any

from cadenza.dialects.fastai.table import DIALECT

__all__ = ["DataBunch", "DatasetType"]


class DatasetType(Enum):
    """Which of the loaders."""

    Train = 1
    Valid = 2
    Test = 3
    Fix = 4


class DataBunch:
    """A training loader, and perhaps one for validation and one for tests; plain torch loaders.

    >>> DataBunch([1, 2], [3]).dl(DatasetType.Valid)
    [3]
    """

    def __init__(
        self,
        train_dl: Iterable[Any],
        valid_dl: Iterable[Any] | None = None,
        test_dl: Iterable[Any] | None = None,
        path: str | PathLike[str] = ".",
        fix_dl: Iterable[Any] | None = None,
    ) -> None:
        self.train_dl, self.valid_dl, self.test_dl, self.path = train_dl, valid_dl, test_dl, Path(path)
        self.fix_dl = fix_dl if fix_dl is not None else train_dl

    @classmethod
    def of(cls, data: Any) -> DataBunch:
        """``data`` as a bunch: one already, anything with ``train_dl``, a pair of loaders, or one loader."""
        if isinstance(data, cls):
            return data
        if hasattr(data, "train_dl"):
            return cls(data.train_dl, getattr(data, "valid_dl", None), path=getattr(data, "path", "."))
        if isinstance(data, tuple) and len(data) == 2:
            return cls(*data)
        return cls(data)

    def dl(self, ds_type: DatasetType = DatasetType.Valid) -> Any:
        found = {
            DatasetType.Train: self.train_dl,
            DatasetType.Valid: self.valid_dl,
            DatasetType.Test: self.test_dl,
            DatasetType.Fix: self.fix_dl,
        }[DatasetType(ds_type)]
        if found is None:
            raise ValueError(f"fastai: this data has no {DatasetType(ds_type).name.lower()} loader")
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        names = ("train_dl", "valid_dl", "test_dl", "fix_dl", "path", "dl")
        raise AttributeError(DIALECT.not_carried(name, "attribute of the data", names), name=name)
