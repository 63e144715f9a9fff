"""A short text that is the same for trees with the same bits, to compare what processes have without sending it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_SMALL = 1 << 12
_PIECE = 1 << 20
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def fingerprints(entries: Mapping[str, Any]) -> dict[str, str]:
    """The fingerprint of each entry.

    >>> one, other = fingerprints({"a": torch.ones(2), "b": torch.ones(2) + 0}).values()
    >>> one == other
    True
    """
    return {name: fingerprint(value) for name, value in entries.items()}


def fingerprint(tree: Any) -> str:
    """Of tensors, numbers and text in dicts, lists and tuples. Large tensors are added up where they are, in whole
    numbers; what is spread over processes belongs to all of them, so only its form counts."""
    said = hashlib.blake2b(digest_size=16)
    _tell(tree, said)
    return said.hexdigest()


def _tell(tree: Any, said: Any) -> None:
    if isinstance(tree, Tensor):
        said.update(f"{tree.dtype}{tuple(tree.shape)}".encode())
        if not hasattr(tree, "full_tensor"):
            said.update(_content(tree.detach()))
    elif isinstance(tree, dict):
        said.update(b"{")
        for key, value in tree.items():
            said.update(repr(key).encode())
            _tell(value, said)
    elif isinstance(tree, list | tuple):
        said.update(b"[")
        for value in tree:
            _tell(value, said)
    else:
        said.update(repr(tree).encode())
    said.update(b";")


def _content(tensor: Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    words = tensor.contiguous().reshape(-1).view(_WORDS[tensor.element_size()])
    if tensor.numel() <= _SMALL:
        return bytes(words.cpu().view(torch.uint8).tolist())
    sums = []
    for piece in torch.split(words, _PIECE):
        whole = piece.to(torch.int64)
        place = torch.arange(1, len(whole) + 1, device=whole.device) * 0x9E3779B97F4A7C1
        sums += [whole.sum(), (whole * place).sum()]
    return repr(torch.stack(sums).tolist()).encode()
