"""Questions for Orca: what it trains, in which order it calls, what callbacks see, what it writes and what it returns.

The real package ran with its Ray backend, whose actors were plain objects in the same process: set ``ORCA_BACKEND`` to
``ray`` there.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import bigdl.orca.learn.metrics as measures
import bigdl.orca.learn.pytorch.pytorch_metrics as torch_measures
import numpy as np
import torch
from asking import main, question
from bigdl.dllib.utils import log4Error
from bigdl.orca.learn.pytorch import Estimator
from bigdl.orca.learn.pytorch.callbacks import Callback, MainCallback
from bigdl.orca.learn.pytorch.callbacks.maincallback import make_only_mainCallback
from bigdl.orca.learn.pytorch.callbacks.maxsteps import MaxstepsCallback
from bigdl.orca.learn.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from bigdl.orca.learn.pytorch.callbacks.tensorboard import TensorBoardCallback
from bigdl.orca.learn.pytorch.callbacks.tqdm import TqdmCallback, is_tqdm_exists
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

logging.disable(logging.CRITICAL)
BACKEND = os.environ.get("ORCA_BACKEND", "local")
SPANS = ("epoch", "iter")
POINTS = (
    "before_run", "after_run",
    *(f"{kind}_{span}" for span in SPANS for kind in ("before", "after")),
    *(f"{kind}_{stage}_{span}" for stage in ("train", "val", "pred") for span in SPANS for kind in ("before", "after")),
)  # fmt: skip
OWN = ("on_iter_forward", "on_train_forward", "on_val_forward", "on_pred_forward", "on_iter_backward", "on_lr_adjust")


# What is trained ------------------------------------------------------------------------------------------------------


def tensors(samples=20):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 4, generator=generator), torch.arange(samples) % 3


def creator(samples=20, data=None, **options):
    def create(config, batch_size):
        return DataLoader(data or TensorDataset(*tensors(samples)), **({"batch_size": batch_size} | options))

    return create


numbered = creator(data=TensorDataset(torch.zeros(20, 4), torch.arange(20)))


def model_creator(config):
    torch.manual_seed(0)
    hidden = config.get("hidden", 5)
    norm = [nn.BatchNorm1d(hidden)] if config.get("norm") else []
    return nn.Sequential(nn.Linear(4, hidden), *norm, nn.ReLU(), nn.Linear(hidden, config.get("outputs", 3)))


def optimizer_creator(model, config):
    return optim.SGD(model.parameters(), lr=config.get("lr", 0.1))


def estimator(**options):
    given = {"model": model_creator, "optimizer": optimizer_creator, "loss": nn.CrossEntropyLoss(), "backend": BACKEND}
    return Estimator.from_torch(**(given | options))


def numbers(values):
    """A dict or a list with every number as a float, and keys in alphabetical order."""
    if isinstance(values, dict):
        return {key: numbers(values[key]) for key in sorted(values)}
    if isinstance(values, list | tuple):
        return [numbers(one) for one in values]
    return values if values is None or isinstance(values, str | bool) else float(values)


def weights(one):
    state = one.get_state_dict()["models"][0] if hasattr(one, "get_state_dict") else one.state_dict()
    return [[float(value.double().sum()), float(value.double().pow(2).sum())] for value in state.values()]


def ask_weights(name, fit=None, epochs=2, batch_size=8, data=None, callbacks=None, **options):
    """Weights, and the statistics that ``fit`` returns."""

    @question(f"weights: {name}")
    def ask():
        one = estimator(**options)
        if fit:
            return numbers(fit(one)), weights(one)
        given = callbacks() if callbacks else None
        rows = one.fit(data or creator(), epochs=epochs, batch_size=batch_size, callbacks=given)
        return numbers(rows), weights(one)


def stepping(kind, *arguments, **options):
    return lambda optimizer, config: kind(optimizer, *arguments, **options)


def by(kind, **options):
    return lambda model, config: kind(model.parameters(), **options)


ask_weights("SGD")
ask_weights("SGD, lr from the config", config={"lr": 0.05, "hidden": 7})
ask_weights("SGD with momentum", optimizer=by(optim.SGD, lr=0.1, momentum=0.9))
ask_weights("SGD with weight decay", optimizer=by(optim.SGD, lr=0.1, weight_decay=0.1))
ask_weights("Adam", optimizer=by(optim.Adam, lr=0.01))
ask_weights("RMSprop", optimizer=by(optim.RMSprop, lr=0.01))
ask_weights("one epoch", epochs=1)
ask_weights("five epochs", epochs=5)
ask_weights("batch_size 1", batch_size=1)
ask_weights("batch_size 7", batch_size=7)
ask_weights("batch_size over the samples", batch_size=64)
ask_weights("drop_last", data=creator(drop_last=True))
ask_weights("num_workers=0, pin_memory=False", data=creator(num_workers=0, pin_memory=False))
ask_weights("another collate_fn", data=creator(collate_fn=lambda rows: [torch.stack([r[0] for r in rows]) * 2,
                                                                     torch.stack([r[1] for r in rows])]))  # fmt: skip
ask_weights("shuffle=True in the loader", data=creator(shuffle=True))
ask_weights("batch norm", config={"norm": True})
ask_weights("StepLR", scheduler_creator=stepping(lr_scheduler.StepLR, 1, gamma=0.5), epochs=3)
ask_weights("ExponentialLR", scheduler_creator=stepping(lr_scheduler.ExponentialLR, 0.5), epochs=3)
ask_weights("CosineAnnealingLR", scheduler_creator=stepping(lr_scheduler.CosineAnnealingLR, 3), epochs=3)
ask_weights("LambdaLR", scheduler_creator=stepping(lr_scheduler.LambdaLR, lambda epoch: 1 / (epoch + 1)), epochs=3)
ask_weights("loss that a function of the config makes", loss=lambda config: nn.CrossEntropyLoss(label_smoothing=0.1))
ask_weights("fit twice", fit=lambda one: [one.fit(creator(), epochs=1, batch_size=8) for _ in range(2)])
ask_weights(
    "fit with max_steps below an epoch", fit=lambda one: one.fit(creator(), epochs=3, max_steps=2, batch_size=8)
)
ask_weights("fit with max_steps over epochs", fit=lambda one: one.fit(creator(), epochs=1, max_steps=6, batch_size=8))
ask_weights("fit with the default batch_size", fit=lambda one: one.fit(creator(), epochs=2))
ask_weights("fit with the default epochs", fit=lambda one: one.fit(creator(), batch_size=8))
ask_weights(
    "fit with validation_data",
    fit=lambda one: one.fit(creator(), epochs=2, batch_size=8, validation_data=creator(samples=12)),
)
ask_weights(
    "fit with reduce_results=False",
    fit=lambda one: one.fit(creator(), epochs=2, batch_size=8, reduce_results=False)[0],
)


class Regression(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        inputs, _ = tensors()
        return inputs[index], inputs[index].sum().reshape(1)


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(TensorDataset(*tensors()))

    def __len__(self):
        return 20


ask_weights(
    "regression, MSELoss", loss=nn.MSELoss(), config={"outputs": 1, "lr": 0.01}, data=creator(data=Regression())
)
ask_weights("iterable data", data=creator(data=Streamed()))


class Two(nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outputs = nn.Linear(4, 3), outputs

    def forward(self, first, second):
        one = self.inner(first - 2 * second)
        return one if self.outputs == 1 else [one, -one]


def pairs(config, batch_size):
    inputs, targets = tensors()
    return DataLoader(TensorDataset(inputs, inputs.flip(1), targets), batch_size=batch_size)


def twice(config, batch_size):
    inputs, targets = tensors()

    def collate(rows):
        xs, ys = zip(*rows, strict=True)
        return [torch.stack(xs), torch.stack(xs).flip(0), [torch.stack(ys), torch.stack(ys)]]

    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, collate_fn=collate)


class Summed(nn.modules.loss._Loss):
    def forward(self, one, other, targets, others):
        return nn.functional.cross_entropy(one, targets) + 0.5 * nn.functional.cross_entropy(other, others)


ask_weights("a model of two inputs", model=lambda config: Two(), data=pairs)
ask_weights("lists of outputs and targets", model=lambda config: Two(2), loss=Summed(), data=twice)


# Main callbacks -------------------------------------------------------------------------------------------------------


class Clipped(MainCallback):
    def on_iter_backward(self, runner):
        runner.optimizer.zero_grad()
        runner.loss.backward()
        nn.utils.clip_grad_norm_(runner.model.parameters(), 0.01)
        runner.optimizer.step()


class Gathered(MainCallback):
    def on_iter_backward(self, runner):
        if runner.batch_idx % 2 == 0:
            runner.optimizer.zero_grad()
        runner.loss.backward()
        if runner.batch_idx % 2 == 1:
            runner.optimizer.step()


class Doubled(MainCallback):
    def on_iter_forward(self, runner):
        inputs, targets = runner.batch
        runner.output = runner.model(inputs)
        runner.target = targets
        runner.loss = 2 * runner.criterion(runner.output, targets)


class TrainDoubled(MainCallback):
    def on_train_forward(self, runner):
        self.on_iter_forward(runner)
        runner.loss = 2 * runner.loss


class ValidationDoubled(MainCallback):
    def on_val_forward(self, runner):
        self.on_iter_forward(runner)
        runner.loss = 2 * runner.loss


class OwnRate(MainCallback):
    def on_lr_adjust(self, runner):
        for group in runner.optimizer.param_groups:
            group["lr"] = 0.1 / (runner.epochs + 2)


class Frozen(MainCallback):
    def on_iter_backward(self, runner): ...


class Outside(nn.Module):
    """Its loss is in what it returns, as in detection."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 3)

    def forward(self, inputs, targets):
        outputs = self.inner(inputs)
        return {"class": nn.functional.cross_entropy(outputs, targets), "size": outputs.pow(2).mean()}


class FromModel(MainCallback):
    def on_iter_forward(self, runner):
        image, runner.target = runner.batch
        runner.output = runner.model(image, runner.target)
        runner.loss = sum(loss for loss in runner.output.values())


class Rolled(Callback):
    def before_train_iter(self, runner):
        inputs, targets = runner.batch
        runner.batch = [inputs.roll(1, 0), targets]


for kind in (Clipped, Gathered, Doubled, TrainDoubled, OwnRate, Frozen):
    ask_weights(f"main callback {kind.__name__}", callbacks=lambda kind=kind: [kind()])
ask_weights("main callback that takes the loss from the model", callbacks=lambda: [FromModel()],
            model=lambda config: Outside())  # fmt: skip
ask_weights("main callback behind others", callbacks=lambda: [Callback(), Clipped(), Callback()])
ask_weights("a callback that changes the batch", callbacks=lambda: [Rolled()])
ask_weights("OwnRate with a scheduler", callbacks=lambda: [OwnRate()],
            scheduler_creator=stepping(lr_scheduler.StepLR, 1, gamma=0.5))  # fmt: skip


@question("validation of a main callback that doubles its loss")
def doubled_validation():
    one = estimator()
    rows = one.fit(creator(), epochs=1, batch_size=8, validation_data=creator(), callbacks=[ValidationDoubled()])
    return numbers(rows), numbers(one.evaluate(creator(), batch_size=8, callbacks=[ValidationDoubled()]))


# Orders of the data ---------------------------------------------------------------------------------------------------


class Rows(Callback):
    """The numbers of the samples, as they come."""

    def __init__(self):
        self.train, self.val = [], []

    def before_train_iter(self, runner):
        self.train.append(runner.batch[1].tolist())

    def before_val_iter(self, runner):
        self.val.append(runner.batch[1].tolist())


class Anything(MainCallback):
    """Takes every target."""

    def on_iter_forward(self, runner):
        inputs, runner.target = runner.batch
        runner.output = runner.model(inputs)
        runner.loss = runner.output.pow(2).mean()


def ask_data(name, act, wanted="train"):
    @question(f"order of the data: {name}")
    def ask():
        rows, one = Rows(), estimator()
        act(one, [rows, Anything()])
        return getattr(rows, wanted)


def fits(one, callbacks, times=1, data=numbered, **options):
    for _ in range(times):
        one.fit(data, **({"epochs": 1, "batch_size": 8, "callbacks": list(callbacks)} | options))


both = {"validation_data": numbered}
ask_data("training, three epochs", lambda one, callbacks: fits(one, callbacks, epochs=3))
ask_data("training, a second fit goes on", lambda one, callbacks: fits(one, callbacks, 2))
ask_data("validation, two epochs", lambda one, callbacks: fits(one, callbacks, epochs=2, **both), "val")
ask_data("validation, a second fit", lambda one, callbacks: fits(one, callbacks, 2, **both), "val")
ask_data("evaluate", lambda one, callbacks: one.evaluate(numbered, batch_size=8, callbacks=callbacks), "val")
ask_data(
    "evaluate after a fit",
    lambda one, callbacks: [fits(one, [Anything()]), one.evaluate(numbered, batch_size=8, callbacks=callbacks)],
    "val",
)
ask_data(
    "evaluate, num_steps=2",
    lambda one, callbacks: one.evaluate(numbered, batch_size=8, num_steps=2, callbacks=callbacks),
    "val",
)
NUMBERED = TensorDataset(torch.zeros(20, 4), torch.arange(20))
ask_data("drop_last", lambda one, some: fits(one, some, data=creator(data=NUMBERED, drop_last=True)))
ask_data("shuffle=True", lambda one, some: fits(one, some, data=creator(data=NUMBERED, shuffle=True), epochs=2))
ask_data(
    "a sampler of the user's own",
    lambda one, some: fits(one, some, data=creator(data=NUMBERED, sampler=SubsetRandomSampler([1, 2, 3]))),
)
ask_data("iterable data", lambda one, some: fits(one, some, data=creator(data=Counted()), epochs=2))
ask_data("a list of batches", lambda one, some: fits(one, some, data=lambda config, batch_size: SOME))
SOME = [(torch.zeros(2, 4), torch.tensor([4, 5])), (torch.zeros(1, 4), torch.tensor([6]))]


class Counted(IterableDataset):
    def __iter__(self):
        return iter(NUMBERED)

    def __len__(self):
        return 20


@question("order of the data: with_sampler, shuffle on and off")
def sampled():
    found = []

    class Look(Callback):
        def before_run(self, runner):
            for shuffle in (True, False):
                found.append([batch[1].tolist() for batch in runner.with_sampler(numbered({}, 8), shuffle=shuffle)])

    fits(estimator(), [Look(), Anything()])
    return found


@question("order of the data: batch_size reaches the function as it was given")
def given_batch_size():
    seen = []

    def create(config, batch_size):
        seen.append([dict(config), batch_size])
        return numbered(config, batch_size)

    one = estimator(config={"lr": 0.01})
    one.fit(create, epochs=1, batch_size=5, validation_data=create, callbacks=[Anything()])
    one.evaluate(create, batch_size=3, callbacks=[Anything()])
    return seen


# Orders of the hooks --------------------------------------------------------------------------------------------------


def watching(told, show=lambda name, runner: name, base=Callback, names=None, label=""):
    """A callback whose every hook tells, and then does what the base class does."""

    def method(name):
        def called(self, runner):
            told.append(label + name if label else show(name, runner))
            getattr(super(kind, self), name)(runner)

        return called

    names = names or (POINTS + OWN if base is MainCallback else POINTS)
    kind = type("Watching", (base,), {name: method(name) for name in names})
    return kind()


PASSES = {
    "fit": lambda one, callbacks: one.fit(creator(), epochs=2, batch_size=16, callbacks=callbacks),
    "fit with validation": lambda one, callbacks: one.fit(
        creator(), epochs=2, batch_size=16, validation_data=creator(12), callbacks=callbacks
    ),
    "evaluate": lambda one, callbacks: one.evaluate(creator(), batch_size=16, callbacks=callbacks),
    "predict": lambda one, callbacks: one.predict(creator(), batch_size=16, callbacks=callbacks),
}
for what, act in PASSES.items():
    for base in (Callback, MainCallback):

        @question(f"hooks: {what}, {base.__name__}")
        def hooks(act=act, base=base):
            told = []
            act(estimator(), [watching(told, base=base)])
            return told


def labelled(told, *kinds):
    return [watching(told, base=kind, names=("before_run", "after_train_iter"), label=f"{at}{kind.__name__[0]} ")
            for at, kind in enumerate(kinds)]  # fmt: skip


for kinds in ((Callback, Callback), (MainCallback, Callback), (Callback, MainCallback)):

    @question(f"hooks: order of {' and '.join(kind.__name__ for kind in kinds)}")
    def ordered(kinds=kinds):
        told = []
        estimator().fit(creator(), epochs=1, batch_size=32, callbacks=labelled(told, *kinds))
        return told


@question("hooks: call_hook calls all callbacks")
def called_hook():
    told = []

    class Calls(Callback):
        def before_run(self, runner):
            told.append("calls")

    some = [Calls(), watching(told, names=("before_iter",))]

    class Asks(Callback):
        def after_train_epoch(self, runner):
            for one in some:
                one.before_iter(runner)

    estimator().fit(creator(), epochs=1, batch_size=32, callbacks=[*some, Asks()])
    return told


# What callbacks see ---------------------------------------------------------------------------------------------------

SEEN = (
    "epochs", "global_step", "num_epochs", "batch", "batch_idx", "output", "loss", "target", "train_loader",
    "val_loader", "stop", "rank", "size", "config", "logger", "timers", "metrics", "sync_stats", "model", "models",
    "training_models", "optimizer", "optimizers", "scheduler", "schedulers", "criterion", "metrics_stats",
    "epoch_stats",
)  # fmt: skip
ONCE = tuple(name for name in POINTS if name not in ("before_epoch", "after_epoch", "before_iter", "after_iter"))


def ask_where(name):
    @question(f"runner.{name}: where it exists in fit")
    def ask():
        told = []
        show = lambda point, runner: [point, hasattr(runner, name)]  # noqa: E731
        one = estimator(scheduler_creator=stepping(lr_scheduler.StepLR, 1))
        PASSES["fit with validation"](one, [watching(told, show, names=ONCE)])
        return told


for name in SEEN:
    ask_where(name)


def ask_value(name, read, act="fit with validation"):
    @question(f"runner.{name}: its values in {act}")
    def ask():
        told = []
        show = lambda point, runner: [point, read(runner)]  # noqa: E731
        one = estimator(config={"lr": 0.1}, scheduler_creator=stepping(lr_scheduler.StepLR, 1, gamma=0.5))
        PASSES[act](one, [watching(told, show, names=ONCE)])
        return told


ask_value("epochs", lambda runner: runner.epochs)
ask_value("global_step", lambda runner: runner.global_step)
ask_value("num_epochs", lambda runner: runner.num_epochs)
ask_value("stop", lambda runner: runner.stop)
ask_value("batch_idx", lambda runner: getattr(runner, "batch_idx", None))
ask_value("batch", lambda runner: [part.shape for part in runner.batch] if hasattr(runner, "batch") else None)
ask_value("output", lambda runner: runner.output.sum() if hasattr(runner, "output") else None)
ask_value("loss", lambda runner: runner.loss if hasattr(runner, "loss") else None)
ask_value("metrics_stats", lambda runner: numbers(getattr(runner, "metrics_stats", None)))
ask_value("epoch_stats", lambda runner: numbers(getattr(runner, "epoch_stats", None)))
ask_value("model.training", lambda runner: runner.models[0].training)
ask_value("optimizer's lr", lambda runner: runner.optimizer.param_groups[0]["lr"])
ask_value("rank and size", lambda runner: [runner.rank, runner.size])
ask_value("config", lambda runner: runner.config)
ask_value("lengths of lists", lambda runner: [len(runner.models), len(runner.optimizers), len(runner.schedulers)])
ask_value("train_loader's length", lambda runner: len(runner.train_loader))
ask_value("grad enabled", lambda runner: torch.is_grad_enabled())
ask_value("epochs", lambda runner: runner.epochs, "evaluate")
ask_value("num_steps", lambda runner: [hasattr(runner, "num_steps"), getattr(runner, "num_steps", 0)], "evaluate")
ask_value("model.training", lambda runner: runner.models[0].training, "evaluate")
ask_value("output", lambda runner: runner.output.sum() if hasattr(runner, "output") else None, "evaluate")
ask_value("output", lambda runner: runner.output.sum() if hasattr(runner, "output") else None, "predict")
ask_value("batch", lambda runner: len(runner.batch[0]) if hasattr(runner, "batch") else None, "predict")


@question("runner: attributes of the user's own, close to known ones")
def own_attributes():
    found = []

    class Sets(Callback):
        def before_run(self, runner):
            runner.losses, runner.outputs_, runner.epoch_, runner.batches, runner.stopp = [1.0], 2, 3, 4, True

        def after_train_iter(self, runner):
            found.append([runner.losses, runner.outputs_, runner.epoch_, runner.batches, runner.stopp, runner.stop])
            runner.losses = [*runner.losses, 0.0]

    fits(estimator(), [Sets(), Anything()])
    return found


@question("runner.epoch and runner.num_steps may be set, as a script's own counters")
def counters():
    found = []

    class Sets(Callback):
        def before_run(self, runner):
            runner.epoch, runner.num_steps = 7, 0

        def after_train_iter(self, runner):
            runner.num_steps += 1

        def after_run(self, runner):
            found.append(runner.num_steps)

    fits(estimator(), [Sets(), Anything()], epochs=2)
    return found


@question("runner.num_steps: setting it inside evaluate changes nothing")
def steps_set():
    rows = Rows()

    class Sets(Callback):
        def before_val_epoch(self, runner):
            runner.num_steps = 1

    found = estimator().evaluate(numbered, batch_size=8, num_steps=2, callbacks=[Sets(), rows, Anything()])
    return rows.val, numbers(found)


@question("runner: put, get, update and remove")
def kept():
    found = []

    class Keeps(Callback):
        def before_run(self, runner):
            runner.put("a", 1)
            runner.update("a", 2)
            found.append(runner.get("a"))
            runner.put("a", 3)
            runner.update("b", 4)
            found.append([runner.get("a"), runner.get("b")])
            runner.remove("a")
            for act in (lambda: runner.get("a"), lambda: runner.remove("a")):
                try:
                    act()
                    found.append("returned")
                except Exception:
                    found.append("raised")

        def after_run(self, runner):
            found.append(runner.get("b"))

    fits(estimator(), [Keeps(), Anything()])
    return found


@question("callback: every_n_epoch and every_n_iter")
def every():
    found = []

    class Counts(Callback):
        def after_train_epoch(self, runner):
            found.append([self.every_n_epoch(runner, n) for n in (-1, 0, 1, 2, 3)])

        def before_train_iter(self, runner):
            found.append([self.every_n_iter(runner, n) for n in (-1, 0, 1, 2, 3)])

    fits(estimator(), [Counts(), Anything()], epochs=2)
    return found


@question("callback: state that it gathers in two fits")
def gathered():
    rows, one = Rows(), estimator()
    fits(one, [rows, Anything()], 2)
    return len(rows.train), sorted(number for row in rows.train for number in row)


@question("make_only_mainCallback: one is put in front")
def only_one():
    some = [Callback(), Callback()]
    found = make_only_mainCallback(some)
    return [isinstance(one, MainCallback) for one in (some if found is None else found)]


@question("make_only_mainCallback: two are refused")
def two_mains():
    try:
        make_only_mainCallback([MainCallback(), Clipped()])
    except Exception:
        return "raised"
    return "returned"


@question("is_tqdm_exists")
def bars():
    return is_tqdm_exists([Callback()]), is_tqdm_exists([Callback(), TqdmCallback()]), is_tqdm_exists([])


@question("TqdmCallback and use_tqdm change no number")
def with_bars():
    found = []
    for options, callbacks in (({"use_tqdm": True}, []), ({}, [TqdmCallback()])):
        one = estimator(**options)
        fits(one, callbacks, data=creator(), validation_data=creator())
        found.append(weights(one))
    return found


# Stopping -------------------------------------------------------------------------------------------------------------


def ask_stop(name, at, when, epochs=4, **options):
    @question(f"stop: {name}")
    def ask():
        told = []

        class Stops(Callback): ...

        def stop(self, runner):
            if when(runner):
                runner.stop = True

        setattr(Stops, at, stop)
        one = estimator()
        some = [watching(told, names=("after_train_iter", "after_val_epoch", "after_train_epoch", "after_run"))]
        rows = one.fit(creator(), epochs=epochs, batch_size=8, callbacks=[*some, Stops()], **options)
        return told, len(rows), weights(one)


ask_stop("in the second batch of the first of four epochs", "after_train_iter", lambda runner: runner.global_step == 2)
ask_stop("in the second batch of the last epoch", "after_train_iter", lambda runner: runner.global_step == 5, epochs=2)
ask_stop("in the only epoch, with validation", "after_train_iter", lambda runner: runner.batch_idx == 0, epochs=1,
         validation_data=creator(12))  # fmt: skip
ask_stop("after the last epoch", "after_train_epoch", lambda runner: runner.epochs == 2, epochs=2)
ask_stop("set to False", "after_train_iter", lambda runner: setattr(runner, "stop", False), epochs=1)


@question("stop: num_epochs set in before_run")
def fewer_epochs():
    class Fewer(Callback):
        def before_run(self, runner):
            runner.num_epochs = 2

    one = estimator()
    rows = one.fit(creator(), epochs=5, batch_size=8, callbacks=[Fewer()])
    return numbers(rows), weights(one)


for steps in (1, 3, 4, 7):

    @question(f"MaxstepsCallback({steps})")
    def limited(steps=steps):
        one = estimator()
        rows = one.fit(creator(), epochs=2, batch_size=8, callbacks=[MaxstepsCallback(steps)])
        return numbers(rows), weights(one)


# Statistics -----------------------------------------------------------------------------------------------------------


@question("statistics: an epoch without metrics")
def plain_row():
    return numbers(estimator().fit(creator(), epochs=1, batch_size=8))


@question("statistics: evaluate, and its keys")
def evaluated():
    one = estimator(metrics=[measures.Accuracy(), measures.SparseCategoricalAccuracy()])
    return numbers(one.evaluate(creator(), batch_size=8))


@question("statistics: evaluate with one metric instead of a list")
def one_metric():
    return numbers(estimator(metrics=measures.Accuracy()).evaluate(creator(), batch_size=8))


@question("statistics: evaluate with num_steps")
def evaluated_steps():
    return numbers(estimator(metrics=[measures.Accuracy()]).evaluate(creator(), batch_size=8, num_steps=2))


@question("statistics: evaluate with reduce_results=False")
def evaluated_apart():
    return numbers(estimator().evaluate(creator(), batch_size=8, reduce_results=False))


@question("statistics: fit with metrics, their names")
def measured():
    one = estimator(metrics=[measures.Accuracy(), measures.SparseCategoricalAccuracy(), measures.F1Score()])
    return numbers(one.fit(creator(), epochs=2, batch_size=8, validation_data=creator(12)))


@question("statistics: a function as a metric")
def function_metric():
    def agreement(output, target):
        return (output.argmax(1) == target).float().mean()

    one = estimator(metrics=[measures.CustomizedMetric(agreement)])
    return numbers(one.fit(creator(), epochs=1, batch_size=8, validation_data=creator(12)))


@question("statistics: metrics look at the target that a forward sets")
def target_set():
    class Shifted(Doubled):
        def on_val_forward(self, runner):
            self.on_iter_forward(runner)
            runner.target = (runner.target + 1) % 3

    one = estimator(metrics=[measures.Accuracy()])
    return numbers(one.evaluate(creator(), batch_size=8, callbacks=[Shifted()]))


def two_optimizers(model, config):
    return [optim.SGD(model[0].parameters(), lr=0.1), optim.SGD(model[2].parameters(), lr=0.1)]


@question("statistics: two optimizers, of which the default steps the first")
def first_steps():
    one = estimator(optimizer=two_optimizers)
    return numbers(one.fit(creator(), epochs=2, batch_size=8)), weights(one)


@question("statistics: profile adds the times")
def profiled():
    rows = estimator().fit(creator(), epochs=1, batch_size=8, profile=True)
    return [len(rows), "profile" in rows[0]]


@question("statistics: the times that profile adds")
def profiled_names():
    class Times(Callback):
        def after_val_iter(self, runner):
            with runner.timers.record("mine"):
                pass

    one = estimator()
    rows = one.fit(creator(), epochs=1, batch_size=8, profile=True, validation_data=creator())
    found = one.evaluate(creator(), batch_size=8, profile=True, callbacks=[Times()])
    return sorted(rows[0]["profile"]), sorted(found["profile"])


@question("statistics: sync_stats=True")
def synchronised():
    return numbers(estimator(sync_stats=True).fit(creator(), epochs=1, batch_size=8, validation_data=creator(12)))


@question("predict: outputs in the order of the data")
def predicted():
    one = estimator()
    fits(one, [], data=creator())
    return one.predict(creator(), batch_size=8)


@question("predict: one column is squeezed")
def predicted_column():
    return estimator(config={"outputs": 1}, loss=nn.MSELoss()).predict(creator(), batch_size=8)


@question("predict: on_pred_forward of a main callback")
def predicted_by():
    class Likeliest(MainCallback):
        def on_pred_forward(self, runner):
            runner.output = runner.model(runner.batch[0]).argmax(1).numpy()

    return estimator().predict(creator(), batch_size=8, callbacks=[Likeliest()])


# Metrics --------------------------------------------------------------------------------------------------------------

_GENERATOR = torch.Generator().manual_seed(3)
SCORES, LABELS = torch.rand(12, generator=_GENERATOR), torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1])
PREDICTED = torch.softmax(torch.randn(12, 3, generator=_GENERATOR), 1)
CLASSES = torch.tensor([0, 2, 1, 2, 0, 1, 2, 1, 0, 2, 1, 2])
MANY, OF_MANY = torch.randn(12, 8, generator=_GENERATOR), torch.arange(12) % 8
REAL, WISHED = torch.rand(12, generator=_GENERATOR) * 3, torch.rand(12, generator=_GENERATOR) * 3
PLANE, WISHED_PLANE = REAL.reshape(4, 3), WISHED.reshape(4, 3)
ONE_HOT = nn.functional.one_hot(CLASSES, 3)
CASES = {
    "probabilities": (SCORES, LABELS),
    "probabilities, float targets": (SCORES, LABELS.float()),
    "a column of probabilities": (SCORES[:, None], LABELS[:, None]),
    "scores of classes": (PREDICTED, CLASSES),
    "scores of classes, a column of targets": (PREDICTED, CLASSES[:, None]),
    "one-hot": (PREDICTED, ONE_HOT),
    "one-hot floats": (PREDICTED, ONE_HOT.float()),
    "eight classes": (MANY, OF_MANY),
    "classes": (CLASSES.flip(0), CLASSES),
    "numbers": (REAL, WISHED),
    "a plane of numbers": (PLANE, WISHED_PLANE),
}
_TWO, _THREE = ("probabilities", "probabilities, float targets"), ("scores of classes",)
_HOT, _NUMBERS = ("one-hot", "one-hot floats"), ("numbers", "a plane of numbers")
FITTING = {
    "Accuracy": (
        "probabilities, float targets",
        "a column of probabilities",
        *_THREE,
        "eight classes",
        *_HOT,
        "classes",
    ),
    "SparseCategoricalAccuracy": (*_THREE, "scores of classes, a column of targets", "eight classes"),
    "CategoricalAccuracy": _HOT,
    "BinaryAccuracy": (*_TWO, "a column of probabilities"),
    "Top5Accuracy": ("eight classes",),
    "MSE": (*_NUMBERS, "one-hot floats"),
    "MAE": (*_NUMBERS, "one-hot floats"),
    "BinaryCrossEntropy": (*_TWO, "one-hot floats"),
    "CategoricalCrossEntropy": _HOT,
    "SparseCategoricalCrossEntropy": _THREE,
    "KLDivergence": (*_HOT, "a plane of numbers"),
    "Poisson": _NUMBERS,
    "AUC": (*_TWO[:1], "a column of probabilities"),
    "ROC": _TWO[:1],
    "F1Score": (*_TWO[:1], *_THREE, "one-hot", "classes", "eight classes"),
    "Precision": (*_TWO[:1], *_THREE, "one-hot", "classes", "eight classes"),
    "Recall": (*_TWO[:1], *_THREE, "one-hot", "classes", "eight classes"),
    "PrecisionRecallCurve": _TWO[:1],
}


def in_batches(metric, case):
    output, target = CASES[case]
    for part in (slice(0, 6), slice(6, None)):
        metric(output[part].clone(), target[part].clone())
    return metric.compute()


for name, cases in FITTING.items():
    for case in cases:

        @question(f"metric {name}: {case}")
        def value(name=name, case=case):
            return numbers_of(in_batches(getattr(measures, name)().get_pytorch_metric(), case))


def numbers_of(result):
    return [part.double() for part in result] if isinstance(result, tuple) else float(result)


@question("metrics: the names")
def metric_names():
    return [getattr(measures, name)().get_name() for name in FITTING]


@question("metrics: the classes of pytorch_metrics")
def metric_classes():
    found = [in_batches(getattr(torch_measures, name)(), "eight classes") for name in ("Accuracy", "F1Score")]
    return [float(one) for one in (*found, in_batches(torch_measures.AUROC(), "probabilities"))]


@question("metrics: Accuracy(zero_based_label=False)")
def counted_from_one():
    metric = measures.Accuracy(zero_based_label=False).get_pytorch_metric()
    metric(PREDICTED, CLASSES)
    return float(metric.compute())


@question("metrics: CustomizedMetric is the mean of its batches")
def customised():
    metric = measures.CustomizedMetric(lambda output, target: (output - target).abs().mean())
    gathering = metric.get_pytorch_metric()
    gathering(REAL[:3], WISHED[:3])
    gathering(REAL[3:], WISHED[3:])
    return float(gathering.compute()), metric.get_name()


@question("metrics: BinaryAccuracy with a threshold in the call")
def threshold():
    metric = torch_measures.BinaryAccuracy()
    metric(SCORES, LABELS, 0.2)
    return float(metric.compute())


@question("metrics: convert_metrics_list and convert_metrics_dict")
def converted():
    some = [measures.Accuracy(), measures.MAE()]
    as_dict = measures.Metric.convert_metrics_dict(some, "pytorch")
    return [type(one).__name__ for one in measures.Metric.convert_metrics_list(some, "pytorch")], list(as_dict)


# Files ----------------------------------------------------------------------------------------------------------------


def files(folder="."):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def ask_checkpoint(name, epochs=3, **options):
    @question(f"ModelCheckpoint: {name}")
    def ask():
        one = estimator(scheduler_creator=stepping(lr_scheduler.StepLR, 1))
        one.fit(creator(), epochs=epochs, batch_size=8, callbacks=[ModelCheckpoint(**options)])
        found = {}
        for file in files():
            state = torch.load(file, weights_only=False)
            found[file] = [sorted(state), state["epoch"], float(next(iter(state["models"][0].values())).sum())]
        return found


ask_checkpoint("each epoch", filepath="kept/{epoch}")
ask_checkpoint("a name without a number", filepath="kept/simple")
ask_checkpoint("every second epoch", filepath="kept/{epoch}", interval=2)
ask_checkpoint("weights only", filepath="kept/{epoch}", save_weights_only=True)
ask_checkpoint("a name with more", filepath="kept/test-{epoch}", epochs=1)
ask_checkpoint("by iteration, every second", filepath="kept/{iter}", by_epoch=False, interval=2, epochs=2)


@question("ModelCheckpoint: get_latest_checkpoint and latest_checkpoint")
def latest():
    estimator().fit(creator(), epochs=1, batch_size=8, callbacks=[ModelCheckpoint("kept/{epoch}")])
    found = [ModelCheckpoint.get_latest_checkpoint("kept"), Estimator.latest_checkpoint("kept")]
    try:
        ModelCheckpoint.get_latest_checkpoint("elsewhere")
    except Exception:
        found.append("raised")
    return [os.path.relpath(str(one)) for one in found]


@question("ModelCheckpoint: a folder that holds checkpoints is refused")
def full_folder():
    os.makedirs("kept")
    Path("kept/old.ckpt").touch()
    try:
        estimator().fit(creator(), epochs=1, batch_size=8, callbacks=[ModelCheckpoint("kept/{epoch}")])
    except Exception:
        return "raised"
    return "returned"


@question("estimator: save and load")
def saved():
    one = estimator()
    fits(one, [], data=creator())
    one.save("weights.pt")
    before = weights(one)
    other = estimator()
    other.load("weights.pt")
    return sorted(torch.load("weights.pt", weights_only=False)), before, weights(other)


@question("estimator: save_checkpoint and load_checkpoint, and training on")
def resumed():
    one = estimator(optimizer=by(optim.SGD, lr=0.1, momentum=0.9))
    fits(one, [], data=creator(), epochs=2)
    one.save_checkpoint("whole.ckpt")
    other = estimator(optimizer=by(optim.SGD, lr=0.1, momentum=0.9))
    other.load_checkpoint("whole.ckpt")
    rows = other.fit(creator(), epochs=1, batch_size=8)
    return numbers(rows), weights(other)


@question("estimator: get_state_dict and load_state_dict")
def states():
    one = estimator(scheduler_creator=stepping(lr_scheduler.StepLR, 1))
    fits(one, [], data=creator())
    state = one.get_state_dict()
    other = estimator(scheduler_creator=stepping(lr_scheduler.StepLR, 1))
    other.load_state_dict(state)
    return state["epoch"], [len(state[key]) for key in ("models", "optimizers", "schedulers")], weights(other)


@question("estimator: get_model is the trained module")
def trained_model():
    one = estimator()
    fits(one, [], data=creator())
    model = one.get_model()
    return type(model).__name__, weights(model), weights(one)


@question("runner: save_checkpoint and load_checkpoint in a callback")
def checkpointed():
    found = []

    class Saves(Callback):
        def after_train_epoch(self, runner):
            runner.save_checkpoint(f"{runner.epochs}.ckpt", save_weights_only=runner.epochs == 2)

        def after_run(self, runner):
            runner.load_checkpoint("1.ckpt")
            found.append([runner.epochs, sorted(runner.get_state_dict())])

    one = estimator(scheduler_creator=stepping(lr_scheduler.StepLR, 1))
    one.fit(creator(), epochs=2, batch_size=8, callbacks=[Saves()])
    return found, files(), [sorted(torch.load(file, weights_only=False)) for file in files()], weights(one)


def ask_events(name, epochs=2, **options):
    @question(f"TensorBoardCallback: {name}")
    def ask():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        board = TensorBoardCallback(log_dir="events", **options)
        one = estimator(metrics=[measures.Accuracy()])
        one.fit(creator(), epochs=epochs, batch_size=8, validation_data=creator(12), callbacks=[board])
        found = {}
        for folder in sorted({str(path.parent) for path in Path("events").rglob("*tfevents*")}):
            events = EventAccumulator(folder).Reload()
            found |= {tag: [[one.step, one.value] for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        return dict(sorted(found.items()))


ask_events("each epoch", freq="epoch")
ask_events("each batch", epochs=1, freq="batch")
ask_events("every second batch", epochs=1, freq=2)


@question("TensorBoardCallback: a freq that is none is refused")
def wrong_freq():
    try:
        TensorBoardCallback(log_dir="events", freq="sometimes")
    except Exception:
        return "raised"
    return "returned"


# Helpers --------------------------------------------------------------------------------------------------------------


def refused(act):
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return "returned"


@question("log4Error: invalidInputError and invalidOperationError")
def checks():
    return [
        refused(lambda: log4Error.invalidInputError(True, "fine")),
        refused(lambda: log4Error.invalidInputError(False, "wrong", "do it so")),
        refused(lambda: log4Error.invalidOperationError(True, "fine")),
        refused(lambda: log4Error.invalidOperationError(False, "wrong", "do it so")),
        refused(lambda: log4Error.invalidOperationError(False, "wrong", cause=KeyError("inner"))),
    ]


@question("log4Error: the message that is raised")
def check_message():
    try:
        log4Error.invalidInputError(False, "the folder is full", "choose another")
    except RuntimeError as error:
        return str(error)
    return None


WRONG = {
    "batch_size in the config": lambda: estimator(config={"batch_size": 8}).fit(creator(), epochs=1),
    "an unknown backend": lambda: Estimator.from_torch(model=model_creator, backend="bigdl_"),
    "data that is a number": lambda: estimator().fit(3, epochs=1),
    "a batch without a loss": lambda: estimator(loss=None).fit(creator(), epochs=1, batch_size=8),
}
for what, act in WRONG.items():

    @question(f"refused: {what}")
    def wrong(act=act):
        return refused(act) != "returned"


@question("star import of metrics: numbers with numpy")
def with_numpy():
    metric = measures.MAE().get_pytorch_metric()
    metric(torch.from_numpy(np.array([1.0, 2.0])), torch.from_numpy(np.array([0.0, 4.0])))
    return float(metric.compute())


if __name__ == "__main__":
    main()
