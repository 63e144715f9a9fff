"""Checks that the tests notice faults: makes small ones in the source, one at a time, and looks which survive.

``python tools/mutate.py --results FILE`` draws mutants of the loop, the step, checkpoints and resume with a seed. It
tries each in a temporary copy against the tests that call the changed function, first those that call little else, for
at most 60 seconds; with ``--jobs N``, N of them at a time. FILE gets one line of JSON for each mutant; a second call
continues where the first ended. A mutant that does not end within the limit does not count as noticed, since a busy
machine does the same: try it again with --survivors and a higher --limit.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AREAS = {
    "loop": (
        "loop clock engine/iteration engine/passes engine/lifecycle engine/dispatch engine/requests "
        "engine/running_mean engine/open_loader engine/state",
        "tests/engine tests/execution",
    ),
    "step": (
        "execution/action execution/eager execution/step execution/forward execution/recompute execution/empty_round "
        "engine/stack",
        "tests/engine tests/execution",
    ),
    "checkpoint": (
        "checkpoint/* checkpoint/*/* callbacks/checkpoint resume/optimizer_groups",
        "tests/checkpoint tests/callbacks",
    ),
    "resume": (
        "resume/restore resume/collect resume/signals engine/resuming foundation/rng "
        "data/generic_feed data/sample_order data/index_walk",
        "tests/checkpoint tests/resume tests/certify tests/data",
    ),
}
"""The modules of each area, and the folders of its tests; of ``tests/callbacks`` those about checkpoints."""
LIMIT = 60.0
ENDS = {0: "survived", 1: "killed", 5: "no tests"}
"""How pytest ended, by its exit code. Any other: it ran no tests, as after an import that fails."""
FILES = 12
SAID = "said.txt"
ELSEWHERE = {"test_certificate", "test_signals"}
"""Tests that train in other processes, where calls are not seen. Try survivors against them with --last."""
FLIPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
}  # fmt: skip


# Mutants ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    area: str
    file: str
    function: str
    line: int
    column: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.before} -> {self.after}"


def mutants() -> list[Mutant]:
    """All there are, in the order of the files."""
    found = []
    for area, (modules, _) in AREAS.items():
        for pattern in modules.split():
            paths = sorted((ROOT / "src" / "cadenza").glob(f"{pattern}.py"))
            assert paths, f"AREAS names {pattern}, of which there is no module"
            for path in paths:
                text = path.read_text(encoding="utf-8")
                file = path.relative_to(ROOT).as_posix()
                for function, node, after in changes(ast.parse(text), ""):
                    before = ast.get_source_segment(text, node) or ""
                    found.append(Mutant(area, file, function, node.lineno, node.col_offset, before, after))
    return found


def changes(tree: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """In which function what can be replaced by what. Only code inside of functions is changed."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in node.body:
                yield from changes(ast.Module([part], []), node.name)
        elif not is_left_out(node):
            if function:
                yield from ((function, place, after) for place, after in replacements(node))
            yield from changes(node, function)


def is_left_out(node: ast.AST) -> bool:
    """Messages, logging, types and docstrings."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).startswith(("log.", "warn", "cast"))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.arguments | ast.AnnAssign | ast.Import)


def replacements(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare(ops=[one]) if type(one) in FLIPPED:
            yield node, ast.unparse(ast.Compare(node.left, [FLIPPED[type(one)]()], node.comparators))  # type: ignore[list-item]
        case ast.BoolOp(op=one) | ast.BinOp(op=one) if type(one) in FLIPPED:
            yield node, f"({ast.unparse(type(node)(**{**dict(ast.iter_fields(node)), 'op': FLIPPED[type(one)]()}))})"
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"bool({ast.unparse(node.operand)})"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(value=bool()):
            yield node, str(not node.value)
        case ast.Constant(value=int()):
            yield node, str(int(node.value) + 1)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute()]):
            if not is_left_out(node.value):
                yield node, "pass"


def changed(text: str, mutant: Mutant) -> str:
    lines = text.splitlines(keepends=True)
    line = lines[mutant.line - 1].encode()  # columns are counted in bytes
    start = len("".join(lines[: mutant.line - 1])) + len(line[: mutant.column].decode())
    assert text[start:].startswith(mutant.before), mutant.name
    return text[:start] + mutant.after + text[start + len(mutant.before) :]


# Which tests call which functions -----------------------------------------------------------------------------------


Row = tuple[str, float, list[str]]
"""A test, the seconds it took, and the functions it called."""


class Calls:
    """A pytest plugin: for each test that passes, how long it took and which functions it called."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        self.seen: set[str] = set()

    def trace(self, frame: object, event: str, arg: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if code.co_filename.startswith(self.source):
            self.seen.add(f"src/cadenza{code.co_filename[len(self.source) :]}:{code.co_name}")

    def pytest_runtest_setup(self) -> None:
        self.seen, self.passed, self.begun = set(), True, time.monotonic()
        threading.settrace(self.trace)  # checkpoints are written in one
        sys.settrace(self.trace)

    def pytest_runtest_logreport(self, report: object) -> None:
        self.passed &= report.outcome == "passed"  # type: ignore[attr-defined]
        if report.when == "teardown":  # type: ignore[attr-defined]
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            row = [report.nodeid, time.monotonic() - self.begun, sorted(self.seen)]  # type: ignore[attr-defined]
            if self.passed:
                with open(self.file, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


def tests_of(area: str, folders: list[str]) -> list[str]:
    found = []
    for folder in folders or AREAS[area][1].split():
        pattern = "test_*checkpoint*.py" if folder == "tests/callbacks" and not folders else "test_*.py"
        found += [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / folder).glob(pattern))]
    return [file for file in found if "_gpu" not in file and Path(file).stem not in ELSEWHERE]


def chosen(mutant: Mutant, rows: list[Row], limit: float, files_at_most: int) -> list[str]:
    """Tests that call the function, for at most ``limit`` seconds: first those that call little else, of few files."""
    calling = [row for row in rows if f"{mutant.file}:{mutant.function}" in row[2]]
    calling.sort(key=lambda row: len(row[2]))
    files = list(dict.fromkeys(name.split("::")[0] for name, _, _ in calling))[:files_at_most]
    found, total = [], 0.0
    for name, seconds, _ in calling:
        if name.split("::")[0] in files and (total := total + seconds) < limit:
            found.append(name)
    return found


# Running ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    words: list[str]
    """What pytest is called with."""
    limit: float
    mutant: Mutant | None = None
    calls: Path | None = None
    """Where to note which functions the tests call."""


@dataclass(frozen=True)
class Ended:
    task: Task
    how: str
    seconds: float
    said: str


def each(tasks: Iterable[Task], copies: list[Path]) -> Iterator[Ended]:
    """Runs the tasks, at most one in each copy of the tree at a time."""
    waiting, free = iter(tasks), list(copies)
    running: dict[int, tuple[Task, Path, float]] = {}
    while True:
        while free and (task := next(waiting, None)) is not None:
            copy = free.pop()
            put(copy, task.mutant, changed)
            running[begin(task, copy)] = (task, copy, time.monotonic())
        if not running:
            return
        for child, (task, copy, begun) in list(running.items()):
            how = end_of(child, begun + task.limit)
            if how is not None:
                del running[child]
                put(copy, task.mutant)
                free.append(copy)
                yield Ended(task, how, time.monotonic() - begun, (copy / SAID).read_text(errors="replace"))
        time.sleep(0.02)


def put(copy: Path, mutant: Mutant | None, change: Callable[[str, Mutant], str] = lambda text, _: text) -> None:
    """Writes the file of the mutant into the copy, changed or as it was."""
    if mutant is not None:
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        (copy / mutant.file).write_text(change(text, mutant), encoding="utf-8")


def begin(task: Task, copy: Path) -> int:
    """Runs pytest in a process that has torch, and finds Cadenza in ``copy``."""
    silent = os.open(copy / SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    child = os.fork()
    if child:
        os.close(silent)
        return child
    os.setsid()
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(copy)
    search = [str(copy / "src"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ.update(PYTHONPATH=os.pathsep.join(search), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    sys.path[:0] = [str(copy), str(copy / "src")]
    sys.dont_write_bytecode = True
    import pytest

    words = [*task.words, "-p", "no:xdist", f"--basetemp={copy}-tmp"]
    plugins = [Calls(str(task.calls), str(copy / "src" / "cadenza"))] if task.calls else []
    os._exit(int(pytest.main(words, plugins=plugins)))


def end_of(child: int, until: float) -> str | None:
    """How the process ended; nothing while it runs. After ``until`` it is ended."""
    ended, status = os.waitpid(child, os.WNOHANG)
    if not ended and time.monotonic() < until:
        return None
    for end in (os.killpg, os.kill):
        try:
            end(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if not ended:
        os.waitpid(child, 0)
        return "hung"
    return ENDS.get(os.waitstatus_to_exitcode(status), "not run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="a file outside of the tree")
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one mutant; more on a busy machine")
    parser.add_argument("--tests-seconds", type=float, default=25.0, help="the most that the tests of one mutant take")
    parser.add_argument("--files", type=int, default=FILES, help="the most files that the tests of one mutant are from")
    parser.add_argument(
        "--folders", nargs="*", default=[], help="whose tests to choose from, instead of the area's own"
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time, each in its own copy of the tree")
    parser.add_argument("--survey", type=float, default=1800.0, help="seconds for one file when calls are looked up")
    parser.add_argument("--areas", nargs="+", choices=list(AREAS), default=list(AREAS))
    parser.add_argument("--list", action="store_true", help="only counts what could be changed")
    parser.add_argument("--marked", default="not long", help="which tests, as for pytest -m")
    parser.add_argument("--last", nargs="*", default=[], help="tests for mutants that all others have missed")
    parser.add_argument("--survivors", type=Path, help="only the mutants that survived in this other file of results")
    options = parser.parse_args()
    everything = mutants()
    if options.list:
        for area in AREAS:
            print(area, sum(one.area == area for one in everything))
        return
    drawn = random.Random(options.seed).sample(everything, options.count)
    if options.survivors:
        alive = {row["name"] for row in read(options.survivors) if row["ended"] != "killed"}
        drawn = [one for one in drawn if one.name in alive]
    import pytest  # noqa: F401
    import torch
    import torch._dynamo  # noqa: F401  imported by every optimizer

    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, f"copy{number}") for number in range(options.jobs)]
        leave = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", ".hypothesis", "runs")
        for copy in copies:
            shutil.copytree(ROOT, copy, ignore=leave)
        try_all(drawn, copies, options)


def read(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def calls_of(areas: list[str], copies: list[Path], options: argparse.Namespace) -> list[Row]:
    """Which functions each test calls; found out once for each file of tests, and kept beside the results."""
    kept = options.results.with_suffix(f".{options.marked.replace(' ', '-')}.calls")
    known = {row["file"]: row["calls"] for row in read(kept)}
    files = dict.fromkeys(file for area in areas for file in tests_of(area, options.folders))
    with tempfile.TemporaryDirectory() as folder:
        tasks = [
            Task(["-q", "-m", options.marked, file], options.survey, calls=Path(folder, str(number)))
            for number, file in enumerate(file for file in files if file not in known)
        ]
        for ended in each(tasks, copies):
            assert ended.task.calls is not None
            file, calls = ended.task.words[-1], ended.task.calls
            known[file] = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
            if ended.how in ("killed", "hung", "not run"):
                print(f"{ended.how} without a change: {file}: {ended.said[-1500:]}", flush=True)
            with kept.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"file": file, "calls": known[file]}) + "\n")
    return [tuple(row) for file in files for row in known[file]]


def try_all(drawn: list[Mutant], copies: list[Path], options: argparse.Namespace) -> None:
    done = {row["name"] for row in read(options.results)}
    mine = [one for one in drawn if one.area in options.areas and one.name not in done]
    areas = [] if options.last else list(dict.fromkeys(one.area for one in mine))
    calls_of(areas, copies, options)  # all files at once; below they are known
    calls = {area: calls_of([area], copies, options) for area in areas}
    tasks = []
    for mutant in mine:
        tests = options.last or chosen(mutant, calls.get(mutant.area, []), options.tests_seconds, options.files)
        if tests:
            tasks.append(Task(["-q", "-x", "-m", options.marked, *tests], options.limit, mutant))
        else:
            keep(options.results, mutant, "no tests", 0.0, 0, "")
    for ended in each(tasks, copies):
        assert ended.task.mutant is not None
        tests = len(ended.task.words) - 4
        keep(options.results, ended.task.mutant, ended.how, ended.seconds, tests, ended.said)
    rows = read(options.results)
    ends = Counter(str(row["ended"]) for row in rows)
    missed = ends["survived"] + ends["no tests"]
    print(f"{len(rows)} mutants drawn with seed {options.seed}: {ends['killed']} noticed, {missed} not", end="")
    print(f", {ends['hung']} did not end within the limit, {ends['not run']} could not be imported")


def keep(results: Path, mutant: Mutant, ended: str, seconds: float, tests: int, said: str) -> None:
    by = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", said, re.MULTILINE)[:1]
    row = {"name": mutant.name, **asdict(mutant), "ended": ended, "seconds": round(seconds, 1), "tests": tests}
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "by": by}) + "\n")
    print(f"{ended:9} {seconds:5.1f} s {tests:4} tests  {mutant.name[:150]}", flush=True)


if __name__ == "__main__":
    main()
