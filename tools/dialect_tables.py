"""The page ``docs/dialects.md``, made from the rows of the dialects."""

from __future__ import annotations

from collections.abc import Iterable

from cadenza.dialects.table import EVERY_MODE, NAMES, Dialect, Hook, dialect

_HEAD = """\
# Dialects

Callbacks that were written for other systems play here as they are. Made from the rows in `dialects/` by
`make generate`.

There are two ways in. Change the import, and leave the rest:

```python
from cadenza.dialects.orca import Callback


class Show(Callback):
    def after_train_epoch(self, runner):
        print("finished epochs:", runner.epochs)
```

Or change nothing: after `cadenza.dialects.install("orca")` the original import paths lead to the dialect, until
`uninstall`. It is refused if the real package is installed. From a shell, a whole script:

```bash
cadenza script --dialect orca train.py data -- --epochs 2
```

Such a callback goes into `cadenza.Trainer(callbacks=[...])` beside native ones and those of other dialects:

```python
import torch
from cadenza import Trainer
from cadenza.testing import tiny_classifier, tiny_loader

model = tiny_classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = Trainer(model, optimizer, torch.nn.CrossEntropyLoss(), callbacks=[Show()], device="cpu")
history = trainer.fit(tiny_loader(), epochs=2)
```

```text output
finished epochs: 1
finished epochs: 2
```

**Order.** A foreign callback has the order of native ones by default, `Order.UPDATE`; where its system has numbers of
its own, they are counted from there. Ties are in list order. A main callback comes first.

**What is refused.** When a callback joins a trainer: a method that looks like one of its system's hooks and is none,
one that is not carried, a wrong signature. When it runs: an attribute that is not carried, or one that is set although
setting it would change nothing. Each message names the dialect and the nearest thing that exists. Native wrappers such
as `When` take native callbacks: let a foreign one look at the clock in its own hooks (`every_n_iter`, `context.epoch`).

**Several processes.** What holds for native callbacks holds for foreign ones: a stop of one rank is heard by all, and a
callback that skips on some ranks alone says so in its class: `asks = {"skip_step"}`. `ranks` and `agree` may be
declared in the same way.

**What it costs.** A call through a dialect takes at most 2 µs more than a native one, and 5 with fastai's keywords;
`python benchmarks/dialects.py` measures it.

A dialect is a table and a facade over one adapter; `dialects/adapter.py` says how one is declared. Pages with a whole
script before and after: {pages}.

In the tables below, an empty last column means that the name means here what it meant there.
"""


def dialects_page() -> str:
    """The text of ``docs/dialects.md``."""
    pages = ", ".join(f"[{name}](migrate/{name}.md)" for name in NAMES)
    return "\n".join([_HEAD.replace("{pages}", pages), *(part(dialect(name)) for name in NAMES)])


def part(one: Dialect) -> str:
    """The tables of one dialect."""
    tables = [
        table(("hook", "is called at", "difference"), ((f"`{r.name}`", where(r), says(r)) for r in one.hooks)),
        table(
            (f"`{one.handed}.…`", "on `run`", "difference"),
            ((f"`{r.name}`", f"`{r.field}`" if r.field else "", r.says) for r in one.attributes),
        ),
        table(
            ("request", "becomes", "difference"),
            ((f"`{r.name}`", ", ".join(f"`{name}`" for name in r.requests), r.says) for r in one.requests),
        ),
        table(("not carried", "why"), ((f"`{name}`", why) for name, why in one.refused.items())),
    ]
    paths = ", ".join(f"`{path}`" for path in one.modules)
    return "\n".join([f"## {one.original}\n", *tables, f"Import paths that `install` provides: {paths}.\n"])


def where(row: Hook) -> str:
    return ", ".join(f"`{point}`" for point in row.points) or "no point of its own"


def says(row: Hook) -> str:
    calls = f" Calls `{row.calls}` unless it is overridden." if row.calls else ""
    modes = "" if row.modes == EVERY_MODE or "nly in" in row.says else f" Only in {' and '.join(row.modes)}."
    return f"{row.says}{modes}{calls}".strip()


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines]) + "\n" if lines else ""
