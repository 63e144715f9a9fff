"""What is changed between two steps is noticed by recorded ones: compiled steps, without the compiler itself."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from cadenza import Callback, MainCallback, Run, Trainer
from cadenza.callbacks import EMA, Accumulate, GradientClip
from cadenza.execution import executor
from cadenza.execution.recorded import compiled, region


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compile_graph", lambda graph, inputs: graph)
    monkeypatch.setitem(executor.WARM_UPS, "compiled", (1, 1))


class Model(nn.Module):
    """Reads what a user may change: a buffer, a tensor that is none, tensors and numbers in a list, a function."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.act = nn.Linear(6, 8), nn.Linear(8, 3), nn.Tanh()
        self.register_buffer("mask", torch.ones(3))
        self.scale, self.factors, self.squash = torch.ones(3), [torch.ones(3), 1.0], torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        made = self.squash(self.act(self.first(x)))
        return self.last(made) * self.mask * self.scale * self.factors[0] * self.factors[1]


ADAM: dict[str, Any] = {"lr": 0.05}


def batches() -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw)) for _ in range(5)]


def trained(
    mode: str,
    *callbacks: Callback,
    module: nn.Module | None = None,
    change: Callable[[Run], None] | None = None,
    at: str = "before_train_epoch",
    **options: Any,
) -> Trainer:
    module = module or Model()
    adam = torch.optim.Adam(module.parameters(), **(options or ADAM))
    trainer = Trainer(module, adam, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", execution=mode, seed=3)
    if change is not None:
        trainer.on(at)(change)
    trainer.fit(batches(), epochs=2)
    return trainer


def same(make: Callable[[str], Trainer]) -> None:
    found = []
    for mode in ("compiled", "eager"):
        trainer = make(mode)
        averages = [callback.average for callback in trainer.callbacks if isinstance(callback, EMA)]
        found.append([trainer.model.state_dict(), *averages])
    for one, other in zip(*found, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5, msg=name)


def values(run: Run) -> Tensor:
    """Others in each epoch and in each iteration."""
    return 1 + torch.arange(3.0) * (run.epoch + run.clock.batches % 3)


def put(name: str) -> Callable[[Run], None]:
    return lambda run: setattr(run.module, name, values(run))


def put_into_list(place: int) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        run.module.factors[place] = values(run) if place == 0 else 1.0 + run.epoch

    return change


BETWEEN_EPOCHS: dict[str, Callable[[Run], None]] = {
    "a buffer": put("mask"),
    "a tensor": put("scale"),
    "a tensor in a list": put_into_list(0),
    "a number in a list": put_into_list(1),
    "a function": lambda run: setattr(run.module, "squash", (torch.tanh, torch.sin)[run.epoch]),
    "a module": lambda run: setattr(run.module, "act", (nn.Tanh(), nn.Sigmoid())[run.epoch]),
    "a hook": lambda run: run.module.act.register_forward_hook(lambda module, given, made: made * 2) and None,
    "weights of classes": lambda run: setattr(run.criterion, "weight", values(run)),
    "an average of Adam": lambda run: (
        [state.update(exp_avg=torch.zeros_like(state["exp_avg"])) for state in run.optimizer.state.values()] and None
    ),
}


def some(names: Any, quick: tuple[str, ...]) -> list[Any]:
    """All of them, of which those that are not ``quick`` look at the same from another side."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("what", some(BETWEEN_EPOCHS, ("a number in a list", "an average of Adam")))
def test_what_is_changed_between_epochs(what: str) -> None:
    same(lambda mode: trained(mode, change=BETWEEN_EPOCHS[what]))


def forget(run: Run) -> None:
    if run.clock.batches in (3, 7):
        run.optimizer.state.clear()


def forget_all(run: Run) -> None:
    if run.clock.batches in (3, 7):
        run.optimizer.state = defaultdict(dict)


def restore(run: Run) -> None:
    """As somebody does who tries something out: other dicts, other tensors."""
    if run.clock.batches in (3, 7):
        old = {
            parameter: {name: value * 0.5 if name != "step" else value.clone() for name, value in state.items()}
            for parameter, state in run.optimizer.state.items()
        }
        run.optimizer.state.clear()
        run.optimizer.state.update(old)


def set_rate(run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] = torch.tensor(0.01 * (1 + run.clock.batches % 3))


def set_kind_of_rate(run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] = torch.tensor(0.05) if run.clock.batches % 5 < 3 else 0.01


def other_weight(run: Run) -> None:
    if run.clock.batches in (3, 7):
        run.module.last.weight = nn.Parameter(run.module.last.weight.detach() * 0.5)


def other_layer(run: Run) -> None:
    if run.clock.batches in (3, 7):
        run.module.act = (nn.Sigmoid(), nn.ReLU())[run.epoch]


def other_criterion(run: Run) -> None:
    if run.clock.batches in (3, 7):
        run.criterion = nn.CrossEntropyLoss(label_smoothing=0.1 * run.clock.batches)


def other_model(run: Run) -> None:
    if run.clock.batches in (3, 7):
        run.model = copy.deepcopy(run.model)


BETWEEN_STEPS: dict[str, Callable[[Run], None]] = {
    "a buffer": put("mask"),
    "a parameter": other_weight,
    "a layer": other_layer,
    "the criterion": other_criterion,
    "the model": other_model,
    "weights of classes": lambda run: setattr(run.criterion, "weight", values(run)),
    "state that is cleared": forget,
    "state that is made anew": forget_all,
    "state that is put back": restore,
    "a rate that is a tensor": set_rate,
    "a rate that becomes a tensor": set_kind_of_rate,
}


QUICK = ("a parameter", "a layer", "weights of classes", "state that is put back", "a rate that becomes a tensor")


@pytest.mark.parametrize("what", some(BETWEEN_STEPS, QUICK))
def test_what_is_changed_between_steps(what: str) -> None:
    same(lambda mode: trained(mode, change=BETWEEN_STEPS[what], at="before_train_iter"))


CALLBACKS: dict[str, tuple[Callable[[], Callback], Callable[[Callback, Run], Any]]] = {
    "decay": (lambda: EMA(0.9), lambda one, run: setattr(one, "decay", 0.9 - 0.01 * (run.clock.batches // 4))),
    "norm": (lambda: GradientClip(norm=0.1), lambda one, run: setattr(one, "norm", 0.1 * (1 + run.clock.batches // 4))),
    "average": (
        lambda: EMA(0.9),
        lambda one, run: (
            run.clock.batches == 7
            and one.load_state_dict({"average": {name: 0 * value for name, value in one.average.items()}})
        ),  # type: ignore[attr-defined]
    ),
    "batches a step": (
        lambda: Accumulate(2),
        lambda one, run: run.batch_idx == 0 and one.adapt(2 + run.epoch % 2 * 3, scale=1),  # type: ignore[attr-defined]
    ),
}


@pytest.mark.parametrize("what", some(CALLBACKS, ("decay",)))
def test_what_is_changed_in_a_callback(what: str) -> None:
    make, change = CALLBACKS[what]

    def train(mode: str) -> Trainer:
        callback = make()
        return trained(mode, callback, change=lambda run: change(callback, run) and None, at="before_train_iter")

    same(train)


def test_nothing_is_recorded_anew_where_nothing_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[int] = []
    record = compiled.TraceRecorder.record
    monkeypatch.setattr(
        compiled.TraceRecorder,
        "record",
        lambda self, run, *more: recorded.append(run.epoch) or record(self, run, *more),
    )
    trained("compiled", EMA(0.9), GradientClip(norm=0.5))
    assert recorded == [0]


@pytest.mark.long
def test_steps_that_all_differ_are_played_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(run: Run) -> None:
        run.optimizer.param_groups[0]["weight_decay"] = 1e-3 / (1 + run.clock.batches)

    monkeypatch.setattr(region, "_KINDS", 5)
    trainer = trained("compiled", change=other, at="before_train_iter")
    assert "steps differ in what the host holds for them: 5 kinds of steps so far" in trainer.explain()
    same(lambda mode: trained(mode, change=other, at="before_train_iter"))


# What cannot be recorded ----------------------------------------------------------------------------------------------


class ReadsList(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if x.mean(0).tolist()[0] > 0 else 1)


class ReadsArray(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(numpy.asarray(x.detach()).mean())


class SplitsByValues(Model):
    def forward(self, x: Tensor) -> Tensor:
        first, second = x.tensor_split((x[:, :1] > 0).sum(0))
        return super().forward(torch.cat([second, first]))


@pytest.mark.parametrize(
    "kind", [ReadsList, *(pytest.param(k, marks=pytest.mark.long) for k in (ReadsArray, SplitsByValues))]
)
def test_values_that_are_read_without_torch_knowing_of_it(kind: type[nn.Module]) -> None:
    with pytest.raises(RuntimeError, match=r"reads the value of a tensor on the host.* at .*test_noticed.py:\d+"):
        trained("compiled", module=kind())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(torch.jit.script, marks=pytest.mark.long, id="script"),
        pytest.param(lambda inner: torch.jit.trace(inner, torch.zeros(8, 6)), id="trace"),
    ],
)
def test_scripted_and_traced_models(make: Callable[[nn.Module], nn.Module]) -> None:
    def module() -> nn.Module:
        torch.manual_seed(0)
        return make(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))

    same(lambda mode: trained(mode, module=module()))


class Neighbours(Model):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("neighbours", torch.eye(6).to_sparse(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.sparse.mm(self.neighbours, x.t()).t())


def test_a_sparse_buffer_is_a_reason_and_no_error() -> None:
    with pytest.raises(RuntimeError, match="not possible here: 'neighbours' of Neighbours is sparse"):
        trained("compiled", module=Neighbours())


@dataclass(init=False)
class Answer:
    logits: Tensor

    def __init__(self, given: Tensor) -> None:
        self.logits = given


class Opaque:
    def __init__(self, given: Tensor) -> None:
        self.parts = [{"logits": given}]


class Wraps(Model):
    """Puts what it makes into something else."""

    def __init__(self, kind: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return self.kind(super().forward(x))


class OfLogits(MainCallback):
    capturable = True

    def on_iter_loss(self, run: Run) -> None:
        given = run.output.parts[0] if isinstance(run.output, Opaque) else run.output
        logits = given.logits if isinstance(given, Answer) else given["logits"]
        run.loss = nn.functional.cross_entropy(logits, run.batch[1])


@pytest.mark.parametrize("kind", [Answer, lambda made: defaultdict(list, logits=made)], ids=["dataclass", "mapping"])
def test_outputs_of_any_kind_are_those_of_their_own_step(kind: Callable[[Tensor], Any]) -> None:
    found: list[list[Any]] = [[], []]
    for mode, seen in zip(("compiled", "eager"), found, strict=True):
        trained(
            mode,
            OfLogits(),
            module=Wraps(kind),
            change=lambda run, seen=seen: seen.append(run.output),
            at="after_train_iter",
        )  # type: ignore[misc]
    for one, other in zip(*found, strict=True):
        assert type(one) is type(other)
        parts = [made.logits if isinstance(made, Answer) else made["logits"] for made in (one, other)]
        torch.testing.assert_close(*parts, rtol=1e-4, atol=1e-5)


def test_an_output_whose_tensors_nobody_finds_is_refused() -> None:
    with pytest.raises(RuntimeError, match="the output is or holds a Opaque, in which tensors cannot be followed"):
        trained("compiled", OfLogits(), module=Wraps(Opaque))


class DrawsItself(Model):
    """Leaves out its mask at random, by a generator of its own."""

    def __init__(self, draws: Any) -> None:
        super().__init__()
        self.draws = draws

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.draws, torch.Generator):
            return super().forward(x) + torch.rand(3, generator=self.draws)
        return super().forward(x) * (1 + self.draws.random())


def philox() -> Any:
    return numpy.random.Generator(numpy.random.Philox(3))  # whose state holds arrays


GENERATORS: dict[str, Callable[[], Any]] = {
    "torch": torch.Generator,
    "python": lambda: random.Random(3),
    "numpy": lambda: numpy.random.default_rng(3),
    "numpy, philox": philox,
    "numpy, old": lambda: numpy.random.RandomState(3),
}


@pytest.mark.parametrize("which", some(GENERATORS, ("numpy, philox",)))
def test_draws_from_a_generator_of_the_model_are_refused_and_undone(which: str) -> None:
    """The one step that was played before has drawn once, and nothing else has."""
    used, expected = DrawsItself(GENERATORS[which]()), DrawsItself(GENERATORS[which]())
    with pytest.raises(RuntimeError, match="draws from the generator in its attribute 'draws'"):
        trained("compiled", module=used)
    expected(torch.zeros(1, 6))
    left = [
        torch.rand(1, generator=one.draws).item() if which == "torch" else one.draws.random()
        for one in (used, expected)
    ]
    assert left[0] == left[1]


@pytest.mark.long
def test_a_generator_of_the_model_that_is_not_used_does_not_matter() -> None:
    class Holds(Model):
        def __init__(self) -> None:
            super().__init__()
            self.draws = random.SystemRandom(), random.Random(3)
            self.other, self.system = random.Random(3), random.SystemRandom()

    same(lambda mode: trained(mode, module=Holds()))
