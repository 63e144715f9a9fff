"""Importing loads nothing optional and does nothing; imports of the core go one way; the public surface is frozen."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cadenza

ROOT = Path(cadenza.__file__).parent
LEAVES = ("callbacks", "cli", "dialects", "experiment", "recipes", "testing")


def run_python(code: str) -> str:
    """Runs ``code`` in a fresh interpreter that finds this very package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# What importing loads and does ----------------------------------------------------------------------------------------

OBSERVED = """
import logging, os, random, signal, sys, threading, types, warnings
import torch

def state():
    return {
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "environment": dict(os.environ),
        "logging": (logging.root.handlers[:], logging.root.level, logging.raiseExceptions, logging.getLoggerClass()),
        "warnings": warnings.filters[:],
        "threads": threading.enumerate(),
        "hooks": (sys.excepthook, sys.displayhook, sys.meta_path[:], sys.path_hooks[:], sys.path[:]),
        "random": (random.getstate(), torch.get_rng_state().tolist()),
        "torch": (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()),
        "directory": os.getcwd(),
    }

def tops(names):
    return {name.split(".")[0] for name in names}

before, modules = state(), set(sys.modules)
import cadenza
after, loaded = state(), set(sys.modules)
seen = {
    "changed": [name for name in before if before[name] != after[name]],
    "others": sorted(tops(loaded - modules) - {"cadenza"} - set(sys.stdlib_module_names) - tops(modules)),
    "parts": sorted({name.split(".")[1] for name in loaded if name.startswith("cadenza.")}),
}
log = logging.getLogger("cadenza")
sys.stderr = sys.stdout
log.warning("nobody hears this")
seen["logger"] = (log.level, [type(handler).__name__ for handler in log.handlers], log.propagate)
seen["reached"] = [cadenza.callbacks.EMA.__name__, cadenza.testing.__name__]
for name in cadenza.__all__:
    getattr(cadenza, name)
public = {name: value for name, value in vars(cadenza).items() if not name.startswith("_")}
seen["dir"] = dir(cadenza)
seen["public"] = [name for name, value in public.items() if not isinstance(value, types.ModuleType)]
print(seen)
"""
"""One fresh interpreter for all that is looked at; importing torch takes longer than everything else."""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return dict(ast.literal_eval(run_python(OBSERVED)))


def test_importing_loads_torch_and_the_standard_library_only(seen: dict[str, Any]) -> None:
    assert seen["others"] == []


def test_importing_loads_no_callbacks_and_no_commands(seen: dict[str, Any]) -> None:
    assert not set(seen["parts"]) & {"cli", "dialects", "experiment", "recipes", "testing"}


def test_importing_does_nothing(seen: dict[str, Any]) -> None:
    assert seen["changed"] == []


def test_the_loggers_are_silent_until_somebody_listens(seen: dict[str, Any]) -> None:
    assert seen["logger"] == (0, ["NullHandler"], True)  # a word of the logger would have made this unreadable


BLOCKED = """
import importlib.metadata, re, sys

def needed(name, found):
    for line in importlib.metadata.requires(name) or []:
        if "extra ==" not in line:
            other = re.match(r"[A-Za-z0-9_.-]+", line)[0].lower().replace("_", "-")
            if other not in found:
                try:
                    importlib.metadata.distribution(other)
                except importlib.metadata.PackageNotFoundError:
                    continue
                found.add(other)
                needed(other, found)
    return found

with_torch = needed("torch", {"torch"})
owners = importlib.metadata.packages_distributions()
blocked = {top for top, names in owners.items() if not {n.lower().replace("_", "-") for n in names} & with_torch}
blocked -= {"cadenza"}

class WithoutOthers:
    # finds what the finder finds, as if nothing but torch were installed

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [WithoutOthers(finder) for finder in sys.meta_path]
try:
    import numpy
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("the hook does not block")
"""


def test_training_needs_torch_alone() -> None:
    """In an interpreter that finds nothing but torch, what torch itself requires, and Cadenza."""
    said = run_python(
        BLOCKED
        + """
import warnings
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
import torch
import cadenza
from cadenza.testing import Recorder, tiny_classifier, tiny_loader

model = tiny_classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
callbacks = [Recorder(), cadenza.Watch("val/loss"), cadenza.When(Recorder(), every="2 steps")]
trainer = cadenza.Trainer(
    model, optimizer, torch.nn.CrossEntropyLoss(), scheduler=schedule, callbacks=callbacks, device="cpu", seed=1
)
history = trainer.fit(tiny_loader(), tiny_loader(8), epochs=2, test_loaders=tiny_loader(8))
trainer.validate(tiny_loader()), trainer.test(tiny_loader())
print(len(history["val/loss"]), tuple(trainer.predict(tiny_loader()).shape), len(trainer.explain()) > 0)
"""
    )
    assert said == "2 (24, 3) True"


# The surface ---------------------------------------------------------------------------------------------------------

SURFACE = [
    "POINTS",
    "Best",
    "Callback",
    "CallbackError",
    "Clock",
    "Duration",
    "Execution",
    "History",
    "MainCallback",
    "Order",
    "Preempted",
    "Run",
    "Trainer",
    "Watch",
    "When",
    "launch",
    "not_a_point",
]


def test_the_public_surface_is_frozen() -> None:
    assert cadenza.__all__ == SURFACE
    assert all(hasattr(cadenza, name) for name in SURFACE)


def test_the_packages_can_be_reached_without_an_import_of_their_own(seen: dict[str, Any]) -> None:
    assert seen["reached"] == ["EMA", "cadenza.testing"]


def test_importing_alone_does_not_load_torch() -> None:
    """The command line shows its help, and the shell completes, without it."""
    loaded = "print('torch' in sys.modules)"
    code = f"import sys, cadenza, cadenza.cli.main; {loaded}; cadenza.Trainer; {loaded}"
    assert run_python(code).split() == ["False", "True"]


def test_nothing_else_is_public(seen: dict[str, Any]) -> None:
    assert sorted(seen["public"]) == sorted(SURFACE)


def test_dir_shows_public_names_only_also_after_an_import(seen: dict[str, Any]) -> None:
    packages = {"callbacks", "checkpoint", "data", "dialects", "distributed", "experiment", "recipes", "testing"}
    assert {name for name in seen["dir"] if not name.startswith("__")} == {*SURFACE, *packages}
