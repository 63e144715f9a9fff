"""Batches: their parts, and how they reach the device."""

from cadenza.data.batch import count_samples, join, split
from cadenza.data.gather import gather
from cadenza.data.loader import check_loader, length_of
from cadenza.data.transfer import to_device

__all__ = ["check_loader", "count_samples", "gather", "join", "length_of", "split", "to_device"]
