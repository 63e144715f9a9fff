"""Text that every Python brings along: the language reference that ``help("for")`` shows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cadenza.recipes.ready.datasets import Part

CHARACTERS = 96
"""The printable characters of ASCII and the end of a line; any other counts as a blank."""


def python_text() -> str:
    """The pages of the language reference, in the order of their names. They change a little with Python's version."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def encode(text: str) -> Tensor:
    """Numbers of characters, from 0 for the end of a line.

    >>> encode("a b\\n").tolist()
    [66, 1, 67, 0]
    """
    codes = torch.tensor(list(text.encode("ascii", "replace")), dtype=torch.long) - 31
    codes[codes == ord("\n") - 31] = 0
    return torch.where((codes < 0) | (codes >= CHARACTERS), 1, codes)


class PythonText(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of the text; the target of a piece is the piece one character on.

    The last tenth is for validation, the tenth before for tests.

    >>> inputs, targets = PythonText("val", length=50)[0]
    >>> len(inputs), inputs[1:].equal(targets[:-1])
    (50, True)
    """

    def __init__(self, part: Part = "train", *, length: int = 100, limit: int | None = None) -> None:
        codes = encode(python_text())
        tenth = len(codes) // 10
        first, last = {"train": (0, 8), "test": (8, 9), "val": (9, 10)}[part]
        codes = codes[first * tenth : last * tenth]
        pieces = (len(codes) - 1) // length
        if limit is not None:
            pieces = min(pieces, limit)
        self.codes, self.length, self.pieces = codes, length, pieces

    def __len__(self) -> int:
        return self.pieces

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self.pieces:
            raise IndexError(index)
        first = index * self.length
        return self.codes[first : first + self.length], self.codes[first + 1 : first + self.length + 1]
