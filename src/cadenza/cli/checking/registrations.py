"""What a class declares and what a trainer is given, as far as it is written out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial

from cadenza.callback import Callback
from cadenza.cli.checking.classes import Family, is_callback_path
from cadenza.cli.checking.names import Names, last_name
from cadenza.cli.checking.shapes import Remark, remarks_of
from cadenza.cli.checking.trainers import TRAINERS, is_trainer
from cadenza.main_callback import MainCallback
from cadenza.registration.checks import check_callback, check_together

_DECLARED = frozenset({**Callback.__annotations__, **MainCallback.__annotations__})


def check_declarations(families: Sequence[Family]) -> Iterator[Remark]:
    """Asks registration itself, with a callback that has the same value."""
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
    cls, base = family.node.name, MainCallback if family.is_main else Callback
    ask = partial(lambda members: check_callback(type(cls, (base,), members)()), {target.id: value})
    yield from remarks_of(statement, f"{cls}.{target.id} = ", ask)


def check_callbacks_given(names: Names, families: Sequence[Family]) -> Iterator[Remark]:
    """A class in place of an instance, and two owners of the behaviours, in what is given to a trainer."""
    known = {family.node: family for family in families}
    for node in names.all(ast.Call):
        if isinstance(node, ast.Call) and (given := _callbacks_of(node, names)):
            for element in given:
                if (cls := _class_of(element, names, known)) is not None:
                    yield from remarks_of(element, f"{cls.__name__} is a class", partial(check_callback, cls))
            made = [_class_of(element.func, names, known) for element in given if isinstance(element, ast.Call)]
            mains = [cls() for cls in made if cls is not None and issubclass(cls, MainCallback)]
            yield from remarks_of(node, " and ".join(main.name for main in mains), partial(check_together, mains))


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
    """A stand-in for the callback class that ``expression`` names, if it names one."""
    meaning = names.meaning(expression, names.scope_of[expression])
    if meaning is None:
        return None
    if isinstance(meaning.node, ast.ClassDef) and known[meaning.node].is_callback:
        return type(meaning.node.name, (MainCallback if known[meaning.node].is_main else Callback,), {})
    if is_callback_path(meaning.path):
        return type(last_name(expression), (MainCallback if meaning.path.endswith("MainCallback") else Callback,), {})
    return None
