"""Values in memory that a later step writes over: they are copied when somebody reads them, and else never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


class Later:
    """An output."""

    __slots__ = ("copy",)

    def __init__(self, copy: Callable[[], Any]) -> None:
        self.copy = copy


class Page:
    """Losses of a few steps. Its places are those that steps write into, and a copy of them when others need these."""

    __slots__ = ("places",)

    def __init__(self, places: Sequence[Tensor]) -> None:
        self.places = places


class OnPage:
    """The loss of one step, on its page."""

    __slots__ = ("number", "page")

    def __init__(self, page: Page, number: int) -> None:
        self.page, self.number = page, number

    def look(self) -> Tensor:
        """The loss where it stands now, to be used at once."""
        return self.page.places[self.number]

    def copy(self) -> Tensor:
        return self.look().clone()
