"""Locks of folders, for experiments and for checkpoints."""

from cadenza.foundation.locking.folder import FolderLock, FolderLocked, is_locked
from cadenza.foundation.locking.owner import process_exists

__all__ = ["FolderLock", "FolderLocked", "is_locked", "process_exists"]
