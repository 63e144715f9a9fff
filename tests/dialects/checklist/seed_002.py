"""The blog on training loops and callbacks: its two loops, its interface, its examples and its promises."""

from __future__ import annotations

import re
from collections.abc import Callable as Function
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cadenza import Callback as Native
from cadenza import Trainer
from cadenza.callbacks import Accumulate, EarlyStopping, GradientClip, Precision
from cadenza.callbacks.rates.schedules import ExponentialSchedule, FunctionSchedule, StepSchedule
from cadenza.dialects.fastai import Callback
from cadenza.dialects.fastai.blog import train
from cadenza.testing import tiny_classifier, tiny_loader

from .rows import Checklist

ROWS = Checklist("002", "PyTorch training loop and callbacks")
TEXT = (Path(__file__).parent.parent / "seeds" / "callbacks-blog.txt").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^\{% highlight python %\}\n(.*?)^\{% endhighlight %\}", TEXT, re.DOTALL | re.MULTILINE)


# Trainings that are compared ------------------------------------------------------------------------------------------


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def alike(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(first, second, strict=True))


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def native(
    *callbacks: Any, epochs: int = 2, loss: Any = None, loader: Any = None, valid: Any = None, model: Any = None
) -> Trainer:
    """A training with the native loop, or with callbacks of the dialect in it."""
    model = model or tiny_classifier()
    trainer = Trainer(model, sgd(model), loss or nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")
    trainer.fit(loader or tiny_loader(), valid, epochs=epochs)
    return trainer


def blog(*callbacks: Any, epochs: int = 2, loss: Any = None, model: Any = None) -> nn.Module:
    """A training with the blog's ``train``, whose callbacks are of any class."""
    model = model or tiny_classifier()
    train(tiny_loader(), model, epochs, sgd(model), loss or nn.CrossEntropyLoss(), list(callbacks))
    return model


def by_hand(skipped: str = "", when: Function[[int], bool] = lambda n: n % 2 == 1, **options: Any) -> list[Tensor]:
    """The loop written out. ``skipped`` is left out in the batches, or epochs, for which ``when`` is true; ``lr`` and
    ``loss`` are functions of the number of the batch, and of output, target and model."""
    model = tiny_classifier()
    optimizer, number = sgd(model), 0
    loss_of = options.get("loss") or (lambda output, target, model: nn.functional.cross_entropy(output, target))
    for epoch in range(2):
        if skipped == "epoch" and when(epoch):
            continue
        for inputs, targets in tiny_loader():
            left_out = skipped if skipped != "epoch" and when(number) else ""
            optimizer.param_groups[0]["lr"] = options["lr"](number) if "lr" in options else 0.1
            number += 1
            if left_out == "batch":
                continue
            loss = loss_of(model(inputs), targets, model)
            if left_out != "backward":
                loss.backward()
                if left_out != "step":
                    optimizer.step()
                if left_out != "zero_grad":
                    optimizer.zero_grad()
    return weights(model)


def class_with(methods: dict[str, Any], base: type[Any] = object) -> Any:
    return type("Mine", (base,), methods)()


def example(number: int, *repairs: tuple[str, str], **names: Any) -> dict[str, Any]:
    """What a block of code of the document defines; ``repairs`` put its slips right."""
    code = BLOCKS[number]
    for wrong, right in repairs:
        assert wrong in code
        code = code.replace(wrong, right)
    space = {"Callback": Callback, "nn": nn, "DataParallel": nn.DataParallel, **names}
    exec(compile(code, f"block {number}", "exec"), space)
    return space


# The basic loop -------------------------------------------------------------------------------------------------------


@ROWS.both("`train(train_dl, model, epochs, optimizer, loss_func)` in five lines")
def the_five_lines() -> None:
    model = tiny_classifier()
    example(0)["train"](tiny_loader(), model, 2, sgd(model), nn.CrossEntropyLoss())
    assert alike(weights(model), weights(native().model))
    assert alike(weights(model), weights(blog()))


def seen_in_order(told: list[Any]) -> None:
    assert [one[0] for one in told] == [0] * 3 + [1] * 3
    assert all(torch.equal(one[1], batch[0]) for one, batch in zip(told, [*tiny_loader()] * 2, strict=True))
    assert all(one[2] for one in told)


@ROWS.native(
    "the loop goes over the dataset many times", "it loads the mini-batches in order", "it calls `model.train()`"
)
def epochs_and_batches() -> None:
    told: list[Any] = []
    act = {"before_train_iter": lambda self, run: told.append((run.epoch, run.inputs, run.module.training))}
    native(class_with(act, Native))
    seen_in_order(told)


@ROWS.dialect(
    "the loop goes over the dataset many times", "it loads the mini-batches in order", "it calls `model.train()`"
)
def epochs_and_batches_there() -> None:
    told: list[Any] = []

    def on_batch_begin(self: Any, epoch: int, last_input: Any, **kwargs: Any) -> None:
        told.append((epoch, last_input, self.model.training))

    blog(class_with({"on_batch_begin": on_batch_begin}))
    seen_in_order(told)


STEPS = {
    "a forward pass on the mini-batch": ("after_forward", "on_loss_begin", "output"),
    "the loss between output and targets": ("after_loss", "on_loss_end", "loss"),
    "a backward pass that gives gradients": ("after_backward", "on_backward_end", "gradients"),
    "a step that updates the weights": ("after_step", "on_step_end", "weights"),
    "gradients are zeroed before the next batch": ("after_train_iter", "on_batch_end", "zeroed"),
}


def check_step(what: str, model: Any, output: Any, loss: Any) -> None:
    """In the first batch, where the weights of the model were those of ``tiny_classifier()``."""
    fresh = tiny_classifier()
    inputs, targets = next(iter(tiny_loader()))
    wanted = nn.functional.cross_entropy(fresh(inputs), targets)
    wanted.backward()
    if what == "output":
        assert torch.equal(output, fresh(inputs))
    elif what == "loss":
        assert torch.equal(loss, wanted)
    elif what == "gradients":
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
    elif what == "weights":
        sgd(fresh).step()
        assert alike(weights(model), weights(fresh))
    else:
        assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def a_step(point: str, what: str) -> None:
    told: list[int] = []

    def look(self: Any, run: Any) -> None:
        if not told:
            check_step(what, run.module, getattr(run, "output", None), getattr(run, "loss", None))
        told.append(1)

    native(class_with({point: look}, Native), epochs=1)
    assert len(told) == 3


def a_step_there(hook: str, what: str) -> None:
    told: list[int] = []

    def look(self: Any, last_output: Any = None, last_loss: Any = None, **kwargs: Any) -> None:
        if not told:
            check_step(what, self.model, last_output, last_loss)
        told.append(1)

    blog(class_with({hook: look}), epochs=1)
    assert len(told) == 3


for text_, (point_, hook_, what_) in STEPS.items():
    ROWS.native(text_)(partial(a_step, point_, what_))
    ROWS.dialect(text_)(partial(a_step_there, hook_, what_))


@ROWS.native("gradients that are not zeroed are added up")
def added_up() -> None:
    act = {"after_step": lambda self, run: run.skip_zero_grad()}
    assert alike(weights(native(class_with(act, Native)).model), by_hand("zero_grad", lambda n: True))


@ROWS.dialect("gradients that are not zeroed are added up")
def added_up_there() -> None:
    assert alike(weights(blog(class_with({"on_step_end": lambda self: True}))), by_hand("zero_grad", lambda n: True))


# What one wants to control --------------------------------------------------------------------------------------------


@ROWS.native("transforms for data augmentation")
def augmentation() -> None:
    model = native(
        class_with({"before_train_iter": lambda self, run: setattr(run, "inputs", -run.inputs)}, Native)
    ).model
    assert alike(weights(model), weights(native(loader=[(-x, y) for x, y in tiny_loader()]).model))


@ROWS.dialect("transforms for data augmentation")
def augmentation_there() -> None:
    model = blog(class_with({"on_batch_begin": lambda self, last_input, **kwargs: {"last_input": -last_input}}))
    assert alike(weights(model), weights(native(loader=[(-x, y) for x, y in tiny_loader()]).model))


def decayed(output: Any, target: Any, model: nn.Module) -> Any:
    return nn.functional.cross_entropy(output, target) + penalty(model)


def penalty(model: nn.Module) -> Any:
    return 0.1 * sum(parameter.pow(2).sum() for parameter in model.parameters())


@ROWS.native("regularization techniques")
def regularization() -> None:
    act = {"after_loss": lambda self, run: setattr(run, "loss", run.loss + penalty(run.module))}
    assert alike(weights(native(class_with(act, Native)).model), by_hand(loss=decayed))


@ROWS.dialect("regularization techniques")
def regularization_there() -> None:
    def on_backward_begin(self: Any, last_loss: Any, **kwargs: Any) -> Any:
        return {"last_loss": last_loss + penalty(self.model)}

    assert alike(weights(blog(class_with({"on_backward_begin": on_backward_begin}))), by_hand(loss=decayed))


@ROWS.native("mixed precision training")
def mixed_precision() -> None:
    kinds: list[Any] = []
    act = {"after_forward": lambda self, run: kinds.append(run.output.dtype)}
    native(Precision("bf16"), class_with(act, Native))
    assert set(kinds) == {torch.bfloat16}


@ROWS.dialect("mixed precision training")
def mixed_precision_there() -> None:
    """A callback of the blog that scales the loss and takes the scale off the gradients."""

    def on_backward_begin(self: Any, last_loss: Any, **kwargs: Any) -> Any:
        return {"last_loss": last_loss * 1024}

    def on_backward_end(self: Any) -> None:
        for parameter in self.model.parameters():
            parameter.grad.div_(1024)

    scaled = class_with({"on_backward_begin": on_backward_begin, "on_backward_end": on_backward_end})
    assert alike(weights(blog(scaled)), by_hand())


@ROWS.native("tracking metrics", "logging losses and metrics of training and validation after each epoch")
def metrics() -> None:
    history = native(valid=tiny_loader(8)).history
    assert [len(history[name]) for name in ("train/loss", "val/loss")] == [2, 2]


@ROWS.dialect("tracking metrics", "logging losses and metrics of training and validation after each epoch")
def metrics_there() -> None:
    told: list[Any] = []

    def on_epoch_end(self: Any, epoch: int, smooth_loss: Any, last_metrics: Any, **kwargs: Any) -> None:
        told.append((epoch, float(smooth_loss), last_metrics[0]))

    trainer = native(class_with({"on_epoch_end": on_epoch_end}, Callback), valid=tiny_loader(8))
    assert [one[0] for one in told] == [0, 1]
    assert [one[2] for one in told] == list(trainer.history["val/loss"])
    assert told[1][1] < told[0][1]


# The interface --------------------------------------------------------------------------------------------------------

EVENTS = {
    "on_train_begin": "before_run",
    "on_epoch_begin": "before_train_epoch",
    "on_batch_begin": "before_train_iter",
    "on_loss_begin": "before_loss",
    "on_loss_end": "after_loss",
    "on_step_begin": "before_step",
    "on_step_end": "after_step",
    "on_batch_end": "after_train_iter",
    "on_epoch_end": "after_epoch",
    "on_train_end": "after_run",
}
ONCE_A_FIT = ("on_train_begin", "on_train_end")
ONCE_AN_EPOCH = ("on_epoch_begin", "on_epoch_end")


def times(hook: str) -> int:
    """How often it is called in two epochs of three batches."""
    return 1 if hook in ONCE_A_FIT else 2 if hook in ONCE_AN_EPOCH else 6


def is_called(hook: str, point: str) -> None:
    told: list[str] = []
    native(class_with({point: lambda self, run: told.append(hook)}, Native))
    assert len(told) == times(hook)


def is_called_there(hook: str) -> None:
    told: list[str] = []
    model = blog(class_with({hook: lambda self: told.append(hook)}))  # as the interface shows it: without arguments
    assert len(told) == times(hook)
    assert alike(weights(model), by_hand())


for hook_, point_ in EVENTS.items():
    assert f"def {hook_}(self): pass" in BLOCKS[1]
    ROWS.native(f"`Callback.{hook_}`")(partial(is_called, hook_, point_))
    ROWS.dialect(f"`Callback.{hook_}`")(partial(is_called_there, hook_))


@ROWS.native("`Callback.__init__`, a base class whose methods do nothing")
def an_empty_base() -> None:
    assert alike(weights(native(Native()).model), by_hand())


@ROWS.dialect("`Callback.__init__`, a base class whose methods do nothing")
def an_empty_base_there() -> None:
    written = example(1, ("def Callback():", "class Callback:"))["Callback"]
    assert alike(weights(blog(written(), Callback())), by_hand())


@ROWS.native("`on_backward_end`, which its examples use")
def backward_end() -> None:
    a_step("after_backward", "gradients")


@ROWS.dialect("`on_backward_end`, which its examples use")
def backward_end_there() -> None:
    a_step_there("on_backward_end", "gradients")


# The loop with callbacks ----------------------------------------------------------------------------------------------


@ROWS.native("the order of the events in the loop")
def order() -> None:
    told: list[str] = []
    listed = {point: partial(lambda hook, self, run: told.append(hook), hook) for hook, point in EVENTS.items()}
    kind = type("All", (Native,), {name: _method(call) for name, call in listed.items()})
    native(kind(), epochs=1, loader=tiny_loader(8))
    assert [one for one in told if one != "on_loss_begin"] == re.findall(r"callback\.(\w+)\(", BLOCKS[2])


def _method(call: Any) -> Any:
    return lambda self, run: call(self, run)


@ROWS.dialect("the order of the events in the loop")
def order_there() -> None:
    told: list[str] = []
    listed = {hook: _plain_method(told, hook) for hook in EVENTS}
    train(tiny_loader(8), model := tiny_classifier(), 1, sgd(model), nn.CrossEntropyLoss(), class_with(listed))
    assert [one for one in told if one != "on_loss_begin"] == re.findall(r"callback\.(\w+)\(", BLOCKS[2])


def _plain_method(told: list[str], hook: str) -> Any:
    return lambda self: told.append(hook)


@ROWS.native("`train(..., callback)` takes one callback")
def one_callback() -> None:
    assert alike(weights(native(Native()).model), by_hand())


@ROWS.dialect("`train(..., callback)` takes one callback")
def one_callback_there() -> None:
    train(tiny_loader(), model := tiny_classifier(), 2, sgd(model), nn.CrossEntropyLoss(), class_with(EVERY_OTHER))
    assert alike(weights(model), by_hand("batch"))


EVERY_OTHER: dict[str, Any] = {"on_batch_begin": lambda self, iteration: iteration % 2 == 1}
SKIPS = {
    "on_epoch_begin": ("epoch", "before_train_epoch", "end_epoch"),
    "on_batch_begin": ("batch", "before_train_iter", "skip_batch"),
    "on_loss_end": ("backward", "after_loss", "skip_backward"),
    "on_step_begin": ("step", "before_step", "skip_step"),
    "on_step_end": ("zero_grad", "after_step", "skip_zero_grad"),
}
SKIP_TEXTS = {
    "on_epoch_begin": "`skip = callback.on_epoch_begin(...)` skips the epoch",
    "on_batch_begin": "`skip = callback.on_batch_begin(...)` skips the batch",
    "on_loss_end": "`if not skip: loss.backward()`, with `skip` from `on_loss_end`",
    "on_step_begin": "`skip = callback.on_step_begin(...)` skips the step",
    "on_step_end": "`skip = callback.on_step_end(...)` skips the zeroing of gradients",
}


def skips(what: str, point: str, request: str) -> None:
    def act(self: Any, run: Any) -> None:
        if (run.epoch if what == "epoch" else run.clock.batches) % 2 == 1:
            getattr(run, request)()

    assert alike(weights(native(class_with({point: act}, Native)).model), by_hand(what))


def skips_there(hook: str, what: str) -> None:
    def act(self: Any, epoch: int, iteration: int) -> bool:
        return (epoch if what == "epoch" else iteration) % 2 == 1

    assert alike(weights(blog(class_with({hook: act}))), by_hand(what))


for hook_, (what_, point_, request_) in SKIPS.items():
    ROWS.native(SKIP_TEXTS[hook_])(partial(skips, what_, point_, request_))
    ROWS.dialect(SKIP_TEXTS[hook_])(partial(skips_there, hook_, what_))


@ROWS.dialect("a `skip` from `on_batch_end` and from `on_epoch_end`, after which nothing is left to skip")
def skips_at_the_end() -> None:
    for hook in ("on_batch_end", "on_epoch_end"):
        assert alike(weights(blog(class_with({hook: lambda self: True}))), by_hand())


ROWS.says(
    "a `skip` from `on_batch_end` and from `on_epoch_end`, after which nothing is left to skip",
    native="A native callback requests by name what is skipped; a request with no effect raises an error.",
)


@ROWS.native("handlers return useful information to the others")
def information() -> None:
    told: list[Any] = []
    gives = class_with({"before_train_iter": lambda self, run: run.store.update(shift=3)}, Native)
    takes = class_with({"after_train_iter": lambda self, run: told.append(run.store["shift"])}, Native)
    native(gives, takes)
    assert told == [3] * 6


@ROWS.dialect("handlers return useful information to the others")
def information_there() -> None:
    told: list[Any] = []
    gives = class_with({"on_epoch_end": lambda self, last_metrics, **kwargs: {"last_metrics": [*last_metrics, 7.0]}})
    takes = class_with({"on_epoch_end": lambda self, last_metrics, **kwargs: told.append(last_metrics[-1])})
    blog(gives, takes)
    assert told == [7.0] * 2


@ROWS.native("handlers return flags that stop the training")
def stopping() -> None:
    trainer = native(class_with({"after_epoch": lambda self, run: run.stop("enough")}, Native), epochs=5)
    assert trainer.clock.epochs == 1


@ROWS.dialect("handlers return flags that stop the training")
def stopping_there() -> None:
    told: list[int] = []

    def on_epoch_end(self: Any, epoch: int, **kwargs: Any) -> Any:
        told.append(epoch)
        return {"stop_training": epoch == 1}

    blog(class_with({"on_epoch_end": on_epoch_end}), epochs=5)
    assert told == [0, 1]


# Learning rates -------------------------------------------------------------------------------------------------------

CURVES: dict[str, tuple[Function[[int], float], Any]] = {
    "time-based decay": (
        lambda n: 0.1 / (1 + n // 3),
        FunctionSchedule(lambda n: 1 / (1 + n), of="count", cadence="epoch"),
    ),
    "step decay": (lambda n: 0.1 * 0.5 ** (n // 3), StepSchedule(1, 0.5)),
    "exponential decay": (lambda n: 0.1 * 0.8 ** (n // 3), ExponentialSchedule(0.8)),
}


def scheduled_there(curve: Function[[int], float]) -> None:
    scheduler = example(3, fct=curve)["LearningRateScheduler"]
    assert alike(weights(native(scheduler()).model), by_hand(lr=curve))


def scheduled(curve: Function[[int], float], schedule: Any) -> None:
    assert alike(weights(native(schedule).model), by_hand(lr=curve))


for text_, (curve_, schedule_) in CURVES.items():
    ROWS.native(f"{text_} of the learning rate")(partial(scheduled, curve_, schedule_))
    ROWS.dialect(f"{text_} of the learning rate")(partial(scheduled_there, curve_))


@ROWS.native(
    "`LearningRateScheduler`: `self.optimizer.lr = fct(iteration)` before each batch", "hyperparameter schedules"
)
def rates() -> None:
    def act(self: Any, run: Any) -> None:
        run.optimizer.param_groups[0]["lr"] = 0.1 / (1 + run.clock.batches)

    model = native(class_with({"before_train_iter": act}, Native)).model
    assert alike(weights(model), by_hand(lr=lambda n: 0.1 / (1 + n)))


@ROWS.dialect(
    "`LearningRateScheduler`: `self.optimizer.lr = fct(iteration)` before each batch", "hyperparameter schedules"
)
def rates_there() -> None:
    scheduled_there(lambda n: 0.1 / (1 + n))


# Early stopping -------------------------------------------------------------------------------------------------------


class Worse(Native):
    """Makes validation worse from the second epoch on."""

    def before_val_epoch(self, run: Any) -> None:
        with torch.no_grad():
            run.module[2].bias[0] += 5.0 * run.epoch


STOPS = ("`EarlyStopping`: stops when the metric of the validation set gets worse", "`{'stop_training': True}`")


@ROWS.native(*STOPS, "`last_metrics`")
def early_stopping() -> None:
    assert native(Worse(), EarlyStopping(patience=1), epochs=9, valid=tiny_loader(8)).clock.epochs == 2


@ROWS.dialect(*STOPS, "`last_metrics`")
def early_stopping_there() -> None:
    seen: list[float] = []

    def some_fct(last_metrics: list[float]) -> bool:
        seen.append(last_metrics[0])
        return len(seen) > 1 and seen[-1] > seen[-2]

    stops = example(4, some_fct=some_fct)["EarlyStopping"]()
    assert native(Worse(), stops, epochs=9, valid=tiny_loader(8)).clock.epochs == 2
    assert len(seen) == 2


# Parallel training ----------------------------------------------------------------------------------------------------


class Kinds(Native):
    def __init__(self) -> None:
        self.told: list[str] = []

    def before_forward(self, run: Any) -> None:
        self.told.append(type(run.model).__name__)


WRAPS = (
    "`ParallelTrainer` puts `DataParallel` around `self.model` at the beginning",
    "`ParallelTrainer` takes it off at the end",
)


@ROWS.native(*WRAPS)
def parallel() -> None:
    def wrap(self: Any, run: Any) -> Any:
        module, run.model = run.model, nn.DataParallel(run.model)
        yield
        run.model = module

    kinds = Kinds()
    trainer = native(class_with({"around_run": wrap}, Native), kinds)
    assert kinds.told == ["DataParallel"] * 6
    assert type(trainer.model).__name__ == "Sequential"
    assert alike(weights(trainer.model), by_hand())


@ROWS.dialect(*WRAPS)
def parallel_there() -> None:
    kinds, wraps = Kinds(), example(5)["ParallelTrainer"]()
    trainer = native(wraps, kinds)
    assert kinds.told == ["DataParallel"] * 6
    assert type(trainer.model).__name__ == "Sequential"
    assert alike(weights(trainer.model), by_hand())


@ROWS.native("`_order = -20` is called before callbacks of order 0")
def orders() -> None:
    told: list[str] = []
    first, second = (class_with({"before_run": _tells(told, name), "order": at}, Native) for name, at in ORDERS)
    native(first, second)
    assert told == ["early", "late"]


ORDERS = (("late", 0), ("early", -20))


def _tells(told: list[str], name: str) -> Any:
    return lambda self, *handed, **kwargs: told.append(name)


@ROWS.dialect("`_order = -20` is called before callbacks of order 0")
def orders_there() -> None:
    told: list[str] = []
    blog(*(class_with({"on_train_begin": _tells(told, name), "_order": at}) for name, at in ORDERS))
    assert told == ["early", "late"]


# Gradients ------------------------------------------------------------------------------------------------------------


class Norms(Native):
    def __init__(self) -> None:
        self.told: list[float] = []

    def before_step(self, run: Any) -> None:
        self.told.append(float(torch.stack([p.grad.norm() for p in run.module.parameters()]).norm()))


def clipping(model: nn.Module, **options: Any) -> Any:
    return example(6, ("clip_grad_norm(", "clip_grad_norm_("))["GradientClipping"](model, **options)


@ROWS.native("`GradientClipping`, argument `clip`")
def clips() -> None:
    norms = Norms()
    native(GradientClip(norm=1e-3), norms)
    assert all(norm <= 1.001e-3 for norm in norms.told)


@ROWS.dialect("`GradientClipping`, argument `clip`")
def clips_there() -> None:
    model, norms = tiny_classifier(), Norms()
    native(clipping(model, clip=1e-3), norms, model=model)
    assert all(norm <= 1.001e-3 for norm in norms.told)


@ROWS.dialect("`clip=0.` clips nothing")
def clips_nothing_there() -> None:
    model = tiny_classifier()
    assert alike(weights(native(clipping(model), model=model).model), by_hand())


ROWS.says("`clip=0.` clips nothing", native="GradientClip refuses a norm of 0; leave the callback out.")


@ROWS.native("gradients are changed in place after the backward pass")
def in_place() -> None:
    def act(self: Any, run: Any) -> None:
        for parameter in run.module.parameters():
            parameter.grad.mul_(0.5)

    assert alike(weights(native(class_with({"after_backward": act}, Native)).model), by_hand(lr=lambda n: 0.05))


@ROWS.dialect("gradients are changed in place after the backward pass")
def in_place_there() -> None:
    def on_backward_end(self: Any) -> None:
        for parameter in self.model.parameters():
            parameter.grad.data.mul_(0.5)

    assert alike(weights(blog(class_with({"on_backward_end": on_backward_end}))), by_hand(lr=lambda n: 0.05))


SUMS = nn.CrossEntropyLoss(reduction="sum")
SLIPS = (
    ("self.optimizer.setp()", "self.optimizer.step()"),
    ("if p.requires_grad:", "if p.requires_grad and p.grad is not None:"),
    ('divisible"""\n', 'divisible"""\n        if not self.acc_samples: return\n'),
)


def big_batches(samples: int, *, drop_last: bool = False) -> list[Tensor]:
    model = tiny_classifier()
    optimizer = sgd(model)
    for inputs, targets in [*tiny_loader(samples, batch_size=16)] * 2:
        if len(inputs) == 16 or not drop_last:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return weights(model)


def accumulated_there(samples: int, **options: Any) -> list[Tensor]:
    model = tiny_classifier()
    optimizer = sgd(model)
    kind = example(7, *SLIPS)["AccumulateScheduler"]
    trainer = Trainer(model, optimizer, SUMS, callbacks=[kind(model, optimizer, **options)], device="cpu")
    trainer.fit(tiny_loader(samples), epochs=2)
    return weights(model)


WINDOWS = (
    "`AccumulateScheduler`, argument `accumulation_steps`",
    "`AccumulateScheduler` skips the step and the zeroing, and divides by the samples of `last_input`",
    "larger batches than fit into memory",
)


@ROWS.native(*WINDOWS)
def accumulates() -> None:
    assert alike(weights(native(Accumulate(2), loader=tiny_loader(32)).model), big_batches(32))


@ROWS.dialect(*WINDOWS)
def accumulates_there() -> None:
    assert alike(accumulated_there(32, accumulation_steps=2), big_batches(32))


@ROWS.native("what is left of the gradients at the end of an epoch is stepped")
def steps_the_rest() -> None:
    assert alike(weights(native(Accumulate(2), loader=tiny_loader(40)).model), big_batches(40))


@ROWS.dialect("what is left of the gradients at the end of an epoch is stepped")
def steps_the_rest_there() -> None:
    assert alike(accumulated_there(40, accumulation_steps=2), big_batches(40))


@ROWS.dialect("argument `drop_last`: what is left is dropped")
def drops_the_rest_there() -> None:
    assert alike(accumulated_there(40, accumulation_steps=2, drop_last=True), big_batches(40, drop_last=True))


@ROWS.native("argument `drop_last`: what is left is dropped")
def drops_the_rest() -> None:
    loader = torch.utils.data.DataLoader(tiny_loader(40).dataset, batch_size=8, sampler=range(32))
    assert alike(weights(native(Accumulate(2), loader=loader).model), big_batches(40, drop_last=True))


# Promises -------------------------------------------------------------------------------------------------------------

TWEAKS = ("every tweak is a callback of its own, independent of the others", "easily mix and match")


def halves(self: Any, last_loss: Any, **kwargs: Any) -> Any:
    return {"last_loss": last_loss / 2}


@ROWS.native(*TWEAKS, "ablation studies")
def mixed() -> None:
    half = class_with({"after_loss": lambda self, run: setattr(run, "loss", run.loss / 2)}, Native)
    other = class_with({"before_train_iter": lambda self, run: run.clock.batches % 2 and run.skip_batch()}, Native)
    assert alike(weights(native(half).model), by_hand(lr=lambda n: 0.05))
    assert alike(weights(native(other).model), by_hand("batch"))
    assert alike(weights(native(other, half).model), by_hand("batch", lr=lambda n: 0.05))


@ROWS.dialect(*TWEAKS, "ablation studies")
def mixed_there() -> None:
    half = {"on_backward_begin": halves}
    assert alike(weights(blog(class_with(half))), by_hand(lr=lambda n: 0.05))
    assert alike(weights(blog(class_with(EVERY_OTHER))), by_hand("batch"))
    assert alike(weights(blog(class_with(EVERY_OTHER), class_with(half))), by_hand("batch", lr=lambda n: 0.05))


@ROWS.both("new experiments are easily added: callbacks of both kinds in one training")
def together() -> None:
    other = class_with({"before_train_iter": lambda self, run: run.clock.batches % 2 and run.skip_batch()}, Native)
    trainer = native(other, class_with({"on_backward_begin": halves}, Callback))
    assert alike(weights(trainer.model), by_hand("batch", lr=lambda n: 0.05))
