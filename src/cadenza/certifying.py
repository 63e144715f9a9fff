"""The proof that a killed and resumed run equals an uninterrupted one: both are made, and every bit is compared."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.points import POINTS, Kind
from cadenza.rng import seed_everything
from cadenza.state import alike

if TYPE_CHECKING:
    from cadenza.run import Run

Train = Callable[[Path, list[Callback]], object] | str
IGNORED = ("clock/seconds", "callbacks/Checkpoint/*", "*second*", "*time*", "*_ms", "*/ms/*", "*memory*")
"""What is not compared: wall times, and the name of the run."""
PRELOADED = ["cadenza.certifying", "cadenza.callbacks", "cadenza.checkpoint", "torch._dynamo"]
"""What a training needs. Every optimizer imports the last when it is made, which takes longer than a small training."""


@dataclass(frozen=True)
class Kill:
    """When a process is killed: at the ``count``-th time ``point`` is played ("any" is any point), or so many
    ``seconds`` after the first one."""

    point: str | None = None
    count: int = 1
    seconds: float | None = None

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"after {self.seconds:.3f} s"
        where = "point" if self.point == "any" else self.point
        return f"at the {self.count}. {where}"


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
    while killed < wanted and tried < 3 * wanted:
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
    error = folder / "error.txt"
    if error.exists():
        raise RuntimeError(f"the training that is to be certified failed:\n{error.read_text(encoding='utf-8')}")
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
    except BaseException:
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        raise


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


class Killer(Callback):
    """Ends its own process as ``kill -9`` does."""

    order = Order.SAVE + 1000
    passive = True

    def __init__(self, kill: Kill) -> None:
        self.kill, self.left = kill, kill.count

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        if self.kill.point is None:
            return {"after_register": self.wait}
        everywhere = [point.name for point in POINTS.values() if _is_plain(point.kind)]
        return dict.fromkeys(everywhere if self.kill.point == "any" else [self.kill.point], self.count)

    def wait(self, run: Run) -> None:
        timer = threading.Timer(self.kill.seconds or 0.0, die)
        timer.daemon = True
        timer.start()

    def count(self, run: Run) -> None:
        self.left -= 1
        if self.left == 0:
            die()


def _is_plain(kind: Kind) -> bool:
    return kind not in (Kind.AROUND, Kind.BEHAVIOUR)


def die() -> None:
    """Ends this process at once, without a last word."""
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    os._exit(137)  # pragma: no cover


class Witness(Callback):
    """Writes after each iteration what every weight and every tensor of the optimizers is, as a checksum."""

    order = Order.SAVE + 999
    passive = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.points, self.since = 0, time.perf_counter()

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        counted = {point.name: self.count for point in POINTS.values() if _is_plain(point.kind)}
        return {**counted, "after_train_iter": self.look, "after_run": self.end}

    def count(self, run: Run) -> None:
        self.points += 1

    def look(self, run: Run) -> None:
        self.points += 1
        tensors = dict(
            _tensors({"model": run.module.state_dict(), "optimizers": [o.state_dict() for o in run.optimizers]})
        )
        sums = {name: hashlib.blake2b(_bytes(tensor), digest_size=8).hexdigest() for name, tensor in tensors.items()}
        with open(self.folder / "witness.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"batch": run.clock.batches, "step": run.clock.steps, "sums": sums}) + "\n")

    def end(self, run: Run) -> None:
        length = {"points": self.points, "seconds": time.perf_counter() - self.since}
        (self.folder / "length.json").write_text(json.dumps(length), encoding="utf-8")


# The comparison -----------------------------------------------------------------------------------------------------


def _compare(whole: Path, killed: Path, certificate: Certificate) -> None:
    from cadenza.checkpoint import Shelf

    states = []
    for folder in (whole, killed):
        if not Shelf(folder).names():
            raise RuntimeError("the training left no checkpoint: it must use Checkpoint(to=folder) and all callbacks")
        states.append(_comparable(Shelf(folder).read("last").state, certificate.ignored))
    found = _first_different_step(whole, killed, certificate) or _first_difference(*states)
    certificate.difference = certificate.difference or found
    certificate.equal = certificate.difference is None
    certificate.compared["tensors"] = sum(isinstance(value, Tensor) for value in states[0].values())
    certificate.compared["other values"] = len(states[0]) - certificate.compared["tensors"]


def _first_different_step(whole: Path, killed: Path, certificate: Certificate) -> str | None:
    """Each batch that was trained after a resume left the same weights as in the whole run, however often."""
    expected = {line["batch"]: line for line in _lines(whole)}
    compared = 0
    for line in sorted(_lines(killed), key=lambda line: int(line["batch"])):
        reference = expected.get(line["batch"])
        if reference is None:
            return f"batch {line['batch']} was trained only in the killed run"
        compared += 1
        for name, value in reference["sums"].items():
            if line["sums"].get(name) != value:
                return f"{name} after batch {line['batch']} (step {line['step']})"
    certificate.compared["steps"] = certificate.compared.get("steps", 0) + compared
    return None


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    with open(folder / "witness.jsonl", encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(json.JSONDecodeError):  # one that was cut by a kill
                yield json.loads(line)


def _comparable(state: dict[str, Any], ignored: Sequence[str]) -> dict[str, Any]:
    from cadenza.history import History

    history = History()
    history.load_state_dict(state["history"])
    flat = dict(_leaves({**state, "history": history.to_rows()}))
    return {name: v for name, v in flat.items() if not any(fnmatch.fnmatch(name, one) for one in ignored)}


def _first_difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            return f"{name} is only in the {'whole' if name in one else 'killed'} run"
        if not alike(one[name], other[name]):
            return f"{name} at the end"
    return None


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else None
    if pairs is None:
        yield path, value
        return
    for key, inner in pairs:
        yield from _leaves(inner, f"{path}/{key}" if path else str(key))


def _tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    return ((name, leaf) for name, leaf in _leaves(value) if isinstance(leaf, Tensor))


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
