"""When AIToolbox's hooks are called: as recorded, and as its facts say where nothing was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cadenza
from cadenza import CallbackError
from cadenza.dialects.aitoolbox import AbstractCallback, TrainLoop
from cadenza.dialects.aitoolbox.table import HOOKS
from cadenza.testing import tiny_classifier, tiny_loader

from .documents import trace

RECORDED = trace("aitoolbox-fit-validate.txt")
PLAYED = [row.name for row in HOOKS if row.name not in ("register_train_loop_object", "on_after_batch_prediction")]


class Recording(AbstractCallback):
    """Writes down every hook, and calls ``act`` with it."""

    def __init__(self, act: Callable[[str, Any], None] = lambda hook, loop: None, **placing: Any) -> None:
        super().__init__("recording", **placing)
        self.act, self.lines = act, list[str]()

    def note(self, hook: str) -> None:
        self.lines.append(hook)
        self.act(hook, self.train_loop_obj)


def _make(name: str) -> Callable[..., None]:
    if name == "on_after_gradient_update":
        return lambda self, optimizer_idx: self.note(name)
    return lambda self: self.note(name)


for _name in PLAYED:
    setattr(Recording, _name, _make(_name))


def new_loop(**options: Any) -> TrainLoop:
    torch.manual_seed(0)
    model = tiny_classifier()
    loaders = [tiny_loader(24, batch_size=8), tiny_loader(24, batch_size=8), None]
    return TrainLoop(model, *loaders, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), **options)


def new_trainer(*callbacks: Any) -> cadenza.Trainer:
    torch.manual_seed(0)
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")


def test_the_loop_calls_as_recorded() -> None:
    recording = Recording()
    new_loop().fit(num_epochs=2, callbacks=[recording])
    assert recording.lines == RECORDED


def test_a_plain_trainer_calls_as_recorded() -> None:
    recording = Recording()
    new_trainer(recording).fit(tiny_loader(24, batch_size=8), tiny_loader(24, batch_size=8), epochs=2)
    assert recording.lines == RECORDED


def test_gradient_hooks_need_no_flag() -> None:
    recording = Recording()
    loop = new_loop()
    loop.fit(num_epochs=1, callbacks=[recording])
    assert loop.grad_cb_used is False
    assert recording.lines.count("on_after_gradient_update") == recording.lines.count("on_after_optimizer_step") == 3


def test_accumulation_gradients_at_every_batch_steps_at_the_nth_and_the_last() -> None:
    recording = Recording()
    loop = new_loop()
    loop.fit(num_epochs=1, callbacks=[recording], grad_accumulation=2)
    inner = [line for line in recording.lines if line.startswith("on_after")]
    gradient, step = "on_after_gradient_update", "on_after_optimizer_step"
    assert inner == [gradient, gradient, step, gradient, step]


def test_accumulation_is_the_mean_of_the_window() -> None:
    one, other = new_loop(), new_loop()
    one.train_loader = tiny_loader(16, batch_size=8)
    other.train_loader = tiny_loader(16, batch_size=16)
    one.fit(num_epochs=1, grad_accumulation=2)
    other.fit(num_epochs=1)
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def stop_in_first_batch(hook: str, loop: Any) -> None:
    if hook == "on_batch_begin" and loop.total_iteration_idx == 0:
        loop.early_stop = True


@pytest.mark.parametrize("hook", ["on_batch_begin", "on_batch_end", "on_epoch_begin", "on_epoch_end"])
def test_early_stop_ends_the_fit_with_the_epoch(hook: str) -> None:
    def stop(at: str, loop: Any) -> None:
        if at == hook:
            loop.early_stop = True

    recording = Recording(stop)
    loop = new_loop()
    loop.fit(num_epochs=5, callbacks=[recording])
    assert recording.lines.count("on_batch_end") == 3
    assert recording.lines[-2:] == ["on_epoch_end", "on_train_end"]
    assert len(loop.train_history["val_loss"]) == 1


def test_early_stop_is_cleared_at_the_next_fit() -> None:
    recording = Recording(stop_in_first_batch)
    loop = new_loop()
    loop.fit(num_epochs=3, callbacks=[recording])
    assert loop.early_stop is True
    loop.fit(num_epochs=2)
    assert recording.lines.count("on_epoch_end") == 1 + 2
    assert loop.epoch == 2


def test_an_exception_calls_no_on_train_end() -> None:
    def fail(hook: str, loop: Any) -> None:
        if hook == "on_batch_end" and loop.iteration == 1:
            raise RuntimeError("out of paper")

    recording = Recording(fail)
    with pytest.raises(RuntimeError, match="out of paper") as raised:
        new_loop().fit(num_epochs=2, callbacks=[recording])
    assert recording.lines[-1] == "on_batch_end"
    assert "recording at after_train_iter" in raised.value.__notes__[0]


def test_validation_test_and_prediction_call_nothing() -> None:
    recording = Recording()
    trainer = new_trainer(recording)
    trainer.validate(tiny_loader())
    trainer.test(tiny_loader())
    trainer.predict(tiny_loader())
    assert recording.lines == []


def test_execution_order_then_list_order() -> None:
    played: list[str] = []
    made = []
    for name, order in (("a", 5), ("b", -3), ("c", 5), ("d", 0)):

        class Named(AbstractCallback):
            def on_epoch_end(self) -> None:
                played.append(self.callback_name)

        made.append(Named(name, execution_order=order))
    loop = new_loop()
    loop.fit(num_epochs=1, callbacks=made)
    assert played == ["b", "d", "a", "c"]
    assert [one.callback_name for one in loop.callbacks] == played
    assert "c" in loop.callbacks_handler
    assert "on_epoch_end: b, d, a, c" in str(loop.callbacks_handler)


def test_two_optimizers_are_told_apart() -> None:
    indices: list[int] = []

    class Indexed(AbstractCallback):
        def on_after_gradient_update(self, optimizer_idx: int) -> None:
            indices.append(optimizer_idx)

    from cadenza.dialects.aitoolbox import MultiOptimizer

    model = tiny_classifier()
    halves = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    loop = TrainLoop(model, tiny_loader(8), None, None, MultiOptimizer(halves), nn.CrossEntropyLoss())
    loop.fit(num_epochs=1, callbacks=[Indexed("indexed")])
    assert indices == [0, 1]
    assert loop.num_optimizers == 2


# What is refused ------------------------------------------------------------------------------------------------------


def test_a_method_that_is_no_hook_is_refused() -> None:
    class Misspelt(AbstractCallback):
        def on_epoch_ends(self) -> None: ...

    with pytest.raises(CallbackError, match=r"aitoolbox: there is no hook 'on_epoch_ends' here.*'on_epoch_end'"):
        new_trainer(Misspelt("misspelt"))


def test_a_hook_with_other_arguments_is_refused() -> None:
    class Wrong(AbstractCallback):
        def on_batch_end(self, batch: Any) -> None: ...  # type: ignore[override]

    with pytest.raises(CallbackError, match=r"aitoolbox: Wrong.on_batch_end\(batch.*on_batch_end\(\)"):
        new_trainer(Wrong("wrong"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "exactly one of num_epochs and num_iterations"),
        ({"num_epochs": 1, "num_iterations": 1}, "exactly one of num_epochs and num_iterations"),
    ],
)
def test_a_fit_has_one_length(arguments: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        new_loop().fit(**arguments)


def test_so_many_iterations() -> None:
    recording = Recording()
    loop = new_loop()
    assert loop.fit(num_iterations=4, callbacks=[recording]) is loop.model
    assert recording.lines.count("on_batch_end") == 4
    assert recording.lines[-2:] == ["on_epoch_end", "on_train_end"]
    assert loop.total_iteration_idx == 3


@pytest.mark.parametrize("name", ["num_gpus", "backend"])
def test_processes_are_started_from_outside(name: str) -> None:
    with pytest.raises(TypeError, match=f"fit takes no '{name}': processes are started from outside"):
        new_loop().fit(num_epochs=1, **{name: 1})


def test_data_parallel_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="gpu_mode='dp' is not carried"):
        new_loop(gpu_mode="dp")
