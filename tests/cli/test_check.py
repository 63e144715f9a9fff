from __future__ import annotations

import re
from pathlib import Path

import pytest

from cadenza.cli.commands.check import check_file

from .checked import check, messages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "source",
    [
        "def f(:\n",
        "print 'hello'\n",
        "a\0b",
        "(" * 500,
        "-" * 50_000 + "1",
        "x = '\ud800'",
        "def f():\n\tif x:\n        pass\n",
    ],
)
def test_what_is_not_python_is_one_finding(source: str) -> None:
    (finding,) = check_file(source, "mine.py")
    assert finding.message.startswith("this ")
    assert finding.line >= 1
    assert finding.column >= 1


def test_a_syntax_error_has_its_line_and_message() -> None:
    (finding,) = check_file("x = 1\ny = )\n", "mine.py")
    assert re.fullmatch(r"mine\.py:2:5: this is not Python 3\.\d+: unmatched '\)'", str(finding))


@pytest.mark.parametrize(
    "source",
    [
        "",
        "\ufeffx = 1",
        r"x = '\d'",
        "import cadenza\nclass A(cadenza): ...",
        "class A(A): ...\nclass B(C): ...\nclass C(B): ...\nX = Y\nY = X\nclass D(X, *Z, **k): ...",
        "from cadenza import Callback\nclass A(Callback):\n    order = " + "-" * 2000 + "1",
        "from cadenza import Callback\nclass A(Callback):\n    def after_epoch(self, run):\n        x = "
        + "+".join("1" * 2000),
        "from cadenza import Callback\nclass A(Callback):\n    if x: ...\n" + "    elif x: ...\n" * 1500,
        "from cadenza import Callback\nclass A(Callback):\n    def after_epoch(self, run):\n        self" + ".a" * 2000,
    ],
)
def test_odd_files_do_no_harm(source: str) -> None:
    assert check_file(source, "mine.py") == []


def test_nothing_in_the_file_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    source = f"open({str(marker)!r}, 'w')\nclass Mine(Callback):\n    order = open({str(marker)!r}, 'w')\n"
    assert messages(source) == []
    assert not marker.exists()


def test_lines_and_columns_count_from_one_and_in_letters() -> None:
    (finding,) = check_file("class Mine(Callback):\r\n    def after_run(self, run):\r\n        'äöü'; run.loss", "ä.py")
    assert (finding.line, finding.column) == (3, 16)
    assert str(finding).startswith(
        "ä.py:3:16: Mine.after_run reads run.loss, which exists from after_loss to the end of"
    )


def test_findings_are_in_the_order_of_the_text() -> None:
    source = (
        "class A(Callback):\n  def after_run(self, run): run.loss; run.batch\n  def on_x_y(self): ...\n"
        "  def before_run(self): ..."
    )
    found = check(source)
    assert [(finding.line, finding.column) for finding in found] == [(4, 29), (4, 39), (5, 3), (6, 3)]


THE_OWNER = ROOT / "src" / "cadenza" / "main_callback.py"
"""Where the behaviours are defined; a class that is no MainCallback and defines them is a finding anywhere else."""
OWN = sorted(
    path
    for folder in ("src", "examples", "benchmarks", "tools", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if path != THE_OWNER
)
ON_PURPOSE = ("CallbackError", "AttributeError")


@pytest.mark.parametrize("path", OWN, ids=[str(path.relative_to(ROOT)) for path in OWN])
def test_our_own_files_are_clean(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    is_wrong_on_purpose = path.is_relative_to(ROOT / "tests") and any(word in source for word in ON_PURPOSE)
    assert is_wrong_on_purpose or check_file(source, str(path)) == []


def test_the_page_shows_what_is_found() -> None:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    source, shown = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "text"))
    assert source is not None
    assert shown is not None
    found = "".join(f"{finding}\n" for finding in check_file(source[1], "mine.py"))
    assert shown[1] == f"$ cadenza check mine.py\n{found}{len(found.splitlines())} found\n"
