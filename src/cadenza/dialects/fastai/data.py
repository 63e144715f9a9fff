"""fastai's bunch of loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from cadenza.data.loader import loader_like
from cadenza.dialects.fastai.table import DIALECT
from cadenza.dialects.fastai.torch_core import defaults, to_detach


class DatasetType(Enum):
    """Which of the loaders."""

    Train = 1
    Valid = 2
    Test = 3
    Single = 4
    Fix = 5


class DataBunch:
    """A training loader, and perhaps one for validation and one for tests; plain torch loaders. What it does not have
    itself it takes from the training data: ``classes``, ``c``.

    >>> DataBunch([1, 2], [3]).dl(DatasetType.Valid)
    [3]
    """

    def __init__(
        self, train_dl: Any, valid_dl: Any = None, fix_dl: Any = None, test_dl: Any = None, device: Any = None,
        dl_tfms: Any = None, path: str | PathLike[str] = ".", collate_fn: Callable[..., Any] | None = None,
        no_check: bool = False,
    ) -> None:  # fmt: skip
        if dl_tfms:
            raise ValueError("fastai: dl_tfms is not carried; transform batches in a callback or in the dataset")
        if collate_fn is not None:
            train_dl, valid_dl, fix_dl, test_dl = (
                loader_like(one, collate_fn=collate_fn) if isinstance(one, DataLoader) else one
                for one in (train_dl, valid_dl, fix_dl, test_dl)
            )
        self.train_dl, self.valid_dl, self.test_dl, self.path = train_dl, valid_dl, test_dl, Path(path)
        self.fix_dl = fix_dl if fix_dl is not None else train_dl
        self.device = defaults.device if device is None else device

    @classmethod
    def create(
        cls, train_ds: Any, valid_ds: Any, test_ds: Any = None, path: str | PathLike[str] = ".", bs: int = 64,
        val_bs: int | None = None, num_workers: int = 0, dl_tfms: Any = None, device: Any = None,
        collate_fn: Callable[..., Any] | None = None, no_check: bool = False, **dl_kwargs: Any,
    ) -> DataBunch:  # fmt: skip
        """Loaders for datasets: the training data is shuffled, and a last batch that is not whole is left out."""
        options = {"num_workers": num_workers, **dl_kwargs}
        train = DataLoader(train_ds, bs, shuffle=True, drop_last=len(train_ds) > bs, **options)
        valid, test = (None if one is None else DataLoader(one, val_bs or bs, **options) for one in (valid_ds, test_ds))
        fix = DataLoader(train_ds, bs, **options)
        return cls(train, valid, fix, test, device, dl_tfms, path, collate_fn, no_check)

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
        found = getattr(self, f"{DatasetType(ds_type).name.lower()}_dl", None)
        if found is None:
            raise ValueError(f"fastai: this data has no {DatasetType(ds_type).name.lower()} loader")
        return found

    def one_batch(
        self, ds_type: DatasetType = DatasetType.Train, detach: bool = True, cpu: bool = True, **_: Any
    ) -> Any:
        """The first batch of a loader."""
        batch = next(iter(self.dl(ds_type)))
        return to_detach(batch, cpu=cpu) if detach else batch

    @property
    def dls(self) -> list[Iterable[Any]]:
        return [one for one in (self.train_dl, self.valid_dl, self.fix_dl, self.test_dl) if one is not None]

    train_ds = property(lambda self: self.train_dl.dataset)
    valid_ds = property(lambda self: self.valid_dl.dataset)
    test_ds = property(lambda self: self.test_dl.dataset)
    batch_size = property(lambda self: self.train_dl.batch_size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        dataset = getattr(vars(self).get("train_dl"), "dataset", None)
        if hasattr(dataset, name):
            return getattr(dataset, name)
        names = ("train_dl", "valid_dl", "test_dl", "fix_dl", "path", "dl", "train_ds", "valid_ds", "batch_size")
        raise AttributeError(DIALECT.not_carried(name, "attribute of the data", names), name=name)
