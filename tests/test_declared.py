"""The packages that the source imports are those that ``pyproject.toml`` declares, no more and no fewer.

What fastai's star imports bring from other packages (``star_names.json``: scipy, requests, PIL) is not counted. It is
imported only where it is installed, and no feature needs it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import cadenza

SOURCE = Path(cadenza.__file__).parent
ROOT = SOURCE.parents[1]
DISTRIBUTIONS = {"hydra": "hydra-core", "sklearn": "scikit-learn", "yaml": "pyyaml", "IPython": "ipython"}
"""Packages that are installed under another name."""
LOADED_BY_OTHERS = {"s3fs"}
"""fsspec imports it when it meets a URL of S3."""
BY_NAME = {"find_spec", "import_module", "need", "quietly"}
"""Functions that import a package, or look for it, by the name they are given."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def names_in(node: ast.AST) -> list[str]:
    """The modules that a statement or a call imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return [str(node.args[0].value)] if called in BY_NAME else []
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PACKAGES":
        return [str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
    return []


def imported() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in names_in(node):
                top = name.split(".")[0]
                if top and top != "cadenza" and top not in sys.stdlib_module_names:
                    yield DISTRIBUTIONS.get(top, top)


def name_of(requirement: str) -> str:
    return re.split(r"[\[><=!~; ]", requirement, maxsplit=1)[0].lower()


def test_what_is_imported_is_what_is_declared() -> None:
    declared = {name_of(one) for group in EXTRAS.values() for one in group}
    declared |= {name_of(one) for one in PROJECT["project"]["dependencies"]}
    assert set(imported()) == declared - LOADED_BY_OTHERS - {"cadenza"}


def test_each_package_is_declared_once() -> None:
    """An extra that needs what another declares names that extra, so that versions are written in one place."""
    requirements = [one for group in EXTRAS.values() for one in group] + PROJECT["project"]["dependencies"]
    names = [name_of(one) for one in requirements if name_of(one) != "cadenza"]
    assert sorted(names) == sorted(set(names))


def test_extras_and_groups_name_extras_that_exist() -> None:
    groups = [one for group in PROJECT["dependency-groups"].values() for one in group if isinstance(one, str)]
    for one in [*groups, *(one for group in EXTRAS.values() for one in group)]:
        if found := re.match(r"cadenza\[(.*)\]$", one):
            assert set(found[1].split(",")) <= set(EXTRAS), one


def test_what_is_for_work_on_cadenza_is_not_published() -> None:
    assert not {"test", "docs", "dev"} & set(EXTRAS)
    assert {"test", "docs"} <= set(PROJECT["dependency-groups"])


def test_messages_name_extras_that_exist() -> None:
    """``pip install 'cadenza[x]'`` in a message or on a page installs something."""
    pages = [*SOURCE.rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for page in pages:
        for extras in re.findall(r"cadenza\[([a-z0-9,]+)\]", page.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= set(EXTRAS), page


def test_the_page_lists_every_extra() -> None:
    rows = re.findall(r"^\| `([a-z0-9]+)` \|", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == sorted(EXTRAS)
