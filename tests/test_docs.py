"""The pages are true: every snippet runs, what it prints is what the page shows, every link leads somewhere."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza import Trainer
from cadenza.dialects import NAMES, dialect
from cadenza.points import POINTS
from cadenza.registration.suggestions import FOREIGN
from cadenza.testing import tiny_classifier

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ANYTHING = "…"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"`([\w./-]+/[\w.-]+|[\w-]+\.(?:md|py|toml|txt))`")


@dataclass
class Block:
    """What stands between two fences, and the words after the first one."""

    info: str
    text: str
    line: int


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_and_prose(page: Path) -> tuple[list[Block], str]:
    """The fenced blocks of a page, and everything else."""
    blocks: list[Block] = []
    prose: list[str] = []
    inside: Block | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if inside is None and line.startswith("```"):
            inside = Block(line.removeprefix("```").strip(), "", number)
        elif inside is None:
            prose.append(line)
        elif line == "```":
            blocks.append(inside)
            inside = None
        else:
            inside.text += line + "\n"
    assert inside is None, f"{name_of(page)}: the block that begins at line {inside and inside.line} does not end"
    return blocks, "\n".join(prose)


def blocks_of(page: Path) -> list[Block]:
    return blocks_and_prose(page)[0]


# Snippets -----------------------------------------------------------------------------------------------------------

WITH_SNIPPETS = [page for page in PAGES if any(block.info.startswith("python") for block in blocks_of(page))]


@pytest.fixture
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own, on one thread, and with the random numbers of the other tests untouched."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


def play(page: Path, block: Block, names: dict[str, Any]) -> str:
    """Runs one snippet; returns what it printed. Errors name the line of the page."""
    code = compile("\n" * block.line + block.text, name_of(page), "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def shows(shown: str, printed: str) -> bool:
    """Whether ``printed`` is what the page shows; an ellipsis there stands for any text."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split(ANYTHING))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=name_of)
def test_every_snippet_runs_and_prints_what_the_page_shows(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for block in blocks_of(page):
        if block.info == "python":
            printed = play(page, block, names)
        elif block.info == "text output":
            where = f"{name_of(page)}:{block.line}"
            assert printed is not None, f"{where}: no snippet stands before this output"
            assert shows(block.text, printed), f"{where} shows\n{block.text}\nbut the snippet printed\n{printed}"
            printed = None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_snippet_is_kept_from_running(page: Path) -> None:
    infos = [block.info for block in blocks_of(page)]
    for info in infos:
        # what is shown as pycon stands in docstrings, where doctest runs it
        kinds = ("python", "text", "text output", "bash", "yaml", "pycon")
        assert info in kinds, f"a block of the unknown kind {info!r}"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("epoch 0: 1.10\n", "epoch 0: 1.10\n", True),
        ("epoch 0: 1.10\n", "epoch 0: 1.11\n", False),
        ("epoch 0: …\nepoch 1: …\n", "epoch 0: 1.10\nepoch 1: 0.9\n", True),
        ("epoch 0: …\n", "epoch 1: 1.10\n", False),
        ("a\n…\nb\n", "a\n1\n2\nb\n", True),
        ("a (b)\n", "a (b)\nmore\n", False),
    ],
)
def test_an_ellipsis_stands_for_any_text_and_nothing_else_does(shown: str, printed: str, same: bool) -> None:
    assert shows(shown, printed) is same


# Links and names ----------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The places in a page that a link can lead to, as GitHub names them."""
    headings = [line.lstrip("#").strip() for line in blocks_and_prose(page)[1].splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_images_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(blocks_and_prose(page)[1]):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(file), f"{name_of(page)} links to {target}, and {path} has no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, waiting = set(), [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = (target.partition("#")[0] for target in LINK.findall(blocks_and_prose(page)[1]))
        found = {(page.parent / link).resolve() for link in links if link.endswith(".md") and "://" not in link}
        waiting.extend(found - reached - set(waiting))
    assert not {name_of(page) for page in PAGES if page.is_relative_to(ROOT / "docs")} - {name_of(p) for p in reached}


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))], ids=name_of
)
def test_files_that_are_named_exist(page: Path) -> None:
    """A file is named by its path from the root, from ``src/cadenza`` or from the page itself."""
    roots = (ROOT, ROOT / "src" / "cadenza", page.parent)
    for file in FILE.findall(blocks_and_prose(page)[1]):
        assert any((root / file).exists() for root in roots), f"{name_of(page)} names {file}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_points_that_are_named_are_points(page: Path) -> None:
    known = POINTS.keys() | FOREIGN.keys() | {f"{kind}_x" for kind in ("before", "around", "after", "on")}
    known |= {"on_error", "on_failure"}  # arguments of callbacks
    if page.name == "dialects.md" or page.parent.name == "migrate":
        rows = [dialect(name) for name in NAMES]
        known |= {name for one in rows for name in (*(row.name for row in one.hooks), *one.refused)}
    named = set(re.findall(r"`((?:before|around|after|on)_\w+)`", blocks_and_prose(page)[1]))
    assert not named - known


def test_everything_public_on_a_run_is_explained() -> None:
    model = tiny_classifier()
    run = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu").run(epochs=1)
    generated = ROOT / "docs" / "points.md"
    said = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page != generated)
    names = [name for name in dir(run) if not name.startswith("_")]
    assert not [name for name in names if not re.search(rf"`{name}`|`run\.{name}\b", said)]


@pytest.mark.parametrize("picture", [ROOT / "docs/images/epoch.svg", ROOT / "docs/images/iteration.svg"], ids=name_of)
def test_points_in_pictures_are_points(picture: Path) -> None:
    named = set(re.findall(r"(?:before|around|after|on)_\w\w+", picture.read_text(encoding="utf-8")))
    assert named
    assert named <= POINTS.keys()


def test_the_walk_through_the_code_is_as_short_as_it_says() -> None:
    rows = re.findall(r"^\| [\d-]+ \| `([\w/]+\.py)` \| (\d+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(rows) >= 4
    for file, said in rows:
        lines = len((ROOT / "src" / "cadenza" / file).read_text(encoding="utf-8").splitlines())
        assert abs(lines - int(said)) <= 50, f"{file} has {lines} lines; CONTRIBUTING.md says about {said}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=name_of)
def test_a_decision_has_its_number_in_its_heading_and_in_the_index(page: Path) -> None:
    number = int(page.name[:4])
    assert page.read_text(encoding="utf-8").startswith(f"# {number}. ")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.search(rf"^{number}\. \[.+\]\(decisions/{re.escape(page.name)}\)$", index, re.MULTILINE)
