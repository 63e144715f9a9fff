"""Images in the page itself, as many as there is room for."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from cadenza.experiment.records import Record
from cadenza.experiment.report.markup import folded, text

ROOM = 1_500_000
"""So many bytes of images a page holds; encoded they are a third more."""
_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
_SMALL = 160
"""Pictures that are not so many pixels wide are drawn with larger ones."""
_NUMBER = re.compile(r"[-_]?\d+$")


def gallery(record: Record, room: int = ROOM) -> str:
    """The pictures in ``plots``. Of a series such as ``predictions-val-003`` the last one comes first."""
    series: dict[str, list[Path]] = {}
    for path in record.pictures:
        series.setdefault(_NUMBER.sub("", path.stem), []).append(path)
    latest: list[str] = []
    earlier: list[str] = []
    left_out: list[str] = []
    depth = max((len(paths) for paths in series.values()), default=0)
    for back in range(depth):
        for path in (paths[-1 - back] for paths in series.values() if back < len(paths)):
            size = path.stat().st_size
            if size <= room:
                room -= size
                (earlier if back else latest).append(_picture(path))
            else:
                left_out.append(path.name)
    return _grid(latest) + folded(f"{len(earlier)} earlier ones", _grid(earlier)) + _note(record, left_out)


def _grid(pictures: list[str]) -> str:
    return f'<div class="gallery">{"".join(pictures)}</div>' if pictures else ""


def _note(record: Record, left_out: list[str]) -> str:
    if not left_out:
        return ""
    more = ", ".join(sorted(left_out)[:20]) + (" …" if len(left_out) > 20 else "")
    where = text(f"{record.folder}/plots: {more}")
    return f'<p class="note">There is no room here for {len(left_out)} more in {where}</p>'


def _picture(path: Path) -> str:
    content = path.read_bytes()
    packed = base64.b64encode(content).decode("ascii")
    name = text(path.stem)
    source = f"data:{_TYPES[path.suffix]};base64,{packed}"
    small = ' class="small"' if _is_small(content) else ""
    return f'<figure><img{small} src="{source}" alt="{name}" loading="lazy"><figcaption>{name}</figcaption></figure>'


def _is_small(content: bytes) -> bool:
    """Whether this is a PNG file of so few pixels that it has to be drawn larger to be seen: a digit of 8 x 8."""
    return content.startswith(b"\x89PNG") and 0 < int.from_bytes(content[16:20], "big") < _SMALL


def histograms(media: list[dict[str, Any]]) -> str:
    """The last histogram of each name as bars."""
    last = {one["name"]: one for one in media if one.get("kind") == "histogram"}
    return "".join(_histogram(name, one) for name, one in last.items())


def _histogram(name: str, one: dict[str, Any]) -> str:
    edges, counts = one["value"]["edges"], one["value"]["counts"]
    highest = max(max(counts), 1)
    wide = 100 / len(counts)
    heights = [40 * count / highest for count in counts]
    bars = "".join(
        f'<rect x="{index * wide:.2f}" y="{40 - high:.2f}" width="{wide:.2f}" height="{high:.2f}"/>'
        for index, high in enumerate(heights)
        if high
    )
    says = f"{name}, step {one['step']}: {edges[0]:.4g} to {edges[-1]:.4g}"
    return (
        f'<figure class="bars"><svg viewBox="0 0 100 40" preserveAspectRatio="none" role="img">{bars}</svg>'
        f"<figcaption>{text(says)}</figcaption></figure>"
    )
