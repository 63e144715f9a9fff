"""Suggestions for names that are not known."""

from __future__ import annotations

import re
from pathlib import Path

from cadenza.foundation.suggest import did_you_mean, nearest_name, suggestion

SOURCE = Path(__file__).parents[2] / "src" / "cadenza"


def test_the_nearest_name_is_the_most_alike_above_the_cutoff() -> None:
    assert nearest_name("trian", ("val", "train", "trains")) == "train"
    assert nearest_name("xyz", ("val", "train")) is None
    assert nearest_name("tran_epoch", {"train": 1, "val": 2}, 0.9) is None
    assert nearest_name("anything", ()) is None


def test_a_sentence_ends_with_the_suggestion_or_with_what_else_is_to_be_said() -> None:
    assert did_you_mean("acuracy", ["accuracy"], ".") == "; did you mean 'accuracy'?"
    assert did_you_mean("xyz", ["accuracy"], ".") == "."
    assert did_you_mean("xyz", ["accuracy"]) == suggestion(None) == ""


def test_only_one_module_compares_names() -> None:
    importing = [p.name for p in SOURCE.rglob("*.py") if re.search(r"^\s*(from|import) difflib", p.read_text(), re.M)]
    assert importing == ["suggest.py"]
