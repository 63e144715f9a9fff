"""The documents that users of the original systems learnt from, and the code in them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "seeds"
TRACES = Path(__file__).parent / "traces"
_FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HIGHLIGHTED = re.compile(r"^\{% highlight python %\}\n(.*?)^\{% endhighlight %\}", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Repair:
    """An error of a document that keeps its code from running: what stands there, what was meant, and why."""

    wrong: str
    right: str
    why: str


def text_of(document: str) -> str:
    return (FOLDER / document).read_text(encoding="utf-8")


def examples(document: str) -> list[str]:
    """Every block of code in a document, in order."""
    text = text_of(document)
    return _FENCED.findall(text) or _HIGHLIGHTED.findall(text)


def under_directives(document: str) -> list[str]:
    """What stands under each ``.. code-block:: python``, in order."""
    found = []
    for part in text_of(document).split(".. code-block:: python\n")[1:]:
        lines = part.splitlines()
        end = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(" ")), len(lines))
        found.append(textwrap.dedent("\n".join(lines[:end])).strip() + "\n")
    return found


def fenced(document: str, language: str) -> list[str]:
    """What stands between each pair of fences of a language, which may be indented, in order."""
    blocks = re.findall(rf"^[ \t]*```{language}\n(.*?)^[ \t]*```", text_of(document), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block).strip("\n") + "\n" for block in blocks]


def repaired(code: str, *repairs: Repair) -> str:
    """``code`` with its errors put right; a repair that changes nothing is an error itself."""
    for repair in repairs:
        assert repair.wrong in code, f"nothing to repair: {repair.wrong!r}"
        code = code.replace(repair.wrong, repair.right)
    return code


def trace(name: str) -> list[str]:
    """The lines of a recording of the original."""
    return (TRACES / name).read_text(encoding="utf-8").splitlines()
