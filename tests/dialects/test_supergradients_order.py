"""When SuperGradients' methods are called, with which context, and what callbacks may ask."""

from __future__ import annotations

from collections.abc import Callable as Function
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cadenza
from cadenza import Watch
from cadenza.dialects.supergradients import Callback, PhaseContext, Trainer
from cadenza.dialects.supergradients.context import FIELDS
from cadenza.dialects.supergradients.table import HOOKS
from cadenza.testing import tiny_classifier, tiny_loader

from .documents import trace

METHODS = [row.name for row in HOOKS if hasattr(Callback, row.name)]
PARAMS: dict[str, Any] = {
    "max_epochs": 2,
    "initial_lr": 0.1,
    "lr_mode": "step",
    "loss": "cross_entropy",
    "metric_to_watch": "CrossEntropyLoss",
    "greater_metric_to_watch_is_better": False,
    "average_best_models": False,
    "silent_mode": True,
}
BATCHES = {"on_validation_batch_start", "on_validation_batch_end", "on_test_batch_start", "on_test_batch_end"}


class Recording(Callback):
    """Writes down every method, the context's numbers, and the attributes that are not None at its first call."""

    def __init__(self, act: Function[[str, PhaseContext], None] = lambda method, context: None) -> None:
        self.act, self.lines, self.known = act, list[str](), dict[str, set[str]]()

    def note(self, method: str, context: PhaseContext) -> None:
        self.lines.append(f"{method} {context.epoch} {context.batch_idx}")
        names = (*FIELDS, "stop_training")
        self.known.setdefault(method, {name for name in names if getattr(context, name) is not None})
        self.act(method, context)

    @property
    def methods(self) -> list[str]:
        return [line.split()[0] for line in self.lines]


def _make(name: str) -> Function[..., None]:
    return lambda self, context: self.note(name, context)


for _name in METHODS:
    setattr(Recording, _name, _make(_name))


def loader() -> Any:
    return tiny_loader(24, batch_size=8)


def trained(root: Path, *callbacks: Any, test: bool = True, **params: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    tests = {"first": loader()} if test else None
    given = {**PARAMS, **params, "phase_callbacks": list(callbacks)}
    return Trainer("mine", str(root)).train(tiny_classifier(), given, loader(), loader(), tests)


def plain_trainer(*callbacks: Any) -> cadenza.Trainer:
    torch.manual_seed(0)
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")


# As recorded --------------------------------------------------------------------------------------------------------


def test_the_trainer_calls_as_recorded(tmp_path: Path) -> None:
    recording = Recording()
    trained(tmp_path, recording)
    assert recording.lines == trace("supergradients-fit-validate-test.txt")


def test_a_plain_trainer_calls_as_recorded() -> None:
    recording = Recording()
    trainer = plain_trainer(Watch("val/loss"), recording)
    trainer.fit(loader(), loader(), epochs=2, test_loaders=loader())
    assert recording.lines == trace("supergradients-fit-validate-test.txt")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    recording = Recording()
    trained(tmp_path_factory.mktemp("known"), recording)
    return recording.known


RECORDED = {
    name: set(rest.split()) for name, rest in (line.split(": ") for line in trace("supergradients-context.txt"))
}


@pytest.mark.parametrize("method", METHODS)
def test_the_context_holds_at_least_what_was_recorded(method: str, known: dict[str, set[str]]) -> None:
    assert known[method] >= RECORDED[method]


@pytest.mark.parametrize("method", sorted(BATCHES))
def test_the_context_is_whole_in_validation_and_test_batches(method: str, known: dict[str, set[str]]) -> None:
    assert known[method] >= RECORDED["on_train_batch_end"] | {"metrics_dict"}


def test_the_context_of_a_plain_trainer_is_whole_too() -> None:
    recording = Recording()
    plain_trainer(Watch("val/loss"), recording).fit(loader(), loader(), epochs=1, test_loaders=loader())
    for method in METHODS:
        assert recording.known[method] >= RECORDED[method], method


# Where nothing was recorded -----------------------------------------------------------------------------------------


def test_accumulation_steps_when_a_window_is_complete(tmp_path: Path) -> None:
    recording = Recording()
    trained(tmp_path, recording, test=False, batch_accumulate=2)
    steps = [line for line in recording.lines if line.startswith("on_train_batch_gradient_step_end")]
    assert [line.split()[1:] for line in steps] == [["0", "1"], ["1", "0"], ["1", "2"]]
    assert recording.methods.count("on_train_batch_gradient_step_start") == 3
    assert recording.methods.count("on_train_batch_backward_end") == recording.methods.count("on_train_batch_end") == 6


@pytest.mark.parametrize("method", [name for name in METHODS if "average" not in name and name != "on_training_end"])
def test_stop_training_from_anywhere_ends_with_the_epoch(method: str, tmp_path: Path) -> None:
    def stop(at: str, context: PhaseContext) -> None:
        if at == method:
            context.update_context(stop_training=True)

    recording = Recording(stop)
    trained(tmp_path, recording, max_epochs=4)
    epochs = 0 if method == "on_training_start" else 1
    assert recording.methods.count("on_train_loader_start") == epochs
    assert (
        recording.methods.count("on_validation_batch_end") == recording.methods.count("on_test_batch_end") == 3 * epochs
    )
    assert recording.methods[-1] == "on_training_end"


def test_an_exception_calls_on_training_end(tmp_path: Path) -> None:
    def fail(method: str, context: PhaseContext) -> None:
        if method == "on_train_batch_backward_end" and context.batch_idx == 1:
            raise RuntimeError("out of paper")

    recording = Recording(fail)
    with pytest.raises(RuntimeError, match="out of paper"):
        trained(tmp_path, recording)
    assert recording.methods[-2:] == ["on_train_batch_backward_end", "on_training_end"]


def test_the_keyboard_ends_it_in_order(tmp_path: Path) -> None:
    def interrupt(method: str, context: PhaseContext) -> None:
        if method == "on_train_batch_end":
            raise KeyboardInterrupt

    recording = Recording(interrupt)
    assert trained(tmp_path, recording) == {}
    assert recording.methods[-1] == "on_training_end"


def test_validation_and_tests_every_so_many_epochs(tmp_path: Path) -> None:
    recording = Recording()
    trained(tmp_path, recording, max_epochs=4, run_validation_freq=2, run_test_freq=4)
    assert recording.methods.count("on_validation_loader_end") == 2
    assert recording.methods.count("on_test_loader_end") == 1


def test_several_test_loaders_are_one_test(tmp_path: Path) -> None:
    recording = Recording()
    metrics: list[Any] = []

    class Seen(Callback):
        def on_test_loader_end(self, context: PhaseContext) -> None:
            metrics.append(dict(context.metrics_dict))

    tests = {"night": loader(), "day": loader()}
    given = {**PARAMS, "max_epochs": 1, "phase_callbacks": [recording, Seen()]}
    Trainer("mine", str(tmp_path)).train(tiny_classifier(), given, loader(), loader(), tests)
    assert recording.methods.count("on_test_loader_start") == recording.methods.count("on_test_loader_end") == 1
    assert recording.methods.count("on_test_batch_end") == 6
    assert set(metrics[0]) == {"night:CrossEntropyLoss", "day:CrossEntropyLoss"}


def test_the_average_of_the_best_is_validated(tmp_path: Path) -> None:
    recording = Recording()
    trained(tmp_path, recording, average_best_models=True)
    start = recording.lines.index("on_average_best_models_validation_start 1 2")
    between = [line.split()[:2] for line in recording.lines[start + 1 : -2]]
    assert between[0] == ["on_validation_batch_start", "2"]
    assert [name for name, _ in between].count("on_validation_batch_end") == 3
    assert next(tmp_path.rglob("average_model.pth")).is_file()


def test_a_test_alone_calls_the_test_methods(tmp_path: Path) -> None:
    recording = Recording()
    found = Trainer("mine", str(tmp_path)).test(
        tiny_classifier(),
        loader(),
        loss="cross_entropy",
        test_metrics_list=["Accuracy"],
        test_phase_callbacks=[recording],
    )
    assert recording.methods == [
        "on_test_loader_start",
        *["on_test_batch_start", "on_test_batch_end"] * 3,
        "on_test_loader_end",
    ]
    assert set(found) == {"CrossEntropyLoss", "Accuracy"}
    assert {"criterion", "device", "sg_logger", "net", "test_loader"} <= recording.known["on_test_loader_start"]


def test_prediction_calls_nothing() -> None:
    recording = Recording()
    plain_trainer(recording).predict(loader())
    assert recording.lines == []
