"""Compiled steps on the CPU: equal to eager ones up to rounding, and what happens when they cannot be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cadenza import Callback, Execution, MainCallback, Run, Trainer, When
from cadenza.callbacks import (
    EMA,
    Accumulate,
    CosineSchedule,
    GradientClip,
    LRMonitor,
    NaNGuard,
    OneCycleSchedule,
    Precision,
)
from cadenza.execution import executor
from cadenza.execution.recorded import compiled as recorded_compiled

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traced operations are played as they are, without the compiler, which takes seconds for each."""
    monkeypatch.setattr(recorded_compiled, "compile_graph", lambda graph, inputs: graph)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def batches(count: int = 10, size: int = 8, last: int = 3) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in [size] * (count - 1) + [last]]


def made(
    execution: str | Execution,
    *callbacks: Callback,
    optimizer: str = "adam",
    module: nn.Module | None = None,
    schedule: Any = None,
    **more: Any,
) -> Trainer:
    module = module or model()
    one = OPTIMIZERS[optimizer](module.parameters())
    scheduler = None if schedule is None else schedule(one)
    return Trainer(
        module,
        one,
        nn.CrossEntropyLoss(),
        scheduler=scheduler,
        callbacks=callbacks,
        device="cpu",
        execution=execution,
        seed=3,
        **more,
    )


class Seen(Callback):
    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def after_train_iter(self, run: Run) -> None:
        self.losses.append(run.loss.detach())
        self.outputs.append(run.output.detach())


def played(trainer: Trainer, epochs: int = 3) -> dict[str, Any]:
    seen = Seen()
    trainer.add(seen)
    trainer.fit(batches(), epochs=epochs)
    return {
        "weights": trainer.model.state_dict(),
        "losses": seen.losses,
        "outputs": seen.outputs,
        "averages": [callback.average for callback in trainer.callbacks if isinstance(callback, EMA)],
        "state": trainer._training.optimizers[0].state_dict(),
        "rng": torch.get_rng_state(),
        "clock": (trainer.clock.batches, trainer.clock.steps, trainer.clock.samples),
        "history": trainer.history["train/loss"],
        "rates": trainer.history["lr"] if "lr" in trainer.history else None,  # noqa: SIM401
    }


def close(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        torch.testing.assert_close(one, other, rtol=1e-3, atol=3e-5, msg=lambda text: f"{where}: {text}")
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            close(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            close(a, b, f"{where}/{index}")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-5), where
    else:
        assert one == other, where


# The real compiler --------------------------------------------------------------------------------------------------


def everything() -> list[Callback]:
    return [GradientClip(norm=0.5), EMA(0.9), CosineSchedule(), LRMonitor(every="1 step")]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer = made("compiled", *little(), module=small(), optimizer="sgd")
    result = {"trainer": trainer, **played(trainer)}
    torch.set_num_threads(threads)
    return result


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 3))


def little() -> list[Callback]:
    return [EMA(0.9), CosineSchedule(), LRMonitor(every="1 step")]


def test_a_compiled_training_equals_the_eager_one(compiled: dict[str, Any]) -> None:
    expected = played(made("eager", *little(), module=small(), optimizer="sgd"))
    for key in expected:
        close(compiled[key], expected[key], key)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adam", "sgd with momentum"])
def test_a_larger_compiled_training_equals_the_eager_one(optimizer: str) -> None:
    close(*[played(made(mode, *everything(), optimizer=optimizer)) for mode in ("compiled", "eager")])


class Attends(nn.Module):
    """The compiler lays out the random numbers of its last dropout in another way than the step itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.1, batch_first=True)
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.stack([x, x.flip(1)], 1)
        return self.last(self.dropout(self.attention(pairs, pairs, pairs, need_weights=False)[0])[:, 0])


@pytest.mark.long
def test_a_compiled_attention_draws_the_same_numbers() -> None:
    close(*(played(made(mode, optimizer="sgd", module=Attends())) for mode in ("compiled", "eager")))


def test_losses_that_a_callback_keeps_are_its_own(compiled: dict[str, Any]) -> None:
    losses = compiled["losses"]
    assert len({float(loss) for loss in losses}) == len(losses) == 30


def test_what_is_said_about_it(compiled: dict[str, Any]) -> None:
    text = compiled["trainer"].explain()
    assert "Execution: compiled" in text
    assert "forward to zero_grad is compiled as one region" in text
    assert "SGD is stepped in a form in which rate and momentum are tensors: other rounding" in text


def test_the_optimizer_is_the_users_again(compiled: dict[str, Any]) -> None:
    optimizer = compiled["trainer"]._training.optimizers[0]
    assert "step" not in vars(optimizer)
    assert isinstance(optimizer.param_groups[0]["lr"], float)


# What is traced -----------------------------------------------------------------------------------------------------

CALLBACKS: dict[str, Callable[[], list[Callback]]] = {
    "nothing": list,
    "clip, average, schedule": everything,
    "accumulation": lambda: [Accumulate(3)],
    "accumulation, clip": lambda: [Accumulate(3), GradientClip(norm=0.5)],
    "dropped last window": lambda: [Accumulate(4, drop_last=True)],
    "bf16": lambda: [Precision("bf16")],
    "nan guard": lambda: [NaNGuard(snapshot_every=None)],
    "sometimes": lambda: [When(EMA(0.9), every="2 steps")],
    "one cycle": lambda: [OneCycleSchedule()],
}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("callbacks", CALLBACKS)
@pytest.mark.parametrize("optimizer", ["sgd with momentum", "adam"])
def test_callbacks_are_part_of_it(callbacks: str, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(executor.WARM_UPS, "compiled", (1, 1))  # so that each place in a window is recorded, too
    results = [played(made(mode, *CALLBACKS[callbacks](), optimizer=optimizer)) for mode in ("compiled", "eager")]
    close(*results)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_compiled_steps_of_each_optimizer_are_close_to_eager_ones(optimizer: str) -> None:
    close(*[played(made(mode, optimizer=optimizer)) for mode in ("compiled", "eager")])


@pytest.mark.usefixtures("traced")
def test_schedulers_of_torch_per_iteration() -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)

    close(*[played(made(mode, schedule=schedule, scheduler_every="step")) for mode in ("compiled", "eager")])


@pytest.mark.usefixtures("traced")
def test_steps_are_really_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    trainer = made("compiled")
    forward = trainer.model.forward
    monkeypatch.setattr(trainer.model, "forward", lambda x: calls.append(len(x)) or forward(x))
    trainer.fit(batches(), epochs=3)
    assert calls.count(8) == 3  # played once, looked at once, traced once
    assert calls.count(3) == 3  # the ragged ones are too rare to be recorded


@pytest.mark.usefixtures("traced")
def test_a_callback_attached_in_the_middle_sees_every_step_from_then_on() -> None:
    class Looks(Callback):
        seen = 0

        def after_backward(self, run: Run) -> None:
            self.seen += all(p.grad is not None for p in run.module.parameters())

    def attach(run: Run) -> None:
        if run.clock.batches == 10:
            trainer.add(looks)
        if run.clock.batches == 20:
            trainer.remove(looks)

    looks, trainer = Looks(), made("compiled")
    trainer.on("after_train_iter")(attach)
    result = played(trainer)
    assert looks.seen == 10
    close(result, played(made("eager")))


@pytest.mark.usefixtures("traced")
def test_requests_open_single_steps() -> None:
    class Asks(Callback):
        def before_train_iter(self, run: Run) -> None:
            if run.batch_idx in (4, 6):
                run.skip_step()
            if run.batch_idx == 8:
                run.skip_batch()

    results = []
    for mode in ("compiled", "eager"):
        trainer = made(mode, Asks())
        trainer.fit(batches(), epochs=3)
        results.append((trainer.model.state_dict(), trainer.clock.steps, trainer.history["train/loss"]))
    assert results[0][1] == 21
    close(*results)


@pytest.mark.usefixtures("traced")
def test_resumed_equals_uninterrupted() -> None:
    data = batches()
    whole, first, second = (made("compiled", EMA(0.9)) for _ in range(3))
    whole.fit(data, epochs=2)
    first.fit(data, epochs=1)
    second.model.load_state_dict(first.model.state_dict())
    second._training.optimizers[0].load_state_dict(first._training.optimizers[0].state_dict())
    second.callbacks[0].load_state_dict(first.callbacks[0].state_dict())
    second.clock.load_state_dict(first.clock.state_dict())
    second._training.seeded = True
    second.fit(data, epochs=1)
    close(whole.model.state_dict(), second.model.state_dict())
    close(whole.callbacks[0].state_dict(), second.callbacks[0].state_dict())


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("modes", [("compiled", "compiled"), ("eager", "compiled"), ("compiled", "eager")])
def test_resumed_from_a_checkpoint(modes: tuple[str, str], tmp_path: Any) -> None:
    from cadenza.callbacks import Checkpoint

    class StopAt(Callback):
        def after_train_iter(self, run: Run) -> None:
            if run.clock.batches == stop:
                raise InterruptedError

    def train(folder: str, mode: str) -> Trainer:
        saved = Checkpoint(every="2 steps", to=tmp_path / folder)
        trainer = made(mode, Accumulate(3), EMA(0.9), CosineSchedule(), StopAt(), saved)
        trainer.fit(data, epochs=3, resume="auto")
        return trainer

    data, stop = batches(), 0
    whole, stop = train("whole", "eager"), 14
    with pytest.raises(InterruptedError):
        train("parts", modes[0])
    stop = 0
    resumed = train("parts", modes[1])
    assert resumed.clock.batches == 30
    close(whole.model.state_dict(), resumed.model.state_dict())
    close(whole._training.optimizers[0].state_dict(), resumed._training.optimizers[0].state_dict())
    close(whole.history["train/loss"], resumed.history["train/loss"])


# What fails leaves no trace -------------------------------------------------------------------------------------------


class Fails(Callback):
    """Fails at one point when it is played there for the ``nth`` time."""

    capturable = True

    def __init__(self, point: str, nth: int) -> None:
        self.point, self.nth, self.count = point, nth, 0

    def plays(self) -> dict[str, Any]:
        return {self.point: self.fail}

    def fail(self, run: Run) -> None:
        COUNT[0] += 1
        if COUNT[0] == self.nth:
            raise ArithmeticError("it fails here")


COUNT = [0]
SPANS = ("forward", "loss", "backward", "step", "zero_grad")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("nth", [2, 3], ids=["looking", "tracing"])
@pytest.mark.parametrize("point", [f"{kind}_{span}" for span in SPANS for kind in ("before", "after")])
def test_a_recording_that_fails_half_way_changes_nothing(point: str, nth: int) -> None:
    COUNT[0] = 0
    data = batches()[:2]
    trainer = made("compiled", Accumulate(1), EMA(0.9), GradientClip(norm=0.5), Fails(point, nth))
    expected = made("eager", Accumulate(1), EMA(0.9), GradientClip(norm=0.5))
    with pytest.raises(RuntimeError, match=r"not possible here: .*it fails here"):
        trainer.fit(data, epochs=1)
    state = torch.get_rng_state()
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    expected.fit(data[:1], epochs=1)
    assert torch.equal(state, torch.get_rng_state())
    assert trainer.clock.steps == 1
    for one, other in zip(trainer.model.state_dict().values(), expected.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    states = [t._training.optimizers[0].state_dict()["state"] for t in (trainer, expected)]
    for number, values in states[0].items():
        assert all(torch.equal(value, states[1][number][name]) for name, value in values.items())
    for name, average in expected.callbacks[1].average.items():  # type: ignore[attr-defined]
        assert torch.equal(average, trainer.callbacks[1].average[name])  # type: ignore[attr-defined]


def does_not_compile(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no compiler here")


def compiles_what_fails(graph: Any, inputs: Any) -> Any:
    def fail(*given: Tensor) -> Any:
        graph(*given)  # changes weights, states and averages, and draws random numbers
        raise TypeError("no compiler here")

    return fail


@pytest.mark.parametrize("compiler", [does_not_compile, compiles_what_fails])
def test_a_compiler_that_fails_is_told_after_a_step_that_counts(
    compiler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_compiled, "compile_graph", compiler)
    trainer, expected = made("compiled", EMA(0.9)), made("eager", EMA(0.9))
    with pytest.raises(RuntimeError, match=r"is not possible here.*no compiler here"):
        trainer.fit(batches(), epochs=1)
    drawn = torch.rand(3)
    assert trainer.clock.steps == 2
    expected.fit(batches()[:2], epochs=1)
    assert torch.equal(drawn, torch.rand(3))
    close(trainer.model.state_dict(), expected.model.state_dict())
    close(trainer.callbacks[0].average, expected.callbacks[0].average)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("traced")
def test_parts_of_a_batch_whose_elements_share_memory() -> None:
    data = [(x[:1].expand(8, 6), y[:1].expand(8)) for x, y in batches()]
    results = []
    for mode in ("compiled", "eager"):
        trainer = made(mode, module=small())
        trainer.fit(data, epochs=2)
        results.append(trainer.model.state_dict())
    close(*results)


class Reads(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x * 2 if x.sum().item() > 1e9 else x


class Draws(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + random.random())


class Remembers(nn.Sequential):
    last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last


class Replaces(nn.Sequential):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return super().forward(x)


class Appends(nn.Sequential):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.seen: dict[str, list[int]] = {"sizes": []}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["sizes"].append(len(x))
        return super().forward(x) * len(self.seen["sizes"])


class Recomputes(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class DrawsByValues(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.nn.functional.rrelu(x, training=True))


class Measures(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape[1:]
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Reads, r"reads the value of a tensor.* at .*test_compiled.py:\d+"),
        (Appends, "changes what is in its attribute 'seen'"),
        (Draws, "draws from random"),
        (Remembers, "attribute 'last'"),
        (Replaces, "replaces its 'count'"),
        (Recomputes, "sets a random number generator back"),
        (DrawsByValues, "draws random numbers by aten.rrelu_with_noise"),
    ],
)
@pytest.mark.usefixtures("traced")
def test_models_that_do_more_than_device_work_are_refused(kind: type[nn.Module], why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        made("compiled", module=kind(*model())).fit(batches(), epochs=1)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.memory = nn.LSTM(3, 8, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.memory(x.view(len(x), 2, 3))[0][:, -1])


@pytest.mark.usefixtures("traced")
def test_an_lstm_is_traced_in_plain_operations() -> None:
    close(*[played(made(mode, module=Remembering())) for mode in ("compiled", "eager")])
    assert torch.backends.mkldnn.enabled


@pytest.mark.usefixtures("traced")
def test_what_a_refused_recording_put_into_a_list_is_taken_out() -> None:
    module = Appends(*model())
    with pytest.raises(RuntimeError, match="seen"):
        made("compiled", module=module).fit(batches(), epochs=1)
    assert module.seen == {"sizes": [8]}


@pytest.mark.usefixtures("traced")
def test_an_attribute_that_is_the_same_in_each_step_may_be_set() -> None:
    close(*(played(made(mode, module=Measures(*model()))) for mode in ("compiled", "eager")))


@pytest.mark.usefixtures("traced")
def test_attributes_that_change_between_epochs_are_noticed() -> None:
    def less_dropout(run: Run) -> None:
        run.module[3].p = 0.2 / (1 + run.epoch)
        run.criterion.label_smoothing = 0.1 * run.epoch

    results = []
    for mode in ("compiled", "eager"):
        trainer = made(mode)
        trainer.on("before_train_epoch")(less_dropout)
        results.append(played(trainer))
    close(*results)


class Both(MainCallback):
    capturable = True

    def on_iter_forward(self, run: Run) -> None:
        run.output = run.model(run.batch[0]) + run.model(run.batch[1])


@pytest.mark.usefixtures("traced")
def test_parts_of_a_batch_that_are_one_tensor_at_first() -> None:
    data = [(x, x if number < 4 else x.flip(0), y) for number, (x, y) in enumerate(batches(last=8))]
    results = []
    for mode in ("compiled", "eager"):
        trainer = made(mode, Both(), module=small())
        trainer.fit(data, epochs=2)
        results.append(trainer.model.state_dict())
    close(*results)


@pytest.mark.usefixtures("traced")
def test_many_shapes_are_played_one_by_one() -> None:
    torch.manual_seed(0)
    data = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in range(2, 60)]
    results = []
    for mode in ("compiled", "eager"):
        trainer = made(mode)
        trainer.fit(data, epochs=1)
        results.append(trainer.model.state_dict())
        assert ("dynamic shapes" in trainer.explain()) is (mode == "compiled")
    close(*results)


def test_warm_ups_are_known_for_every_recorder() -> None:
    assert set(executor.WARM_UPS) == {"captured", "compiled"}
