"""The checkpoints of one run, in one folder on a disk or in an object store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cadenza.checkpoint.backends.disk import Disk
from cadenza.checkpoint.backends.remote import Remote
from cadenza.checkpoint.backends.watchdog import Silent
from cadenza.checkpoint.format.manifest import FOLDER, MARKER, Manifest, check_name, encode_meta, marker_of
from cadenza.checkpoint.format.packing import Packed, pack
from cadenza.checkpoint.format.reading import parts_of, read_manifest, read_state, verify
from cadenza.checkpoint.problems import Damaged, NoCheckpoint, Taken
from cadenza.checkpoint.retention import check_counts, ranked, surplus
from cadenza.checkpoint.staging import Draft, Store
from cadenza.foundation.suggest import did_you_mean

log = logging.getLogger("cadenza.checkpoint")
TORN, BROKEN = "torn-", "damaged-"


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read: ``state`` and ``meta`` as they were written, ``name`` the folder it lies in.

    ``passed_over`` are newer ones that could not be used, and why.
    """

    state: dict[str, Any]
    meta: dict[str, Any]
    name: str
    number: int
    passed_over: dict[str, str] = field(default_factory=dict)
    shelf: str = ""
    """The folder or URL that ``name`` lies in."""


Runs = Collection[str | None] | None
"""The ids of runs, as ``meta["run"]`` has them; None for whatever is there."""
Apart = Callable[[Store, Manifest], None]
"""Given by processes that read a checkpoint together: what lies in parts is left there, and this compares the files of
the parts with their checksums, or raises ``Damaged``."""


class Shelf:
    """Checkpoints under ``url``: a folder, or a URL that fsspec knows, such as ``s3://bucket/run`` or ``memory://run``.

    Nothing is made until the first ``write``. One process writes; any number may read meanwhile.

    >>> import tempfile, torch
    >>> shelf = Shelf(tempfile.mkdtemp())
    >>> shelf.write("epoch=1", {"model": {"weight": torch.ones(2)}, "epoch": 1}, {"seed": 7})
    '000001-epoch=1'
    >>> saved = shelf.read("last")
    >>> saved.state, saved.meta, saved.name
    ({'model': {'weight': tensor([1., 1.])}, 'epoch': 1}, {'seed': 7}, '000001-epoch=1')
    """

    def __init__(self, url: str | Path, *, filesystem: Any = None, system: Any = None) -> None:
        text = str(url)
        self.store: Store
        if filesystem is not None or ("://" in text and not text.startswith("file://")):
            self.store = Remote(text, filesystem)
        else:
            root = Path(text.removeprefix("file://"))
            self.store = Disk(root) if system is None else Disk(root, system)
        self._manifests: dict[str, Manifest] = {}
        self.used = 0
        """The largest number that is known to be taken, here or wherever the one who writes also writes."""
        self._expected: set[str] | None = None

    def __repr__(self) -> str:
        return f"Shelf({str(self.store)!r})"

    # Writing ---------------------------------------------------------------------------------------------------------

    def write(self, name: str, state: Mapping[str, Any] | Packed, meta: Mapping[str, Any] | None = None) -> str:
        """Stores a checkpoint, which is committed when this returns; returns the name of its folder.

        ``meta`` is numbers and text about it; ``monitor``, ``value`` and ``mode`` in it decide what is best.
        """
        encode_meta(meta or {})  # refused before anything is written
        packed = state if isinstance(state, Packed) else pack(state)
        draft = self.draft(name)
        try:
            draft.add(packed)
            return self.commit(draft, meta or {})
        except Exception as error:
            self.abandon(draft, error)
            raise

    def draft(self, name: str, number: int | None = None) -> Draft:
        """Begins a checkpoint that is written in parts, or joins the one with this ``number``; see ``Draft``."""
        check_name(name)
        return Draft(self.store, number or self.next_number(), name, begin=number is None)

    def commit(self, draft: Draft, meta: Mapping[str, Any]) -> str:
        """Makes a draft a checkpoint; returns the name of its folder."""
        self._manifests[draft.folder] = draft.commit(meta)
        self.expect(draft.folder)
        return draft.folder

    def write_alone(self) -> None:
        """From here on the next save raises ``Taken`` if there is a checkpoint that is neither here now nor written by
        this shelf. For stores without locks; on a disk the folder is locked."""
        self._expected = set(self.names()) if self.store.remote else None

    def expect(self, name: str) -> None:
        """The checkpoint ``name`` was written by the one who writes here."""
        if self._expected is not None:
            self._expected.add(name)

    def _refuse_second_writer(self, folders: Mapping[str, set[str]]) -> None:
        if self._expected is None:
            return
        for name, files in _numbered(folders):
            if MARKER in files and (self._is_replaced(name) if name in self._expected else self._is_whole(name)):
                raise Taken(
                    f"another run has written the checkpoint {name} to {self.store}; give each run a place of its own: "
                    "Checkpoint(to=...)"
                )

    def _is_whole(self, name: str) -> bool:
        with contextlib.suppress(Damaged):
            return self._manifest(name).number > 0
        return False

    def _is_replaced(self, name: str) -> bool:
        """Whether another run wrote a checkpoint of the same name over one of ours, as an object store lets it."""
        ours = self._manifests.get(name)
        if not self.store.remote or ours is None or ours.number != self.used:
            return False
        with self.store.open(name, MARKER) as file:
            return file.read() != marker_of(ours.text())

    def next_number(self) -> int:
        """Larger than that of any checkpoint here, be it torn or whole."""
        folders = self.store.folders()
        self._refuse_second_writer(folders)
        self.used = self._largest(folders) + 1
        return self.used

    def largest_number(self) -> int:
        """The largest number that is taken."""
        return self._largest(self.store.folders())

    def _largest(self, folders: Iterable[str]) -> int:
        names = [name.removeprefix(TORN).removeprefix(BROKEN) for name in folders]
        return max([self.used, *(int(match[1]) for name in names if (match := FOLDER.fullmatch(name)))])

    def abandon(self, draft: Draft, error: Exception) -> None:
        """Makes room again after ``error``, as far as the store allows. What has a marker is left alone, and a store
        that did not answer is not asked once more."""
        if isinstance(error, Silent):
            return
        with contextlib.suppress(Exception):
            files = self.store.folders().get(draft.folder, set())
            if MARKER not in files:
                self._delete(draft.folder, files)

    # Finding ---------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The committed checkpoints, the oldest first. Whether their bytes are intact is seen when they are read."""
        return [name for name, files in _numbered(self.store.folders()) if MARKER in files]

    def torn(self) -> list[str]:
        """What was begun and never committed, or half deleted; the oldest first."""
        return [name for name, files in _numbered(self.store.folders()) if MARKER not in files]

    def metas(self, runs: Runs = None) -> dict[str, dict[str, Any]]:
        """What was noted about each committed checkpoint, the oldest first; without those that are damaged. With
        ``runs`` only of those that one of these runs wrote."""
        found = {}
        for name in self.names():
            with contextlib.suppress(Damaged):
                found[name] = self._manifest(name).meta
        return _of(runs, found)

    def best(self) -> str | None:
        """The name of the best one by its ``meta``, or None if none was measured."""
        return next(iter(ranked(self.metas())), None)

    def _manifest(self, name: str) -> Manifest:
        if name not in self._manifests:
            self._manifests[name] = read_manifest(self.store, name)
        return self._manifests[name]

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(self, name: str = "last", part: str = "", apart: Apart | None = None) -> Saved:
        """Reads ``"last"``, the newest valid one, ``"best"``, or the one in the folder of that name, verified."""
        if name == "last":
            saved = self.newest_valid(part, apart)
            if saved is None:
                raise NoCheckpoint(f"there is no checkpoint in {self.store}")
            return saved
        if name == "best":
            return self._best_valid(part, apart)
        return self._read(self.find(name), part, apart)

    def find(self, name: str) -> str:
        """The folder of the committed checkpoint that is called ``name``, with or without its number."""
        names = self.names()
        matching = [folder for folder in names if name == folder or name == folder.partition("-")[2]]
        if not matching:
            hint = did_you_mean(name, [*names, "last", "best"], cutoff=0.4)
            raise NoCheckpoint(f"there is no checkpoint {name!r} in {self.store}{hint}")
        return matching[-1]

    def newest_valid(self, part: str = "", apart: Apart | None = None) -> Saved | None:
        """The newest checkpoint whose bytes are as they were written, or None if none was ever committed.

        Newer ones that are torn or damaged are named in a warning, and in ``passed_over`` of what is returned.
        """
        folders = self.store.folders()
        candidates = [(name, MARKER in files) for name, files in reversed(_numbered(folders))]
        return self._first_valid(candidates, part, apart)

    def _best_valid(self, part: str, apart: Apart | None) -> Saved:
        saved = self._first_valid([(name, True) for name in ranked(self.metas())], part, apart)
        if saved is None:
            raise NoCheckpoint(f"no checkpoint in {self.store} was measured, so none is the best")
        return saved

    def _first_valid(self, candidates: list[tuple[str, bool]], part: str, apart: Apart | None) -> Saved | None:
        passed_over: dict[str, str] = {}
        damaged = False
        for name, committed in candidates:
            if not committed:
                passed_over[name] = "it was never committed"
                continue
            try:
                saved = self._read(name, part, apart)
            except Damaged as error:
                passed_over[name] = error.reason
                damaged = True
                continue
            self._warn(passed_over, f"{name} is used")
            return replace(saved, passed_over=passed_over)
        self._warn(passed_over, "there is none before")
        if damaged:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items())
            raise Damaged(str(self.store), f"no checkpoint in it can be used. {reasons}")
        return None

    def _warn(self, passed_over: Mapping[str, str], instead: str) -> None:
        for name, reason in passed_over.items():
            log.warning("the checkpoint %s in %s is passed over: %s; %s", name, self.store, reason, instead)

    def _read(self, name: str, part: str, apart: Apart | None = None) -> Saved:
        manifest = self._manifests[name] = read_manifest(self.store, name)
        state = read_state(self.store, manifest, name, part, apart=apart is not None)
        if apart is not None and parts_of(manifest):
            apart(self.store, manifest)
        return Saved(state, manifest.meta, name, manifest.number, shelf=str(self.store))

    def verify(self, name: str) -> None:
        """Compares every byte of a checkpoint with its checksums; raises ``Damaged`` if one differs."""
        folder = self.find(name)
        verify(self.store, read_manifest(self.store, folder), folder)

    # Tidying ---------------------------------------------------------------------------------------------------------

    def retain(self, keep_last: int | None = None, keep_best: int = 0, runs: Runs = None) -> list[str]:
        """Deletes all but the newest ``keep_last`` and the best ``keep_best``; returns the names of the deleted.

        The newest committed one always stays. Drafts that are older than it are removed too, but for the newest. With
        ``runs``, checkpoints that other runs wrote are neither counted nor deleted, and if there are any, drafts stay:
        they may be theirs.
        """
        check_counts(keep_last, keep_best)
        folders = self.store.folders()
        numbered = _numbered(folders)
        committed = [name for name, files in numbered if MARKER in files]
        if not committed:
            return []
        newest = numbered.index((committed[-1], folders[committed[-1]]))
        metas = self.metas()
        own = _of(runs, metas)
        drafts = [name for name, files in numbered[:newest] if MARKER not in files] if len(own) == len(metas) else []
        aside = sorted(name for name in folders if name.startswith(TORN))
        deleted = surplus(own, keep_last, keep_best)
        for name in [*deleted, *drafts, *aside[:-1]]:
            self._delete(name, folders[name])
        return deleted

    def delete(self, name: str) -> None:
        """Deletes one checkpoint."""
        self._delete(name, self.store.folders().get(name, set()))

    def _delete(self, name: str, files: set[str]) -> None:
        """Removes the marker first: what is half deleted is no checkpoint."""
        if MARKER in files:
            self.store.remove(name, MARKER)
            self.store.settle(name)
        for file in sorted(files - {MARKER}):
            self.store.remove(name, file)
        self.store.remove_folder(name)
        self._manifests.pop(name, None)

    def set_aside(self, names: Iterable[str] | None = None) -> list[str]:
        """Renames what cannot be used to ``torn-…`` or ``damaged-…``, where the store can rename; returns the names.

        By default drafts that are newer than the newest checkpoint: older ones are left over from deleting. Only for
        the one who writes here, between two writes: the draft of a save that goes on looks torn as well.
        """
        folders = self.store.folders()
        if names is None:
            numbered = _numbered(folders)
            after = max((index + 1 for index, (_, files) in enumerate(numbered) if MARKER in files), default=0)
            names = [name for name, _ in numbered[after:]]
        unusable = [name for name in names if name in folders]
        for name in unusable:
            aside = (BROKEN if MARKER in folders[name] else TORN) + name
            where = f"set aside as {aside}" if self._renamed(name, aside) else "left where it is"
            log.warning("the checkpoint %s in %s cannot be used; it is %s", name, self.store, where)
        return unusable

    def _renamed(self, name: str, aside: str) -> bool:
        try:
            return self.store.rename(name, aside)
        except OSError as error:  # a disk that cannot be written to can still be read
            log.info("%s in %s cannot be renamed: %s", name, self.store, error)
            return False


def _of(runs: Runs, metas: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: meta for name, meta in metas.items() if runs is None or meta.get("run") in runs}


def _numbered(folders: Mapping[str, set[str]]) -> list[tuple[str, set[str]]]:
    """The folders that are checkpoints by their names, in the order of their numbers."""
    found = [(int(match[1]), name) for name in folders if (match := FOLDER.fullmatch(name))]
    return [(name, folders[name]) for _, name in sorted(found)]
