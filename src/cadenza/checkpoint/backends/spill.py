"""Checkpoints that a store did not take: they wait on this machine's disk and move over when the store is back."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cadenza.checkpoint.backends.watchdog import Outage
from cadenza.checkpoint.format.manifest import MANIFEST, MARKER, marker_of
from cadenza.checkpoint.format.packing import Packed
from cadenza.checkpoint.format.reading import read_manifest
from cadenza.checkpoint.format.tensor_file import PIECE
from cadenza.checkpoint.problems import Damaged
from cadenza.checkpoint.store import Runs, Shelf

log = logging.getLogger("cadenza.checkpoint")


class Outbox:
    """The shelf ``spill`` beside the remote ``shelf``, and the thread that empties it.

    While the outage lasts, saves go to ``spill`` and do not touch the store. ``retain`` is called after a checkpoint
    was moved. Of other ``runs`` than the given ones nothing is moved or deleted.
    """

    def __init__(
        self, spill: Shelf, shelf: Shelf, outage: Outage, keep_best: int, retain: Callable[[], Any], runs: Runs
    ) -> None:
        self.spill, self.shelf, self.outage, self.runs = spill, shelf, outage, runs
        self.keep_best, self.retain = keep_best, retain
        self.lock = threading.RLock()
        """Held while the spill folder changes, and while it is decided whether the outage is over."""
        self._mover: threading.Thread | None = None
        self._stopped = False
        self._damaged: set[str] = set()

    def put(self, name: str, packed: Packed, meta: dict[str, Any]) -> str:
        """Stores a checkpoint here; returns the name of its folder."""
        self.spill.used = max(self.spill.used, self.shelf.used)
        folder = self.spill.write(name, packed, meta)
        self.spill.retain(1, self.keep_best, self.runs)
        return folder

    def waiting(self) -> list[str]:
        """The checkpoints that are to be moved, the oldest first."""
        return [name for name in self.spill.metas(self.runs) if name not in self._damaged]

    # Moving over -----------------------------------------------------------------------------------------------------

    def start_moving(self) -> None:
        """Begins to move what is here, in the background, if the store may be asked again."""
        if self.outage.is_due and (self._mover is None or not self._mover.is_alive()):
            self._stopped = False
            self._mover = threading.Thread(target=self.move, name="cadenza outbox", daemon=True)
            self._mover.start()

    def finish(self, *, send: bool) -> None:
        """At the end of a run: moves what is here, if the store answers now. Without ``send`` it stays for the next
        run."""
        mover, self._mover = self._mover, None
        if not send:
            self._stopped = True
        elif mover is not None and mover.is_alive():
            mover.join()  # each of its requests has a time limit
        elif self.outage.is_on:
            self.move()

    def move(self) -> None:
        """Moves all checkpoints that are here; if the store fails again, the outage goes on."""
        try:
            for name in self.waiting():
                self._move_one(name)
            with self.lock:  # what came meanwhile: else a training that saves often would never catch up
                for name in self.waiting():
                    self._move_one(name)
                self.outage.ended()
        except _Stopped:
            return
        except Exception as error:
            self.outage.failed(f"{type(error).__name__}: {error}")
            log.info("%s is still down: %s", self.shelf.store, error)

    def _move_one(self, name: str) -> None:
        try:
            self._copy(name)
        except Damaged as error:
            self._damaged.add(name)
            log.warning("the checkpoint %s stays in %s: %s", name, self.spill.store, error.reason)
            return
        except FileNotFoundError:
            if name not in self.spill.names():  # a newer one took its place meanwhile
                return
            raise
        log.warning("%s is back: the checkpoint %s was moved there", self.shelf.store, name)
        with self.lock:
            self.spill.delete(name)
        self.retain()

    def _copy(self, name: str) -> None:
        """The marker is the last file to be copied, as in a save."""
        here, there = self.spill.store, self.shelf.store
        manifest = read_manifest(here, name)
        with here.open(name, MANIFEST) as file:
            text = file.read()
        if MARKER not in there.folders().get(name, ()):
            with contextlib.suppress(FileExistsError):  # from an attempt that was broken off
                there.begin(name)
            for file_name, expected in manifest.files.items():
                digest = hashlib.sha256()
                there.write(name, file_name, self._pieces(name, file_name, digest))
                if digest.hexdigest() != expected.sha256:
                    raise Damaged(name, f"{file_name} is not what was written: its checksum differs")
            there.write(name, MANIFEST, [text])
            there.publish(name, MARKER, marker_of(text))
        self.shelf.expect(name)
        self.shelf.used = max(self.shelf.used, manifest.number)

    def _pieces(self, name: str, file_name: str, digest: Any) -> Iterator[bytes]:
        with self.spill.store.open(name, file_name) as file:
            while piece := file.read(PIECE):
                if self._stopped:
                    raise _Stopped
                digest.update(piece)
                yield piece


class _Stopped(Exception):
    """The run ends, and the rest stays here."""
