"""Files that are whole at any time: rows, recipes, images."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from cadenza.callbacks.showing.plot_series import thinned
from cadenza.experiment.jsonl_file import LinesFile, read_lines
from cadenza.experiment.media import bins, png_bytes
from cadenza.experiment.recipe_text import flat, yaml_text

# Rows ---------------------------------------------------------------------------------------------------------------


def test_numbers_read_back_as_the_same(tmp_path: Path) -> None:
    file = LinesFile(tmp_path / "rows.jsonl")
    row = {"a": 0.1 + 0.2, "b": math.inf, "c": -math.inf, "d": 3, "e": "text", "f": 1e-45}
    file.append([row, {"nan": math.nan}])
    first, second = read_lines(file.path)
    assert first == row
    assert math.isnan(second["nan"])


def test_the_part_of_a_line_is_passed_over_by_readers_and_cut_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3, "b')
    assert [row["a"] for row in read_lines(path)] == [1, 2]
    file = LinesFile(path)
    assert file.count == 2
    file.append([{"a": 3}])
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n{"a": 3}\n'


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_it_can_be_cut(tmp_path: Path, count: int) -> None:
    file = LinesFile(tmp_path / "rows.jsonl")
    file.append([{"a": number} for number in range(3)])
    file.cut(count)
    assert [row["a"] for row in read_lines(file.path)] == list(range(min(count, 3)))
    assert file.count == min(count, 3)


# Recipes ------------------------------------------------------------------------------------------------------------

TREES = [
    {"a": 1, "b": {"c": [1, 2.5, "x"], "d": {}}, "e": [], "f": None, "g": True},
    {"on": "off", "yes": "no", "n": "12:30", "octal": "012", "null": "null", "tilde": "~", "e": "1e5"},
    {"small": 1e-05, "large": 1e300, "nan": math.nan, "inf": -math.inf, "zero": 0.0},
    {"text": 'a "b" \\ c\n# d: e', "empty": "", "blank": " x ", "unicode": "größe ✓", "colon": "a: b", "dash": "- a"},
    {"nested": [[1, 2], [{"a": [3]}], []], "list of dicts": [{"a": 1, "b": 2}, {"c": {"d": 4}}]},
    {
        "_target_": "torch.nn.Linear",
        "path": "/some/where",
        "rel": "../x",
        "pattern": "*.weight",
        "percent": "%d",
        "at": "@x",
    },
]


@pytest.mark.parametrize("tree", TREES)
def test_a_recipe_reads_back_as_the_same(tree: dict[str, object]) -> None:
    assert repr(yaml.safe_load(yaml_text(tree))) == repr(tree)  # repr, so that NaN is NaN and 1 is not 1.0


def test_leaves_have_dotted_names() -> None:
    assert flat({"a": {"b": [{"c": 1}, 2]}}) == {"a.b.0.c": 1, "a.b.1": 2}
    assert flat({}) == {}


# Images and histograms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 5), (1, 4, 5), (3, 4, 5), (4, 5, 3), (4, 4, 5), (4, 5, 1)])
def test_images_are_written_pixel_by_pixel(shape: tuple[int, ...]) -> None:
    image = torch.randint(0, 256, shape, dtype=torch.uint8)
    read = torch.as_tensor(list(Image.open(io.BytesIO(png_bytes(image))).tobytes()))
    wanted = image if len(shape) == 2 or shape[0] not in (1, 3, 4) else image.permute(1, 2, 0)
    assert torch.equal(read, wanted.flatten().long())


def test_floats_go_from_black_to_white() -> None:
    image = torch.tensor([[-1.0, 0.0, 0.5, 1.0, 2.0, math.nan]])
    assert list(Image.open(io.BytesIO(png_bytes(image))).tobytes()) == [0, 0, 128, 255, 255, 0]


@pytest.mark.parametrize("shape", [(5,), (2, 4, 5), (1, 3, 4, 5), (0, 4)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="an image has shape"):
        png_bytes(torch.zeros(shape))


def test_a_histogram_counts_what_is_finite() -> None:
    found = bins(torch.tensor([1.0, 1.0, 3.0, math.nan, math.inf]))
    assert (found["count"], found["sum"], found["squares"]) == (3, 5.0, 11.0)
    assert sum(found["counts"]) == 3
    assert len(found["edges"]) == len(found["counts"]) + 1
    assert sum(bins([2.0, 2.0])["counts"]) == 2
    assert bins([])["count"] == 0


# Thinning -----------------------------------------------------------------------------------------------------------


def test_a_thinned_curve_keeps_its_least_and_greatest_values() -> None:
    x = list(range(10_000))
    y = [math.sin(i / 50) for i in x]
    y[1234], y[7777] = 9.0, -9.0
    kept_x, kept_y = thinned(x, y, 400)
    assert len(kept_x) <= 400
    assert kept_x == sorted(set(kept_x))
    assert {(1234, 9.0), (7777, -9.0)} <= set(zip(kept_x, kept_y, strict=True))


def test_short_curves_and_those_without_a_value_survive() -> None:
    assert thinned([1, 2], [0.5, math.nan], 10) == ([1, 2], [0.5, None])
    x, y = thinned(list(range(100)), [math.nan] * 100, 10)
    assert set(y) == {None}
    assert 0 < len(x) <= 10
