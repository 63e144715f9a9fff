"""Ready callbacks, one idea in one file."""

from cadenza.callbacks.progress import Progress

__all__ = ["Progress"]
