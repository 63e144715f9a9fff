"""What a checkpoint is, and how it is stored.

A state is a tree of dicts (with names or whole numbers as keys), lists, tuples, text, numbers, bytes, None and
tensors. ``Shelf`` stores states in a folder or an object store, each in a folder of its own, committed by one marker.

>>> import tempfile, torch
>>> shelf = Shelf(tempfile.mkdtemp())                        # or "s3://bucket/run", "gs://…", "memory://…"
>>> state = {"model": {"weight": torch.ones(2)}, "clock": {"steps": 500}}
>>> shelf.write("step=500", state, {"monitor": "val/loss", "value": 0.25, "mode": "min"})
'000001-step=500'
>>> saved = shelf.read("last")                               # "last", "best", or a name
>>> saved.state["clock"], saved.meta["value"], saved.name
({'steps': 500}, 0.25, '000001-step=500')

Signatures:

- ``Shelf(url)``; ``write(name, state, meta=None) -> folder name``; ``read(name="last") -> Saved``;
  ``newest_valid() -> Saved | None``; ``names()``, ``best()``, ``metas()``, ``verify(name)``;
  ``retain(keep_last=None, keep_best=0) -> deleted names``; ``set_aside() -> names of torn ones``
- ``Saved``: ``state``, ``meta``, ``name``, ``number``, ``passed_over``
- Errors: ``NotState`` (something else in the tree), ``Damaged``, ``UnknownFormat``, ``NoCheckpoint``, ``SaveFailed``
"""

from cadenza.checkpoint.errors import Damaged, NoCheckpoint, NotState, SaveFailed, UnknownFormat
from cadenza.checkpoint.manifest import FORMAT
from cadenza.checkpoint.packing import Snapshot
from cadenza.checkpoint.shelf import Saved, Shelf
from cadenza.checkpoint.writer import Outcome, Writer

__all__ = [
    "FORMAT",
    "Damaged",
    "NoCheckpoint",
    "NotState",
    "Outcome",
    "SaveFailed",
    "Saved",
    "Shelf",
    "Snapshot",
    "UnknownFormat",
    "Writer",
]
