"""What a checkpoint says about itself, and the marker that makes it one."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cadenza.checkpoint.format.json_state import Path, decode, encode, spell
from cadenza.checkpoint.problems import Damaged, NotState, UnknownFormat

FORMAT = 1
MANIFEST = "manifest.json"
MARKER = "COMMITTED"
FILE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*\.)?(model\.safetensors|state\.safetensors|state\.json)")
"""Names of files that a manifest may speak of. They have no separators, so they cannot leave the folder."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,150}")
FOLDER = re.compile(r"(\d{6,})-(.+)")


@dataclass(frozen=True)
class File:
    """A file of a checkpoint, as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of a checkpoint, and what the one who saved it noted in ``meta``."""

    name: str
    number: int
    meta: dict[str, Any]
    files: dict[str, File]
    aliases: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return folder_of(self.number, self.name)

    def text(self) -> bytes:
        """The manifest as it is stored."""
        document = {
            "format": FORMAT,
            "name": self.name,
            "number": self.number,
            "versions": self.versions,
            "meta": encode_meta(self.meta),
            "aliases": self.aliases,
            "files": {name: {"bytes": f.bytes, "sha256": f.sha256} for name, f in self.files.items()},
        }
        return json.dumps(document, indent=1, allow_nan=False).encode("ascii")


def encode_meta(meta: Mapping[str, Any]) -> Any:
    """``meta`` as plain JSON; refuses what is no plain data."""
    return encode(dict(meta), ("meta",), _no_tensors, long=sys.maxsize)


def _no_tensors(tensor: Tensor, path: Path) -> int:
    raise NotState(f"{spell(path)} is a tensor; what is noted about a checkpoint is numbers and text: use .item()")


def marker_of(text: bytes) -> bytes:
    """The marker that commits a checkpoint whose manifest is ``text``. No other bytes commit it."""
    return f"cadenza checkpoint, sha256 of {MANIFEST}: {hashlib.sha256(text).hexdigest()}\n".encode("ascii")


def parse(folder: str, text: bytes, marker: bytes) -> Manifest:
    """The manifest of ``folder``, after the marker has shown that it is the one that was written."""
    if marker != marker_of(text):
        raise Damaged(folder, f"{MARKER} does not fit {MANIFEST}")
    try:
        document = json.loads(text.decode("ascii"))
        version = document["format"]
        if type(version) is not int or not 1 <= version <= FORMAT:
            raise UnknownFormat(
                f"the checkpoint {folder} has the format {version!r}, and this Cadenza reads up to {FORMAT}: "
                f"install a newer one (it was written by {document.get('versions')})"
            )
        return Manifest(
            name=document["name"],
            number=document["number"],
            meta=decode(document["meta"], _nothing),
            files=_files(document["files"]),
            aliases=document["aliases"],
            versions=document["versions"],
        )
    except UnknownFormat:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(folder, f"{MANIFEST} makes no sense: {error}") from error


def _nothing(number: int) -> Tensor:
    raise ValueError("there are no tensors in a manifest")


def _files(listed: Mapping[str, Any]) -> dict[str, File]:
    files = {}
    for name, said in listed.items():
        if not FILE.fullmatch(name):
            raise ValueError(f"it names the file {name!r}, and a checkpoint has none of that name")
        if type(said["bytes"]) is not int or said["bytes"] < 0 or not re.fullmatch("[0-9a-f]{64}", said["sha256"]):
            raise ValueError(f"it gives no size and checksum for {name}")
        files[name] = File(said["bytes"], said["sha256"])
    return files


def folder_of(number: int, name: str) -> str:
    """The folder of a checkpoint: counted through, so that a listing shows them in the order of their making.

    >>> folder_of(12, "epoch=3-step=500")
    '000012-epoch=3-step=500'
    """
    return f"{number:06d}-{name}"


def check_name(name: str) -> None:
    """Refuses a name that some file system or object store would not take, and offers one that all take."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        near = re.sub("[^A-Za-z0-9._=+-]+", "_", str(name)).lstrip("._=+-")[:150] or "checkpoint"
        raise ValueError(f"a checkpoint cannot be called {name!r}: use letters, digits and ._=+- as in {near!r}")
