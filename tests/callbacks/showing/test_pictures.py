"""The pictures of the documentation: each that a callback names is there, small, and can be drawn again."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from tests.callbacks.drawn import size_of

import cadenza
from cadenza.callbacks.measuring.confusion import ConfusionMatrix
from cadenza.callbacks.showing.gradient_plot import GradientPlot
from cadenza.callbacks.showing.history_plot import HistoryPlot
from cadenza.callbacks.showing.visualize import Visualize

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "docs" / "images"
DRAWING = (ConfusionMatrix, GradientPlot, HistoryPlot, Visualize)


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools" / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named_in_callbacks():
    sources = (Path(cadenza.__file__).parent / "callbacks").rglob("*.py")
    return {name for source in sources for name in re.findall(r"\(images/(\w+)\.png\)", source.read_text("utf-8"))}


@pytest.mark.parametrize("cls", DRAWING)
def test_a_callback_that_draws_shows_what(cls):
    assert re.search(r"!\[[^]]+\]\(images/\w+\.png\)", cls.__doc__)


def test_every_picture_that_is_named_can_be_drawn_again_and_is_there(tool):
    assert named_in_callbacks() <= set(tool.PICTURES)
    assert {path.stem for path in IMAGES.glob("*.png")} >= set(tool.PICTURES)


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.png")), ids=lambda path: path.stem)
def test_pictures_are_small_and_can_be_read(path):
    assert path.stat().st_size < 60_000
    width, height = size_of(path)
    assert 300 <= width <= 1200
    assert 200 <= height <= (1700 if path.stem.startswith("report_") else 1200)  # those show a whole page


@pytest.mark.long
def test_a_picture_is_drawn_anew(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    tool.main(["gradient_plot"])
    assert capsys.readouterr().out.startswith("gradient_plot.png: ")
    assert size_of(tmp_path / "gradient_plot.png") == size_of(IMAGES / "gradient_plot.png")


def test_a_picture_that_nobody_draws_is_refused(tool):
    with pytest.raises(SystemExit, match="no picture is called x; there are history_plot"):
        tool.main(["x"])
