"""The dialects give the answers that the original packages gave, but for the differences that the docs explain."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from s3fs import S3FileSystem

from cadenza.dialects import run_script

FOLDER = Path(__file__).parent / "recordings"
SYSTEMS = {
    "fastai": "fastai_v1",
    "aitoolbox": "aitoolbox_1_8",
    "supergradients": "supergradients_3_7",
    "orca": "orca_2_4",
}
RECORDED = {name: FOLDER / f"{stem}.json" for name, stem in SYSTEMS.items() if (FOLDER / f"{stem}.json").exists()}
ASKED = [(name, one) for name, path in RECORDED.items() for one in json.loads(path.read_text(encoding="utf-8"))]


@cache
def differences(name: str) -> dict[str, str]:
    """The questions that a dialect answers in another way on purpose, each with the reason."""
    path = FOLDER / f"{SYSTEMS[name]}.differences.json"
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a dialect answers, asked once for all its questions."""

    @cache
    def of(name: str) -> dict[str, Any]:
        path = tmp_path_factory.mktemp(name) / "answers.json"
        sys.modules.pop("asking", None)  # it keeps the questions of the script before
        S3FileSystem.clear_instance_cache()  # it would ask the server of an earlier test
        run_script(name, FOLDER / f"{SYSTEMS[name]}.py", [str(path)])
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    return of


def alike(ours: Any, theirs: Any) -> bool:
    """Equal, numbers up to the last digits of single precision."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return bool(ours == pytest.approx(theirs, rel=2e-5, abs=1e-6))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(alike(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


@pytest.mark.parametrize(("name", "asked"), ASKED, ids=[f"{name}: {asked}" for name, asked in ASKED])
def test_the_dialect_answers_as_the_original(answers: Any, name: str, asked: str) -> None:
    theirs = json.loads(RECORDED[name].read_text(encoding="utf-8"))[asked]
    ours = answers(name)[asked]
    if asked in differences(name):
        assert not alike(ours, theirs), f"no difference any more: remove {asked!r} from the differences"
    else:
        assert alike(ours, theirs), f"here {ours}, there {theirs}"


@pytest.mark.parametrize("name", RECORDED)
def test_at_most_three_of_a_hundred_differ(name: str) -> None:
    asked = json.loads(RECORDED[name].read_text(encoding="utf-8"))
    assert len(asked) >= 150
    assert set(differences(name)) <= set(asked)
    assert len(differences(name)) <= 0.03 * len(asked)
