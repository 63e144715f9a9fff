"""Every class, method, argument, hook, example and promise of the five documents in ``seeds/``, one row each.

One module per document. A row is tried natively and in its dialect; ``test_checklist.py`` runs both attempts, and
``tools/generate.py`` writes the rows to ``docs/dialects.md``. See ``rows.py`` for how a row is written.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from .rows import Checklist

MODULES = sorted(file.stem for file in Path(__file__).parent.glob("seed_*.py"))


def checklists() -> list[Checklist]:
    """The checklists of all documents, in the order of their modules."""
    return [import_module(f"{__name__}.{name}").ROWS for name in MODULES]
