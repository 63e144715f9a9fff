"""Every row of the checklists holds, natively and in its dialect."""

from __future__ import annotations

import pytest

from .checklist import checklists
from .checklist.rows import SIDES, Attempt

LISTS = checklists()
ATTEMPTS = [(f"{one.seed} {side}: {text}", attempt) for one in LISTS for side, text, attempt in one.attempts()]


@pytest.mark.parametrize("attempt", [attempt for _, attempt in ATTEMPTS], ids=[name for name, _ in ATTEMPTS])
def test_row(attempt: Attempt) -> None:
    attempt()


@pytest.mark.parametrize("one", LISTS, ids=lambda one: str(one.seed))
def test_no_row_is_left_open(one: object) -> None:
    rows = one.rows.values()  # type: ignore[attr-defined]
    assert not [row.text for row in rows for side in SIDES if row.state(side) == "not tried"]
