"""YAML as people mean it, in files and in overrides."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.recipes import RecipeError
from cadenza.recipes.compose.overrides import parse
from cadenza.recipes.compose.yaml_text import read_yaml, write_yaml

MEANT = [
    ("1e-3", 0.001),
    ("1E5", 1e5),
    ("1.5e-3", 0.0015),
    (".5", 0.5),
    ("3", 3),
    ("-3", -3),
    ("1_000", 1000),
    ("true", True),
    ("False", False),
    ("null", None),
    ("on", "on"),
    ("off", "off"),
    ("yes", "yes"),
    ("No", "No"),
    ("y", "y"),
    ("12:30", "12:30"),
    ("12:30:45", "12:30:45"),
    ("012", "012"),
    ("0777", "0777"),
    ("2026-11-15", "2026-11-15"),
    ("1.2.3", "1.2.3"),
    ("val/loss", "val/loss"),
    ("100 steps", "100 steps"),
    ("'1e-3'", "1e-3"),
    ("'true'", "true"),
]


@pytest.mark.parametrize(("written", "meant"), MEANT)
def test_a_value_is_what_was_meant_in_a_file_and_in_an_override(written, meant):
    for found in (read_yaml(f"key: {written}", "f").tree["key"], parse(f"key={written}").value):
        assert found == meant
        assert type(found) is type(meant)


def test_infinity_and_nan():
    tree = read_yaml("a: .inf\nb: -.inf\nc: .nan", "f").tree
    assert (tree["a"], tree["b"]) == (math.inf, -math.inf)
    assert math.isnan(tree["c"])


def test_lines_are_known():
    document = read_yaml("a:\n  b: 1\n\n  c:\n  - x\n  - y: 2\n", "f")
    assert document.lines[("a", "c")] == 4
    assert document.lines[("a", "c", 1, "y")] == 6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2", r"f:2: 'a' stands here a second time; first in line 1"),
        ("a: [1", r"f:\d: this is not YAML"),
        ("a:\n\tb: 1", r"f:2: YAML is indented with blanks; this line has a tab"),
        ("- 1", "f: a recipe is a mapping"),
        ("a: !!python/object/apply:os.system [ls]", "tags such as"),
        ("a: &x [*x]", "contains itself"),
        ("? [1, 2]\n: 3", "a key is a plain text"),
        ("a: *nobody", "not YAML"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(text, says):
    with pytest.raises(RecipeError, match=says) as caught:
        read_yaml(text, "f")
    assert "\n" not in str(caught.value)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(["on", "no", "012", "12:30", "1e-3", "~", "null", "0x1F", "1_0", "<<", "=", "2026-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=6), VALUES, max_size=4))
def test_what_is_written_is_read_again(tree):
    text = write_yaml(tree)
    found = read_yaml(text, "f").tree
    assert found == tree or {str(key): value for key, value in found.items()} == tree
    assert yaml.safe_load(text) is not None  # other readers can read it too
