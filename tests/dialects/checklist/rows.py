"""How a row of a checklist is written::

    ROWS = Checklist("002", "The blog on training loops")

    @ROWS.native("argument `clip` of GradientClipping")
    def clips_natively() -> None: ...  # asserts

    @ROWS.dialect("argument `clip` of GradientClipping")
    def clips() -> None: ...

Two attempts with the same text make one row. Where one side cannot be tried, ``ROWS.says(text, native="why")`` gives
the sentence that stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

SIDES = ("native", "dialect")
Attempt: TypeAlias = Callable[[], None]
Keep: TypeAlias = Callable[[Attempt], Attempt]


@dataclass
class Row:
    """One promise of a document: what tries it on each side, or why nothing does."""

    text: str
    attempts: dict[str, Attempt] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def state(self, side: str) -> str:
        return "holds" if side in self.attempts else self.reasons.get(side, "not tried")


class Checklist:
    """The rows of one document, in the order in which they are first named."""

    def __init__(self, seed: str, title: str) -> None:
        self.seed, self.title = seed, title
        self.rows: dict[str, Row] = {}

    def native(self, *texts: str) -> Keep:
        return self._keep("native", texts)

    def dialect(self, *texts: str) -> Keep:
        return self._keep("dialect", texts)

    def both(self, *texts: str) -> Keep:
        """One attempt that tries both sides, such as a comparison of their weights."""

        def keep(attempt: Attempt) -> Attempt:
            return self.native(*texts)(self.dialect(*texts)(attempt))

        return keep

    def says(self, text: str, **reasons: str) -> None:
        """Why one side, or both, cannot be tried."""
        self._row(text).reasons.update(reasons)

    def attempts(self) -> Iterator[tuple[str, str, Attempt]]:
        for row in self.rows.values():
            for side, attempt in row.attempts.items():
                yield side, row.text, attempt

    def _row(self, text: str) -> Row:
        return self.rows.setdefault(text, Row(text))

    def _keep(self, side: str, texts: tuple[str, ...]) -> Keep:
        def keep(attempt: Attempt) -> Attempt:
            for text in texts:
                row = self._row(text)
                if side in row.attempts:
                    raise ValueError(f"{self.seed}: {text!r} is tried twice ({side})")
                row.attempts[side] = attempt
            return attempt

        return keep
