"""Cadenza against the loop by hand and beside other libraries, on the CPU.

    python benchmarks/peers.py [--rounds 31] [--peers lightning ignite ...] [--folder build/peers]

First a small perceptron (784-256-256-10, batches of 128 from a ``DataLoader(TensorDataset)``, Adam, accuracy, ten
callbacks) by hand and in Cadenza, with the optimizer as it is and in its fused form; then a tiny one (16-32-2) whose
step is compiled. Then each peer that is named (``all`` for all) gets an environment of its own in ``--folder``, made
with pip, and there the loop by hand, Cadenza and the peer stand beside each other in one process. What cannot be
installed is left out and named. The table is printed and written to ``benchmarks/results/peers.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import median_with_interval, paired_ratios, table, write
from peer_cases import PEERS
from small import by_hand, tensors, tiny_batches, tiny_by_hand, tiny_compiled, with_cadenza

import cadenza

ROOT = Path(__file__).resolve().parent.parent
AIMS = {"optimizer untouched": 1.12, "fused form": 1.3, "tiny, compiled": 2.5}


def factors(ratios: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """How many times faster than by hand, with the interval."""
    found = {}
    for name, values in ratios.items():
        middle, low, high = median_with_interval([1 / value for value in values])
        found[name] = {"factor": middle, "interval": [low, high], "aim": AIMS.get(name)}
    return found


def ours(rounds: int, epochs: int) -> dict[str, Any]:
    samples = tensors()
    cases = {
        "optimizer untouched": partial(with_cadenza, samples, epochs),
        "fused form": partial(with_cadenza, samples, epochs, cadenza.Execution(fused=True)),
    }
    ratios, references = paired_ratios(partial(by_hand, samples, epochs), cases, rounds)
    result = factors(ratios)
    result["by hand"] = {"us": sorted(references)[len(references) // 2] / (epochs * 64) * 1e6}
    return result


def tiny(rounds: int, steps: int = 1000) -> dict[str, Any]:
    data = tiny_batches(steps)
    hand, compiled = tiny_by_hand(data, rounds + 2), tiny_compiled(data, rounds + 2)
    clock(hand)
    first = clock(compiled)
    clock(hand), clock(compiled)
    pairs = [(clock(hand), clock(compiled)) for _ in range(rounds)]
    compiled.close()
    result = factors({"tiny, compiled": [mine / by for by, mine in pairs]})
    result["tiny, compiled"]["first_epoch_s"] = first
    return result


def clock(epoch: Iterator[None]) -> float:
    begin = time.perf_counter()
    next(epoch)
    return time.perf_counter() - begin


# The others ---------------------------------------------------------------------------------------------------------


def environment(peer: str, folder: Path) -> Path:
    """The interpreter of an environment in which ``peer`` is installed."""
    place = folder / peer
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (place / "ready").exists():
        venv.create(place, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "torch==2.13.0", "numpy"], check=True)
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *PEERS[peer][1]], check=True)
        (place / "ready").touch()
    return python


def beside(peer: str, rounds: int, epochs: int, folder: Path) -> dict[str, Any]:
    """Measures ``peer`` in its own environment."""
    try:
        python = environment(peer, folder)
        command = [str(python), __file__, "--inside", peer, "--rounds", str(rounds), "--epochs", str(epochs)]
        surroundings = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, env=surroundings, check=True, capture_output=True, text=True, timeout=3600)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return {"left_out": said[-1] if said else "no reason was given"}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def inside(peer: str, rounds: int, epochs: int) -> dict[str, Any]:
    """What runs in that environment."""
    from importlib import metadata

    function, packages = PEERS[peer]
    samples = tensors()
    cases = {
        "cadenza": partial(with_cadenza, samples, epochs),
        "lean": partial(function, samples, epochs, True),
        "default": partial(function, samples, epochs, False),
    }
    ratios, _ = paired_ratios(partial(by_hand, samples, epochs), cases, rounds)
    return {"version": metadata.version(packages[0]), **factors(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--peers", nargs="*", default=[], choices=[*PEERS, "all"])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--without-tiny", action="store_true")
    parser.add_argument("--inside", choices=list(PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.inside:
        print(json.dumps(inside(options.inside, options.rounds, options.epochs)))
        return
    results = ours(options.rounds, options.epochs)
    if not options.without_tiny:
        results.update(tiny(options.rounds))
    rows = [(name, *said(row)) for name, row in results.items() if "factor" in row]
    others = {}
    for peer in PEERS if "all" in options.peers else options.peers:
        others[peer] = result = beside(peer, options.rounds, options.epochs, options.folder)
        if "left_out" in result:
            rows.append((peer, "", "", f"left out: {result['left_out']}"[:120]))
        rows += [(f"{peer}, {name}", *said(result[name])) for name in ("cadenza", "lean", "default") if name in result]
    print(table(("case", "times as fast as by hand", "95 % interval", "aim: at least"), rows))
    write("peers", {"ours": results, "peers": others, "rounds": options.rounds})
    sys.stdout.flush()


def said(row: dict[str, Any]) -> tuple[str, str, str]:
    low, high = row["interval"]
    aim = f"{row['aim']:.2f}" if row.get("aim") else ""
    return f"{row['factor']:.2f}", f"{low:.2f} to {high:.2f}", aim


if __name__ == "__main__":
    main()
