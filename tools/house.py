"""Measures the layout of the source: rooms, imports between them, the engine's state, copies, sizes.

``python tools/house.py`` prints the table. ``tests/test_house.py`` holds the rules that must not be broken, and
``tools/rooms.py`` draws the rooms from the same imports.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "cadenza"

ROWS: tuple[tuple[str, ...], ...] = (
    ("foundation",),
    ("points", "clock", "history", "checkpoint"),
    ("data",),
    ("_stubs", "callback", "main_callback", "when"),
    ("engine", "registration"),
    ("execution", "resume"),
    ("run", "plan"),
    ("replay", "certify", "distributed"),
    ("loop", "explain", "_trainer_arguments", "trainer", "testing"),
    ("callbacks",),
    ("experiment", "recipes"),
    ("dialects", "cli"),
)
"""Who may import whom: a room imports what stands in a row above it, or to its left in its own row."""
ALONE = {"checkpoint": {"foundation"}}
"""Rooms that may import less than their row says."""
ONLY_NAMES = {"Run", "Plan", "StageScore", "Trainer"}
"""What any room may import for types alone: a Protocol would only restate their names."""
HOME_OF_THE_STATE = ("engine/", "execution/", "run.py", "plan.py")
MAY_REPEAT_NAMES = ("dialects/", "cli/")


@dataclass(frozen=True)
class Import:
    """One imported module of ours, as a path of names below ``cadenza``."""

    module: str
    name: str | None
    for_types: bool


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def place(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


# Imports -------------------------------------------------------------------------------------------------------------


@cache
def imports() -> dict[str, list[Import]]:
    """For each module what it imports of ours, also inside functions and for types alone."""
    known = {module_of(path) for path in files()}
    return {module_of(path): list(_imports(tree_of(path), known)) for path in files()}


def _imports(node: ast.AST, known: set[str], for_types: bool = False) -> Iterator[Import]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for inner in node.body:
            yield from _imports(inner, known, True)
        for inner in node.orelse:
            yield from _imports(inner, known, for_types)
        return
    if isinstance(node, ast.ImportFrom) and re.match(r"cadenza(\.|$)", node.module or ""):
        base = (node.module or "").removeprefix("cadenza").lstrip(".")
        for alias in node.names:
            full = f"{base}.{alias.name}".lstrip(".")
            yield Import(full, None, for_types) if full in known else Import(base, alias.name, for_types)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.startswith("cadenza."):
                yield Import(alias.name.removeprefix("cadenza."), None, for_types)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, known, for_types)


def forbidden_imports() -> list[str]:
    """Every import that stands against ``ROWS``."""
    place_of = {room: (row, column) for row, rooms in enumerate(ROWS) for column, room in enumerate(rooms)}
    found = []
    for module, imported in imports().items():
        room = module.partition(".")[0]
        for one in imported:
            other = one.module.partition(".")[0]
            if not room or not other or room == other or (one.for_types and one.name in ONLY_NAMES):
                continue
            if room not in place_of or other not in place_of:
                found.append(f"{module} or {one.module} is in no room of the table")
                continue
            (row, column), (above, left) = place_of[room], place_of[other]
            allowed = above < row or (above == row and left < column)
            if not allowed or other not in ALONE.get(room, {other}):
                found.append(f"{module} imports {one.module}")
    return sorted(set(found))


# Files ---------------------------------------------------------------------------------------------------------------


def root_modules() -> list[str]:
    return sorted(path.name for path in SOURCE.glob("*.py") if path.name != "__init__.py")


def crowded_folders(most: int = 20) -> dict[str, int]:
    """Folders outside the dialects that hold more than ``most`` files."""
    held = Counter(path.parent for path in files() if not place(path).startswith("dialects/"))
    return {place(folder): count for folder, count in held.items() if count > most and folder != SOURCE}


def repeated_names() -> dict[str, list[str]]:
    places = defaultdict(list)
    for path in files():
        if path.name != "__init__.py" and not place(path).startswith(MAY_REPEAT_NAMES):
            places[path.name].append(place(path))
    return {name: found for name, found in places.items() if len(found) > 1}


def small_files(lines: int = 60) -> list[str]:
    return [place(p) for p in files() if p.name != "__init__.py" and len(p.read_text("utf-8").splitlines()) < lines]


def code_and_comments() -> tuple[int, int]:
    """Lines of code, without docstrings, comments and blank lines; and lines that are comments."""
    code = comments = 0
    for path in files():
        lines = path.read_text(encoding="utf-8").splitlines()
        documented: set[int] = set()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
                documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for number, line in enumerate(lines, 1):
            if number in documented or not line.strip():
                continue
            if line.strip().startswith("#"):
                comments += 1
            else:
                code += 1
    return code, comments


# The engine's state --------------------------------------------------------------------------------------------------


@cache
def engine_fields() -> frozenset[str]:
    """The fields of the state of the loop, and private attributes that the run and the classes under it set."""
    found = set()
    for path in [SOURCE / "run.py", *(SOURCE / "engine").glob("*.py")]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and node.name in _run_classes():
                own = [target for target in _assigned(node) if ast.unparse(target.value) == "self"]
                found |= {target.attr for target in own if node.name == "State" or target.attr.startswith("_")}
    return frozenset(found)


@cache
def _run_classes() -> frozenset[str]:
    """``Run``, its bases, and the state that it owns."""
    bases = {
        node.name: [ast.unparse(base) for base in node.bases]
        for path in [SOURCE / "run.py", *(SOURCE / "engine").glob("*.py")]
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    }
    found, waiting = {"State"}, ["Run"]
    while waiting:
        name = waiting.pop()
        if name in bases and name not in found:
            found.add(name)
            waiting += bases[name]
    return frozenset(found)


def _assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner


def outside_accesses() -> Counter[str]:
    """How often each file outside the engine touches the engine's state, through whatever name it holds the run."""
    private = {name for name in engine_fields() if name.startswith("_")} | {"_state"}
    found: Counter[str] = Counter()
    for path in files():
        if place(path).startswith(HOME_OF_THE_STATE):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr in private:
                holder = ast.unparse(node.value)
                if re.search(r"(^|\.)_?(run|native|engine)$", holder):
                    found[place(path)] += 1
    return found


def writers() -> dict[str, set[str]]:
    """For each field of the engine the files that assign it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in files():
        home = place(path) in ("run.py", "engine/state.py")
        for target in _assigned(tree_of(path)):
            holder = ast.unparse(target.value)
            of_state = re.search(r"(^|\.)_?state$", holder) and place(path).startswith(HOME_OF_THE_STATE)
            own = target.attr.startswith("_") and holder.endswith("run")
            if target.attr in engine_fields() and (of_state or own or (home and holder == "self")):
                found[target.attr].add(place(path))
    return found


def branches_on_others() -> int:
    """Branches on whether other processes take part or the run is resumed, where a method could answer instead."""
    pattern = re.compile(r"if .*(_?processes\.many|_?resume\.is_resuming|_(processes|resume) is (not )?None)")
    return sum(len(pattern.findall(path.read_text(encoding="utf-8"))) for path in files())


# Copies --------------------------------------------------------------------------------------------------------------


def walkers() -> list[str]:
    """Functions that call themselves and ask for the kind of a container, or for its entries."""
    found = []
    for path in files():
        tree = tree_of(path)
        methods = {one for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in node.body}
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            made = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
            calls = {ast.unparse(call.func) for call in made}
            own = {f"self.{node.name}", f"cls.{node.name}"} if node in methods else {node.name}
            kinds = " ".join(
                ast.unparse(call.args[1])
                for call in made
                if ast.unparse(call.func) == "isinstance" and len(call.args) == 2
            )
            opens = re.search(r"\b(dict|list|tuple|Mapping|Sequence)\b", kinds) or calls & {"inside", "entries"}
            if own & calls and opens:
                found.append(f"{place(path)}:{node.name}")
    return found


def users_of(module: str) -> list[str]:
    """Files that import a module which is not ours."""
    pattern = re.compile(rf"^\s*(from|import) {re.escape(module)}\b", re.MULTILINE)
    return [place(path) for path in files() if pattern.search(path.read_text(encoding="utf-8"))]


PRIVATE_TO_TORCH = "foundation/torch_private.py"
"""The one module that may touch what torch does not document."""


@cache
def private_torch_names() -> frozenset[str]:
    """Private attributes of torch's objects that ``PRIVATE_TO_TORCH`` knows."""
    nodes = list(ast.walk(tree_of(SOURCE / PRIVATE_TO_TORCH)))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)} | texts
    return frozenset(name for name in names if re.fullmatch(r"_[a-zA-Z]\w*|__wrapped__", name))


def private_torch_uses() -> list[str]:
    """Places outside ``PRIVATE_TO_TORCH`` that use private modules, functions or attributes of torch."""
    found = []
    for path in files():
        if place(path) != PRIVATE_TO_TORCH:
            nodes = ast.walk(tree_of(path))
            found += [f"{place(path)}:{node.lineno}" for node in nodes if _is_private_to_torch(node)]  # type: ignore[attr-defined]
    return found


def _is_private_to_torch(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        return any(name.startswith("torch.") and "._" in name for name in names)
    if isinstance(node, ast.Import):
        return any(alias.name.startswith("torch._") for alias in node.names)
    if isinstance(node, ast.Attribute):
        holder = ast.unparse(node.value)
        of_torch = holder.split(".")[0] in ("torch", "nn", "dist") and re.match(r"_[a-zA-Z]", node.attr) is not None
        return of_torch or (node.attr in private_torch_names() and holder != "self")
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "attrgetter"):
        return any(isinstance(one, ast.Constant) and one.value in private_torch_names() for one in node.args)
    return False


def complex_functions(limit: int = 15) -> list[str]:
    """Functions above a cyclomatic complexity, counted by radon."""
    from radon.complexity import cc_visit
    from radon.visitors import Function

    return [
        f"{place(path)}:{block.name}"
        for path in files()
        for block in cc_visit(path.read_text(encoding="utf-8"))
        if isinstance(block, Function) and block.complexity > limit
    ]


# A step --------------------------------------------------------------------------------------------------------------


def files_of_a_step() -> list[str]:
    """The files whose functions run in one eager training step with a callback at every point."""
    import torch

    from cadenza import Trainer
    from cadenza.testing import Recorder, tiny_classifier, tiny_loader

    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.CrossEntropyLoss()
    trainer = Trainer(model, optimizer, loss, callbacks=[Recorder()], device="cpu", execution="eager")
    seen: set[str] = set()

    def note(frame: object, event: str, _: object) -> None:
        name = frame.f_code.co_filename  # type: ignore[attr-defined]
        if event == "call" and name.startswith(str(SOURCE)) and not name.startswith(str(SOURCE / "testing")):
            seen.add(place(Path(name)))

    with trainer.run(steps=2) as run:
        for _ in run.epochs():
            for number, _ in enumerate(run.train(tiny_loader())):
                if number == 1:
                    sys.setprofile(note)
                run.train_step()
                sys.setprofile(None)
    return sorted(seen)


def table() -> list[tuple[str, str, str]]:
    """What is measured, what it is, and what it should be."""
    code, comments = code_and_comments()
    accesses, fields = outside_accesses(), writers()
    crowded = crowded_folders()
    return [
        ("modules at the root", str(len(root_modules())), "at most 14"),
        ("folders of more than 20 files, without dialects", str(len(crowded)), "0"),
        ("imports against the table", str(len(forbidden_imports())), "0"),
        ("file names used twice, without dialects and cli", str(len(repeated_names())), "0"),
        ("files under 60 lines", str(len(small_files())), "under 35"),
        ("files that run in one eager train_step()", str(len(files_of_a_step())), "at most 7"),
        ("accesses to the engine's state from outside", f"{accesses.total()}, in {len(accesses)} files", "0"),
        ("engine fields with more than one writer", str(sum(len(files) > 1 for files in fields.values())), "0"),
        ("branches on a missing process group or resume", str(branches_on_others()), "at most 5"),
        ("recursive walkers over containers", str(len(walkers())), "at most 12"),
        ("modules that import difflib", str(len(users_of("difflib"))), "1"),
        ("uses of torch's private names elsewhere", str(len(private_torch_uses())), "0"),
        ("functions of a complexity above 15", str(len(complex_functions())), "under 10"),
        ("lines of code for each comment line", str(code // max(1, comments)), ""),
        ("lines of code", f"{code:,}", "at most 35,000"),
    ]


def main() -> None:
    try:
        rows = table()
    except ModuleNotFoundError as missing:
        sys.exit(f"This needs {missing.name}. Run it in the environment of the tests: .venv/bin/python tools/house.py")
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for title, lines in (("imports against the table", forbidden_imports()), ("walkers", walkers())):
        if lines and "--details" in sys.argv:
            print(f"\n{title}", *(f"  {line}" for line in lines), sep="\n")


if __name__ == "__main__":
    main()
