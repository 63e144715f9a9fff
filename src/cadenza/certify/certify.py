"""The proof that an interrupted and resumed run equals an uninterrupted one, by comparing every bit of both."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cadenza.certify.attempt import Train, Trial
from cadenza.certify.compare import IGNORED, everything, first_difference, first_different_step
from cadenza.certify.probes import Kill, Storm

SHOWN = 20
"""So many kills are printed one by one; the file of a certificate lists all."""


@dataclass
class Certificate:
    """What was done and found. ``equal`` says whether all runs ended alike; ``difference`` names the first difference.

    ``kills`` has one line for each start of the training: the kill, and how the process ended. ``struck`` counts the
    kills that came before the end, by signal, ``trainings`` how many interrupted trainings came to their end and were
    compared, ``compared`` how many values that were.
    """

    equal: bool = False
    difference: str | None = None
    kills: list[str] = field(default_factory=list)
    struck: dict[str, int] = field(default_factory=dict)
    trainings: int = 0
    compared: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    ignored: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, kill: Kill | None, ended: str) -> None:
        """Adds one start of the training."""
        self.kills.append(f"{kill or 'no kill'}: {ended}")
        if kill is not None and ended != "ended":
            self.struck[kill.by] = self.struck.get(kill.by, 0) + 1

    def write(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        total, by = sum(self.struck.values()), ", ".join(f"{count} {one}" for one, count in self.struck.items())
        result = "equal to the last bit" if self.equal else f"NOT equal: {self.difference}"
        counts = ", ".join(f"{count} {what}" for what, count in self.compared.items())
        return "\n".join(
            [
                f"{total} kills ({by}), {len(self.kills)} processes, {self.seconds:.1f} s, seed {self.seed}",
                *(self.kills if len(self.kills) <= SHOWN else ()),
                f"{self.trainings} interrupted trainings completed and compared: {counts}",
                result,
            ]
        )


def certify(
    train: Train, *, kills: int | Sequence[Kill] | Storm = 10, seed: int = 0, ignore: Sequence[str] = IGNORED
) -> Certificate:
    """Runs ``train`` once, then interrupts and restarts it again and again, and compares both to the last bit.

    ``train(folder, callbacks)`` is a function of a module, or where it is: ``"file.py:function"``. It trains with
    ``Checkpoint(to=folder)`` and with all of ``callbacks``, and calls ``fit(..., resume="auto")``. If it returns the
    trainer (or several), what is in that afterwards is compared too. ``kills`` is how many SIGKILLs at random moments,
    or which, or a ``Storm``, which also draws SIGTERM and SIGINT. A training that ends before its kill comes is
    compared, and the next one begun. The first difference ends it.
    """
    start = time.perf_counter()
    certificate = Certificate(ignored=list(ignore), versions=_versions(), seed=seed)
    storm = Storm(kills, by=("SIGKILL",), share=1 / (kills + 1)) if isinstance(kills, int) else kills
    with tempfile.TemporaryDirectory() as root:
        whole = Trial(train, root, "whole")
        whole.start()
        drawn = storm.draw(seed, whole.points, whole.seconds) if isinstance(storm, Storm) else iter(storm)
        wanted = storm.kills if isinstance(storm, Storm) else len(storm)
        _interrupt(whole, root, islice(drawn, 5 * wanted), wanted, certificate)
    certificate.equal = certificate.difference is None
    certificate.seconds = time.perf_counter() - start
    return certificate


def _interrupt(whole: Trial, root: str, kills: Iterator[Kill], wanted: int, certificate: Certificate) -> None:
    """Interrupts and restarts trainings until ``wanted`` kills have come, lets the last one end, and compares each."""
    expected = everything(whole.folder, whole.notes, certificate.ignored)
    limit = 60 + 20 * whole.seconds
    kill = next(kills, None)
    while certificate.difference is None and (kill is not None or not certificate.trainings):
        trial, since, ended = Trial(whole.train, root, f"killed-{certificate.trainings}"), len(certificate.kills), ""
        while ended != "ended":
            try:
                ended = trial.start(kill, limit=limit)
            except RuntimeError as failure:
                failure.add_note("\n".join(["interrupted by", *certificate.kills[since:], str(kill or "no kill")]))
                raise
            certificate.note(kill, ended)
            kill = None if kill is None or sum(certificate.struck.values()) >= wanted else next(kills, None)
        _compare(whole, trial, expected, certificate)
        if certificate.difference is not None:
            certificate.difference += f"; interrupted by {'; '.join(certificate.kills[since:])}"
        shutil.rmtree(trial.folder)
        shutil.rmtree(trial.notes)


def _versions() -> dict[str, str]:
    return {"python": sys.version.split()[0], "torch": torch.__version__}


def _compare(whole: Trial, trial: Trial, expected: dict[str, Any], certificate: Certificate) -> None:
    found = everything(trial.folder, trial.notes, certificate.ignored)
    different, steps = first_different_step(whole.notes, trial.notes)
    certificate.difference = different or first_difference(expected, found)
    tensors = sum(isinstance(value, Tensor) for value in expected.values())
    counts = {"steps": steps, "tensors": tensors, "other values": len(expected) - tensors}
    certificate.compared = {name: certificate.compared.get(name, 0) + count for name, count in counts.items()}
    certificate.trainings += 1
