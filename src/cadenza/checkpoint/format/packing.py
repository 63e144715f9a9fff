"""A state taken apart into files: weights, other tensors, and the rest as JSON; and put together again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cadenza.checkpoint.format.chunks import Spread
from cadenza.checkpoint.format.json_state import a, decode, encode
from cadenza.checkpoint.format.layout import Catalogue, Entry, Memory
from cadenza.checkpoint.format.tensor_file import Into, pieces, read_header, read_values
from cadenza.checkpoint.problems import NotState

JSON = "state.json"
TENSORS = {"model": "model.safetensors", "state": "state.safetensors"}


@dataclass
class Packed:
    """A state that waits to be written: ``values`` holds what each record is to store, contiguous, in main memory."""

    tree: dict[str, Any]
    records: list[dict[str, Any]]
    values: list[Tensor]
    shared: list[int]
    aliases: dict[str, str]

    @property
    def size(self) -> int:
        """How many bytes there are to write, but for the JSON."""
        return sum(value.numel() * value.element_size() for value in self.values)

    def files(self) -> Iterator[tuple[str, Iterator[memoryview | bytes]]]:
        """Name and content of every file, piece by piece."""
        for kind, file in TENSORS.items():
            mine = {r["name"]: v for r, v in zip(self.records, self.values, strict=True) if r["file"] == kind}
            aliases = self.aliases if kind == "model" else {}
            if mine:
                note = {"format": "pt", **{name: kept for name, kept in aliases.items() if kept in mine}}
                yield file, pieces(mine, note)
        document = {"tree": self.tree, "tensors": self.records, "shared": self.shared}
        text: list[memoryview | bytes] = [json.dumps(document, allow_nan=False).encode("ascii")]
        yield JSON, iter(text)


class Snapshot:
    """Copies states to main memory. The memory is used again for the next copy, so that it is allocated once.

    A packed state is valid until ``take`` is called again.

    >>> snapshot = Snapshot()
    >>> weight = torch.ones(2)
    >>> packed = snapshot.take({"model": {"weight": weight}})
    >>> weight.zero_(), packed.values
    (tensor([0., 0.]), [tensor([1., 1.])])
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def take(self, state: Mapping[str, Any]) -> Packed:
        """``state`` as it is now. Waits for the devices once, after all copies were begun."""
        tree, catalogue = _take_apart(state)
        shared = catalogue.share()
        entries = catalogue.entries
        devices = {e.tensor.device for e in entries if e.tensor.device.type != "cpu"}
        pinned = any(device.type == "cuda" for device in devices)
        places = self._places(entries, pinned)
        for entry, place in zip(entries, places, strict=True):
            place.copy_(entry.tensor, non_blocking=pinned)
        for device in devices:
            _wait_for(device)
        # Only records are kept: the tensors themselves may be freed, or change, while this is written.
        return Packed(tree, [entry.record() for entry in entries], places, shared, catalogue.aliases)

    def _places(self, entries: list[Entry], pinned: bool) -> list[Tensor]:
        starts, end = [], 0
        for entry in entries:
            starts.append(end)
            end += (entry.size + 63) // 64 * 64
        if self._memory.numel() < end or (pinned and not self._memory.is_pinned()):
            self._memory = torch.empty(0, dtype=torch.uint8)  # let go of the old one first
            self._memory = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
        parts = zip(entries, starts, strict=True)
        return [self._memory[start : start + e.size].view(e.tensor.dtype).view(e.tensor.shape) for e, start in parts]


def _wait_for(device: torch.device) -> None:
    # The copies must have arrived before training changes what they copy.
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def pack(state: Mapping[str, Any]) -> Packed:
    """``state`` ready to be written at once, without a copy of what lies contiguous in main memory."""
    tree, catalogue = _take_apart(state)
    shared = catalogue.share()
    values = [entry.tensor.to("cpu").contiguous() for entry in catalogue.entries]
    return Packed(tree, [entry.record() for entry in catalogue.entries], values, shared, catalogue.aliases)


def _take_apart(state: Mapping[str, Any]) -> tuple[dict[str, Any], Catalogue]:
    if type(state) is not dict or not all(type(key) is str and key != "$" for key in state):
        raise NotState(f'a state is a dict with names as keys, such as {{"model": …}}, not {a(state)}')
    catalogue = Catalogue()
    # The model comes first, so that weights which others share are stored in its file.
    first = sorted(state, key=lambda key: key != "model")
    tree = {key: encode(state[key], (key,), catalogue.add) for key in first}
    return {key: tree[key] for key in state}, catalogue


Open = Callable[[str], tuple[Into, int]]
"""Opens a file by its name: how to read on in it, and how many bytes it has."""


def unpack(text: bytes, open_file: Open, spread: Callable[[dict[str, Any]], Any] = Spread.of) -> dict[str, Any]:
    """The state whose ``state.json`` is ``text``. Raises a ``ValueError`` or the like if the files make no sense."""
    document = json.loads(text.decode("ascii"))
    memory = Memory(document["shared"])
    records = document["tensors"]
    tensors = [memory.make(record) for record in records]
    for kind, file in TENSORS.items():
        mine = {r["name"]: t for r, t in zip(records, tensors, strict=True) if r["file"] == kind}
        if mine:
            read, size = open_file(file)
            header = read_header(read, size)
            read_values(read, header, mine)
    state = decode(document["tree"], tensors.__getitem__, spread)
    if not isinstance(state, dict):
        raise ValueError("its state is no dict")
    return state
