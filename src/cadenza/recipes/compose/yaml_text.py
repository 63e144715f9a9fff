"""YAML as people mean it, with the line of every key.

Only ``true`` and ``false`` are booleans, ``1e-3`` is a number, and ``12:30`` and ``012`` stay the text that was
written. What YAML 1.1 makes of ``on``, ``no``, ``0777`` or ``1:30`` surprises everyone who meets it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from cadenza.recipes.errors import RecipeError

_TAG = "tag:yaml.org,2002:"
_PLAIN = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F_]+|0o[0-7_]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:0|[1-9][0-9_]*)\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?(?:0|[1-9][0-9_]*)[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("merge", r"<<", ["<"]),
)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # none of YAML 1.1


for _name, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"^(?:{_pattern})$"), _first)


def _number(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node).replace("_", ""), 0)


_Loader.add_constructor(f"{_TAG}int", _number)
_Loader.yaml_constructors = {
    tag: make for tag, make in _Loader.yaml_constructors.items() if tag not in (f"{_TAG}timestamp", f"{_TAG}binary")
}


@dataclass(frozen=True)
class Document:
    """What a file says, and on which line it says it."""

    tree: dict[str, Any]
    lines: dict[tuple[Any, ...], int] = field(default_factory=dict)


def read_yaml(text: str, name: str) -> Document:
    """The mapping in ``text``; ``name`` is the file that errors name.

    >>> read_yaml("a: [1e-3, on, 12:30, 012, true]", "my.yaml").tree
    {'a': [0.001, 'on', '12:30', '012', True]}
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document({})
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(f"{name}: a recipe is a mapping of keys to values, such as 'seed: 0'")
        lines: dict[tuple[Any, ...], int] = {}
        _walk(node, (), lines, name, ())
        return Document(loader.construct_document(node), lines)
    except yaml.MarkedYAMLError as error:
        raise RecipeError(_broken(error, text, name)) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{name}: this is not YAML: {' '.join(str(error).split())}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise RecipeError(f"{name}: this cannot be read: {error}") from None
    finally:
        loader.dispose()


def _walk(node: Any, path: tuple[Any, ...], lines: dict[tuple[Any, ...], int], name: str, above: Any) -> None:
    """Writes down the line of every key, and refuses keys that stand twice and what refers to itself."""
    if node in above:
        raise RecipeError(f"{name}:{node.start_mark.line + 1}: this part contains itself")
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise RecipeError(f"{name}:{line}: a key is a plain text")
            if key.value in seen and key.tag != f"{_TAG}merge":
                raise RecipeError(
                    f"{name}:{line}: {key.value!r} stands here a second time; first in line {seen[key.value]}"
                )
            seen[key.value] = line
            lines[(*path, key.value)] = line
            _walk(value, (*path, key.value), lines, name, (*above, node))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            _walk(value, (*path, index), lines, name, (*above, node))


def _broken(error: yaml.MarkedYAMLError, text: str, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}" if mark is not None else name
    line = text.splitlines()[mark.line] if mark is not None and mark.line < len(text.splitlines()) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in str(error.problem):
        return f"{where}: YAML is indented with blanks; this line has a tab: {line.strip()!r}"
    if error.problem and "could not determine a constructor" in error.problem:
        return f"{where}: tags such as {line.strip()!r} are not used in recipes; write plain values"
    return f"{where}: this is not YAML: {error.problem or error.context}: {line.strip()!r}"


def write_yaml(tree: Any) -> str:
    """YAML that ``read_yaml``, and any other reader, takes for the same values.

    >>> print(write_yaml({"lr": 1e-05, "at": "12:30", "on": ["no", "012"]}), end="")
    lr: 1.0e-05
    at: '12:30'
    'on':
    - 'no'
    - '012'
    """
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes every text that some version of YAML would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    ours = any(re.fullmatch(pattern, value) for _, pattern, _ in _PLAIN)
    style = '"' if not value.isprintable() else "'" if ours else None  # line ends of all kinds survive in "..." only
    return dumper.represent_scalar(f"{_TAG}str", value, style=style)


_Dumper.add_representer(str, _text)
