"""Names that a run does not have, such as ``run.stopp``."""

from __future__ import annotations

import ast
import dis
from functools import cache
from inspect import isfunction

from cadenza.cli.checking.names import Names
from cadenza.engine.run_names import meant_by
from cadenza.run import Run

_ALIKE = 0.82
"""A name that is read may be one that somebody else's code sets, unless it is so much like one that there is."""


@cache
def names_of_a_run() -> frozenset[str]:
    """Everything public on a run: what its classes define, and what their constructors set.

    >>> {"stop", "metrics", "loss", "optimizer"} <= names_of_a_run()
    True
    """
    made = (vars(cls).get("__init__") for cls in Run.__mro__)
    steps = (step for constructor in made if isfunction(constructor) for step in dis.get_instructions(constructor))
    names = {*dir(Run), *(step.argval for step in steps if step.opname == "STORE_ATTR")}
    return frozenset(name for name in names if not name.startswith("_"))


def is_unknown(name: str) -> bool:
    return not name.startswith("_") and name not in names_of_a_run()


def set_by_the_file(names: Names) -> set[str]:
    """Names that the file sets on anything that may be a run, or asks about."""
    found: set[str] = set()
    for node in names.all(ast.Attribute, ast.Call):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                continue
            case ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Call(func=ast.Name(id="setattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                found.add(name)
    return found


def remark_on(name: str, called: bool, handed_on: bool) -> str:
    """What to say of a name that is unknown; nothing of one that may be right."""
    if not called and (handed_on or not meant_by(name, names_of_a_run(), _ALIKE)):
        return ""
    near = meant_by(name, names_of_a_run())
    what = f"calls run.{name}()" if called else f"reads run.{name}"
    return f"{what}, which a run does not have" + (f"; did you mean {near}?" if near else "")
