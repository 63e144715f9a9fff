"""On a CUDA device: captured steps are bit-equal to the same optimizer form played step by step."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cadenza import Callback, Execution, Run, Trainer, When
from cadenza.callbacks import (
    EMA,
    Accumulate,
    CosineSchedule,
    EarlyStopping,
    GradientClip,
    LRMonitor,
    NaNGuard,
    OneCycleSchedule,
    Precision,
)
from cadenza.execution.recorded import cuda_graph

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
}


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Looks(Callback):
    """Plays inside the step, and so opens it."""

    def after_forward(self, run: Run) -> None: ...


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)
    return nn.Sequential(*layers).to(CUDA)


def batches(count: int = 67, size: int = 16, last: int = 5) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    sizes = [size] * (count - 1) + [last]
    return [(torch.randn(n, 12, device=CUDA), torch.randint(0, 4, (n,), device=CUDA)) for n in sizes]


def made(
    execution: str | Execution,
    *callbacks: Callback,
    optimizer: str = "adamw",
    module: nn.Module | None = None,
    **more: Any,
) -> Trainer:
    module = module or model()
    made_optimizer = OPTIMIZERS[optimizer](module.parameters())
    if "scheduler" in more:
        more["scheduler"] = more["scheduler"](made_optimizer)
    criterion = nn.CrossEntropyLoss()
    return Trainer(
        module, made_optimizer, criterion, callbacks=callbacks, device=CUDA, execution=execution, seed=3, **more
    )


class Seen(Callback):
    """Keeps what there is to see after each iteration."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.rates: list[float] = []

    def after_train_iter(self, run: Run) -> None:
        self.losses.append(run.loss.detach())
        self.outputs.append(run.output.detach())
        self.rates.append(run.optimizer.param_groups[0]["lr"])


def played(trainer: Trainer, epochs: int = 3, data: Any = None) -> dict[str, Any]:
    seen = Seen()
    trainer.add(seen)
    trainer.fit(data or batches(), epochs=epochs)
    averages = [callback.average for callback in trainer.callbacks if isinstance(callback, EMA)]
    return {
        "weights": trainer.model.state_dict(),
        "optimizer": trainer._training.optimizers[0].state_dict(),
        "losses": seen.losses,
        "outputs": seen.outputs,
        "rates": seen.rates,
        "averages": averages,
        "rng": torch.cuda.get_rng_state(CUDA),
        "clock": (trainer.clock.batches, trainer.clock.steps, trainer.clock.epochs),
        "history": trainer.history["train/loss"],
    }


def same(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, Tensor):
        assert one.device == other.device, where
        assert torch.equal(one, other), f"{where}: {(one.double() - other.double()).abs().max()}"
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}/{index}")
    else:
        assert one == other, where


def compare(make: Callable[..., Trainer], mode: str | Execution = "captured", **more: Any) -> Trainer:
    """``make(execution, *watchers)`` captured, and opened by somebody who looks: the same to the last bit."""
    fused = mode.fused if isinstance(mode, Execution) else None
    captured, opened = make(mode), make(Execution("auto", fused=fused), Looks())
    same(played(captured, **more), played(opened, **more))
    assert "Looks plays after_forward" in opened.explain()
    assert "one by one" not in captured.explain(), captured.explain()
    return captured


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("fused", [None, False])
def test_optimizers_with_schedule_clip_and_average(optimizer: str, fused: bool | None) -> None:
    def make(mode: Any, *watchers: Callback) -> Trainer:
        parts = GradientClip(norm=0.5), EMA(0.9), CosineSchedule(), LRMonitor()
        return made(mode, *parts, *watchers, optimizer=optimizer)

    compare(make, Execution("captured", fused=fused))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_larger_model_whose_optimizer_is_stepped_in_parts(optimizer: str) -> None:
    def make(mode: Any, *watchers: Callback) -> Trainer:
        torch.manual_seed(0)
        parts = nn.Linear(12, 501), nn.ReLU(), nn.Linear(501, 777), nn.ReLU(), nn.Linear(777, 4)
        module = nn.Sequential(*parts).to(CUDA)
        return made(mode, CosineSchedule(), GradientClip(norm=0.5), *watchers, optimizer=optimizer, module=module)

    compare(make)


CALLBACKS: dict[str, Callable[[], list[Callback]]] = {
    "nothing": list,
    "accumulation": lambda: [Accumulate(3)],
    "accumulation, clip, average": lambda: [Accumulate(3), GradientClip(norm=0.5), EMA(0.9), CosineSchedule()],
    "dropped last window": lambda: [Accumulate(4, drop_last=True)],
    "bf16": lambda: [Precision("bf16"), GradientClip(value=0.1)],
    "nan guard": lambda: [NaNGuard(snapshot_every=None)],
    "sometimes": lambda: [When(EMA(0.9), every="2 steps"), EMA(0.5)],
    "one cycle": lambda: [OneCycleSchedule()],
}


@pytest.mark.parametrize("callbacks", CALLBACKS)
@pytest.mark.parametrize("optimizer", ["sgd with momentum", "adamw"])
def test_callbacks(callbacks: str, optimizer: str) -> None:
    def make(mode: Any, *watchers: Callback) -> Trainer:
        parts = CALLBACKS[callbacks]()
        for index, part in enumerate(parts):
            part.name = f"{part.name} {index}"
        return made(mode, *parts, *watchers, optimizer=optimizer)

    compare(make)


def test_schedulers_of_torch_per_step() -> None:
    def make(mode: Any, *watchers: Callback) -> Trainer:
        schedule: Any = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=300)  # noqa: E731
        return made(mode, *watchers, optimizer="adamw", scheduler=schedule, scheduler_every="step")

    compare(make)


def test_losses_and_outputs_are_copies() -> None:
    trainer = made("captured")
    result = played(trainer, epochs=1)
    assert len({float(loss) for loss in result["losses"]}) > 60
    assert not any(torch.equal(a, b) for a, b in zip(result["outputs"], result["outputs"][1:], strict=False))
    assert len({loss.data_ptr() for loss in result["losses"]}) == len(result["losses"])


def test_losses_that_nobody_reads_make_the_same_mean() -> None:
    """Of two shapes, in windows, over more steps than a page of losses holds; every 40th is read."""
    results = []
    for watchers in ((), (Looks(),)):
        trainer, read = made("auto", Accumulate(3), *watchers), list[Tensor]()

        @trainer.on("after_train_iter")
        def keep(run: Run, read: list[Tensor] = read) -> None:
            if run.clock.batches % 40 == 0:
                read.append(run.loss)

        trainer.fit(batches(700) + batches(150, size=7), epochs=2)
        results.append((trainer.history["train/loss"], read))
        assert watchers or "one by one" not in trainer.explain()
    same(*results)
    assert len({float(loss) for loss in results[0][1]}) == 42


@pytest.mark.parametrize("kind", ["a mask", "turned", "a number"])
def test_batches_of_other_kinds(kind: str) -> None:
    """Small tensors are copied in one call where that can be, others one by one."""

    class Model(nn.Linear):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return super().forward(batch["x"]) * batch["more"]

    def data() -> list[Any]:
        draw = torch.Generator().manual_seed(1)
        found = []
        for _ in range(60):
            more: dict[str, Any] = {
                "a mask": torch.rand(16, 1, generator=draw) > 0.3,
                "turned": torch.rand(4, 16, generator=draw).to(CUDA).t(),
                "a number": torch.rand((), generator=draw),
            }
            x, y = torch.randn(16, 12, generator=draw), torch.randint(0, 4, (16,), generator=draw)
            found.append(({"x": x.to(CUDA), "more": more[kind].to(CUDA)}, y.to(CUDA)))
        return found

    def make(mode: Any, *watchers: Callback) -> Trainer:
        torch.manual_seed(0)
        return made(mode, *watchers, module=Model(12, 4).to(CUDA))

    compare(make, data=data())


def test_a_device_that_lags_behind_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a capture begins, torch sets on the recording stream where random numbers start (before 2.13). A graph is
    not played before that is done, since a dropout in it would get other numbers."""
    begin, capture, done = torch.cuda.CUDAGraph.capture_begin, cuda_graph.GraphRecorder._capture, list[bool]()

    def late(self: Any, *args: Any, **more: Any) -> None:
        torch.cuda._sleep(100_000_000)
        begin(self, *args, **more)

    def watched(self: Any, *args: Any) -> Any:
        found = capture(self, *args)
        torch.cuda.current_stream(CUDA).synchronize()
        done.append(self.stream.query())
        return found

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", late)
    monkeypatch.setattr(cuda_graph.GraphRecorder, "_capture", watched)
    compare(lambda mode, *w: made(mode, Accumulate(3), *w))
    assert done == [True] * len(done)
    assert len(done) >= 3


def test_early_stop() -> None:
    class Stop(Callback):
        def after_train_iter(self, run: Run) -> None:
            if run.clock.steps == 100:
                run.stop()

    trainer = compare(lambda mode, *w: made(mode, Stop(), EarlyStopping("train/loss", patience=1), *w), epochs=9)
    assert trainer.clock.steps == 100


LITTER: list[Any] = []


class Litters(nn.Sequential):
    """Leaves a graph in a cycle in each of its forwards, and much for the collector to count."""

    def forward(self, inputs: Tensor) -> Tensor:
        if LITTER:
            cycle = [LITTER.pop()]
            cycle.append(cycle)
            del cycle
            [[] for _ in range(5000)]
        return super().forward(inputs)


def test_an_old_graph_is_not_collected_while_another_is_recorded() -> None:
    x = torch.zeros(3, device=CUDA)
    for _ in range(12):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
        LITTER.append(graph)
    del graph
    trainer = made("captured", module=Litters(*model()))
    trainer.fit(batches(20), epochs=1)
    assert trainer.clock.steps == 20
    assert gc.isenabled()


def test_a_callback_attached_in_the_middle_and_removed() -> None:
    class Attaches(Callback):
        def __init__(self, looks: Callback | None) -> None:
            self.looks = looks

        def after_train_iter(self, run: Run) -> None:
            if self.looks is not None and run.clock.batches == 50:
                trainer.add(self.looks)
            if self.looks is not None and run.clock.batches == 90:
                trainer.remove(self.looks)

    results = []
    for looks in (None, Looks()):
        trainer = made("captured", Attaches(looks), EMA(0.9))
        results.append(played(trainer))
    same(*results)


def test_requests_open_single_steps() -> None:
    class Asks(Callback):
        def before_train_iter(self, run: Run) -> None:
            if run.clock.batches % 10 == 3:
                run.skip_step()
            if run.clock.batches % 10 == 7:
                run.skip_batch()

    class Counts(Asks):
        def after_train_iter(self, run: Run) -> None: ...

    results = []
    for watchers in ((), (Looks(),)):
        trainer = made("auto", Asks(), *watchers)
        trainer.fit(batches(), epochs=3)
        results.append((trainer.model.state_dict(), trainer.clock.steps, trainer.history["train/loss"]))
    same(*results)


# State --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "sgd with momentum"])
def test_resumed_equals_uninterrupted(optimizer: str) -> None:
    def parts() -> tuple[Callback, ...]:
        return EMA(0.9), CosineSchedule(length="201 steps")

    data = batches()
    whole, first, second = (made("captured", *parts(), optimizer=optimizer) for _ in range(3))
    whole.fit(data, epochs=3)
    first.fit(data, epochs=1)
    carry_over(first, second)
    second.fit(data, epochs=2)
    same(whole.model.state_dict(), second.model.state_dict())
    same(whole._training.optimizers[0].state_dict()["state"], second._training.optimizers[0].state_dict()["state"])


def carry_over(first: Trainer, second: Trainer) -> None:
    """What a checkpoint does."""
    second.model.load_state_dict(first.model.state_dict())
    second._training.optimizers[0].load_state_dict(first._training.optimizers[0].state_dict())
    second.clock.load_state_dict(first.clock.state_dict())
    for one, other in zip(first.callbacks, second.callbacks, strict=True):
        other.load_state_dict(one.state_dict())
    second._training.seeded = True


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_of_an_optimizer_does_not_tell_the_mode(optimizer: str) -> None:
    states: list[dict[str, Any]] = []
    seen: dict[str, Any] = {}
    for mode in ("eager", "captured"):
        trainer = made(mode, optimizer=optimizer)
        trainer.on("after_train_epoch")(lambda run: seen.update(run.optimizer.state_dict()))
        trainer.fit(batches(), epochs=1)
        states += [dict(seen), trainer._training.optimizers[0].state_dict()]
    for state in states[1:]:
        assert state["param_groups"] == states[0]["param_groups"]
        for number, values in state["state"].items():
            for name, value in values.items():
                expected = states[0]["state"][number][name]
                if isinstance(value, Tensor):
                    assert (value.device, value.dtype, value.shape) == (expected.device, expected.dtype, expected.shape)
                    torch.testing.assert_close(value, expected, rtol=2e-2, atol=1e-3)


def test_a_loaded_state_is_taken_over_in_the_middle_of_a_run() -> None:
    kept: dict[str, Any] = {}

    def rewind(run: Run) -> None:
        if run.clock.steps == 20:
            kept["optimizer"] = {
                "state": {
                    k: {n: t.clone() for n, t in s.items()} for k, s in run.optimizer.state_dict()["state"].items()
                },
                "param_groups": run.optimizer.state_dict()["param_groups"],
            }
        if run.clock.steps == 40:
            run.optimizer.load_state_dict(kept["optimizer"])

    results = []
    for watchers in ((), (Looks(),)):
        trainer = made("auto", *watchers)
        trainer.on("after_train_iter")(rewind)
        results.append(played(trainer))
    same(*results)


def test_weight_decay_that_changes_is_noticed() -> None:
    def decay(run: Run) -> None:
        run.optimizer.param_groups[0]["weight_decay"] = 0.1 if run.epoch == 1 else 0.01

    results = []
    for watchers in ((), (Looks(),)):
        trainer = made("auto", *watchers)
        trainer.on("before_train_epoch")(decay)
        results.append(played(trainer))
    same(*results)


def test_freezing_and_eval_mode_are_noticed() -> None:
    def freeze(run: Run) -> None:
        run.module[0].requires_grad_(run.epoch != 1)
        run.module[1].train(run.epoch == 0)

    results = []
    for watchers in ((), (Looks(),)):
        trainer = made("auto", *watchers)
        trainer.on("before_train_epoch")(freeze)
        results.append(played(trainer))
    same(*results)


def reweigh(run: Run) -> None:
    if run.clock.batches in (50, 120):
        run.criterion.weight = 1.0 + torch.arange(4.0, device=CUDA) * run.clock.batches / 50


def forget(run: Run) -> None:
    if run.clock.batches in (50, 120):
        run.optimizer.state.clear()


def halve(run: Run) -> None:
    """Other tensors, in the dicts in which the old ones were."""
    if run.batch_idx == 0:
        for state in run.optimizer.state.values():
            state["exp_avg"] = state["exp_avg"] * 0.5


def rate_in_a_tensor(run: Run) -> None:
    if run.clock.batches in (50, 120):
        run.optimizer.param_groups[0]["lr"] = torch.tensor(run.clock.batches / 1e4, device=CUDA)


def other_decay(run: Run) -> None:
    next(one for one in run.callbacks if isinstance(one, EMA)).decay = 0.9 if run.clock.batches < 50 else 0.5


@pytest.mark.parametrize(
    "change", [reweigh, forget, halve, rate_in_a_tensor, other_decay], ids=lambda one: one.__name__
)
def test_what_is_changed_between_steps_is_noticed(change: Callable[[Run], None]) -> None:
    results = []
    for watchers in ((), (Looks(),)):
        trainer = made("auto", EMA(0.9), *watchers)
        trainer.on("before_train_iter")(change)
        results.append(played(trainer))
        assert watchers or "one by one" not in trainer.explain()
    same(*results)


# What cannot be captured --------------------------------------------------------------------------------------------


class Waits(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x if x.sum().item() < 1e9 else x * 2


class Synchronizes(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        torch.cuda.synchronize()
        return super().forward(x)


class Draws(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + random.random())


class Replaces(nn.Sequential):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return super().forward(x) / self.count


class Remembers(nn.Sequential):
    last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        result = x if self.last is None or len(self.last) != len(x) else x + 0.1 * self.last
        self.last = x.detach()
        return result


MODELS = {
    Waits: "waits for the device",
    Synchronizes: "waits for the device",
    Draws: "draws from random",
    Replaces: "replaces its 'count'",
    Remembers: "attribute 'last'",
}


@pytest.mark.parametrize("kind", MODELS)
def test_auto_says_why_not_and_trains(kind: type[nn.Module]) -> None:
    results = []
    for mode, watchers in (("auto", ()), ("auto", (Looks(),))):
        trainer = made(mode, *watchers, module=kind(*model()).to(CUDA))
        random.seed(0)
        results.append(played(trainer))
        if not watchers:
            assert MODELS[kind] in trainer.explain()
    same(*results)


@pytest.mark.parametrize("kind", MODELS)
def test_captured_is_refused(kind: type[nn.Module]) -> None:
    trainer = made("captured", module=kind(*model()).to(CUDA))
    with pytest.raises(RuntimeError, match="not possible here"):
        trainer.fit(batches(), epochs=1)


def test_fp16_and_callbacks_inside_are_refused_or_told() -> None:
    for callback in (lambda: Precision("fp16"), Looks):
        with pytest.raises(RuntimeError, match="not capturable"):
            made("captured", callback()).fit(batches(), epochs=1)
        made("auto", callback()).fit(batches(), epochs=1)


def test_dynamic_shapes() -> None:
    torch.manual_seed(0)
    sizes = torch.randint(4, 100, (300,)).tolist()
    data = [(torch.randn(n, 12, device=CUDA), torch.randint(0, 4, (n,), device=CUDA)) for n in sizes]
    results = []
    for watchers in ((), (Looks(),)):
        trainer = made("auto", *watchers)
        results.append(played(trainer, 1, data))
        assert watchers or "dynamic shapes" in trainer.explain()
    same(*results)


@pytest.mark.parametrize("shapes", [8, 2])
def test_several_shapes_are_captured_side_by_side(shapes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two that are kept, each of the three makes room for another and is recorded anew."""
    plays: dict[int, int] = {}
    play = cuda_graph.Graph.play

    def counted(self: Any, run: Run) -> bool:
        size = len(run.batch[0])
        plays[size] = plays.get(size, 0) + 1
        return play(self, run)

    monkeypatch.setattr(cuda_graph.Graph, "play", counted)
    torch.manual_seed(1)
    sizes = [16] * 30 + [9] * 30 + [5] * 30
    data = [(torch.randn(n, 12, device=CUDA), torch.randint(0, 4, (n,), device=CUDA)) for n in sizes]
    compare(lambda mode, *w: made(mode, EMA(0.9), *w), Execution("captured", shapes=shapes), data=data)
    assert plays.keys() == {16, 9, 5}
    assert min(plays.values()) > 50


class Fails(Callback):
    """Fails at one point, but only while a step is captured."""

    capturable = True

    def __init__(self, point: str) -> None:
        self.point = point

    def plays(self) -> dict[str, Any]:
        return {self.point: self.fail}

    def fail(self, run: Run) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("it fails here")


SPANS = ("forward", "loss", "backward", "step", "zero_grad")


@pytest.mark.parametrize("point", [f"{kind}_{span}" for span in SPANS for kind in ("before", "after")])
def test_a_capture_that_fails_half_way_changes_nothing(point: str) -> None:
    def parts() -> list[Callback]:
        return [Accumulate(2), GradientClip(norm=0.5), EMA(0.9)]

    trainer = made("auto", *parts(), Fails(point))
    expected = made("auto", *parts(), Looks())
    same(played(trainer), played(expected))
    assert "it fails here" in trainer.explain()


LATE: dict[str, Callable[[Run], Any]] = {
    "read": lambda run: float(run.loss.detach()),
    "synchronize": lambda run: torch.cuda.synchronize(),
    "unseen": lambda run: torch._C._cuda_synchronize(),
}


@pytest.mark.parametrize("late", LATE)
def test_a_wait_that_only_the_capture_meets_changes_nothing(late: str) -> None:
    class WaitsLate(Callback):
        capturable = True

        def after_step(self, run: Run) -> None:
            if torch.cuda.is_current_stream_capturing():
                LATE[late](run)

    trainer, expected = made("auto", WaitsLate()), made("auto", Looks())
    stream = torch.cuda.current_stream()
    same(played(trainer), played(expected))
    assert "one by one" in trainer.explain()
    assert torch.cuda.current_stream() == stream


def test_no_warning_of_torch_is_met(recwarn: pytest.WarningsRecorder) -> None:
    trainer = made(
        "captured", EMA(0.9), GradientClip(norm=1.0), scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1)
    )
    played(trainer)
    looks = Looks()
    trainer.add(looks)
    trainer._training.execution = Execution("auto")
    trainer.fit(batches(), epochs=1)
    assert [str(one.message) for one in recwarn] == []


def test_compiled_on_the_gpu() -> None:
    results = []
    for mode in ("compiled", "eager"):
        trainer = made(mode, GradientClip(norm=0.5), EMA(0.9), CosineSchedule())
        results.append(played(trainer, 1))
    for one, other in zip(results[0]["losses"], results[1]["losses"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


# Together with others -------------------------------------------------------------------------------------------------


class StopAt(Callback):
    """Ends a run as an interruption would, in the middle of an epoch and of a window."""

    def __init__(self, batches: int | None) -> None:
        self.batches = batches

    def after_train_iter(self, run: Run) -> None:
        if run.clock.batches == self.batches:
            raise InterruptedError


@pytest.mark.parametrize("first", ["captured", "eager"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd with momentum"])
def test_resumed_from_a_checkpoint(optimizer: str, first: str, tmp_path: Any) -> None:
    pytest.importorskip("safetensors")
    from cadenza.callbacks import Checkpoint

    torch.manual_seed(1)
    samples = torch.randn(700, 12), torch.randint(0, 4, (700,))

    def train(folder: Any, stop: int | None, mode: str) -> Trainer:
        parts = Accumulate(3), EMA(0.9), GradientClip(norm=0.5), CosineSchedule(), StopAt(stop)
        torch.manual_seed(5)
        trainer = made(mode, *parts, Checkpoint(every="10 steps", to=folder), optimizer=optimizer)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples), 16, shuffle=True)
        trainer.fit(loader, epochs=3, resume="auto")
        return trainer

    whole = train(tmp_path / "whole", None, "captured")
    with pytest.raises(InterruptedError):
        train(tmp_path / "parts", 70, first)
    resumed = train(tmp_path / "parts", None, "captured")
    assert resumed.clock.batches == whole.clock.batches == 132
    if first == "captured":
        same(whole.model.state_dict(), resumed.model.state_dict())
        same(whole._training.optimizers[0].state_dict(), resumed._training.optimizers[0].state_dict())
        same(whole.history["train/loss"], resumed.history["train/loss"])
    else:
        for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0.1, atol=0.1)  # a bias before BatchNorm is noise


class Recomputes(nn.Module):
    """Computes a layer with dropout a second time in the backward; one way of that wants gradients of the inputs."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.dropout, self.second = nn.Linear(12, 64), nn.Dropout(0.5), nn.Linear(64, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        def layer(given: Tensor) -> Tensor:
            return self.dropout(torch.relu(self.first(given)))

        inputs = inputs.requires_grad_() if self.reentrant else inputs
        return self.second(checkpoint(layer, inputs, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_that_is_computed_again_in_the_backward(reentrant: bool) -> None:
    results = []
    for mode, watchers in (("auto", ()), ("auto", (Looks(),))):
        torch.manual_seed(0)
        trainer = made(mode, *watchers, module=Recomputes(reentrant).to(CUDA))
        results.append(played(trainer))
    same(*results)


def test_a_loader_whose_batches_come_from_the_host() -> None:
    torch.manual_seed(1)
    samples = torch.randn(700, 12), torch.randint(0, 4, (700,))

    def data() -> Any:
        torch.manual_seed(5)
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples), 16, shuffle=True, pin_memory=True)

    results = []
    for mode, watchers in (("captured", ()), ("auto", (Looks(),))):
        trainer = made(mode, *watchers)
        results.append(played(trainer, data=data()))
    same(*results)


@pytest.fixture
def one_process(tmp_path: Any) -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1, device_id=CUDA)
    yield
    dist.destroy_process_group()


class Wraps(Callback):
    """Does what a strategy for many processes does."""

    def before_run(self, run: Run) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run.model = nn.parallel.DistributedDataParallel(run.module, device_ids=[0])
        torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # the opened step is not on the stream of Wraps
def test_distributed_data_parallel() -> None:
    results = []
    for mode, watchers in (("captured", ()), ("auto", (Looks(),))):
        trainer = made(mode, Wraps(), GradientClip(norm=0.5), EMA(0.9), *watchers)
        results.append(played(trainer))
    assert "one by one" not in made("captured", Wraps()).explain()
    same(*results)
