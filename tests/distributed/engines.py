"""What tests need that not every machine has. It is an error if it is missing, unless somebody said so."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

PACKAGES = {"ray": ("ray",), "spark": ("pyspark", "pyarrow", "pandas")}
WARNINGS = {
    "ray": ("ignore::DeprecationWarning:ray.*", "ignore::FutureWarning:ray.*"),
    "spark": (
        "ignore:PySpark does not yet:FutureWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",  # the distributor leaves the pipe of its workers open
    ),
}
"""What the engines themselves give cause for; it is not ours to put right."""


def needs(engine: str) -> pytest.MarkDecorator:
    """Leaves tests out only if the variable CADENZA_WITHOUT names ``engine``; otherwise what is missing is an error."""
    told = [one.strip() for one in os.environ.get("CADENZA_WITHOUT", "").split(",")]
    if engine in told:
        return pytest.mark.skip(reason=f"CADENZA_WITHOUT={engine}")
    missing = [package for package in PACKAGES[engine] if importlib.util.find_spec(package) is None]
    if engine == "spark" and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        missing.append("java")
    if missing:
        raise RuntimeError(
            f"the tests of {engine} need {', '.join(missing)}; install it, or leave them out with "
            f"CADENZA_WITHOUT={engine}"
        )
    return pytest.mark.filterwarnings(*WARNINGS[engine])
