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

``Writer`` saves in the background: ``save`` returns when the state is copied to main memory.

>>> writer = Writer(shelf, keep_last=2, keep_best=1)
>>> saved = writer.recover()                                 # where to go on; None in an empty folder
>>> writer.save("step=600", state, {"monitor": "val/loss", "value": 0.5, "mode": "min"})
>>> [outcome.name for outcome in writer.close()]
['000002-step=600']

Signatures:

- ``Shelf(url)``; ``write(name, state, meta=None) -> folder name``; ``read(name="last") -> Saved``;
  ``newest_valid() -> Saved | None``; ``names()``, ``best()``, ``metas()``, ``torn()``, ``verify(name)``;
  ``retain(keep_last=None, keep_best=0) -> deleted names``; ``set_aside() -> names``;
  ``draft(name, number=None)`` and ``commit(draft, meta)`` for checkpoints that several processes write
- ``read_at(path, which="last") -> Saved``: of the folder of a checkpoint, of checkpoints, or of an experiment
- ``Saved``: ``state``, ``meta``, ``name``, ``number``, ``passed_over``, ``shelf``
- ``Writer(shelf, *, keep_last=None, keep_best=0, background=True, on_failure="warn", retries=4, backoff=1.0,
  spill=None)``; ``save(name, state, meta=None)``; ``poll()``, ``wait()``, ``close() -> list[Outcome]``; ``busy``;
  ``problems``; ``estimate(size=None) -> seconds | None``; ``recover() -> Saved | None``
- ``Outcome``: ``asked``, ``name``, ``meta``, ``size``, ``copying``, ``writing``, ``deleted``, ``problem``
- ``save_weights(path, module)``; ``load_weights(source, which="last", what="model") -> dict``;
  ``load_into(module, weights, strict=True, prefix=None) -> Report``: ``loaded``, ``missing``, ``unexpected``,
  ``mismatched``, ``passed_over``, ``complete``
- Errors: ``NotState`` (something else in the tree), ``Damaged``, ``UnknownFormat``, ``NoCheckpoint``, ``SaveFailed``
"""

from cadenza.checkpoint.format.manifest import FORMAT
from cadenza.checkpoint.format.packing import Snapshot
from cadenza.checkpoint.problems import Damaged, NoCheckpoint, NotState, SaveFailed, UnknownFormat
from cadenza.checkpoint.store import Saved, Shelf
from cadenza.checkpoint.warm_start import Report, load_into
from cadenza.checkpoint.weights import load_weights, read_at, save_weights
from cadenza.checkpoint.writer import Outcome, Writer

__all__ = [
    "FORMAT",
    "Damaged",
    "NoCheckpoint",
    "NotState",
    "Outcome",
    "Report",
    "SaveFailed",
    "Saved",
    "Shelf",
    "Snapshot",
    "UnknownFormat",
    "Writer",
    "load_into",
    "load_weights",
    "read_at",
    "save_weights",
]
