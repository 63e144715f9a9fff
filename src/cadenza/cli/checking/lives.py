"""Whether each field is alive where it is read, each request can be met where it is made, and each name is one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cadenza.cli.checking.classes import Family, methods
from cadenza.cli.checking.names import Function, Names, binding, is_unknown, remark_on, stays_a_function, yields
from cadenza.cli.checking.shapes import Remark
from cadenza.cli.checking.trainers import Given, is_trainer
from cadenza.cli.checking.uses import Helper, Reader, Story, Use
from cadenza.points import FIELDS, ITERATION, POINTS, REQUESTS, Kind


@dataclass(frozen=True)
class Player:
    """A function of the file that is played at a point, and what it does with the run."""

    point: str
    label: str
    story: Story


def players(names: Names, families: Sequence[Family], given: Sequence[Given]) -> Iterator[Player]:
    """Everything in the file that is played somewhere."""
    for family in families:
        if family.is_callback:
            attributes = _attributes_that_hold_the_run(family)
            finder = Finder(names, family)
            for point in [point for point in POINTS if point in family.methods]:
                cls, method = family.methods[point]
                story = _story(method, binding(method) != "nothing", attributes, finder)
                yield from _player(point, f"{cls.name}.{point}", story)
    for one in given:
        if one.point in POINTS and one.function is not None:
            label = f"the function {getattr(one.function, 'name', '<lambda>')} at {one.point}"
            yield from _player(one.point, label, _story(one.function, False, set(), Finder(names, None)))


def _player(point: str, label: str, story: Story | None) -> Iterator[Player]:
    if story is not None:
        yield Player(point, label, story)


def _story(function: Function, bound: bool, attributes: set[str], finder: Finder) -> Story | None:
    """What ``function`` does with the run; None if it does not name it, or is nested too deeply to be read."""
    parameters = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if len(parameters) <= bound:
        return None
    own = parameters[0] if bound else ""
    runs = {parameters[int(bound)], *(f"{own}.{name}" for name in attributes if own)}
    try:
        return Reader(Story(), runs, own, finder.find).read(function)
    except RecursionError:
        return None


def _attributes_that_hold_the_run(family: Family) -> set[str]:
    """Attributes to which the players of a class assign the run, and nobody anything else but None."""
    holding: set[str] = set()
    other: set[str] = set()
    for cls in family.inside:
        for name, method in methods(cls).items():
            parameters = [argument.arg for argument in method.args.args]
            for node in ast.walk(method):
                if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    is_run = name in POINTS and isinstance(node.value, ast.Name) and node.value.id in parameters[1:2]
                    is_none = isinstance(node.value, ast.Constant) and node.value.value is None
                    if not is_none:
                        (holding if is_run else other).update(t.attr for t in targets if isinstance(t, ast.Attribute))
    return holding - other


@dataclass(frozen=True)
class Finder:
    """Finds the function that a call goes to: a method of the same class, or a function of the file.

    What runs later is not followed, since nobody knows at which point: generators, coroutines.
    """

    names: Names
    family: Family | None

    def find(self, called: ast.expr, own: str) -> Helper | None:
        if isinstance(called, ast.Name):
            meaning = self.names.meaning(called, self.names.scope_of.get(called, self.names.module))
            node = meaning.node if meaning else None
            if isinstance(node, ast.FunctionDef) and stays_a_function(node) and not yields(node):
                return Helper(node, node.name, 0)
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == own:
            found = self.family.methods.get(called.attr) if self.family else None
            if found and isinstance(found[1], ast.FunctionDef) and not yields(found[1]):
                return Helper(found[1], f"{found[0].name}.{called.attr}", int(binding(found[1]) != "nothing"))
        return None


class Lives:
    """Judges the players of a file by the table of points."""

    def __init__(self, all_players: Sequence[Player], adjusts_lr_in_iterations: bool, own_names: set[str]) -> None:
        self.players = all_players
        self.own_names = own_names
        self.adjusts_lr_in_iterations = adjusts_lr_in_iterations

    def remarks(self) -> Iterator[Remark]:
        """What is never there. A helper's reading under a condition counts only if it is wrong from everywhere."""
        cases: dict[tuple[ast.AST, str], list[tuple[Player, Use]]] = {}
        for player in self.players:
            for use in player.story.uses:
                cases.setdefault((use.node, use.name), []).append((player, use))
        for (node, _), found in cases.items():
            wrong = [(player, use) for player, use in found if self._is_wrong(player, use)]
            told = wrong if len(wrong) == len(found) else [(player, use) for player, use in wrong if use.sure]
            if told:
                yield node, _text(*told[0])

    def _is_wrong(self, player: Player, use: Use) -> bool:
        point = POINTS[player.point]
        if use.excused:
            return False
        if is_unknown(use.name):
            return use.name not in self.own_names and bool(remark_on(use.name, use.called, use.handed_on))
        if use.name in REQUESTS:
            return not any(use.name in taken for taken in point.requests.values())
        if point.name == "on_lr_adjust" and self.adjusts_lr_in_iterations:
            return False
        if use.handed_on and _in_iteration(point.name):
            return False
        if point.kind is Kind.AROUND and use.cleaning_up:
            return False  # what is held is left also after an error, when the fields of the iteration are still there
        return use.name not in _alive(point.name) and not self._is_set_earlier(player, use.name)

    def _is_set_earlier(self, reader: Player, name: str) -> bool:
        """Whether another player of this file sets the field before that, as a forward may set the loss."""
        return any(
            player is not reader and _comes_before(player.point, reader.point) and name in _set_by(player)
            for player in self.players
        )


def _alive(point: str) -> set[str]:
    """Fields that exist at ``point``; around a span, those that exist on either side of it."""
    kind, span = POINTS[point].kind, POINTS[point].span
    names = (f"before_{span}", f"after_{span}", point) if kind is Kind.AROUND else (point,)
    return {field for name in names for field in POINTS[name].fields}


def _in_iteration(point: str) -> bool:
    return any(point in order for order in ITERATION.values())


def _comes_before(first: str, second: str) -> bool:
    if first == second:
        return POINTS[first].kind is not Kind.BEHAVIOUR
    both = [order for order in ITERATION.values() if first in order and second in order]
    return any(order.index(first) < order.index(second) for order in both)


def _set_by(player: Player) -> set[str]:
    if player.story.handed_on and POINTS[player.point].kind is Kind.BEHAVIOUR:
        return set(FIELDS)
    return player.story.stored


def _text(player: Player, use: Use) -> str:
    who = f"{use.helper}, called from {player.label}," if use.helper else player.label
    if is_unknown(use.name):
        return f"{who} {remark_on(use.name, use.called, use.handed_on)}"
    if use.name in REQUESTS:
        request = REQUESTS[use.name]
        stage = "" if len(request.stages) > 1 else f" of the {request.stages[0]} stage"
        return f"{who} asks run.{use.name}() where it cannot be met: its last place is {request.last}{stage}"
    text = f"{who} reads run.{use.name}, which exists from {FIELDS[use.name].first} to the end of the iteration; "
    if use.name == "loss" and POINTS[player.point].stages == ("pred",):
        return text + "a prediction has no loss"
    if _in_iteration(player.point):
        return text + "it is not set yet here"
    return text + ("the mean over an epoch is in run.metrics" if use.name == "loss" else "no iteration is open here")


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
