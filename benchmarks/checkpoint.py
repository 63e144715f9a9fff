"""What saving costs a run, and how soon a resumed one makes its first step.

    python benchmarks/checkpoint.py [--rounds 5] [--short]

A decoder with d 512 and about 25 million parameters is trained for 50 steps with one save among them: not at all, with
``Checkpoint`` in the background, with ``torch.save`` in the loop, and with Lightning's ``ModelCheckpoint`` if that is
installed; in shuffled order. The figures are written to ``benchmarks/results/checkpoint.json``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import write
from model_checkpoint import STEPS, WARM, Seconds, has_lightning, model_checkpoint
from torch import Tensor, nn

from cadenza import Callback, Order, Trainer
from cadenza.callbacks import Checkpoint
from cadenza.checkpoint import Shelf, Writer

WIDTH, LAYERS, WORDS = 512, 7, 4096
SAVE_AT = 5
Case = Callable[[Path, Any], Seconds]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        scores: Tensor = self.head(self.layers(self.words(text), mask=mask, is_causal=True))
        return scores.flatten(0, 1)


def texts(length: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    made = [torch.randint(0, WORDS, (1, length + 1), generator=draw) for _ in range(8)]
    return [(text[:, :-1], text[:, 1:].flatten()) for text in made * 8]


class Window(Callback, Seconds):
    """The seconds of the 50 steps, in whose beginning a save is asked for, and how long the loop stood still for it."""

    order = Order.REPORT

    def __init__(self, ask: Callable[[Any], None] | None) -> None:
        self.ask = ask

    def after_iter(self, run: Any) -> None:
        done = run.clock.batches
        if done == WARM:
            self.begun = time.perf_counter()
        elif done == WARM + STEPS:
            self.seconds = time.perf_counter() - self.begun
        elif done == WARM + SAVE_AT and self.ask is not None:
            self.asked = time.perf_counter()
            self.ask(run)

    def before_fetch(self, run: Any) -> None:
        if run.clock.batches == WARM + SAVE_AT and self.ask is not None:
            self.stalled = time.perf_counter() - self.asked


def trainer(*callbacks: Callback) -> Trainer:
    torch.manual_seed(0)
    model = Decoder()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Trainer(model, adam, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def played(ask: Callable[[Any], None] | None, data: Any, *more: Callback) -> Window:
    window = Window(ask)
    trainer(window, *more).fit(data, steps=WARM + STEPS)
    return window


class Work:
    """The processor time that the thread which writes takes for each checkpoint, and how many bytes that has."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.sizes: list[int] = []

    @classmethod
    def noted(cls) -> Work:
        """Notes every write from here on."""
        work, plain = cls(), Writer._write

        def write_and_note(writer: Writer, name: str, size: int, *others: Any) -> None:
            start = time.thread_time()
            plain(writer, name, size, *others)
            work.seconds.append(time.thread_time() - start)
            work.sizes.append(size)

        Writer._write = write_and_note  # type: ignore[method-assign]
        return work


def nothing(folder: Path, data: Any) -> Window:
    return played(None, data)


def background(folder: Path, data: Any) -> Window:
    return played(lambda run: run.save(), data, Checkpoint(None, final=False, to=folder))


def in_the_loop(folder: Path, data: Any) -> Window:
    def save(run: Any) -> None:
        torch.save({"model": run.module.state_dict(), "optimizer": run.optimizer.state_dict()}, folder / "all.pt")

    return played(save, data)


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {"Checkpoint in the background": background, "torch.save in the loop": in_the_loop}
    if has_lightning():
        found["ModelCheckpoint of Lightning"] = partial(model_checkpoint, Decoder)
    return found


def calibrated(least: float) -> tuple[int, float]:
    """A length of text with which a step takes at least so many seconds, and how many."""
    length = 96
    while True:
        made = trainer()
        made.fit(texts(length), steps=1)
        start = time.perf_counter()
        made.fit(texts(length), steps=3)
        seconds = (time.perf_counter() - start) / 3
        if seconds >= least:
            return length, seconds
        length = int(length * max(1.2, 1.1 * least / seconds))


def resumed(folder: Path, data: Any) -> dict[str, float]:
    """Seconds from the call of ``fit`` to the first step, and those that reading alone takes; the median of three."""

    class First(Callback):
        def before_forward(self, run: Any) -> None:
            self.forward = getattr(self, "forward", time.perf_counter())

    begun, reading = [], []
    for _ in range(3):
        first = First()
        made = trainer(first, Checkpoint(None, final=False, to=folder))
        start = time.perf_counter()
        made.fit(data, steps=WARM + SAVE_AT + 1, resume="auto")
        begun.append(first.forward - start)
        start = time.perf_counter()
        Shelf(folder).read("last")
        reading.append(time.perf_counter() - start)
    return {"to_first_step_s": statistics.median(begun), "reading_s": statistics.median(reading)}


def measured(rounds: int, data: Any, root: Path) -> dict[str, dict[str, Any]]:
    """Every case once in a round, in shuffled order, between two trainings without a save."""
    order, all_cases = random.Random(0), cases()
    rows: dict[str, dict[str, Any]] = {name: {"ratios": [], "beyond": [], "waits": []} for name in all_cases}
    for number in range(rounds):
        names = list(all_cases)
        order.shuffle(names)
        before = nothing(root, data).seconds
        windows = {}
        for name in names:
            folder = root / f"{number}-{name}"
            folder.mkdir()
            windows[name] = all_cases[name](folder, data)
        plain = (before + nothing(root, data).seconds) / 2
        for name, window in windows.items():
            rows[name]["ratios"].append(window.seconds / plain)
            rows[name]["beyond"].append((window.seconds - window.stalled) / plain)
            rows[name]["waits"].append(window.stalled)
    return rows


def summary(row: dict[str, Any]) -> dict[str, Any]:
    medians = {"ratio": "ratios", "beyond_the_wait": "beyond", "wait_s": "waits"}
    return {**{name: statistics.median(row[of]) for name, of in medians.items()}, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one round")
    rounds = 1 if (options := parser.parse_args()).short else options.rounds
    torch.set_num_threads(1)
    length, seconds = calibrated(0.3)
    data = texts(length)
    work = Work.noted()
    with tempfile.TemporaryDirectory() as name:
        rows = measured(rounds, data, Path(name))
        resume = resumed(Path(name) / "0-Checkpoint in the background", data)
    write(
        "checkpoint",
        {
            "command": f"python benchmarks/checkpoint.py --rounds {rounds}",
            "parameters": sum(parameter.numel() for parameter in Decoder().parameters()),
            "step_s": seconds,
            "steps": STEPS,
            "rounds": rounds,
            "cases": {name: summary(row) for name, row in rows.items()},
            "writer_cpu_s": statistics.median(work.seconds),
            "written_mb": statistics.median(work.sizes) / 1e6,
            "resume": resume,
        },
    )


if __name__ == "__main__":
    main()
