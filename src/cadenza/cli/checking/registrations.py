"""What a class declares and what a trainer is given, as far as it is written out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from cadenza.callback import Callback, MainCallback
from cadenza.cli.checking.classes import TRAINERS, Family, is_callback_path, is_trainer
from cadenza.cli.checking.names import Names, Scope
from cadenza.cli.checking.shapes import Remark
from cadenza.registration import CallbackError, check_callback

_DECLARED = ("order", "stages", "owns", "ranks", "asks", "agree", "lr_every")


def check_declarations(families: Sequence[Family]) -> Iterator[Remark]:
    """Asks registration itself, with a callback of the library that has the same value."""
    for family in families:
        if family.is_callback:
            for statement in family.node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    yield from _check_declaration(family, statement)


def _check_declaration(family: Family, statement: ast.Assign | ast.AnnAssign) -> Iterator[Remark]:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if not isinstance(target, ast.Name) or target.id not in _DECLARED or statement.value is None:
        return
    try:
        value = ast.literal_eval(statement.value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return  # it is computed
    probe = MainCallback() if family.is_main else Callback()
    probe.name = family.node.name
    setattr(probe, target.id, value)
    try:
        check_callback(probe)
    except CallbackError as error:
        yield statement, str(error)


def check_callbacks_given(names: Names, families: Sequence[Family]) -> Iterator[Remark]:
    """A class in place of an instance, and two owners of the behaviours, in what is given to a trainer."""
    known = {family.node: family for family in families}
    for node in names.all(ast.Call):
        if isinstance(node, ast.Call):
            given = _callbacks_of(node, names)
            for element in given:
                if _class_of(element, names, known) is not None:
                    name = ast.unparse(element)
                    yield element, f"{name} is a class; put an instance into callbacks: {name}()"
            mains = [e for e in given if isinstance(e, ast.Call) and _class_of(e.func, names, known) is MainCallback]
            if len(mains) > 1:
                both = " and ".join(ast.unparse(main.func) for main in mains)
                yield node, f"{both} both own the behaviours; a run has exactly one MainCallback"


def _callbacks_of(call: ast.Call, names: Names) -> list[ast.expr]:
    """The elements of ``Trainer(callbacks=[...])``, the argument of ``trainer.add(...)``."""
    scope = names.scope_of[call]
    if names.path(call.func, scope) in TRAINERS:
        lists = [keyword.value for keyword in call.keywords if keyword.arg == "callbacks"]
        return [element for one in lists if isinstance(one, ast.List | ast.Tuple) for element in one.elts]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "add" and is_trainer(call.func.value, names, scope):
        return call.args
    return []


def _class_of(expression: ast.expr, names: Names, known: dict[ast.ClassDef, Family]) -> type[Callback] | None:
    """What kind of callback class ``expression`` is, if it is one."""
    scope: Scope = names.scope_of[expression]
    meaning = names.meaning(expression, scope)
    if meaning is None:
        return None
    if isinstance(meaning.node, ast.ClassDef) and known[meaning.node].is_callback:
        return MainCallback if known[meaning.node].is_main else Callback
    if not is_callback_path(meaning.path):
        return None
    return MainCallback if meaning.path.endswith("MainCallback") else Callback
