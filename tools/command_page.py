"""The page ``docs/command-line.md``, made from the commands themselves."""

from __future__ import annotations

from typing import Any

import typer

from cadenza.cli.app import make_app

_HEAD = """# The command line

The list of commands is made by `make generate`; a test compares. It needs the extra: `pip install 'cadenza[cli]'`.

```bash
cadenza recipes                                            # what is there to train
cadenza train digits fit.epochs=5 callbacks.ema.decay=0.99 # a ready recipe, changed
cadenza train my.yaml --dry-run                            # check and build everything, train nothing
cadenza train digits --resume                              # go on with the newest run of this recipe
cadenza runs                                               # what was trained, where it stands, how good it is
cadenza compare digits/mlp digits/cnn                      # what was set differently, metrics side by side
cadenza validate digits/mlp                                # the newest run of that name, its best checkpoint
cadenza ablate digits --seeds 3                            # what each callback contributes
```

A run is named by its folder, by its id or the beginning of it, or by `project/name` for the newest of that name. What
recipes and overrides are is on the page [Recipes](recipes.md).

## How a command ends

| exit code | when |
|---|---|
| 0 | it is done |
| 1 | an error: one message on the error output, without a traceback; `--traceback`, anywhere, shows it |
| 2 | wrong usage, overrides that cannot be read among it |
| 130 | Ctrl-C; if the recipe has a `checkpoint`, the run has saved itself, and the message says how to go on |
| 143 | SIGTERM, if the recipe has a `checkpoint`: the run has saved itself; without one, what Python does |

Nothing is written before everything was checked and built: a recipe that is refused leaves no folder. A run that was
ended by a signal, or killed, goes on with `--resume` to the same weights as if nothing had happened. Where nothing was
saved yet, it says so and begins.

In a terminal lists are folded to its width, or to what `COLUMNS` says. In a file or a pipe every line stays whole.

`cadenza --install-completion` lets your shell complete commands, recipes and runs.

## Stored recipes are not trusted

A run's folder keeps its recipe, and `validate`, `test`, `predict`, `replay` and `train RUN` read it. It may have come
from somebody else, so it imports nothing and names no package by itself: say `--import` and `--allow` again.

## The commands
"""


def command_page() -> str:
    """The source of ``docs/command-line.md``."""
    commands: dict[str, Any] = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    return "\n".join([_HEAD, *(_section(name, command) for name, command in commands.items())])


def _section(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    words = " ".join([f"cadenza {name}", *(_placed(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    says = " ".join(str(command.help or "").split())
    lines = [f"### {name}\n", f"`{words}`\n", f"{says}\n"]
    rows = [f"| `{_spelled(one)}` | {one.help} |" for one in [*arguments, *options] if one.help]
    return "\n".join([*lines, *(["| | |", "|---|---|", *rows, ""] if rows else [])])


def _placed(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper()).strip("[]").rstrip(".")
    many = "..." if argument.nargs == -1 else ""
    return f"{name}{many}" if argument.required else f"[{name}{many}]"


def _spelled(one: Any) -> str:
    if one.param_type_name == "argument":
        return _placed(one)
    value = "" if one.is_flag else f" {one.metavar or one.name.upper()}"
    return f"{one.opts[0]}{value}"
