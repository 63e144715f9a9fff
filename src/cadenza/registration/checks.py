"""What is refused before a run begins, so that nothing is silently ignored while it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from cadenza._stubs import Stubs
from cadenza.callback import BEHAVIOUR_NAMES, Callback, FunctionCallback, overrides
from cadenza.foundation.suggest import nearest_name, suggestion
from cadenza.main_callback import MainCallback
from cadenza.points import POINTS, REQUESTS, STAGES, Kind
from cadenza.registration.suggestions import looks_like_a_point, nearest

_BASES = (Stubs, Callback, MainCallback)
_OWN_NAMES = frozenset(name for base in _BASES for name in vars(base))
AGREEMENTS = ("any", "all", "main", "same")


class CallbackError(TypeError):
    """A callback cannot take part as it is written."""


class Joins(Protocol):
    """An object of another system that says itself which callbacks play for it."""

    def __cadenza_callbacks__(self, others: Sequence[Callback]) -> Sequence[Callback]: ...


def adopt(callbacks: Iterable[Any], known: Sequence[Callback] = ()) -> list[Callback]:
    """The callbacks with which these take part beside ``known``. One of another kind says itself who plays for it, if
    it has a method ``__cadenza_callbacks__(others)``; each of those then names it in its ``foreign``."""
    found: list[Any] = []
    for callback in callbacks:
        join = getattr(type(callback), "__cadenza_callbacks__", None)
        if join is None:
            found.append(callback)
            continue
        if any(stands_for(one, callback) for one in (*known, *found)):
            raise CallbackError(f"{type(callback).__name__} stands twice in callbacks; one instance plays once")
        found.extend(join(callback, (*known, *found)))
    return found


def stands_for(known: object, callback: object) -> bool:
    """Whether ``known`` is ``callback``, or plays for it."""
    return known is callback or getattr(known, "foreign", known) is callback


def check_callback(callback: object) -> None:
    """Refuses what would be ignored or would fail later: names that are no points, wrong signatures, declarations."""
    _check_kind(callback)
    assert isinstance(callback, Callback)
    for cls in type(callback).__mro__:
        if cls not in (*_BASES, object):
            for name, member in vars(cls).items():
                _check_method(cls, name, member, isinstance(callback, MainCallback))
            _check_reached(type(callback), cls)
    if isinstance(inner := getattr(callback, "callback", None), Callback):
        check_callback(inner)
    for point, player in callback.plays().items():
        _check_player(callback, point, player)
    if overrides(type(callback), "state_dict") and not overrides(type(callback), "load_state_dict"):
        raise CallbackError(
            f"{type(callback).__name__}.state_dict is saved and would never be taken back, since it has no "
            "load_state_dict(self, state): write both or none"
        )
    _check_declarations(callback)


def _check_kind(callback: object) -> None:
    if isinstance(callback, type):
        raise CallbackError(f"{callback.__name__} is a class; put an instance into callbacks: {callback.__name__}()")
    if not isinstance(callback, Callback):
        hint = "; to play one function use trainer.on(point)(function)" if callable(callback) else ""
        if hasattr(callback, "step") and hasattr(callback, "optimizer"):
            hint = "; a scheduler is given as Trainer(..., scheduler=...)"
        raise CallbackError(f"{callback!r} is not a callback: derive its class from cadenza.Callback{hint}")


def _check_player(callback: Callback, point: str, player: object) -> None:
    if point not in POINTS:
        raise CallbackError(f"{callback.name}.plays() names {point!r}, which is no point{_did_you_mean(point)}")
    if point in BEHAVIOUR_NAMES and not isinstance(callback, MainCallback):
        raise CallbackError(f"{callback.name} plays {point}, a behaviour that only a MainCallback owns")
    if not callable(player):
        raise CallbackError(f"{callback.name}.{point} is {player!r}, which cannot be called: def {point}(self, run)")
    if isinstance(callback, FunctionCallback):
        check_signature(f"the function {callback.name}", point, player, method=False)


def _check_method(cls: type, name: str, member: object, is_main: bool) -> None:
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if (
        not callable(function)
        or (name in _OWN_NAMES and name not in POINTS)
        or hasattr(function, "__cadenza_no_point__")
    ):
        return
    where = f"{cls.__name__}.{name}"
    if name in POINTS:
        if name in BEHAVIOUR_NAMES and not is_main:
            raise CallbackError(
                f"{where} is a behaviour, which only the MainCallback owns: derive {cls.__name__} from it"
            )
        if inspect.isfunction(function):
            check_signature(where, name, function, bound=not isinstance(member, staticmethod))
    elif looks_like_a_point(name) and inspect.isfunction(function):
        raise CallbackError(
            f"{where} looks like a point and is none{_did_you_mean(name)} If it is a helper of yours, give it another "
            "name or mark it with @cadenza.not_a_point"
        )


def _check_reached(whole: type, part: type) -> None:
    """Refuses a point of a mixin that stands behind Callback, where it would never be found."""
    for name in vars(part):
        if name in POINTS and name not in BEHAVIOUR_NAMES and getattr(whole, name) is getattr(Stubs, name):
            raise CallbackError(
                f"{part.__name__}.{name} would never be played, since {whole.__name__} names Callback before it: "
                f"write class {whole.__name__}({part.__name__}, ...)"
            )


def _did_you_mean(name: str) -> str:
    near = nearest(name)
    return f"; did you mean {near}?" if near else "; `cadenza points` lists them all."


def check_signature(
    where: str, point: str, function: Callable[..., Any], *, bound: bool = False, method: bool = True
) -> None:
    """A player takes the run and nothing else; only ``around`` may yield; nothing is asynchronous."""
    if not callable(function):
        raise CallbackError(f"{where} cannot be called; a point is played by a function of the run")
    plain = inspect.unwrap(function)
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise CallbackError(f"{where} is asynchronous; a point is played by a plain function")
    if inspect.isgeneratorfunction(plain) and POINTS[point].kind is not Kind.AROUND:
        raise CallbackError(f"{where} yields, so it would never run; only around_* points may be generators")
    try:
        signature = inspect.signature(function)
        signature.bind(*([None, None] if bound else [None]))
    except TypeError:
        wanted = f"def {point}(self, run)" if method else "def function(run)"
        raise CallbackError(f"{where}{signature} must be callable with the run alone: {wanted}") from None
    except ValueError:
        return  # a builtin without a signature


def _is_set(value: object) -> bool:
    return isinstance(value, set | frozenset)


def _are_ranks(ranks: Any) -> bool:
    if isinstance(ranks, str):
        return ranks in ("all", "main", "local_main")
    return _is_set(ranks) and len(ranks) > 0 and all(type(rank) is int and rank >= 0 for rank in ranks)


_DECLARATIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda name: isinstance(name, str) and name != "", "a text"),
    "monitor": (lambda name: name is None or (isinstance(name, str) and name != ""), "None or the name of a metric"),
    "mode": (lambda mode: mode in (None, "min", "max"), 'None, "min" or "max"'),
    "order": (lambda order: isinstance(order, int), "an Order or a whole number"),
    "stages": (
        lambda stages: stages is None or (_is_set(stages) and set() < stages <= set(STAGES)),
        f"None or a set of {', '.join(STAGES)}",
    ),
    "owns": (_is_set, 'a set of names, such as {"lr"}'),
    "ranks": (_are_ranks, '"all", "main", "local_main" or a set of ranks'),
    "asks": (lambda asks: _is_set(asks) and asks <= set(REQUESTS), f"a set of {', '.join(REQUESTS)}"),
    "agree": (lambda agree: agree in AGREEMENTS, f"one of {', '.join(AGREEMENTS)}"),
}
"""For each attribute that a callback may declare whether a value is valid, and in words what is."""
_OF_MAIN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lr_every": (lambda every: every in (None, "epoch", "iter"), '"epoch" or "iter"')
}


def _check_declarations(callback: Callback) -> None:
    for what, (fits, valid) in (_DECLARATIONS | (_OF_MAIN if isinstance(callback, MainCallback) else {})).items():
        value = getattr(callback, what)
        if not fits(value):
            raise CallbackError(f"{callback.name}.{what} = {value!r}: it must be {valid}")
    if "save" in callback.owns and not callable(getattr(callback, "save", None)):
        raise CallbackError(f"{callback.name} owns 'save' but has no method save(run)")


def check_together(callbacks: Sequence[Callback], taken: Mapping[str, str] | None = None) -> None:
    """Refuses callbacks that cannot play in one run; ``taken`` is what somebody else owns already, and who."""
    seen: set[int] = set()
    for callback in callbacks:
        for one in (callback, getattr(callback, "callback", None)):
            if isinstance(one, Callback):
                if id(one) in seen:
                    raise CallbackError(f"{one.name} stands twice in callbacks; one instance plays once")
                seen.add(id(one))
    mains = [callback for callback in callbacks if isinstance(callback, MainCallback)]
    if len(mains) > 1:
        names = " and ".join(main.name for main in mains)
        raise CallbackError(f"{names} both own the behaviours; a run has exactly one MainCallback")
    _check_owners(callbacks, dict(taken or {}))
    names_of_states = [callback.name for callback in callbacks if callback._keeps_state()]
    for name in names_of_states:
        if names_of_states.count(name) > 1:
            raise CallbackError(
                f"two callbacks keep their state under the name {name!r}; give one of them another .name"
            )


def _check_owners(callbacks: Sequence[Callback], owners: dict[str, str]) -> None:
    for callback in callbacks:
        for thing in sorted(callback.owns):
            for whose in _overlapping(thing, owners):
                raise CallbackError(
                    f"{owners[whose]} and {callback.name} both own {thing!r}; only one of them can set it"
                )
            owners[thing] = callback.name


def _overlapping(thing: str, owners: Mapping[str, str]) -> list[str]:
    """``lr`` stands for the learning rates of all optimizers, ``lr[0]`` for those of the first, and so on."""
    return [
        taken for taken in owners if taken == thing or taken.startswith(f"{thing}[") or thing.startswith(f"{taken}[")
    ]


def nearest_point(name: object) -> str:
    """What to say of something that should name a point."""
    if not isinstance(name, str):
        return f"{name!r} is no point; one is named by a text, such as 'after_epoch'"
    near = nearest(name) or nearest_name(name, POINTS, 0.3)
    return f"{name!r} is no point{suggestion(near, '.')} `cadenza points` lists them all"
