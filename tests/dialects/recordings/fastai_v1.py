"""Questions for fastai v1: what it computes, in which order it calls, what it writes and what it returns."""

from __future__ import annotations

import csv
import random
import warnings
from functools import partial
from pathlib import Path

import fastai.callback as callback_module
import fastai.callbacks as ready
import fastai.core as core
import fastai.layers as layers
import fastai.metrics as measures
import fastai.torch_core as torch_core
import fastai.train as train_module
import numpy as np
import torch
from asking import main, question
from fastai.basic_data import DataBunch, DatasetType
from fastai.basic_train import Learner, LearnerCallback, RecordOnCPU
from fastai.callback import AverageMetric, Callback, OptimWrapper, Scheduler, SmoothenValue
from fastai.callbacks import hooks as hook_module
from fastai.callbacks.general_sched import GeneralScheduler, TrainingPhase
from fastai.callbacks.misc import StopAfterNBatches
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

EVENTS = (
    "on_train_begin", "on_epoch_begin", "on_batch_begin", "on_loss_begin", "on_backward_begin", "on_backward_end",
    "on_step_end", "on_batch_end", "on_epoch_end", "on_train_end",
)  # fmt: skip


# What is trained ------------------------------------------------------------------------------------------------------


def tensors(samples=20):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 4, generator=generator), torch.arange(samples) % 3


def loader(samples=20, batch=8):
    return DataLoader(TensorDataset(*tensors(samples)), batch_size=batch)


def net(norm=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), *([nn.BatchNorm1d(5)] if norm else []), nn.ReLU(), nn.Linear(5, 3))


def bunch(valid=True, samples=20):
    data = DataBunch(loader(samples), loader(12), path=".")
    if not valid:
        data.valid_dl = None
    return data


def number(value):
    return None if value is None else float(value)


def learner(*, valid=True, norm=False, samples=20, model=None, data=None, **options):
    options = {"opt_func": optim.SGD, "loss_func": nn.CrossEntropyLoss(), "wd": 0.0, "silent": True} | options
    random.seed(0), np.random.seed(0)
    return Learner(data or bunch(valid, samples), model or net(norm), **options)


def weights(learn):
    return [[float(p.detach().sum()), float(p.detach().pow(2).sum())] for p in learn.model.parameters()]


def recorded(learn):
    record = learn.recorder
    return {
        "losses": [float(one) for one in record.losses],
        "val_losses": [number(one) for one in record.val_losses],
        "metrics": [[number(one) for one in row] for row in record.metrics],
        "nb_batches": list(record.nb_batches),
        "lrs": [float(one) for one in record.lrs],
        "moms": [float(one) for one in record.moms],
    }


def ask_weights(name, epochs=2, lr=0.1, fit=None, **options):
    @question(f"weights: {name}")
    def ask():
        learn = learner(**options)
        fit(learn) if fit else learn.fit(epochs, lr)
        return weights(learn)


SGD_MOMENTUM = partial(optim.SGD, momentum=0.9)
ADAM = partial(optim.Adam, betas=(0.9, 0.99))

ask_weights("SGD")
ask_weights("SGD, wd", wd=0.3)
ask_weights("SGD, wd, true_wd=False", wd=0.3, true_wd=False)
ask_weights("SGD, wd, bn_wd=False", wd=0.3, bn_wd=False, norm=True)
ask_weights("SGD, wd, bn_wd=True", wd=0.3, norm=True)
ask_weights("SGD with momentum, wd", wd=0.3, opt_func=SGD_MOMENTUM)
ask_weights("Adam, wd", lr=0.01, wd=0.3, opt_func=ADAM)
ask_weights("Adam, wd, true_wd=False", lr=0.01, wd=0.3, opt_func=ADAM, true_wd=False)
ask_weights("RMSprop, wd", lr=0.01, wd=0.3, opt_func=optim.RMSprop)
ask_weights("Adagrad", lr=0.01, opt_func=optim.Adagrad)
ask_weights("fit(wd=)", fit=lambda learn: learn.fit(1, 0.1, wd=0.5))
ask_weights("fit twice", fit=lambda learn: [learn.fit(1, 0.1), learn.fit(1, 0.05)])
ask_weights("one training sample more than a batch", samples=17)
ask_weights("clip_grad", fit=lambda learn: learn.clip_grad(0.01).fit(2, 0.5))
ask_weights("GradientClipping", callback_fns=[partial(train_module.GradientClipping, clip=0.01)])
ask_weights("fit_one_cycle", fit=lambda learn: learn.fit_one_cycle(3, 0.1), opt_func=SGD_MOMENTUM)
ask_weights("fit_one_cycle, Adam", fit=lambda learn: learn.fit_one_cycle(2, 0.01, pct_start=0.5), opt_func=ADAM)
ask_weights("fit_one_cycle, wd", fit=lambda learn: learn.fit_one_cycle(2, 0.1, wd=0.2), opt_func=SGD_MOMENTUM)
ask_weights("fit_fc", fit=lambda learn: learn.fit_fc(2, 0.1), opt_func=SGD_MOMENTUM)
ask_weights("lr_find gives the weights back", fit=lambda learn: learn.lr_find(num_it=9))


def grouped(**options):
    model = net()
    return learner(model=model, layer_groups=[nn.Sequential(model[0]), nn.Sequential(model[2])], **options)


@question("weights: layer groups, slice of learning rates")
def groups_slice():
    learn = grouped()
    learn.fit(2, slice(0.01, 0.1))
    return weights(learn)


@question("weights: layer groups, slice(lr)")
def groups_stop():
    learn = grouped()
    learn.fit(2, slice(0.1))
    return weights(learn)


@question("weights: freeze_to the last group")
def groups_frozen():
    learn = grouped()
    learn.freeze_to(-1)
    learn.fit(1, 0.1)
    return weights(learn), [p.requires_grad for p in learn.model.parameters()]


@question("weights: freeze, layer groups")
def groups_freeze():
    learn = grouped()
    learn.freeze()
    learn.fit(1, 0.1)
    return weights(learn), [p.requires_grad for p in learn.model.parameters()]


@question("weights: freeze, unfreeze, layer groups")
def groups_unfreeze():
    learn = grouped()
    learn.freeze()
    learn.unfreeze()
    learn.fit(1, 0.1)
    return weights(learn), [p.requires_grad for p in learn.model.parameters()]


@question("weights: train_bn=False")
def frozen_norms():
    model = net(norm=True)
    groups = [nn.Sequential(model[0], model[1]), nn.Sequential(model[3])]
    learn = learner(model=model, train_bn=False, layer_groups=groups)
    learn.freeze()
    learn.fit(1, 0.1)
    return weights(learn), model[1].running_mean, [p.requires_grad for p in model.parameters()]


@question("weights: split by a function, then a slice")
def split_by_function():
    learn = learner()
    learn.split(lambda model: (model[2],))
    learn.fit(1, slice(0.01, 0.1))
    return weights(learn), len(learn.layer_groups)


@question("lr_range")
def lr_range():
    learn = grouped()
    return [list(map(float, np.atleast_1d(learn.lr_range(one)))) for one in (0.1, slice(0.1), slice(0.01, 0.1))]


@question("weights: mixup")
def mixed_up():
    learn = learner().mixup()
    learn.fit(2, 0.1)
    return weights(learn), recorded(learn)["val_losses"]


@question("weights: AccumulateScheduler")
def accumulated():
    learn = learner(samples=32, loss_func=nn.CrossEntropyLoss(reduction="sum"))
    learn.callback_fns.append(partial(train_module.AccumulateScheduler, n_step=2, drop_last=True))
    learn.fit(1, 0.1)
    return weights(learn)


@question("weights: BnFreeze")
def frozen_norm():
    learn = learner(norm=True, callback_fns=[train_module.BnFreeze])
    for parameter in learn.model[1].parameters():
        parameter.requires_grad = False
    learn.fit(1, 0.1)
    return weights(learn), learn.model[1].running_mean


@question("weights: two losses of a list of targets")
def list_of_targets():
    inputs, targets = tensors()
    data = TensorDataset(inputs, targets, targets.float())

    def pair(batch):
        xs, ys, zs = zip(*batch, strict=True)
        return torch.stack(xs), [torch.stack(ys), torch.stack(zs)]

    loads = DataLoader(data, batch_size=8)

    def loss(output, classes, numbers):
        return nn.functional.cross_entropy(output, classes) + (output[:, 0] - numbers).pow(2).mean()

    learn = learner(data=DataBunch(loads, loads, path=".", collate_fn=pair), loss_func=loss)
    learn.fit(1, 0.1)
    return weights(learn), recorded(learn)["val_losses"]


@question("weights: several inputs")
def several_inputs():
    inputs, targets = tensors()

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, first, second):
            return self.inner(first + 2 * second)

    def pair(batch):
        xs, ys = zip(*batch, strict=True)
        return [torch.stack(xs), torch.stack(xs).flip(0)], torch.stack(ys)

    loads = DataLoader(TensorDataset(inputs, targets), batch_size=8)
    learn = learner(model=Two(), data=DataBunch(loads, loads, path=".", collate_fn=pair))
    learn.fit(1, 0.1)
    return weights(learn)


# What a callback may return -------------------------------------------------------------------------------------------


def returning(event, result, order=0):
    def method(self, **kwargs):
        return result(kwargs) if callable(result) else result

    return type("Returning", (Callback,), {event: method, "_order": order})()


def ask_return(event, result, name, when="always", epochs=2):
    @question(f"returned from {event}: {name}")
    def ask():
        learn = learner(metrics=[measures.accuracy])
        learn.fit(epochs, 0.1, callbacks=[returning(event, result)])
        return weights(learn), recorded(learn)["val_losses"], recorded(learn)["nb_batches"]


def doubled(key):
    return lambda state: {key: state[key] * 2}


def at(iteration, **result):
    return lambda state: result if state["train"] and state["num_batch"] == iteration else None


ask_return("on_batch_begin", doubled("last_input"), "last_input")
ask_return("on_batch_begin", lambda state: {"last_target": (state["last_target"] + 1) % 3}, "last_target")
ask_return("on_loss_begin", doubled("last_output"), "last_output")
ask_return("on_backward_begin", doubled("last_loss"), "last_loss")
ask_return("on_backward_begin", {"skip_bwd": True}, "skip_bwd")
ask_return("on_backward_end", {"skip_step": True}, "skip_step")
ask_return("on_backward_end", {"skip_step": True, "skip_zero": True}, "skip_step and skip_zero")
ask_return("on_backward_end", at(1, skip_step=True, skip_zero=True), "both in the second batch")
ask_return("on_step_end", {"skip_zero": True}, "skip_zero")
ask_return("on_batch_begin", at(1, skip_step=True), "skip_step in the second batch")
ask_return("on_batch_end", at(1, stop_epoch=True), "stop_epoch in the second batch")
ask_return("on_batch_end", at(1, stop_training=True), "stop_training in the second batch")
ask_return("on_epoch_end", {"stop_training": True}, "stop_training", epochs=3)
ask_return("on_train_begin", {"skip_validate": True}, "skip_validate")
ask_return("on_epoch_begin", {"skip_validate": True}, "skip_validate")
ask_return("on_train_begin", {"epoch": 1}, "epoch", epochs=3)
ask_return("on_epoch_end", lambda state: {"last_metrics": [*state["last_metrics"], 7.0]}, "last_metrics")
ask_return("on_batch_begin", {"unknown": 1}, "a key that is not in the state")
ask_return("on_train_begin", {}, "an empty dict")


# Orders and keywords --------------------------------------------------------------------------------------------------


def watching(told, extra=lambda event, state: event, order=0, base=Callback, name="Watching"):
    def method(event):
        def called(self, **kwargs):
            told.append(extra(event, kwargs))

        return called

    return type(name, (base,), {"_order": order, **{event: method(event) for event in EVENTS}})


def ask_order(name, act, extra=lambda event, state: event, **options):
    @question(f"order: {name}")
    def ask():
        told = []
        learn = learner(**options)
        act(learn, watching(told, extra)())
        return told


ask_order("fit with validation", lambda learn, watch: learn.fit(2, 0.1, callbacks=[watch]))
ask_order("fit without validation", lambda learn, watch: learn.fit(1, 0.1, callbacks=[watch]), valid=False)
ask_order("validate", lambda learn, watch: learn.validate(callbacks=[watch]))
ask_order("get_preds", lambda learn, watch: [learn.callbacks.append(watch), learn.get_preds()])
ask_order(
    "train flags", lambda learn, watch: learn.fit(1, 0.1, callbacks=[watch]),
    lambda event, state: [event, state.get("train")],
)  # fmt: skip
ask_order(
    "numbers", lambda learn, watch: learn.fit(2, 0.1, callbacks=[watch]),
    lambda event, state: [event, state["epoch"], state["iteration"], state["num_batch"], state["n_epochs"]],
)  # fmt: skip
ask_order(
    "smooth_loss", lambda learn, watch: learn.fit(2, 0.1, callbacks=[watch]),
    lambda event, state: float(state["smooth_loss"]) if event == "on_backward_begin" else event,
)  # fmt: skip
ask_order(
    "last_loss", lambda learn, watch: learn.fit(1, 0.1, callbacks=[watch]),
    lambda event, state: [event, float(state["last_loss"])] if "last_loss" in state else event,
)  # fmt: skip
ask_order(
    "last_metrics", lambda learn, watch: learn.fit(2, 0.1, callbacks=[watch]),
    lambda event, state: [event, [float(one) for one in state["last_metrics"]]] if event == "on_epoch_end" else event,
    metrics=[measures.accuracy],
)  # fmt: skip
ask_order(
    "shapes of the batch", lambda learn, watch: learn.fit(1, 0.1, callbacks=[watch]),
    lambda event, state: list(state["last_input"].shape) + list(state["last_target"].shape)
    if "last_input" in state else event,
)  # fmt: skip
ask_order(
    "an error", lambda learn, watch: _failing(learn, watch),
    lambda event, state: [event, type(state["exception"]).__name__] if event == "on_train_end" else event,
)  # fmt: skip


def _failing(learn, watch):
    def fail(state):
        raise ValueError("stop")

    try:
        learn.fit(1, 0.1, callbacks=[watch, returning("on_step_end", fail)])
    except ValueError:
        pass


for event_ in EVENTS:

    @question(f"keywords of {event_}")
    def keywords(event=event_):
        told = []
        learn = learner(metrics=[measures.accuracy])
        learn.fit(1, 0.1, callbacks=[watching(told, lambda one, state: [one, sorted(state)])()])
        return next(keys for one, keys in told if one == event)


@question("order: callbacks by _order, ties in list order")
def by_order():
    told = []
    names = {"late": 9, "early": -5, "first": 0, "second": 0, "last": 999}
    watches = [watching(told, lambda event, state, n=name: n, order=order)() for name, order in names.items()]
    for watch in watches:
        for event in EVENTS[1:]:
            setattr(watch, event, lambda **kwargs: None)
    learner().fit(1, 0.1, callbacks=watches)
    return told


@question("order: callbacks, callback_fns, callbacks of fit and defaults in ties")
def in_ties():
    told = []

    def one(name, base=Callback):
        called = {"on_train_begin": lambda self, **kwargs: told.append(name)}
        return type(f"Tie{name}", (base,), called)

    learn = learner(callbacks=[one("callbacks")()], callback_fns=[one("callback_fns", LearnerCallback)])
    learn.fit(1, 0.1, callbacks=[one("fit")()])
    return told


@question("order: metrics before callbacks")
def metrics_first():
    told = []
    metric = watching(told, lambda event, state: f"metric {event}")()
    learner(metrics=[metric]).fit(1, 0.1, callbacks=[watching(told, order=-100)()])
    return told


@question("metric callbacks: samples seen")
def metric_samples():
    seen = []

    class Counts(Callback):
        def on_batch_end(self, last_target, train, **kwargs):
            seen.append([train, len(last_target)])

    learner(metrics=[Counts()]).fit(2, 0.1)
    return seen


@question("metric callbacks: without validation")
def metric_alone():
    told = []
    learner(valid=False, metrics=[watching(told)()]).fit(1, 0.1)
    return told


@question("metrics and their names in on_train_begin")
def metric_names():
    told = []

    def total(output, target):
        return output.sum()

    class Mine(Callback):
        pass

    extra = lambda event, state: [  # noqa: E731
        [getattr(one, "__name__", type(one).__name__) for one in state["metrics"]],
        list(state["metrics_names"]),
    ]
    learn = learner(metrics=[measures.accuracy, total, partial(measures.top_k_accuracy, k=2), Mine()])
    learn.callbacks.append(watching(told, lambda event, state: extra(event, state) if event == EVENTS[0] else None)())
    learn.validate(metrics=[])
    learn.fit(1, 0.1)
    return told[0], [one for one in told[1:] if one]


@question("metrics: one without a list")
def one_metric():
    learn = learner(metrics=measures.accuracy)
    learn.fit(1, 0.1)
    return recorded(learn)["metrics"], learn.recorder.names


@question("AverageMetric: mean over samples")
def average_metric():
    learn = learner(metrics=[lambda output, target: torch.tensor(float(len(target)))])
    learn.fit(1, 0.1)
    return recorded(learn)["metrics"], learn.recorder.names


@question("AverageMetric alone")
def average_metric_alone():
    metric = AverageMetric(measures.accuracy)
    metric.on_epoch_begin()
    for size in (8, 4):
        output = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
        metric.on_batch_end(last_output=output, last_target=torch.arange(size) % 3)
    return metric.on_epoch_end(last_metrics=[1.0]), metric.name if hasattr(metric, "name") else None


@question("callbacks: one without a list")
def one_callback():
    told = []
    learn = learner(callbacks=watching(told)())
    learn.fit(1, 0.1, callbacks=watching(told)())
    return told


@question("callback_fns: one without a list")
def one_callback_fn():
    told = []
    learner(callback_fns=watching(told, base=LearnerCallback)).fit(1, 0.1)
    return told


@question("LearnerCallback: learn, name and attributes of the learner")
def learner_callback():
    class MyWatch(LearnerCallback):
        def on_train_begin(self, **kwargs):
            told.append([self.learn is learn, self.cb_name, self.wd, type(self.data).__name__])

    told = []
    learn = learner(callback_fns=[MyWatch])
    learn.fit(1, 0.1)
    return told, type(learn.my_watch).__name__


@question("get_state: exclude and not_min")
def states():
    class Kept(LearnerCallback):
        exclude = [*getattr(LearnerCallback, "exclude", []), "b"]
        not_min = ["c"]

        def __init__(self, learn):
            super().__init__(learn)
            self.a, self.b, self.c = 1, 2, 3
            self.exclude = [*self.exclude, "b"]

    kept = Kept(learner())
    return [sorted(kept.get_state(minimal=one)) for one in (True, False)]


@question("RecordOnCPU")
def on_cpu():
    keep = RecordOnCPU()
    learner().fit(1, 0.1, callbacks=[keep])
    return keep.input, keep.target


# The recorder ---------------------------------------------------------------------------------------------------------


def ask_recorder(name, fit=lambda learn: learn.fit(2, 0.1), **options):
    @question(f"recorder: {name}")
    def ask():
        learn = learner(**options)
        fit(learn)
        return recorded(learn), list(learn.recorder.names), list(learn.recorder.metrics_names)


ask_recorder("fit", metrics=[measures.accuracy])
ask_recorder("two metrics", metrics=[measures.accuracy, measures.error_rate])
ask_recorder("without validation", valid=False)
ask_recorder("add_time=False", add_time=False, metrics=[measures.accuracy])
ask_recorder("one cycle", lambda learn: learn.fit_one_cycle(2, 0.1), opt_func=SGD_MOMENTUM)
ask_recorder(
    "one cycle with all arguments",
    lambda learn: learn.fit_one_cycle(2, 0.1, moms=(0.9, 0.8), div_factor=10, pct_start=0.4, final_div=100),
    opt_func=SGD_MOMENTUM,
)
ask_recorder(
    "one cycle from an epoch on",
    lambda learn: learn.fit_one_cycle(3, 0.1, tot_epochs=4, start_epoch=1),
    opt_func=SGD_MOMENTUM,
)
ask_recorder("fit_fc", lambda learn: learn.fit_fc(2, 0.1, start_pct=0.5), opt_func=SGD_MOMENTUM)
ask_recorder("lr_find", lambda learn: learn.lr_find(start_lr=1e-3, end_lr=1.0, num_it=9, stop_div=False))
ask_recorder("mixup", lambda learn: learn.mixup(0.4).fit(1, 0.1))
ask_recorder("second fit", lambda learn: [learn.fit(1, 0.1), learn.fit(1, 0.05)])
ask_recorder("Adam", lambda learn: learn.fit(1, 0.01), opt_func=ADAM)
ask_recorder(
    "TerminateOnNaN",
    lambda learn: learn.fit(
        3,
        0.1,
        callbacks=[
            ready.TerminateOnNaNCallback(),
            returning("on_batch_begin", at(1, last_input=torch.full((8, 4), float("nan")))),
        ],
    ),
)
ask_recorder("StopAfterNBatches", callbacks=[StopAfterNBatches(n_batches=2)])


class Adds(LearnerCallback):
    """Two columns, as users add them."""

    _order = -20

    def on_train_begin(self, **kwargs):
        self.learn.recorder.add_metric_names(["a", "b"])

    def on_epoch_end(self, last_metrics, **kwargs):
        return {"last_metrics": [*last_metrics, torch.tensor(1.5), torch.tensor(2.5)]}


class AddsLate(Adds):
    _order = 0


ask_recorder("add_metric_names, order -20", callback_fns=[Adds], metrics=[measures.accuracy])
ask_recorder("add_metric_names, order 0", callback_fns=[AddsLate], metrics=[measures.accuracy])


@question("recorder: add_metrics")
def add_metrics():
    class Own(LearnerCallback):
        def on_epoch_end(self, last_metrics, **kwargs):
            return core_add(last_metrics, [torch.tensor(4.0)])

    core_add = torch_core.add_metrics
    learn = learner(callback_fns=[Own])
    learn.fit(1, 0.1)
    return core_add([1.0], 2.0), core_add([1.0], [2.0, 3.0])


@question("recorder: plot figures return_fig")
def figures():
    import matplotlib

    matplotlib.use("Agg")
    learn = learner(metrics=[measures.accuracy])
    learn.fit(2, 0.1)
    found = [
        learn.recorder.plot_lr(return_fig=True), learn.recorder.plot_losses(return_fig=True),
        learn.recorder.plot_metrics(return_fig=True),
    ]  # fmt: skip
    return [type(one).__name__ for one in found]


# Callbacks of the package ---------------------------------------------------------------------------------------------


class Falls(LearnerCallback):
    """Sets what validation measured, so that trackers see a known course."""

    _order = -5

    def __init__(self, learn, course, name="valid_loss"):
        super().__init__(learn)
        self.course = course

    def on_epoch_end(self, epoch, **kwargs):
        self.learn.recorder.val_losses[-1] = self.course[epoch]


def ask_tracker(name, tracker, course, epochs=6, answer=None, **options):
    @question(f"tracker: {name}")
    def ask():
        learn = learner(callback_fns=[partial(Falls, course=course), tracker], opt_func=SGD_MOMENTUM, **options)
        learn.fit(epochs, 0.1)
        files = sorted(str(one) for one in Path("models").glob("*")) if Path("models").exists() else []
        return recorded(learn)["nb_batches"], recorded(learn)["lrs"], files, weights(learn)


COURSE = [3.0, 2.0, 2.0, 2.5, 1.0, 1.5]
ask_tracker("early stopping", ready.EarlyStoppingCallback, COURSE)
ask_tracker("early stopping, patience 1", partial(ready.EarlyStoppingCallback, patience=1), COURSE)
ask_tracker("early stopping, patience 2", partial(ready.EarlyStoppingCallback, patience=2), COURSE)
ask_tracker("early stopping, min_delta", partial(ready.EarlyStoppingCallback, min_delta=0.9, patience=1), COURSE)
ask_tracker("early stopping, mode max", partial(ready.EarlyStoppingCallback, mode="max"), COURSE)
ask_tracker("early stopping, train_loss", partial(ready.EarlyStoppingCallback, monitor="train_loss"), COURSE)
ask_tracker(
    "early stopping, a metric", partial(ready.EarlyStoppingCallback, monitor="accuracy", patience=1), COURSE,
    metrics=[measures.accuracy],
)  # fmt: skip
ask_tracker("save the best", ready.SaveModelCallback, COURSE)
ask_tracker("save the best, name", partial(ready.SaveModelCallback, name="mine", monitor="valid_loss"), COURSE)
ask_tracker("save every epoch", partial(ready.SaveModelCallback, every="epoch", name="each"), COURSE, 3)
ask_tracker("reduce on plateau", partial(ready.ReduceLROnPlateauCallback, min_lr=1e-5), COURSE)
ask_tracker(
    "reduce on plateau, patience", partial(ready.ReduceLROnPlateauCallback, patience=1, factor=0.5, min_lr=0.0), COURSE
)
ask_tracker("reduce on plateau, min_lr", partial(ready.ReduceLROnPlateauCallback, min_lr=0.05), COURSE)
ask_tracker("track epochs", partial(ready.TrackEpochCallback, name="where"), COURSE, 2)


@question("tracker: operator and best of modes")
def operators():
    found = []
    for monitor, mode in (("valid_loss", "auto"), ("accuracy", "auto"), ("error_rate", "auto"), ("x", "min")):
        one = ready.TrackerCallback(learner(), monitor=monitor, mode=mode)
        one.on_train_begin()
        found.append([bool(one.operator(1.0, 2.0)), float(one.best), one.monitor, one.mode])
    return found


@question("tracker: one of a user, with operator")
def own_tracker():
    told = []

    class Best(ready.TrackerCallback):
        def on_epoch_end(self, epoch, **kwargs):
            current = self.get_monitor_value()
            if current is not None and self.operator(current, self.best):
                self.best = current
                told.append(epoch)

    learner(callback_fns=[partial(Falls, course=COURSE), Best]).fit(6, 0.1)
    return told


@question("CSVLogger: the file")
def csv_file():
    learn = learner(metrics=[measures.accuracy], callback_fns=[ready.CSVLogger])
    learn.fit(2, 0.1)
    with open("history.csv", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return [row[:-1] if row[-1].count(":") else row for row in rows]


@question("CSVLogger: append, file name")
def csv_append():
    learn = learner(callback_fns=[partial(ready.CSVLogger, filename="log", append=True)])
    learn.fit(1, 0.1)
    learn.fit(1, 0.1)
    return [line.split(",")[0] for line in Path("log.csv").read_text(encoding="utf-8").splitlines()]


@question("CSVLogger: read_logged_file")
def csv_read():
    learn = learner(metrics=[measures.accuracy], callback_fns=[ready.CSVLogger])
    learn.fit(2, 0.1)
    return list(learn.csv_logger.read_logged_file().columns)


@question("LossMetrics")
def loss_metrics():
    class Both(nn.Module):
        def forward(self, output, target):
            first, second = nn.functional.cross_entropy(output, target), output.pow(2).mean()
            self.metrics = {"first": first, "second": second}
            return first + second

        metric_names = ["first", "second"]

    loss = Both()
    loss.metrics = {"first": torch.tensor(0.0), "second": torch.tensor(0.0)}
    learn = learner(loss_func=loss, callback_fns=[ready.LossMetrics])
    learn.fit(1, 0.1)
    return recorded(learn)["metrics"], learn.recorder.names


@question("GeneralScheduler: phases")
def phases():
    learn = learner(opt_func=SGD_MOMENTUM)
    first = TrainingPhase(3).schedule_hp("lr", (0.01, 0.1), anneal=callback_module.annealing_linear)
    second = TrainingPhase(3).schedule_hp("lr", (0.1, 0.001), anneal=callback_module.annealing_cos)
    second.schedule_hp("mom", (0.9, 0.8), anneal=callback_module.annealing_linear)
    learn.fit(2, 0.1, callbacks=[GeneralScheduler(learn, [first, second])])
    return recorded(learn)


@question("FlatCosAnnealScheduler: curves")
def flat():
    found = []
    for curve in ("cosine", "linear", "exponential"):
        learn = learner(opt_func=SGD_MOMENTUM)
        sched = ready.FlatCosAnnealScheduler(learn, lr=0.1, tot_epochs=2, start_pct=0.4, curve=curve)
        learn.fit(2, 0.1, callbacks=[sched])
        found.append([recorded(learn)["lrs"], recorded(learn)["moms"]])
    return found


@question("OneCycleScheduler: steps of its schedule")
def cycle_steps():
    learn = learner(opt_func=SGD_MOMENTUM)
    cycle = ready.OneCycleScheduler(learn, 0.1, pct_start=0.5)
    learn.fit(2, 0.1, callbacks=[cycle])
    return recorded(learn)["lrs"], recorded(learn)["moms"]


@question("RNNTrainer: weights")
def recurrent():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.resets = net(), 0

        def forward(self, inputs):
            hidden = self.inner[0](inputs).unsqueeze(1).repeat(1, 3, 1) * torch.arange(1.0, 4.0).reshape(1, 3, 1)
            return self.inner(inputs), [hidden], [hidden]

        def reset(self):
            self.resets += 1

    learn = learner(model=Returns())
    learn.callbacks.append(ready.RNNTrainer(learn, alpha=2.0, beta=1.0))
    learn.fit(1, 0.1)
    return weights(learn), learn.model.resets


@question("MixUpLoss")
def mixup_loss():
    output = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    target = torch.stack(
        [torch.tensor([0.0, 1, 2, 0, 1, 2]), torch.tensor([2.0, 1, 0, 0, 1, 2]), torch.full((6,), 0.3)], 1
    )
    loss = ready.MixUpLoss(nn.CrossEntropyLoss())
    return loss(output, target), loss(output, torch.arange(6) % 3)


@question("OverSamplingCallback: samples a class")
def oversampled():
    inputs, _ = tensors(24)
    targets = torch.tensor([0] * 20 + [1] * 4)
    dataset = TensorDataset(inputs, targets)
    dataset.y, dataset.c = type("Items", (), {"items": targets.numpy()})(), 2
    seen = []

    class Count(Callback):
        def on_batch_end(self, last_target, train, **kwargs):
            if train:
                seen.extend(last_target.tolist())

    learn = learner(data=DataBunch(DataLoader(dataset, batch_size=8), loader(8), path="."))
    learn.callbacks.append(ready.OverSamplingCallback(learn, weights=torch.tensor([0.0] * 20 + [1.0] * 4)))
    learn.callbacks.append(Count())
    learn.fit(1, 0.1)
    return sorted(set(seen)), len(seen)


@question("hooks: outputs of layers")
def hook_outputs():
    model, (inputs, _) = net(), tensors(4)
    with hook_module.hook_output(model[0]) as hook:
        model(inputs)
    with hook_module.hook_outputs([model[0], model[2]]) as hooks:
        model(inputs)
    return hook.stored, [list(one.shape) for one in hooks.stored]


@question("hooks: gradients of outputs")
def hook_grads():
    model, (inputs, targets) = net(), tensors(4)
    with hook_module.hook_output(model[2], grad=True) as hook:
        nn.functional.cross_entropy(model(inputs), targets).backward()
    return hook.stored[0] if isinstance(hook.stored, list | tuple) else hook.stored


@question("hooks: HookCallback stores")
def hook_callback():
    class Means(ready.HookCallback):
        def hook(self, module, inputs, output):
            return float(output.mean())

    learn = learner()
    means = Means(learn)
    learn.fit(1, 0.1, callbacks=[means])
    return means.hooks.stored


@question("hooks: ActivationStats")
def activation_stats():
    learn = learner()
    stats = ready.ActivationStats(learn)
    learn.fit(1, 0.1, callbacks=[stats])
    return list(stats.stats.shape), stats.stats


@question("hooks: model_sizes, num_features_model")
def sizes():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, stride=2, padding=1))
    return [list(one) for one in hook_module.model_sizes(model, (8, 8))], hook_module.num_features_model(model)


# Functions and small classes ------------------------------------------------------------------------------------------


@question("annealing functions")
def annealing():
    names = ("annealing_no", "annealing_linear", "annealing_exp", "annealing_cos")
    found = [[float(getattr(callback_module, name)(1.0, 0.1, pct)) for pct in (0.0, 0.3, 1.0)] for name in names]
    poly = callback_module.annealing_poly(2)
    return found, [float(poly(1.0, 0.1, pct)) for pct in (0.0, 0.3, 1.0)]


@question("Scheduler: steps")
def scheduler():
    found = []
    for vals in (1.0, (1.0, 0.0), (1.0, 0.5)):
        one = Scheduler(vals, 4)
        found.append([[float(one.step()), one.is_done] for _ in range(4)])
        one.restart()
        found.append(float(one.step()))
    return found


@question("SmoothenValue")
def smoothen():
    smooth = SmoothenValue(0.9)
    found = []
    for value in (1.0, 3.0, -2.0):
        smooth.add_value(value)
        found.append(smooth.smooth)
    return found


@question("OptimWrapper: reading and setting")
def wrapper():
    learn = grouped(opt_func=ADAM)
    learn.create_opt(0.1, 0.2)
    opt = learn.opt
    found = [opt.lr, opt.mom, opt.beta, opt.wd]
    opt.lr, opt.mom, opt.beta, opt.wd = [0.01, 0.02], [0.8, 0.7], 0.95, 0.5
    groups = [[float(group["lr"]), list(group["betas"])] for group in opt.opt.param_groups]
    return found, groups, opt.lr, opt.mom, opt.beta, opt.wd


@question("OptimWrapper: create")
def wrapper_create():
    model = net(norm=True)
    groups = [nn.Sequential(model[0], model[1]), nn.Sequential(model[3])]
    opt = OptimWrapper.create(optim.SGD, 0.1, groups, wd=0.3, true_wd=True, bn_wd=False)
    nn.functional.cross_entropy(model(tensors()[0]), tensors()[1]).backward()
    opt.step()
    opt.zero_grad()
    return [[float(p.sum()), float(p.pow(2).sum())] for p in model.parameters()], len(opt.opt.param_groups), opt.wd


@question("OptimWrapper: clear, read_defaults, get_val, read_val")
def wrapper_reading():
    learn = learner(opt_func=SGD_MOMENTUM, wd=0.1)
    learn.create_opt(0.1, 0.2)
    return learn.opt.read_val("lr"), learn.opt.mom, learn.opt.wd, learn.opt.true_wd, learn.opt.bn_wd


@question("camel2snake")
def snake():
    return [core.camel2snake(name) for name in ("EarlyStoppingCallback", "MyRNN2", "A")]


PREDICTED = torch.randn(12, 3, generator=torch.Generator().manual_seed(5))
CLASSES = torch.arange(12) % 3
PAIR = (PREDICTED[:, :1], torch.randn(12, 1, generator=torch.Generator().manual_seed(6)))
SCORES, LABELS = torch.rand(6, 4, generator=torch.Generator().manual_seed(7)), (torch.arange(24).reshape(6, 4) % 3 == 0)

for name_ in (
    "mse", "mean_squared_error", "mae", "mean_absolute_error", "rmse", "root_mean_squared_error", "exp_rmspe",
    "explained_variance", "r2_score",
):  # fmt: skip

    @question(f"metric function: {name_}")
    def numbers(name=name_):
        return getattr(measures, name)(*PAIR)


@question("metric function: msle, mean_squared_logarithmic_error")
def logarithmic():
    pair = [one.abs() for one in PAIR]
    return measures.msle(*pair), measures.mean_squared_logarithmic_error(*pair)


@question("metric function: accuracy, error_rate, top_k_accuracy")
def accuracies():
    found = [measures.accuracy(PREDICTED, CLASSES), measures.error_rate(PREDICTED, CLASSES)]
    return [*found, measures.top_k_accuracy(PREDICTED, CLASSES, k=2)]


@question("metric function: accuracy_thresh, fbeta")
def thresholds():
    found = [measures.accuracy_thresh(SCORES, LABELS.float()), measures.accuracy_thresh(SCORES, LABELS, 0.3, False)]
    return [
        *found,
        measures.fbeta(SCORES, LABELS.float()),
        measures.fbeta(SCORES, LABELS.float(), 0.5, 1, sigmoid=False),
    ]


@question("metric function: dice, foreground_acc")
def dices():
    output = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(3))
    target = (torch.arange(32).reshape(2, 1, 4, 4) % 2).long()
    return (
        measures.dice(output, target),
        measures.dice(output, target, iou=True),
        measures.foreground_acc(output, target, void_code=1),
    )


@question("metric function: auc_roc_score, roc_curve")
def roc():
    scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8, 0.7]), torch.tensor([0, 0, 1, 1, 0])
    return measures.auc_roc_score(scores, labels), measures.roc_curve(scores, labels)


def measured(metric, batches, **state):
    metric.on_train_begin(**state) if "on_train_begin" in dir(metric) else None
    metric.on_epoch_begin()
    for output, target in batches:
        metric.on_batch_begin(train=False) if "on_batch_begin" in dir(metric) else None
        metric.on_batch_end(last_output=output, last_target=target, train=False)
    return metric.on_epoch_end(last_metrics=[0.5])["last_metrics"]


HALVES = [(PREDICTED[:8], CLASSES[:8]), (PREDICTED[8:], CLASSES[8:])]
for name_ in ("R2Score", "ExplainedVariance", "RMSE", "ExpRMSPE"):

    @question(f"metric class: {name_}")
    def regressions(name=name_):
        return measured(getattr(measures, name)(), [(PAIR[0][:8], PAIR[1][:8]), (PAIR[0][8:], PAIR[1][8:])])


for name_ in ("Precision", "Recall", "FBeta"):
    for average_ in ("binary", "macro", "micro", "weighted"):

        @question(f"metric class: {name_}, {average_}")
        def averaged(name=name_, average=average_):
            if average == "binary":
                halves = [(output[:, :2], target % 2) for output, target in HALVES]
                return measured(getattr(measures, name)(), halves)
            return measured(getattr(measures, name)(average=average), HALVES)


@question("metric class: MatthewsCorreff")
def agreements():
    return measured(measures.MatthewsCorreff(), HALVES)


@question("metric class: KappaScore without weights")
def kappa():
    return measured(measures.KappaScore(), HALVES)


@question("metric class: KappaScore with weights")
def kappas():
    return [measured(measures.KappaScore(weights=one), HALVES) for one in ("linear", "quadratic")]


@question("metric class: ConfusionMatrix")
def confusion():
    matrix = measures.ConfusionMatrix()
    matrix.on_train_begin()
    matrix.on_epoch_begin()
    for output, target in HALVES:
        matrix.on_batch_end(last_output=output, last_target=target, train=False)
    matrix.on_epoch_end(last_metrics=[0.5])
    return matrix.metric if hasattr(matrix, "metric") else None


@question("metric class: Perplexity")
def perplexity():
    halves = [(output.unsqueeze(0), target.unsqueeze(0)) for output, target in HALVES]
    return measured(measures.Perplexity(), halves)


@question("metric class: AUROC")
def auroc():
    return measured(measures.AUROC(), [(output[:, :2], target % 2) for output, target in HALVES])


@question("metric class: MultiLabelFbeta")
def multilabel():
    found = []
    for average in ("micro", "macro"):
        metric = measures.MultiLabelFbeta(average=average)
        metric.n_classes = 4
        metric.on_epoch_begin()
        metric.on_batch_end(last_output=SCORES, last_target=LABELS.float(), train=False)
        found.append(metric.on_epoch_end(last_metrics=[0.5])["last_metrics"])
    return found


@question("metric classes in a fit")
def metrics_in_fit():
    learn = learner(metrics=[measures.accuracy, measures.MatthewsCorreff(), measures.Recall(average="macro")])
    learn.fit(2, 0.1)
    return recorded(learn)["metrics"], learn.recorder.names


# The learner ----------------------------------------------------------------------------------------------------------


@question("validate: what it returns")
def validates():
    learn = learner(metrics=[measures.accuracy])
    learn.fit(1, 0.1)
    return learn.validate(), learn.validate(metrics=[]), learn.validate(learn.data.train_dl)


@question("validate: metrics by argument")
def validates_metrics():
    return learner().validate(metrics=[measures.accuracy, measures.error_rate])


@question("get_preds: what it returns")
def predictions():
    return learner().get_preds()


@question("get_preds: with_loss, train, activ, n_batch")
def predictions_more():
    learn = learner()
    return [
        learn.get_preds(with_loss=True)[2], learn.get_preds(DatasetType.Train)[1],
        learn.get_preds(activ=torch.sigmoid)[0], learn.get_preds(n_batch=1)[1],
    ]  # fmt: skip


@question("pred_batch")
def predicted_batch():
    return learner().pred_batch(DatasetType.Valid)


@question("save and load: files, path and weights")
def saved():
    learn = learner(opt_func=SGD_MOMENTUM)
    learn.fit(1, 0.1)
    path = learn.save("mine", return_path=True)
    before = weights(learn)
    learn.fit(1, 0.1)
    learn.load("mine")
    return str(path), before == weights(learn), sorted(str(one) for one in Path("models").glob("*"))


@question("save: keys of the file")
def saved_keys():
    learn = learner()
    learn.fit(1, 0.1)
    learn.save("with"), learn.save("without", with_opt=False)
    return [list(torch.load(f"models/{name}.pth", weights_only=False)) for name in ("with", "without")]


@question("load: device, purge, strict, with_opt")
def loads():
    learn = learner(opt_func=SGD_MOMENTUM)
    learn.fit(1, 0.1)
    learn.save("mine")
    other = learner(opt_func=SGD_MOMENTUM, model=nn.Sequential(*net().children()))
    other.load("mine", device="cpu", strict=True, with_opt=False, purge=False)
    return weights(learn) == weights(other), type(other.load("mine", purge=False)).__name__


@question("load: weights alone")
def loads_alone():
    learn = learner()
    learn.save("mine", with_opt=False)
    before = weights(learn)
    learn.fit(1, 0.1)
    learn.load("mine")
    return weights(learn) == before


@question("model_dir and path")
def places():
    learn = learner(path="here", model_dir="there")
    path = learn.save("mine", return_path=True)
    return str(path), Path("here/there/mine.pth").exists()


@question("learner: attributes after construction")
def attributes():
    learn = learner(wd=0.2, metrics=[measures.accuracy])
    return [
        learn.wd, learn.true_wd, learn.bn_wd, learn.train_bn, learn.model_dir, learn.add_time, learn.silent,
        len(learn.layer_groups), len(learn.metrics), len(learn.callbacks), len(learn.callback_fns),
    ]  # fmt: skip


@question("learner: default loss, metrics and optimizer")
def defaults():
    learn = Learner(bunch(), net(), loss_func=nn.CrossEntropyLoss(), silent=True)
    learn.fit(1)
    return weights(learn), learn.opt.lr, learn.opt.mom, learn.opt.wd, recorded(learn)["lrs"]


@question("learner: model in training mode after fit and validate")
def modes():
    learn = learner()
    learn.fit(1, 0.1)
    first = learn.model.training
    learn.validate()
    return first, learn.model.training


@question("learner: gradients after a fit")
def gradients():
    learn = learner()
    learn.fit(1, 0.1)
    return [None if p.grad is None else float(p.grad.abs().sum()) for p in learn.model.parameters()]


@question("DataBunch: loaders, sizes, one_batch")
def data_parts():
    data = bunch()
    inputs, targets = data.one_batch()
    return [
        len(data.train_dl), len(data.valid_dl), len(data.train_ds), len(data.valid_ds), data.batch_size,
        list(inputs.shape), list(targets.shape), len(data.dl(DatasetType.Train)), str(data.path),
    ]  # fmt: skip


@question("DataBunch.create: batches and shuffling")
def data_create():
    inputs, targets = tensors()
    torch.manual_seed(3)
    data = DataBunch.create(
        TensorDataset(inputs, targets), TensorDataset(inputs, targets), bs=8, num_workers=0, path="."
    )
    train = [batch[1].tolist() for batch in data.train_dl]
    return [len(one) for one in train], [len(batch[1]) for batch in data.valid_dl], data.batch_size


@question("DataBunch.create: weights of a fit")
def data_create_weights():
    inputs, targets = tensors()
    data = DataBunch.create(
        TensorDataset(inputs, targets), TensorDataset(inputs, targets), bs=20, val_bs=5, num_workers=0, path="."
    )
    learn = learner(data=data)
    learn.fit(1, 0.1)
    return weights(learn), recorded(learn)["val_losses"], [len(batch[1]) for batch in data.valid_dl]


@question("DataBunch: classes and c of a dataset")
def data_classes():
    class Named(TensorDataset):
        classes = ["a", "b", "c"]
        c = 3

    data = DataBunch(DataLoader(Named(*tensors()), batch_size=8), loader(), path=".")
    return data.classes, data.c


@question("version")
def version():
    import fastai

    return fastai.__version__.split(".")[0]


# Helpers that users import --------------------------------------------------------------------------------------------


@question("core: listify, ifnone, is_listy, is_tuple")
def lists():
    return [
        core.listify(None), core.listify(1), core.listify([1, 2]), core.listify("ab"), core.listify(3, 3),
        core.listify((1, 2)), core.ifnone(None, 4), core.ifnone(0, 4), core.is_listy([1]), core.is_listy("a"),
        core.is_tuple((1,)), core.is_tuple([1]),
    ]  # fmt: skip


@question("core: uniqueify, chunks, range_of, to_int, recurse, is1d, one_hot, idx_dict, num_cpus")
def pieces():
    return [
        sorted(core.uniqueify([3, 1, 3])), [list(one) for one in core.chunks([1, 2, 3, 4, 5], 2)],
        list(core.range_of([5, 6])), core.to_int("3"), core.to_int(["1", "2"]), core.recurse(lambda x: x + 1, [1, [2]]),
        core.is1d([1, 2]), list(core.idx_dict(["a", "b"])), core.num_cpus() > 0,
    ]  # fmt: skip


@question("core: partition, split_kwargs_by_func, even_mults, subplots")
def more_pieces():
    return [
        [list(one) for one in core.partition([1, 2, 3, 4, 5], 2)],
        core.split_kwargs_by_func({"a": 1, "z": 2}, lambda a, b: None), list(core.even_mults(1.0, 8.0, 4)),
    ]  # fmt: skip


@question("torch_core: to_np, to_detach, to_device, to_float, to_half, tensor")
def torch_parts():
    value = torch.ones(2, requires_grad=True)
    found = [torch_core.to_np(value), torch_core.to_detach([value])[0].requires_grad, torch_core.tensor(1, 2)]
    return [*found, torch_core.to_float(torch.ones(1).half()), str(torch_core.to_half(torch.ones(1)).dtype)]


@question("torch_core: children, flatten_model, num_children, first_layer, trainable_params, requires_grad")
def model_parts():
    model = net(norm=True)
    found = [len(torch_core.children(model)), torch_core.num_children(model), len(torch_core.flatten_model(model))]
    names = [type(one).__name__ for one in torch_core.flatten_model(model)]
    torch_core.requires_grad(model[0], False)
    return found, names, len(list(torch_core.trainable_params(model))), torch_core.requires_grad(model[0])


@question("torch_core: split_model_idx, split_model, split_no_wd_params, set_bn_eval")
def model_splits():
    model = net(norm=True)
    found = [len(one) for one in torch_core.split_model_idx(model, [2])]
    groups = torch_core.split_model(model, [model[3]])
    parts = [len(one) for one in torch_core.split_no_wd_params(groups)]
    model.train()
    torch_core.requires_grad(model[1], False)
    torch_core.set_bn_eval(model)
    return found, len(groups), parts, model[1].training


@question("torch_core: apply_leaf, apply_init, in_channels, model_type, np2model_tensor, one_param, rank_distrib")
def model_more():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    seen = []
    torch_core.apply_leaf(model, lambda one: seen.append(type(one).__name__))
    return seen, torch_core.in_channels(model), list(torch_core.one_param(model).shape), torch_core.rank_distrib()


@question("layers: Lambda, Flatten, PoolFlatten, Debugger names")
def layer_shapes():
    images = torch.arange(32.0).reshape(2, 4, 2, 2)
    return [
        layers.Lambda(lambda x: x + 1)(torch.zeros(1)), list(layers.Flatten()(images).shape),
        layers.PoolFlatten()(images), list(layers.View(2, -1)(images).shape),
    ]  # fmt: skip


@question("layers: AdaptiveConcatPool2d, bn_drop_lin, conv_layer")
def layer_more():
    images = torch.arange(32.0).reshape(2, 4, 2, 2)
    torch.manual_seed(0)
    names = [type(one).__name__ for one in layers.bn_drop_lin(4, 2, p=0.5, actn=nn.ReLU(True))]
    conv = [type(one).__name__ for one in layers.conv_layer(3, 4)]
    return layers.AdaptiveConcatPool2d(1)(images).flatten(), names, conv


@question("layers: flattened losses")
def layer_losses():
    output, target = PREDICTED.reshape(2, 6, 3), CLASSES.reshape(2, 6)
    numbers = PAIR[0], PAIR[1]
    return [
        layers.CrossEntropyFlat()(output, target), layers.MSELossFlat()(*numbers),
        layers.BCEWithLogitsFlat()(SCORES, LABELS.float()),
        layers.L1LossFlat()(*numbers) if hasattr(layers, "L1LossFlat") else 0,
    ]  # fmt: skip


@question("layers: LabelSmoothingCrossEntropy")
def smoothing():
    return layers.LabelSmoothingCrossEntropy()(PREDICTED, CLASSES), layers.LabelSmoothingCrossEntropy(0.2, "sum")(
        PREDICTED, CLASSES
    )


@question("star import of fastai.basics: names that users take from it")
def star():
    space = {}
    exec("from fastai.basics import *", space)
    wanted = (
        "torch nn np pd plt Path partial Tensor Any Callable Collection Dict List Optional Tuple Union "
        "Iterator F optim Learner LearnerCallback Callback DataBunch DatasetType OptimWrapper accuracy "
        "listify ifnone is_listy defaults requires_grad children flatten_model to_np to_detach Recorder "
        "AverageMetric add_metrics camel2snake math os re DataLoader Dataset SmoothenValue annealing_cos "
        "ParamList Module Floats master_bar progress_bar weakref warnings "
    )
    return [name for name in wanted.split() if name not in space]


@question("defaults: device, lr, wd, extra_callbacks")
def default_values():
    found = torch_core.defaults
    return [
        str(found.device), getattr(found, "lr", None), getattr(found, "wd", None),
        list(getattr(found, "extra_callbacks", None) or []), list(getattr(found, "extra_callback_fns", None) or []),
    ]  # fmt: skip


@question("defaults.extra_callback_fns: every learner has them")
def extra_callbacks():
    told = []
    torch_core.defaults.extra_callback_fns = [watching(told, base=LearnerCallback)]
    try:
        learner().fit(1, 0.1)
    finally:
        torch_core.defaults.extra_callback_fns = None
    return told


# What callbacks of users do -------------------------------------------------------------------------------------------


def ask_change(name, event, act, between=False):
    """What it does to a training when a callback changes its learner, or somebody does between two fits."""

    @question(f"changed {name}")
    def ask():
        def method(self, epoch=0, **kwargs):
            if epoch == 0:
                act(self.learn)

        learn = learner(callback_fns=[] if between else [type("Changes", (LearnerCallback,), {event: method})])
        learn.fit(2, 0.1)
        if between:
            act(learn)
            learn.fit(1, 0.1)
        return weights(learn), recorded(learn)["val_losses"], recorded(learn)["nb_batches"]


def other_data(learn):
    learn.data = DataBunch(loader(8), loader(20), path=".")


def other_loss(learn):
    learn.loss_func = lambda output, target: output.pow(2).mean()


def other_optimizer(learn):
    learn.opt = OptimWrapper.create(optim.SGD, 0.1, learn.layer_groups, wd=0.0)


for event_ in ("on_train_begin", "on_epoch_begin", "on_batch_end", "on_epoch_end"):
    ask_change(f"data in {event_}", event_, other_data)
    ask_change(f"loss_func in {event_}", event_, other_loss)
ask_change("data between two fits", "", other_data, between=True)
ask_change("loss_func between two fits", "", other_loss, between=True)
ask_change("opt between two fits", "", other_optimizer, between=True)


@question("save and load: an open file")
def open_file():
    learn = learner()
    learn.fit(1, 0.1)
    before = weights(learn)
    with open("mine.bin", "wb") as file:
        learn.save(file)
    learn.fit(1, 0.1)
    with open("mine.bin", "rb") as file:
        learn.load(file, purge=False)
    return before == weights(learn), Path("models").exists()


@question("tracker: a name that is not measured")
def unknown_monitor():
    learn = learner(callback_fns=[partial(ready.SaveModelCallback, monitor="val_loss")])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn.fit(2, 0.1)
    return weights(learn), Path("models").exists(), sum("val_loss" in str(one.message) for one in caught)


@question("tracker: operator is a function of numpy")
def numpy_operator():
    kinds = [ready.TrackerCallback(learner(), mode=mode).operator for mode in ("min", "max")]
    return kinds[0] is np.less, kinds[1] is np.greater


@question("recorder: _added_met_names, start_epoch and no_val")
def recorder_parts():
    class Adds(LearnerCallback):
        _order = -20

        def on_train_begin(self, **kwargs):
            told.append(hasattr(self.learn.recorder, "_added_met_names"))
            self.learn.recorder._added_met_names = ["mine"]
            self.learn.recorder.no_val = True

        def on_epoch_end(self, **kwargs):
            told.append(type(self.learn.recorder.start_epoch).__name__)
            return {"last_metrics": [2.0]}

    told = []
    learn = learner(callback_fns=[Adds])
    learn.fit(1, 0.1), learn.fit(1, 0.1)
    return told, learn.recorder.names, learn.recorder.metrics_names, recorded(learn)["val_losses"]


@question("recorder: numbers have item()")
def numbers_have_item():
    learn = learner(metrics=[measures.accuracy])
    learn.fit(1, 0.1)
    return learn.recorder.val_losses[0].item(), learn.recorder.metrics[0][0].item(), learn.recorder.losses[0].item()


@question("hooks: layers_info")
def layers_known():
    class Whole(TensorDataset):
        is_empty = False

    data = DataBunch(DataLoader(Whole(*tensors()), batch_size=8), loader(12), path=".")
    learn = learner(data=data, model=net(norm=True))
    learn.model[0].requires_grad_(False)
    return [
        [one.Layer, list(one.OutputSize), int(one.Params), bool(one.Trainable)]
        for one in hook_module.layers_info(learn)
    ]


@question("names of one module in another")
def names_elsewhere():
    found = {}
    for path in ("basic_train", "callback", "callbacks.tracker", "torch_core", "metrics", "train", "basic_data"):
        space = {}
        exec(f"from fastai.{path} import Any, Tensor, torch, ifnone, add_metrics, Optional", space)
        found[path] = space["ifnone"](None, 3)
    return found


@question("a callback without LearnerCallback that keeps a learner")
def keeps_learner():
    class Kept(Callback):
        _order = -20

        def __init__(self, learn, **kwargs):
            self.learn = learn

        def on_train_begin(self, **kwargs):
            self.learn.recorder.add_metric_names(["double"])

        def on_epoch_begin(self, **kwargs):
            self.outputs = []

        def on_batch_end(self, last_output, train, **kwargs):
            if not train:
                self.outputs.append(last_output)

        def on_epoch_end(self, last_metrics, **kwargs):
            return torch_core.add_metrics(last_metrics, [torch.cat(self.outputs).sum()])

    learn = learner(callback_fns=Kept)
    learn.fit(2, 0.1)
    return recorded(learn)["metrics"], learn.recorder.names


# Predictions and callbacks --------------------------------------------------------------------------------------------

ask_order(
    "get_preds, callback_fns",
    lambda learn, watch: [learn.callback_fns.append(lambda _: watch), learn.get_preds(n_batch=1)],
)
ask_order("pred_batch", lambda learn, watch: [learn.callbacks.append(watch), learn.pred_batch()])
ask_order(
    "pred_batch, callback_fns", lambda learn, watch: [learn.callback_fns.append(lambda _: watch), learn.pred_batch()]
)


class Replacing(Callback):
    def on_batch_begin(self, last_input, last_target, **kwargs):
        return {"last_input": 2 * last_input, "last_target": (last_target + 1) % 3}

    def on_loss_begin(self, last_output, **kwargs):
        return {"last_output": last_output + torch.arange(3.0)}


@question("get_preds: what callbacks replace")
def predictions_replaced():
    return learner(callback_fns=lambda _: Replacing()).get_preds(with_loss=True)


@question("pred_batch: what callbacks replace")
def predicted_batch_replaced():
    learn = learner()
    learn.callbacks.append(Replacing())
    return learn.pred_batch()


@question("pred_batch: activ, with_dropout")
def predicted_batch_more():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(1.0))
    learn = Learner(learner().data, model, loss_func=nn.CrossEntropyLoss(), path=".")
    return learn.pred_batch(activ=torch.sigmoid).shape, learn.pred_batch(with_dropout=True), model.training


@question("weights: skip_bwd in the second batch, wd")
def skipped_backward_decay():
    learn = learner(wd=0.1)
    learn.fit(1, 0.1, callbacks=[returning("on_backward_begin", at(1, skip_bwd=True))])
    return weights(learn)


@question("recorder: metrics are kept as they were returned")
def metrics_as_returned():
    class Returning(Callback):
        def on_epoch_end(self, last_metrics, **kwargs):
            return torch_core.add_metrics(last_metrics, [torch.tensor(3.0), 2.0, 1])

    learn = learner(metrics=[measures.accuracy, Returning()])
    learn.fit(1, 0.1)
    return [type(one).__name__ for one in learn.recorder.metrics[0]]


if __name__ == "__main__":
    main()
