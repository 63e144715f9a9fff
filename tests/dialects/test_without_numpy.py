"""NumPy is optional: a dialect that needs it says which extra installs it."""

from __future__ import annotations

import pytest

from ..processes import run


@pytest.mark.parametrize("name", ["fastai", "aitoolbox", "supergradients"])
def test_a_dialect_that_needs_numpy_names_the_extra(name: str) -> None:
    done = run(f"import sys; sys.modules['numpy'] = None; import cadenza.dialects.{name}")
    assert done.stderr.endswith("supergradients need numpy: pip install 'cadenza[numpy]'\n")


def test_orca_needs_none() -> None:
    code = "import sys; sys.modules['numpy'] = None; from cadenza.dialects.orca import Estimator; print(Estimator)"
    assert "Estimator" in run(code).stdout
