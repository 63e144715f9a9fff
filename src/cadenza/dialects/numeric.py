"""NumPy, for the dialects whose originals work with it."""

from __future__ import annotations

try:
    import numpy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the dialects fastai, aitoolbox and supergradients need numpy: pip install 'cadenza[numpy]'", name="numpy"
    ) from error

__all__ = ["numpy"]
