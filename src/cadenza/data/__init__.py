"""Batches: their parts, and how they reach the device."""

from cadenza.data.batch import count_samples, join, split
from cadenza.data.transfer import to_device

__all__ = ["count_samples", "join", "split", "to_device"]
