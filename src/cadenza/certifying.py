"""The proof that a killed and resumed run equals an uninterrupted one: both are made, and every bit is compared."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cadenza.callback import Callback
from cadenza.comparison import IGNORED, comparable, first_difference, first_different_step
from cadenza.rng import seed_everything
from cadenza.witness import Kill, Killer, Witness

Train = Callable[[Path, list[Callback]], object] | str
PRELOADED = ["cadenza.certifying", "cadenza.callbacks", "cadenza.checkpoint", "torch._dynamo"]
"""What a training needs. Every optimizer imports the last when it is made, which takes longer than a small training."""


@dataclass
class Certificate:
    """What was done and found. ``equal`` says whether the runs ended alike; ``difference`` names the first that is not.

    ``kills`` is one line for each kill and how the process ended, ``compared`` how many values were.
    """

    equal: bool = False
    difference: str | None = None
    kills: list[str] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def write(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.compared.items())
        killed = sum("killed" in line for line in self.kills)
        result = "equal to the last bit" if self.equal else f"NOT equal: {self.difference}"
        lines = [f"{killed} kills, {len(self.kills)} processes, {self.seconds:.1f} s", *self.kills]
        return "\n".join([*lines, f"compared: {counts}", result])


def certify(
    train: Train, *, kills: int | Sequence[Kill] = 10, seed: int = 0, ignore: Sequence[str] = IGNORED
) -> Certificate:
    """Runs ``train`` once, and again killing it by SIGKILL and starting it anew, and compares the two to the last bit.

    ``train(folder, callbacks)`` is a function of a module, or where it is: ``"file.py:function"``. It trains with
    ``Checkpoint(to=folder)`` and with all of ``callbacks``, and calls ``fit(..., resume="auto")``. ``kills`` is how
    many kills at random moments, or which. A training that ends before its kill comes is compared, and the next begun.
    """
    start = time.perf_counter()
    certificate = Certificate(ignored=list(ignore), versions=_versions())
    with tempfile.TemporaryDirectory() as name:
        whole = _folder(name, "whole")
        _play(train, whole, None)
        planned: Iterator[Kill] = _random_kills(kills, seed, whole) if isinstance(kills, int) else iter(kills)
        wanted = kills if isinstance(kills, int) else len(kills)
        last = _play_killed(train, name, planned, wanted, certificate)
        for number in range(last + 1):
            _compare(whole, _folder(name, f"killed-{number}"), certificate)
    certificate.seconds = time.perf_counter() - start
    return certificate


def _play_killed(train: Train, root: str, kills: Iterator[Kill], wanted: int, certificate: Certificate) -> int:
    """Trains, is killed and goes on until all kills have come; the number of the last training."""
    number = killed = tried = 0
    while killed < wanted and tried < 5 * wanted:
        kill = next(kills, None)
        ended = _play(train, _folder(root, f"killed-{number}"), kill)
        certificate.kills.append(f"{kill or 'no kill'}: {ended}")
        if kill is None:
            return number
        tried, killed, number = tried + 1, killed + (ended == "killed"), number + (ended == "ended")
    certificate.kills.append(f"no kill: {_play(train, _folder(root, f'killed-{number}'), None)}")
    return number


def _folder(root: str, name: str) -> Path:
    folder = Path(root) / name
    folder.mkdir(exist_ok=True)
    return folder


def _versions() -> dict[str, str]:
    return {"python": sys.version.split()[0], "torch": torch.__version__}


def _random_kills(kills: int, seed: int, whole: Path) -> Iterator[Kill]:
    """Half at a point that is drawn, half at a moment, which may be in the middle of a step or a save; about so early
    that the training has not ended before the last of them."""
    length = json.loads((whole / "length.json").read_text(encoding="utf-8"))
    draw = random.Random(seed)
    share = 1 / (kills + 1)
    while True:
        yield Kill("any", draw.randint(1, max(1, int(length["points"] * share))))
        yield Kill(seconds=draw.uniform(0, length["seconds"] * share / 2))


# The processes ------------------------------------------------------------------------------------------------------


def _play(train: Train, folder: Path, kill: Kill | None) -> str:
    """Runs ``train`` in a process of its own; how that ended, in a word."""
    context = _context()
    process = context.Process(target=_child, args=(train, folder, kill))
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():
            process.kill()
            process.join()
    error = folder / "error.json"
    if error.exists():
        said = json.loads(error.read_text(encoding="utf-8"))
        failure = RuntimeError(f"the training that is to be certified failed: {said['error']}")
        failure.add_note(said["traceback"])
        raise failure
    return "ended" if process.exitcode == 0 else "killed"


def _context() -> Any:
    """A server that has everything loaded makes a process in a moment; where there is none, each loads it anew."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _child(train: Train, folder: Path, kill: Kill | None) -> None:
    torch.set_num_threads(1)
    seed_everything(0)  # what the training itself does not seed would differ from process to process
    callbacks: list[Callback] = [Witness(folder)]
    if kill is not None:
        callbacks.append(Killer(kill))
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # the process ends with it
    try:
        (load_function(train) if isinstance(train, str) else train)(folder, callbacks)
    except BaseException as error:
        said = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        (folder / "error.json").write_text(json.dumps(said), encoding="utf-8")
        sys.exit(1)  # what went wrong is said by the one who waits for this process


def load_function(place: str) -> Callable[[Path, list[Callback]], object]:
    """The function at ``"file.py:function"``."""
    file, _, name = place.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise ValueError(f"{place!r} is not the place of a function: write file.py:function")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[Path, list[Callback]], object] | None = getattr(module, name, None)
    if function is None:
        raise ValueError(f"{file} has no function {name!r}")
    return function


# The comparison -----------------------------------------------------------------------------------------------------


def _compare(whole: Path, killed: Path, certificate: Certificate) -> None:
    from cadenza.checkpoint import Shelf

    states = []
    for folder in (whole, killed):
        if not Shelf(folder).names():
            raise RuntimeError("the training left no checkpoint: it must use Checkpoint(to=folder) and all callbacks")
        states.append(comparable(Shelf(folder).read("last").state, certificate.ignored))
    found, steps = first_different_step(whole, killed)
    certificate.difference = certificate.difference or found or first_difference(*states)
    certificate.equal = certificate.difference is None
    certificate.compared["steps"] = certificate.compared.get("steps", 0) + steps
    certificate.compared["tensors"] = sum(isinstance(value, Tensor) for value in states[0].values())
    certificate.compared["other values"] = len(states[0]) - certificate.compared["tensors"]
