"""What was measured: the latest value of each metric, and the rows of all of them.

Values stay where they were made. A device tensor is read when somebody looks at it, all waiting ones at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cadenza.foundation.suggest import did_you_mean

PLACES = frozenset(("kind", "epoch", "step", "batch", "stage", "over", "mode"))
"""What a row says of where it was written; no metric can be called so."""


@dataclass(frozen=True)
class Best:
    """The best value of the watched metric so far, and when it was reached."""

    name: str
    value: float
    epoch: int
    step: int


@dataclass(frozen=True)
class Watched:
    """The one metric that decides what is best."""

    name: str
    mode: str
    who: str

    def better(self, value: float, best: float) -> bool:
        return not math.isnan(value) and (value < best if self.mode == "min" else value > best)


def as_scalar(name: object, value: object, *, copy: bool = True) -> float | Tensor:
    """Checks one logged value without waiting for a device; returns a number or a detached tensor of no dimension.

    It is a copy, since what is changed in place later was logged as it stood; ``copy=False`` is for who reads it now.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a metric is a text, not {name!r}")
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(f"metric {name!r} must be one real number, not a tensor of shape {tuple(value.shape)}")
        value = value.detach().clone() if copy else value.detach()
        return value.reshape(()) if value.dim() else value
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"metric {name!r} must be a number or a tensor with one element, not {type(value).__name__}")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metric {name!r} must be one number: {error}") from None


def read(values: Iterable[float | Tensor]) -> list[float]:
    """The numbers behind ``values``. This waits for the device, once for each one there is."""
    numbers = list(values)
    waiting: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, value in enumerate(numbers):
        if isinstance(value, Tensor):
            waiting.setdefault((value.device, value.dtype), []).append(index)
    for indices in waiting.values():
        stacked = torch.stack([value for index in indices if isinstance(value := numbers[index], Tensor)])
        for index, number in zip(indices, stacked.tolist(), strict=True):
            numbers[index] = float(number)
    return [value if not isinstance(value, Tensor) else float(value) for value in numbers]


def unknown_metric(name: str, known: Iterable[str]) -> str:
    """What to say when ``name`` is asked for and does not exist."""
    names = sorted(known)
    hint = did_you_mean(name, names, ".", cutoff=0.4)
    return f"no metric {name!r}{hint} Known: {', '.join(names) if names else 'none yet'}"


class Metrics(MutableMapping[str, float]):
    """The latest value of each metric by name, read from the device when it is asked for.

    >>> metrics = Metrics()
    >>> metrics["val/loss"] = torch.tensor(0.25)
    >>> metrics["val/loss"], dict(metrics)
    (0.25, {'val/loss': 0.25})
    """

    def __init__(self) -> None:
        self._values: dict[str, float | Tensor] = {}

    def __getitem__(self, name: str) -> float:
        if name not in self._values:
            raise KeyError(unknown_metric(name, self._values))
        value = self._values[name]
        if isinstance(value, Tensor):
            value = self._values[name] = read([value])[0]
        return value

    def __setitem__(self, name: str, value: float | Tensor) -> None:
        self._values[name] = as_scalar(name, value)

    def put(self, name: str, scalar: float | Tensor) -> None:
        """Sets what ``as_scalar`` made, without another copy."""
        self._values[name] = scalar

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metrics({dict(self)})"

    def raw(self) -> Mapping[str, float | Tensor]:
        """The values as they are, tensors unread."""
        return self._values

    def clear_stage(self, prefix: str) -> None:
        for name in [name for name in self._values if name.startswith(prefix)]:
            del self._values[name]


class Row(Metrics):
    """One line of the history: where it was written (``row.at``) and the values that were logged there.

    ``row.at["over"]`` is "pass" in the row of a pass that was nested in an iteration.
    """

    def __init__(self, kind: str, **at: int | str | None) -> None:
        super().__init__()
        self.kind = kind
        self.at = at
        self.complete = False

    @property
    def whole(self) -> bool:
        """Whether its values are those of an epoch or of a pass, and not of one iteration."""
        return self.kind == "epoch" or "over" in self.at

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.at, **dict(self)}

    def __repr__(self) -> str:
        return f"Row({self.as_dict()})"


_CHUNK = 1024


def _pack(rows: list[Row]) -> Tensor:
    texts = [{"kind": row.kind, "at": dict(row.at), "values": dict(row)} for row in rows]
    return torch.frombuffer(bytearray(json.dumps(texts).encode()), dtype=torch.uint8)


class History:
    """All rows of a training, over all its fits: one per epoch, and one per iteration in which something was logged.

    >>> history = History()
    >>> row = history.add("epoch", epoch=0)
    >>> row["val/loss"] = 0.5
    >>> history["val/loss"], history.epochs
    ([0.5], [{'kind': 'epoch', 'epoch': 0, 'val/loss': 0.5}])
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._packed: list[Tensor] = []
        self._settled = 0

    def add(self, kind: str, **at: int | str | None) -> Row:
        row = Row(kind, **at)
        self.rows.append(row)
        return row

    def settle(self) -> None:
        """Reads all values that are still on a device, in one go. Complete rows are looked at once."""
        rows = self.rows[self._settled :]
        waiting = [(row, name) for row in rows for name, value in row.raw().items() if isinstance(value, Tensor)]
        for (row, name), number in zip(waiting, read(row.raw()[name] for row, name in waiting), strict=True):
            row[name] = number
        self._settled += next((index for index, row in enumerate(rows) if not row.complete), len(rows))

    def to_rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Every row as a plain dict, in the order of writing; ``kind`` is "epoch" or "iter"."""
        self.settle()
        return [row.as_dict() for row in self.rows if kind in (None, row.kind)]

    @property
    def epochs(self) -> list[dict[str, Any]]:
        return self.to_rows("epoch")

    @property
    def iters(self) -> list[dict[str, Any]]:
        return self.to_rows("iter")

    def to_frame(self, kind: str | None = "epoch") -> Any:
        """The rows as a pandas data frame."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_frame needs pandas: pip install 'cadenza[pandas]'", name="pandas") from error
        return pandas.DataFrame(self.to_rows(kind))

    def __getitem__(self, name: str) -> list[float]:
        """The values of one metric: one for each epoch; or if it has none there, one for each pass that was nested in
        an iteration; or else those of the iterations."""
        if not isinstance(name, str):  # who goes over a history asks for 0
            rows = "the rows are history.epochs and history.iters"
            raise TypeError(f'a history is read by a metric, such as history["train/loss"], not by {name!r}; {rows}')
        self.settle()
        found = [row for row in self.rows if name in row]
        chosen = [row for row in found if row.kind == "epoch"] or [row for row in found if row.whole] or found
        if chosen:
            return [row[name] for row in chosen]
        raise KeyError(unknown_metric(name, self.names()))

    def __contains__(self, name: object) -> bool:
        return any(name in row for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def names(self) -> list[str]:
        return sorted({name for row in self.rows for name in row.raw()})

    def state_dict(self, rows: int | None = None) -> dict[str, Any]:
        """All rows, or the first ``rows`` of them, as texts of so many rows each; those of complete rows are made
        once, so that a save costs what was written since the last one."""
        self.settle()
        end = len(self.rows) if rows is None else rows
        while (start := _CHUNK * len(self._packed)) + _CHUNK <= end:
            if not all(row.complete for row in self.rows[start : start + _CHUNK]):
                break
            self._packed.append(_pack(self.rows[start : start + _CHUNK]))
        whole = self._packed[: end // _CHUNK]
        rest = self.rows[_CHUNK * len(whole) : end]
        return {"rows": end, "packed": [*whole, _pack(rest)] if rest else list(whole)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows.clear()
        self._packed.clear()
        self._settled = 0
        for packed in state["packed"]:
            for saved in json.loads(bytes(packed.tolist())):
                row = self.add(saved["kind"], **saved["at"])
                row.update(saved["values"])
                row.complete = True

    def __repr__(self) -> str:
        last = self.epochs[-1:] or self.iters[-1:]
        return f"History({len(self.rows)} rows{f', last {last[0]}' if last else ''})"
