"""On a CUDA device: captured steps of two processes are bit-equal to the same steps played one by one.

Both processes share the device and talk through gloo, since nccl wants a device for each.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Run, Trainer
from cadenza.callbacks import EMA, Accumulate, Checkpoint, CosineSchedule, GradientClip, Precision
from cadenza.distributed.failures.join import part
from cadenza.distributed.failures.rank_errors import RankFailed
from cadenza.execution.recorded import cuda_graph

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(300),
]
SAMPLES = 32 * 40 + 11
"""So the last batches of the two processes differ in size."""


class Looks(Callback):
    """Plays inside the step, and so opens it."""

    def after_forward(self, run: Run) -> None: ...


class StopsOne(Callback):
    """Rank 1 wants to stop, at a batch that rank 0 does not know."""

    def after_train_iter(self, run: Run) -> None:
        if run.rank == 1 and run.clock.batches == 50:
            run.stop("enough")


class FailsOne(Callback):
    """Rank 1 fails when steps are played from their recordings."""

    def after_train_iter(self, run: Run) -> None:
        if run.rank == 1 and run.clock.batches == 70:
            raise ValueError("no luck")


class Talks(Callback):
    """Says that it does nothing but device work, and talks to the other processes."""

    capturable = True

    def after_backward(self, run: Run) -> None:
        dist.all_reduce(torch.zeros(1))


class FailsInCapture(Callback):
    """Fails at one point while a step is recorded, on one process or on both."""

    capturable = True

    def __init__(self, point: str, ranks: tuple[int, ...]) -> None:
        self.point, self.failing = point, ranks

    def plays(self) -> dict[str, Any]:
        return {self.point: self.fail}

    def fail(self, run: Run) -> None:
        if run.rank in self.failing and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("it fails here")


class StopsBoth(Callback):
    """An interruption of both processes, in the midst of an epoch and of a window."""

    def after_train_iter(self, run: Run) -> None:
        if run.clock.batches == 70:
            raise InterruptedError


class Skips(Callback):
    asks = frozenset({"skip_step"})
    capturable = True

    def before_step(self, run: Run) -> None: ...


class Twice(Callback):
    """Computes the gradients of each batch a second time."""

    capturable = True

    def before_step(self, run: Run) -> None:
        for parameter in run.module.parameters():
            parameter.grad = None
        run.recompute()


class InTurns(Callback):
    """Trains the first layer in every second epoch only."""

    def before_train_epoch(self, run: Run) -> None:
        run.module[0].requires_grad_(run.epoch % 2 == 0)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))


def large() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 1500), nn.ReLU(), nn.Linear(1500, 6000), nn.ReLU(), nn.Linear(6000, 4))


def reader() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(8 * 12, 4))


CASES: dict[str, Callable[[], tuple[nn.Module, list[Callback]]]] = {
    "plain": lambda: (plain(), []),
    "normed": lambda: (normed(), []),
    "clip, average, schedule": lambda: (normed(), [GradientClip(norm=0.5), EMA(0.9), CosineSchedule()]),
    "accumulation": lambda: (normed(), [Accumulate(3), GradientClip(norm=0.5)]),
    "bf16": lambda: (plain(), [Precision("bf16")]),
    "layers in turns": lambda: (plain(), [InTurns()]),
    "stopped by one": lambda: (plain(), [StopsOne()]),
}


def data() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(SAMPLES, 12, generator=draw), torch.randint(0, 4, (SAMPLES,), generator=draw)
    return DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)


def texts() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(1)
    tokens, targets = (
        torch.randint(0, 50, (SAMPLES, 12), generator=draw),
        torch.randint(0, 4, (SAMPLES,), generator=draw),
    )
    return DataLoader(TensorDataset(tokens, targets), batch_size=16, shuffle=True)


class Divided:
    """Gives each process its own part, and says nothing of how large the batches are."""

    divides_over_ranks = True

    def __iter__(self) -> Iterator[Any]:
        return ((inputs, targets) for inputs, targets in data())

    def __len__(self) -> int:
        return len(data())


def trained(
    execution: Any, module: nn.Module, callbacks: list[Callback], resume: str | None = None, loader: Any = None
) -> dict[str, Any]:
    plays, play = [0], cuda_graph.Graph.play

    def counted(self: Any, run: Run) -> bool:
        plays[0] += 1
        return play(self, run)

    adam = torch.optim.AdamW(module.parameters(), lr=0.01)
    trainer = Trainer(
        module,
        adam,
        nn.CrossEntropyLoss(),
        callbacks=callbacks,
        device="cuda",
        execution=execution,
        strategy="ddp",
        seed=3,
    )
    cuda_graph.Graph.play = counted  # type: ignore[method-assign]
    try:
        trainer.fit(data() if loader is None else loader, epochs=3, resume=resume)
    finally:
        cuda_graph.Graph.play = play  # type: ignore[method-assign]
    weights = {name: value.cpu() for name, value in trainer.model.state_dict().items()}
    optimizer = [value.cpu() for state in adam.state_dict()["state"].values() for value in state.values()]
    clock = trainer.clock.batches, trainer.clock.steps, trainer.clock.samples
    return {
        "weights": weights,
        "optimizer": optimizer,
        "clock": clock,
        "losses": trainer.history["train/loss"],
        "plays": plays[0],
        "words": str(trainer.explain()),
    }


def both(name: str) -> list[dict[str, Any]]:
    captured = trained("captured", *CASES[name]())
    module, callbacks = CASES[name]()
    return [captured, trained("auto", module, [*callbacks, Looks()])]


def words(execution: Any, module: nn.Module, callbacks: list[Callback]) -> list[dict[str, Any]]:
    return [trained(execution, module, callbacks)]


def resumed() -> list[dict[str, Any]]:
    """An uninterrupted training, and one that was interrupted and goes on."""

    def train(name: str, *more: Callback) -> dict[str, Any]:
        saves = Checkpoint(every="7 steps", to=Path(os.environ["RANKS_FOLDER"]) / name)
        module, callbacks = CASES["accumulation"]()
        return trained("captured", module, [*callbacks, EMA(0.9), saves, *more], resume="auto")

    whole = train("whole")
    with suppress(InterruptedError, RankFailed):
        train("parts", StopsBoth())
    meet("resumed")
    return [whole, train("parts")]


FAILURES = [("after_forward", (0, 1)), ("before_backward", (1,)), ("after_backward", (0, 1)), ("before_step", (0,))]
FAILURES += [("after_loss", (1,)), ("after_step", (0, 1)), ("after_zero_grad", (1,))]
"""In the first of the two graphs, and after the message in the second; on both processes, and on one alone."""


def half_way(point: str, ranks: tuple[int, ...]) -> list[dict[str, Any]]:
    parts = [Accumulate(2), GradientClip(norm=0.5), EMA(0.9)]
    return [
        trained("auto", normed(), [*parts, FailsInCapture(point, ranks)]),
        trained("auto", normed(), [Accumulate(2), GradientClip(norm=0.5), EMA(0.9), Looks()]),
    ]


SCENARIOS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    **{name: (lambda name=name: both(name)) for name in CASES},  # type: ignore[misc]
    **{f"fails at {at}": (lambda at=at, ranks=ranks: half_way(at, ranks)) for at, ranks in FAILURES},  # type: ignore[misc]
    "resumed": resumed,
    "large": lambda: words("auto", large(), []),
    "skips": lambda: words("auto", plain(), [Skips()]),
    "synced norms": lambda: words("auto", nn.SyncBatchNorm.convert_sync_batchnorm(normed()), []),
    "twice": lambda: words("auto", plain(), [Twice()]),
    "fails": lambda: words("captured", plain(), [FailsOne()]),
    "talks": lambda: words("auto", plain(), [Talks()]),
    "tokens": lambda: [trained("auto", reader(), [Accumulate(2, weight="tokens")], loader=texts())],
    "unknown sizes": lambda: [trained("auto", plain(), [], loader=Divided())],
    "weights": lambda: words("auto", plain(), [Accumulate(2, weight=lambda run: len(run.targets))]),
}


def meet(name: str) -> None:
    """A process group of its own for each training: one that failed leaves its group broken."""
    part()
    meeting = f"file://{os.environ['RANKS_FOLDER']}/meeting of {name}"
    dist.init_process_group("gloo", init_method=meeting, rank=int(os.environ["RANK"]), world_size=2)


def work(rank: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", RANKS_FOLDER=folder)
    torch.use_deterministic_algorithms(True)
    found: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        meet(f"all for {name}")
        try:
            found[name] = scenario()
        except Exception as error:
            found[name] = "".join(traceback.format_exception(error))
    part()
    torch.save(found, f"{folder}/found-{rank}")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=2)  # type: ignore[no-untyped-call]
    return [torch.load(Path(folder) / f"found-{rank}") for rank in range(2)]


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two trainings went the same way and ended in the same bits."""
    assert one["clock"] == other["clock"]
    assert one["losses"] == other["losses"]
    assert one["weights"].keys() == other["weights"].keys()
    for key, value in one["weights"].items():
        assert torch.equal(value, other["weights"][key]), key
    for mine, theirs in zip(one["optimizer"], other["optimizer"], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", CASES)
def test_captured_equals_opened(answers: list[dict[str, Any]], name: str) -> None:
    for rank in range(2):
        assert not isinstance(answers[rank][name], str), answers[rank][name]
        captured, opened = answers[rank][name]
        assert captured["plays"] > 60 if name != "stopped by one" else captured["plays"] > 30
        assert opened["plays"] == 0
        assert "in two parts, with one message of gradients between them" in captured["words"]
        same(captured, opened)


@pytest.mark.parametrize(("point", "ranks"), FAILURES)
def test_a_capture_that_fails_half_way_changes_nothing(
    answers: list[dict[str, Any]], point: str, ranks: tuple[int, ...]
) -> None:
    for rank in range(2):
        found = answers[rank][f"fails at {point}"]
        assert not isinstance(found, str), found
        failed, opened = found
        assert failed["plays"] == 0 if rank in ranks else failed["plays"] > 60
        assert ("it fails here" in failed["words"]) is (rank in ranks), failed["words"]
        same(failed, opened)


@pytest.mark.parametrize("name", CASES)
def test_both_processes_have_the_same_weights(answers: list[dict[str, Any]], name: str) -> None:
    here, there = (answers[rank][name][0]["weights"] for rank in range(2))
    assert all(torch.equal(value, there[key]) for key, value in here.items() if "running" not in key)


def test_who_is_asked_to_stop_by_one_stops_soon(answers: list[dict[str, Any]]) -> None:
    batches = {answers[rank]["stopped by one"][0]["clock"][0] for rank in range(2)}
    assert len(batches) == 1
    assert 50 <= batches.pop() < 70


def test_resumed_equals_uninterrupted(answers: list[dict[str, Any]]) -> None:
    for rank in range(2):
        assert not isinstance(answers[rank]["resumed"], str), answers[rank]["resumed"]
        whole, parts = answers[rank]["resumed"]
        assert parts["plays"] > 20
        same(whole, parts)


def test_nobody_waits_for_one_that_failed(answers: list[dict[str, Any]]) -> None:
    assert "ValueError: no luck" in answers[1]["fails"]
    assert "RankFailed" in answers[0]["fails"]
    assert "no luck" in answers[0]["fails"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("large", "put together while the backward runs"),
        ("skips", "Skips may skip, on which the processes agree"),
        ("synced norms", "SyncBatchNorm talks to the other processes"),
        ("twice", "gradients are put together more than once in a step"),
        ("talks", "talks to the other processes in its midst"),
        ("tokens", "talks to the other processes in its midst"),
        ("unknown sizes", "tell each other in each step how large their batches are"),
        ("weights", "Accumulate plays before_backward and is not capturable"),
    ],
)
def test_why_not_is_said_and_the_training_goes_on(answers: list[dict[str, Any]], name: str, why: str) -> None:
    for rank in range(2):
        assert not isinstance(answers[rank][name], str), answers[rank][name]
        (found,) = answers[rank][name]
        assert found["plays"] == 0
        assert why in found["words"], found["words"]
        assert found["clock"][0] == (243 if name == "unknown sizes" else 123)
