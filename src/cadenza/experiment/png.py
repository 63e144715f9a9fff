"""Images as PNG files, with the standard library alone."""

from __future__ import annotations

import struct
import zlib

import torch
from torch import Tensor

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png_bytes(image: Tensor) -> bytes:
    """An image of shape (H, W), (1, H, W), (3, H, W) or (H, W, 3) as a PNG; floats from 0 to 1, or bytes.

    >>> png_size(png_bytes(torch.zeros(3, 4, 5)))
    (5, 4)
    """
    pixels = _pixels(image.detach().cpu())
    height, width, channels = pixels.shape
    flat = bytes(pixels.contiguous().clone().untyped_storage())  # without NumPy, which torch does not need
    stride = width * channels
    rows = b"".join(b"\0" + flat[row * stride : (row + 1) * stride] for row in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _pixels(image: Tensor) -> Tensor:
    """Bytes of shape (H, W, channels)."""
    if image.dim() == 2:
        image = image.unsqueeze(-1)
    elif image.dim() == 3 and image.size(0) in (1, 3, 4):
        image = image.permute(1, 2, 0)  # (3, H, 3) is read as torch has it
    if image.dim() != 3 or image.size(-1) not in (1, 3, 4) or not image.numel():
        raise ValueError(
            f"an image has shape (H, W), (C, H, W) or (H, W, C) with 1, 3 or 4 channels, not {image.shape}"
        )
    if image.is_floating_point():
        image = torch.nan_to_num(image).clamp(0, 1).mul(255).round()
    return image.clamp(0, 255).to(torch.uint8)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_size(content: bytes) -> tuple[int, int]:
    """Width and height of a PNG."""
    if not content.startswith(_SIGNATURE) or len(content) < 24:
        raise ValueError("this is not a PNG")
    width, height = struct.unpack(">II", content[16:24])
    return width, height
