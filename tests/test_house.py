"""The layout of the source: rooms of a readable size, one name for one file, and imports that go one way."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import house  # noqa: E402


def test_few_modules_stand_at_the_root() -> None:
    assert len(house.root_modules()) <= 14


def test_no_folder_is_crowded() -> None:
    assert house.crowded_folders() == {}


def test_no_file_name_is_used_twice() -> None:
    assert house.repeated_names() == {}


def test_no_import_is_against_the_table() -> None:
    assert house.forbidden_imports() == []


def test_only_the_engine_touches_the_state_of_the_loop() -> None:
    assert house.outside_accesses() == {}


def test_each_field_of_the_state_is_assigned_in_one_module() -> None:
    assert {name: files for name, files in house.writers().items() if len(files) > 1} == {}
    assert len(house.engine_fields()) > 40


def test_a_single_process_and_a_fresh_start_are_objects_and_not_branches() -> None:
    assert house.branches_on_others() <= 5


def test_private_names_of_torch_are_used_in_one_module() -> None:
    assert house.private_torch_uses() == []


def test_only_foundation_calls_difflib() -> None:
    assert house.users_of("difflib") == ["foundation/suggest.py"]


@pytest.mark.parametrize("room", ["engine", "execution", "run", "plan", "registration", "resume", "loop", "trainer"])
def test_the_engine_knows_no_callback_by_name(room: str) -> None:
    known = {one.module for module, found in house.imports().items() if module.split(".")[0] == room for one in found}
    assert not [module for module in known if module.startswith(("callbacks", "experiment", "dialects", "recipes"))]


def test_nothing_imports_itself_through_others() -> None:
    graph = {
        module: {one.module for one in found if not one.for_types and one.module != module}
        for module, found in house.imports().items()
        if module
    }
    for module in graph:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            for other in graph.get(waiting.pop(), set()) - seen:
                seen.add(other)
                waiting.append(other)
        assert module not in seen, f"{module} imports itself through others"


def test_every_room_says_what_it_is_for() -> None:
    for path in house.files():
        if path.name == "__init__.py":
            text = path.read_text(encoding="utf-8")
            assert re.match(r'"""\S', text), f"{house.place(path)} has no docstring"
