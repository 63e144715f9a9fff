"""Locks of folders, for experiments and for checkpoints."""

from cadenza.locking.folder import FolderLock, FolderLocked, is_locked
from cadenza.locking.owner import process_exists

__all__ = ["FolderLock", "FolderLocked", "is_locked", "process_exists"]
