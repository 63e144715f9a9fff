"""Dialects take a GPU if there is one, as the originals do; their tests compare with trainings on the CPU."""

from __future__ import annotations

import pytest
import torch

collect_ignore = ["checklist", "recordings"]
"""Data and scripts that tests run in their own way; they import the originals' paths."""


@pytest.fixture(autouse=True)
def on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
