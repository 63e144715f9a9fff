"""Loops of one's own: ``with trainer.run(...) as run``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from cadenza.cli.checking.lives import Finder
from cadenza.cli.checking.names import Names
from cadenza.cli.checking.shapes import Remark
from cadenza.cli.checking.trainers import is_trainer
from cadenza.cli.checking.unknown import is_unknown, remark_on
from cadenza.cli.checking.uses import Reader, Story


def check_loops(names: Names, own_names: set[str]) -> Iterator[Remark]:
    """Verbs and other names in such loops that a run does not have."""
    for node in names.all(ast.With):
        for item in node.items if isinstance(node, ast.With) else ():
            match item:
                case ast.withitem(
                    context_expr=ast.Call(func=ast.Attribute(attr="run", value=trainer)) as call,
                    optional_vars=ast.Name(id=name),
                ) if is_trainer(trainer, names, names.scope_of[call]):
                    yield from _remarks(node, name, names, own_names)


def _remarks(loop: ast.AST, run: str, names: Names, own_names: set[str]) -> Iterator[Remark]:
    story = Story()
    try:
        Reader(story, {run}, "", Finder(names, None).find).visit_all(getattr(loop, "body", ()))
    except RecursionError:
        return
    for use in story.uses:
        if is_unknown(use.name) and not use.excused and use.name not in own_names:
            said = remark_on(use.name, use.called, use.handed_on)
            if said:
                yield use.node, f"{f'{use.helper}, called from the loop,' if use.helper else 'the loop'} {said}"
