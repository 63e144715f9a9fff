"""Weights into a module that may not quite fit, with a report of what did not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cadenza.foundation.suggest import nearest_name

Prefix = str | Mapping[str, str] | None


@dataclass
class Report:
    """What became of the weights. ``str(report)`` is for people.

    >>> print(Report(loaded=["0.weight"], missing=["2.bias"], unexpected=["2.bais"]))
    1 tensor loaded
    not in the weights, left as they were (1): 2.bias, nearest 2.bais
    not in the module, left out (1): 2.bais, nearest 2.bias
    """

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Names of the module that the weights do not have."""
    unexpected: list[str] = field(default_factory=list)
    """Names among the weights that the module does not have."""
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    """Names that both have, with the shape of the weights and that of the module."""
    passed_over: list[str] = field(default_factory=list)
    """Names among the weights that do not begin with a prefix that was asked for."""

    @property
    def complete(self) -> bool:
        """Whether everything had its place."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} tensor{'' if len(self.loaded) == 1 else 's'} loaded"]
        if self.missing:
            lines.append(_line("not in the weights, left as they were", self.missing, self.unexpected))
        if self.unexpected:
            lines.append(_line("not in the module, left out", self.unexpected, [*self.missing, *self.loaded]))
        shapes = [f"{name} is {list(a)}, in the module {list(b)}" for name, (a, b) in self.mismatched.items()]
        if shapes:
            lines.append(_line("of another shape, left as they were", shapes, []))
        if self.passed_over:
            lines.append(_line("without the prefix, passed over", self.passed_over, []))
        return "\n".join(lines)


def _line(title: str, names: list[str], others: list[str], most: int = 10) -> str:
    told = []
    for name in names[:most]:
        near = nearest_name(name, others)
        told.append(f"{name}, nearest {near}" if near else name)
    more = f"; and {len(names) - most} more" if len(names) > most else ""
    return f"{title} ({len(names)}): {'; '.join(told)}{more}"


def load_into(module: nn.Module, weights: Mapping[str, Tensor], strict: bool = True, prefix: Prefix = None) -> Report:
    """Copies ``weights`` into the tensors of the same names of ``module``; returns what fitted and what did not.

    ``prefix``: take only names that begin with it, without it; or a dict from beginnings in the weights to those in the
    module, such as ``{"encoder.": "backbone."}``. If ``strict``, whatever does not fit is an error, and the module is
    as before; with a prefix this is asked of the part of the module that it names. If nothing fits, it always is.

    >>> source, target = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)
    >>> load_into(target, source.state_dict(), prefix="0.").loaded
    ['weight', 'bias']
    """
    mapping = {prefix: ""} if isinstance(prefix, str) else {"": ""} if prefix is None else dict(prefix)
    renamed, passed_over = _renamed(weights, mapping)
    state = {n: t for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    report = _compared(renamed, state, tuple(mapping.values()))
    report.passed_over = passed_over
    if not report.loaded or (strict and not report.complete):
        raise ValueError(f"the weights do not fit the module; nothing was changed.{_advice(report)}\n{report}")
    module.load_state_dict({name: renamed[name] for name in report.loaded}, strict=False)
    return report


def _compared(renamed: Mapping[str, Tensor], state: Mapping[str, Tensor], asked: tuple[str, ...]) -> Report:
    """What fits of the weights; names of the module that begin with none of ``asked`` are not missing."""
    report = Report()
    for name, tensor in renamed.items():
        if name not in state:
            report.unexpected.append(name)
        elif not is_lazy(state[name]) and state[name].shape != tensor.shape:
            report.mismatched[name] = (tuple(tensor.shape), tuple(state[name].shape))
        else:
            report.loaded.append(name)
    tied = {id(state[name]) for name in report.loaded}
    there = (name for name in state if name.startswith(asked))
    report.missing = [name for name in there if name not in renamed and id(state[name]) not in tied]
    return report


def _renamed(weights: Mapping[str, Tensor], mapping: Mapping[str, str]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights under their names in the module, by the longest beginning that fits, and the names of the others."""
    renamed: dict[str, Tensor] = {}
    passed_over = []
    starts = sorted(mapping, key=len, reverse=True)
    for name, tensor in weights.items():
        start = next((start for start in starts if name.startswith(start)), None)
        if start is None:
            passed_over.append(name)
        elif (new := mapping[start] + name[len(start) :]) in renamed:
            raise ValueError(f"two of the weights would become {new}, {name} is one of them: name fewer prefixes")
        else:
            renamed[new] = tensor
    return renamed, passed_over


def _advice(report: Report) -> str:
    if not report.loaded and report.passed_over and not report.unexpected:
        return f" No name begins so; there is {report.passed_over[0]}."
    common = _first_parts(report.unexpected) if not report.loaded and not report.mismatched else set()
    if len(common) == 1:
        return f" All of them begin with {common.pop()!r}: try it as prefix."
    return " strict=False takes what fits." if report.loaded else ""


def _first_parts(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] + "." for name in names if "." in name}
