"""Questions for AIToolbox 1.8: what it computes, in which order it calls, what it writes and what it returns."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import zipfile
from email import message_from_string
from functools import cache
from pathlib import Path

import numpy as np
import torch
from aitoolbox.experiment.result_package.abstract_result_packages import (
    AbstractResultPackage,
    PreCalculatedResultPackage,
)
from aitoolbox.experiment.result_package.basic_packages import (
    BinaryClassificationResultPackage,
    ClassificationResultPackage,
    RegressionResultPackage,
)
from aitoolbox.experiment.training_history import TrainingHistory
from aitoolbox.torchtrain.callbacks.abstract import AbstractCallback, AbstractExperimentCallback
from aitoolbox.torchtrain.callbacks.basic import (
    AllPredictionsSame,
    DataSubsetTestRun,
    EarlyStopping,
    EmailNotification,
    FunctionOnTrainLoop,
    ListRegisteredCallbacks,
    LogUpload,
    TerminateOnNaN,
    ThresholdEarlyStopping,
)
from aitoolbox.torchtrain.callbacks.gradient import (
    GradDistributionPlot,
    GradientStatsPrint,
    GradNormClip,
    GradValueClip,
)
from aitoolbox.torchtrain.callbacks.model_load import ModelLoadContinueTraining
from aitoolbox.torchtrain.callbacks.model_save import ModelCheckpoint, ModelIterationCheckpoint, ModelTrainEndSave
from aitoolbox.torchtrain.callbacks.performance_eval import (
    MetricHistoryRename,
    ModelPerformanceEvaluation,
    ModelPerformancePrintReport,
    ModelTrainHistoryFileWriter,
    ModelTrainHistoryPlot,
    TrainHistoryFormatter,
)
from aitoolbox.torchtrain.callbacks.tensorboard import (
    TensorboardFullTracking,
    TensorboardTrainBatchLoss,
    TensorboardTrainHistoryMetric,
)
from aitoolbox.torchtrain.data.batch_model_feed_defs import AbstractModelFeedDefinition
from aitoolbox.torchtrain.model import ModelWrap, TTBasicModel, TTModel
from aitoolbox.torchtrain.multi_loss_optim import MultiLoss, MultiOptimizer
from aitoolbox.torchtrain.schedulers import basic as schedules
from aitoolbox.torchtrain.train_loop import (
    TrainLoop,
    TrainLoopCheckpoint,
    TrainLoopCheckpointEndSave,
    TrainLoopEndSave,
)
from aitoolbox.torchtrain.train_loop.components.message_passing import MessageHandling, MessageService
from asking import main, question
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

HOOKS = (
    "on_train_loop_registration", "on_train_begin", "on_epoch_begin", "on_batch_begin", "on_after_gradient_update",
    "on_after_optimizer_step", "on_batch_end", "on_epoch_end", "on_train_end",
)  # fmt: skip


# What is trained ------------------------------------------------------------------------------------------------------


def data(samples=20):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 4, generator=generator), torch.arange(samples) % 3


def loader(samples=20, batch=8, **options):
    return None if samples is None else DataLoader(TensorDataset(*data(samples)), batch_size=batch, **options)


class Net(TTBasicModel):
    """Two layers; with a batch norm between them, or a dropout."""

    def __init__(self, *between):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 5), *between, nn.ReLU(), nn.Linear(5, 3))

    def forward(self, inputs):
        return self.layers(inputs)


class Own(TTModel):
    """Computes its losses and predictions by itself; in evaluations the loss is ten times as high."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, inputs):
        return self.layers(inputs)

    def get_loss(self, batch_data, criterion, device):
        inputs, targets = batch_data
        return criterion(self(inputs.to(device)), targets.to(device))

    def get_loss_eval(self, batch_data, criterion, device):
        return 10 * self.get_loss(batch_data, criterion, device)

    def get_predictions(self, batch_data, device):
        inputs, targets = batch_data
        return self(inputs.to(device)).argmax(1), targets, {"first": inputs[:, 0].tolist()}


class Heads(TTModel):
    """A head for each of two losses, each with its own input layer, or on a shared one."""

    def __init__(self, names=("alpha", "zeta"), shared=False, loss_optimizer_map=None):
        super().__init__()
        torch.manual_seed(0)
        self.names, self.shared, self.map = names, shared, loss_optimizer_map
        self.trunk = nn.Linear(4, 4) if shared else nn.Identity()
        self.heads = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

    def forward(self, inputs):
        return [head(self.trunk(inputs)) for head in self.heads]

    def get_loss(self, batch_data, criterion, device):
        inputs, targets = batch_data
        outputs = self(inputs)
        parts = {
            name: (number + 1) * criterion(out, targets)
            for number, (name, out) in enumerate(zip(self.names, outputs, strict=True))
        }
        return MultiLoss(parts, loss_optimizer_map=self.map)

    def get_predictions(self, batch_data, device):
        inputs, targets = batch_data
        return self(inputs)[0], targets, {}


class Feed(AbstractModelFeedDefinition):
    def get_loss(self, model, batch_data, criterion, device):
        inputs, targets = batch_data
        return 2 * criterion(model(inputs), targets)

    def get_predictions(self, model, batch_data, device):
        inputs, targets = batch_data
        return model(inputs).softmax(1), targets, {}


def both(model, lrs=(0.1, 0.05)):
    return MultiOptimizer([optim.SGD(head.parameters(), lr=lr) for head, lr in zip(model.heads, lrs, strict=True)])


def made(kind=TrainLoop, model=None, optimizer=None, lr=0.1, train=20, val=12, test=12, criterion=None, **options):
    model = Net() if model is None else model
    module = model.model if isinstance(model, ModelWrap) else model
    optimizer = optim.SGD(module.parameters(), lr=lr) if optimizer is None else optimizer(module)
    loaders = [one if isinstance(one, DataLoader) else loader(one) for one in (train, val, test)]
    return kind(model, *loaders, optimizer, criterion or nn.CrossEntropyLoss(), **options)


def weights(loop):
    return [[float(p.detach().sum()), float(p.detach().pow(2).sum())] for p in loop.model.parameters()]


def history(loop):
    return {name: [float(one) for one in values] for name, values in loop.train_history.items()}


class At(AbstractCallback):
    """Calls functions with the loop at chosen hooks."""

    def __init__(self, order=0, **acts):
        super().__init__("at", execution_order=order)
        self.acts = acts

    def on_train_loop_registration(self):
        self.act("registration")

    def on_train_begin(self):
        self.act("train_begin")

    def on_epoch_begin(self):
        self.act("epoch_begin")

    def on_batch_begin(self):
        self.act("batch_begin")

    def on_after_gradient_update(self, optimizer_idx):
        self.act("gradient")

    def on_after_optimizer_step(self):
        self.act("step")

    def on_batch_end(self):
        self.act("batch_end")

    def on_epoch_end(self):
        self.act("epoch_end")

    def on_train_end(self):
        self.act("train_end")

    def act(self, hook):
        if hook in self.acts:
            self.acts[hook](self.train_loop_obj)


def ask_fit(name, epochs=2, callbacks=list, iterations=0, accumulation=1, fit=None, **options):
    """Weights and history after a training."""

    @question(f"fit: {name}")
    def ask():
        loop = made(**{key: value() if key in ("model", "train") and callable(value) else value
                       for key, value in options.items()})  # fmt: skip
        if fit is not None:
            fit(loop)
        else:
            length = {"num_iterations": iterations} if iterations else {"num_epochs": epochs}
            loop.fit(**length, callbacks=callbacks(), grad_accumulation=accumulation)
        return weights(loop), history(loop), loop.epoch, loop.total_iteration_idx


ask_fit("SGD")
ask_fit("Adam", optimizer=lambda module: optim.Adam(module.parameters(), lr=0.01))
ask_fit("momentum", optimizer=lambda module: optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
ask_fit("batches of one size", train=16, val=8, test=8)
ask_fit("without validation", val=None)
ask_fit("without test", test=None)
ask_fit("without validation and test", val=None, test=None)
ask_fit("end_auto_eval=False", end_auto_eval=False)
ask_fit("end_auto_eval=2", epochs=5, end_auto_eval=2)
ask_fit("end_auto_eval=3", epochs=5, end_auto_eval=3)
ask_fit("end_auto_eval=2, one epoch", epochs=1, end_auto_eval=2)
ask_fit("num_iterations in the first epoch", iterations=2)
ask_fit("num_iterations over epochs", iterations=7)
ask_fit("num_iterations that end an epoch", iterations=6)
ask_fit("num_iterations and accumulation", iterations=5, accumulation=2)
ask_fit("accumulation of 2, a batch is left over", accumulation=2)
ask_fit("accumulation of 3, small last batch", accumulation=3)
ask_fit("accumulation of 2, complete windows", accumulation=2, train=32)
ask_fit("accumulation of 4, more than an epoch", accumulation=4)
ask_fit("accumulation of 2, norm clip", accumulation=2, callbacks=lambda: [GradNormClip(0.05)])
ask_fit("GradNormClip", callbacks=lambda: [GradNormClip(0.05)])
ask_fit("GradNormClip, norm_type", callbacks=lambda: [GradNormClip(0.05, norm_type=1.0)])
ask_fit("GradValueClip", callbacks=lambda: [GradValueClip(0.01)])
ask_fit("batch norm", model=lambda: Net(nn.BatchNorm1d(5)))
ask_fit("dropout of everything", model=lambda: Net(nn.Dropout(1.0)))
ask_fit("a model with its own losses", model=Own)
ask_fit("ModelWrap", model=lambda: ModelWrap(nn.Sequential(nn.Linear(4, 3, bias=False)), Feed()))
ask_fit("two fits", fit=lambda loop: [loop.fit(num_epochs=1), loop.fit(num_epochs=2)])
ask_fit("called as a function", fit=lambda loop: loop(num_epochs=2))
ask_fit("MultiLoss, one optimizer, own parameters", model=Heads)
ask_fit("MultiLoss, one optimizer, shared parameters", model=lambda: Heads(shared=True))
ask_fit("MultiLoss, accumulation", model=Heads, accumulation=2)
ask_fit("MultiLoss and MultiOptimizer", model=Heads, optimizer=both)
ask_fit("MultiLoss and MultiOptimizer, accumulation", model=Heads, optimizer=both, accumulation=2)
ask_fit("MultiLoss, map", model=lambda: Heads(loss_optimizer_map={"alpha": 0, "zeta": 1}), optimizer=both)
ask_fit("MultiLoss, map that swaps", model=lambda: Heads(loss_optimizer_map={"alpha": 1, "zeta": 0}), optimizer=both)
ask_fit("MultiLoss, names out of order", model=lambda: Heads(names=("zeta", "alpha")), optimizer=both)
ask_fit("MultiLoss, clip", model=Heads, optimizer=both, callbacks=lambda: [GradNormClip(0.05)])
ask_fit("DataSubsetTestRun", callbacks=lambda: [DataSubsetTestRun(2, 1, 1)])
ask_fit("DataSubsetTestRun, training alone", callbacks=lambda: [DataSubsetTestRun()])
ask_fit("shuffled", end_auto_eval=False, train=lambda: loader(shuffle=True), val=None, test=None)
ask_fit("shuffled, with evaluation", epochs=3, train=lambda: loader(shuffle=True))
ask_fit("the criterion sums", criterion=nn.CrossEntropyLoss(reduction="sum"), lr=0.01)


@question("fit: use_amp on a CPU")
def amp_on_cpu():
    loop = made(use_amp=False)
    loop.fit(num_epochs=1)
    return loop.use_amp, weights(loop)


@question("fit: returns")
def what_fit_returns():
    loop = made()
    found = loop.fit(num_epochs=1)
    return found is loop.model, type(found).__name__


# The order of hooks ---------------------------------------------------------------------------------------------------


class Log(AbstractCallback):
    """Writes down each hook and where the loop is."""

    def __init__(self, calls, name="log", order=0, grad=True):
        super().__init__(name, execution_order=order)
        self.calls, self.grad = calls, grad

    def note(self, hook, *extra):
        loop = self.train_loop_obj
        self.calls.append([self.callback_name, hook, loop.epoch, loop.total_iteration_idx, *extra])

    def on_train_loop_registration(self):
        if self.grad:
            self.train_loop_obj.grad_cb_used = True
        self.calls.append([self.callback_name, "registration"])

    def on_train_begin(self):
        self.note("train_begin")

    def on_epoch_begin(self):
        self.note("epoch_begin")

    def on_batch_begin(self):
        self.note("batch_begin")

    def on_after_gradient_update(self, optimizer_idx):
        self.note("gradient", optimizer_idx)

    def on_after_optimizer_step(self):
        self.note("step")

    def on_batch_end(self):
        self.note("batch_end")

    def on_epoch_end(self):
        self.note("epoch_end")

    def on_train_end(self):
        self.note("train_end")

    def on_after_batch_prediction(self, y_pred_batch, y_test_batch, metadata_batch, dataset_info):
        self.note("prediction", list(y_pred_batch.shape), list(y_test_batch.shape), metadata_batch, dataset_info)


def ask_order(name, epochs=2, accumulation=1, extra=list, **options):
    @question(f"order: {name}")
    def ask():
        calls = []
        loop = made(**{key: value() if key == "model" else value for key, value in options.items()})
        loop.fit(num_epochs=epochs, callbacks=[Log(calls), *extra()], grad_accumulation=accumulation)
        return calls


ask_order("every hook")
ask_order("accumulation", accumulation=2)
ask_order("two optimizers", model=Heads, optimizer=both, epochs=1)
ask_order("without evaluation", end_auto_eval=False)
ask_order("early_stop in a batch", epochs=3, extra=lambda: [At(batch_begin=stop_now)])
ask_order("early_stop at the end of an epoch", epochs=3, extra=lambda: [At(epoch_end=stop_now)])
ask_order("early_stop at the beginning", epochs=3, extra=lambda: [At(train_begin=stop_now)])
ask_order(
    "predictions", epochs=1, extra=lambda: [At(epoch_end=lambda loop: loop.predict_on_test_set(execute_callbacks=True))]
)
ask_order(
    "predictions without callbacks", epochs=1, extra=lambda: [At(epoch_end=lambda loop: loop.predict_on_test_set())]
)


def stop_now(loop):
    loop.early_stop = True


def order_of_several(callbacks):
    calls = []
    made(train=8, val=None, test=None).fit(num_epochs=1, callbacks=[Log(calls, *one) for one in callbacks])
    return [call[:2] for call in calls]


@question("order: execution_order decides")
def execution_order():
    return [call for call in order_of_several([("late", 5), ("early", -5), ("middle",)]) if call[1] != "registration"]


@question("order: registration in the order of the list")
def registration_order():
    return [call for call in order_of_several([("late", 5), ("early", -5), ("middle",)]) if call[1] == "registration"]


@question("order: equal execution_order in list order")
def equal_order():
    return order_of_several([("b",), ("a",), ("c",)])


@question("order: gradient hooks of a clip callback")
def clip_enables_hooks():
    loop = made(train=8)
    loop.fit(num_epochs=1, callbacks=[GradNormClip(1.0)])
    return loop.grad_cb_used


@question("order: a hook raises")
def hook_raises():
    calls = []

    def fail(loop):
        raise KeyError("mine")

    try:
        made().fit(num_epochs=2, callbacks=[Log(calls), At(batch_end=fail)])
    except KeyError as error:
        return calls, error.args
    return calls


@question("order: early_stop, then a second fit")
def stopped_then_again():
    loop = made()
    loop.fit(num_epochs=3, callbacks=[At(epoch_end=stop_now)])
    return loop.epoch, loop.early_stop, len(loop.train_history["loss"])


# The loop -------------------------------------------------------------------------------------------------------------

NUMBERS = ("epoch", "iteration", "total_iteration_idx", "num_epochs", "num_iterations", "grad_accumulation", "early_stop",  # noqa: E501
           "num_optimizers", "end_auto_eval", "ddp_training_mode", "use_amp", "gpu_mode", "lazy_experiment_save",
           "print_callbacks", "batch_model_feed_def", "ddp_rank")  # fmt: skip


def numbers(loop):
    return {name: getattr(loop, name) for name in NUMBERS}


for hook in ("registration", "train_begin", "epoch_begin", "batch_begin", "batch_end", "epoch_end", "train_end"):

    def ask_numbers(hook=hook):
        seen = []
        made(train=16).fit(num_epochs=2, callbacks=[At(**{hook: lambda loop: seen.append(numbers(loop))})])
        return seen

    question(f"loop: numbers at {hook}")(ask_numbers)


@question("loop: numbers before and after a fit")
def numbers_around():
    loop = made()
    names = ("epoch", "total_iteration_idx", "num_optimizers", "end_auto_eval", "early_stop", "gpu_mode")
    before = {name: getattr(loop, name) for name in names}
    loop.fit(num_epochs=2)
    return before, {name: getattr(loop, name) for name in names}


@question("loop: loss_batch_accum")
def accumulated_losses():
    seen = []

    def look(loop):
        seen.append([float(one) for one in loop.loss_batch_accum])

    loop = made()
    loop.fit(
        num_epochs=2, callbacks=[At(epoch_begin=look, batch_begin=look, batch_end=look, epoch_end=look, train_end=look)]
    )
    return seen


@question("loop: loss_batch_accum with accumulation")
def accumulated_losses_of_windows():
    seen = []
    act = At(batch_end=lambda loop: seen.append([float(one) for one in loop.loss_batch_accum]))
    made().fit(num_epochs=1, callbacks=[act], grad_accumulation=2)
    return seen


@question("loop: loss_batch_accum of a MultiLoss")
def accumulated_multi_losses():
    seen = []

    def look(loop):
        seen.append({name: float(part) for name, part in loop.loss_batch_accum[-1].items()})

    made(model=Heads()).fit(num_epochs=1, callbacks=[At(batch_end=look)])
    return seen


@question("loop: parse_loss")
def parse_loss():
    loop = made()
    parts = [
        MultiLoss({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}),
        MultiLoss({"a": torch.tensor(3.0), "b": torch.tensor(5.0)}),
    ]
    return loop.parse_loss([torch.tensor(1.0), torch.tensor(4.0)]), loop.parse_loss(parts)


@question("loop: kinds of losses")
def kinds_of_losses():
    loop = made()
    seen = []
    loop.fit(num_epochs=1, callbacks=[At(batch_end=lambda loop: seen.append(type(loop.loss_batch_accum[-1]).__name__))])
    found = {name: type(values[-1]).__name__ for name, values in loop.train_history.items()}
    return found, seen[0], type(loop.parse_loss([torch.tensor(1.0)])).__name__


@question("loop: should_execute_optimizer_update")
def should_update():
    seen = []
    act = At(batch_end=lambda loop: seen.append(loop.should_execute_optimizer_update()))
    made().fit(num_epochs=2, callbacks=[act], grad_accumulation=2)
    return seen


for length, accumulation in (
    ({"num_epochs": 3}, 1),
    ({"num_epochs": 3}, 2),
    ({"num_iterations": 7}, 2),
    ({"num_iterations": 5}, 1),
):

    def ask_steps(length=length, accumulation=accumulation):
        seen = []
        act = At(train_begin=lambda loop: seen.append(loop.get_num_training_steps()))
        made().fit(**length, callbacks=[act], grad_accumulation=accumulation)
        return seen

    question(f"loop: get_num_training_steps, {length}, accumulation {accumulation}")(ask_steps)


@question("loop: is_main_process, device")
def main_process():
    loop = made()
    return loop.is_main_process(), str(loop.device), loop.amp_scaler is None


@question("loop: callbacks")
def callbacks_of_loop():
    loop = made()
    loop.fit(num_epochs=1, callbacks=[Log([], "b", 3), Log([], "a", -3), Log([], "c")])
    handler = loop.callbacks_handler
    return (
        [one.callback_name for one in loop.callbacks],
        len(handler),
        "a" in handler,
        "d" in handler,
        Log in handler,
        At in handler,
    )


@question("loop: register_callbacks")
def register_callbacks():
    loop = made()
    calls = []
    loop.callbacks_handler.register_callbacks([Log(calls, "a")], cache_callbacks=True)
    early = [*calls]
    loop.callbacks_handler.register_callbacks([Log(calls, "b")])
    loop.fit(num_epochs=1, callbacks=[Log(calls, "c")])
    return early, [call for call in calls if call[1] in ("registration", "train_begin")], len(loop.callbacks)


@question("loop: callbacks_handler + list")
def handler_plus():
    loop = made()
    before = len(loop.callbacks_handler)
    loop.callbacks_handler += [Log([], "a")]
    found = loop.callbacks_handler + [Log([], "b"), Log([], "c")]  # noqa: RUF005
    return before, len(found), [one.callback_name for one in loop.callbacks]


@question("loop: the second fit adds its callbacks")
def second_fit_adds():
    loop = made()
    loop.fit(num_epochs=1, callbacks=[Log([], "a")])
    loop.fit(num_epochs=2, callbacks=[Log([], "b")])
    return [one.callback_name for one in loop.callbacks]


@question("loop: get_schedulers")
def get_schedulers():
    loop = made()
    one, other = schedules.StepLRScheduler(1), schedules.LambdaLRScheduler(lambda step: 1.0)
    loop.fit(num_epochs=1, callbacks=[one, other])
    return len(loop.get_schedulers()), [type(found).__name__ for found in loop.get_schedulers()]


@question("loop: insert_metric_result_into_history")
def insert_metric():
    loop = made()
    act = At(epoch_end=lambda loop: loop.insert_metric_result_into_history("mine", loop.epoch + 0.5),
             train_end=lambda loop: loop.insert_metric_result_into_history("end", 7))  # fmt: skip
    loop.fit(num_epochs=2, callbacks=[act])
    return history(loop)["mine"], list(loop.train_history.keys()), loop.train_history["end"]


# What a callback may set ----------------------------------------------------------------------------------------------


def ask_set(name, epochs=3, iterations=0, accumulation=1, **acts):
    @question(f"set: {name}")
    def ask():
        calls = []
        loop = made()
        length = {"num_iterations": iterations} if iterations else {"num_epochs": epochs}
        loop.fit(**length, callbacks=[At(**acts), Log(calls, order=1)], grad_accumulation=accumulation)
        return (
            weights(loop),
            history(loop),
            [call[1:] for call in calls if call[1] in ("batch_end", "step", "epoch_end")],
        )


def sets(when=lambda loop: True, **values):
    def act(loop):
        if when(loop):
            for name, value in values.items():
                setattr(loop, name, value() if callable(value) and name != "criterion" else value)

    return act


ask_set("num_epochs, more", epoch_end=sets(lambda loop: loop.epoch == 1, num_epochs=4))
ask_set("num_epochs at the beginning", train_begin=sets(num_epochs=5))
ask_set("num_epochs, fewer", epochs=4, epoch_end=sets(lambda loop: loop.epoch == 1, num_epochs=2))
ask_set("epoch at the beginning", train_begin=sets(epoch=1))
ask_set("epoch in a batch", batch_end=sets(lambda loop: loop.total_iteration_idx == 1, epoch=5))
ask_set("grad_accumulation at the beginning", train_begin=sets(grad_accumulation=2))
ask_set("grad_accumulation from the second epoch", epoch_begin=sets(lambda loop: loop.epoch == 1, grad_accumulation=3))
ask_set("grad_accumulation to 1", accumulation=3, epoch_begin=sets(lambda loop: loop.epoch == 1, grad_accumulation=1))
ask_set("num_iterations", iterations=7, batch_end=sets(lambda loop: loop.total_iteration_idx == 2, num_iterations=5))
ask_set(
    "num_iterations, more", iterations=4, batch_end=sets(lambda loop: loop.total_iteration_idx == 2, num_iterations=5)
)
ask_set("train_loader", train_begin=sets(train_loader=lambda: loader(16)))
ask_set("validation_loader", train_begin=sets(validation_loader=lambda: loader(20)))
ask_set("test_loader", train_begin=sets(test_loader=lambda: loader(20)))
ask_set("criterion", train_begin=sets(criterion=nn.CrossEntropyLoss(label_smoothing=0.5)))
ask_set("end_auto_eval", train_begin=sets(end_auto_eval=False))
ask_set("total_iteration_idx", train_begin=sets(total_iteration_idx=9))
ask_set("the learning rate", epoch_begin=lambda loop: loop.optimizer.param_groups[0].update(lr=0.01 * (loop.epoch + 1)))
ask_set("optimizer", epoch_begin=lambda loop: setattr(loop, "optimizer", optim.SGD(loop.model.parameters(), lr=0.02)))


# Predictions and losses -----------------------------------------------------------------------------------------------


def ask_at_end(name, look, **options):
    """What ``look(loop)`` returns at the end of the first epoch."""

    @question(f"computed: {name}")
    def ask():
        seen = []
        loop = made(**{key: value() if key == "model" else value for key, value in options.items()})
        loop.fit(num_epochs=1, callbacks=[At(epoch_end=lambda loop: seen.append(look(loop)))])
        return seen


def kind(value):
    return type(value).__name__, value


ask_at_end("predict_on_validation_set", lambda loop: loop.predict_on_validation_set())
ask_at_end("predict_on_train_set", lambda loop: loop.predict_on_train_set())
ask_at_end("predict_on_test_set", lambda loop: loop.predict_on_test_set(), model=Own)
ask_at_end("predict_with_model", lambda loop: loop.predict_with_model(loader(5, 2)))
ask_at_end("kinds of predictions", lambda loop: [type(one).__name__ for one in loop.predict_on_test_set()], model=Own)
ask_at_end("loss on the training set", lambda loop: kind(loop.evaluate_loss_on_train_set()))
ask_at_end("loss on the validation set", lambda loop: kind(loop.evaluate_loss_on_validation_set()))
ask_at_end("loss on the test set", lambda loop: kind(loop.evaluate_loss_on_test_set()))
ask_at_end(
    "loss as a number",
    lambda loop: [
        kind(loop.evaluate_loss_on_test_set(float_dict_format=True)),
        kind(loop.evaluate_loss_on_validation_set(force_prediction=True, float_dict_format=True)),
    ],
)
ask_at_end(
    "MultiLoss on the test set",
    lambda loop: {name: float(part) for name, part in loop.evaluate_loss_on_test_set().items()},
    model=Heads,
)
ask_at_end(
    "MultiLoss as numbers", lambda loop: kind(loop.evaluate_loss_on_test_set(float_dict_format=True)), model=Heads
)
ask_at_end("evaluate_model_loss", lambda loop: kind(loop.evaluate_model_loss(loader(5, 2))))
ask_at_end("an answer is kept", lambda loop: loop.predict_on_test_set() is loop.predict_on_test_set())
ask_at_end(
    "an answer is computed again",
    lambda loop: loop.predict_on_test_set() is loop.predict_on_test_set(force_prediction=True),
)
ask_at_end(
    "collate_batch_pred_fn",
    lambda loop: loop.predict_on_test_set(),
    collate_batch_pred_fn=lambda batch, found: [*found, batch * 2],
)
ask_at_end(
    "pred_transform_fn", lambda loop: loop.predict_on_test_set(), pred_transform_fn=lambda found: torch.cat(found)[:3]
)
ask_at_end(
    "the model is in training mode afterwards",
    lambda loop: (loop.predict_on_test_set()[0].requires_grad, loop.model.training),
)


@question("computed: predictions without a fit")
def predictions_without_fit():
    return made().predict_on_validation_set(), float(made().evaluate_loss_on_test_set())


@question("computed: a loop without an optimizer")
def without_optimizer():
    loop = TrainLoop(Own(), None, loader(12), loader(5), None, None)
    return loop.predict_on_validation_set(), loop.predict_on_test_set()[1]


@question("computed: a loop without an optimizer evaluates")
def evaluates_without_optimizer():
    loop = TrainLoop(Net(), None, loader(12), loader(5), None, nn.CrossEntropyLoss())
    return float(loop.evaluate_loss_on_validation_set()), float(loop.evaluate_loss_on_test_set())


@question("computed: a loader that is not there")
def loader_not_there():
    return made(test=None).predict_on_test_set()


# Messages -------------------------------------------------------------------------------------------------------------

MODES = {
    name: getattr(MessageHandling, name) for name in ("KEEP_FOREVER", "UNTIL_END_OF_EPOCH", "UNTIL_READ", "OVERWRITE")
}

for name, mode in MODES.items():

    def ask_mode(mode=mode):
        service = MessageService()
        service.write_message("key", 1, mode)
        service.write_message("key", 2, mode)
        first = service.read_messages("key")
        second = service.read_messages("key")
        service.end_of_epoch_trigger()
        return first, second, service.read_messages("key"), service.read_messages("other")

    question(f"messages: {name}")(ask_mode)

for name in ("KEEP_FOREVER", "UNTIL_END_OF_EPOCH", "UNTIL_READ"):

    def ask_two(name=name):
        service = MessageService()
        for value in (1, 2):
            service.write_message("key", value, [MODES[name], MODES["OVERWRITE"]])
        first, second = service.read_messages("key"), service.read_messages("key")
        service.end_of_epoch_trigger()
        return first, second, service.read_messages("key")

    question(f"messages: {name} with OVERWRITE")(ask_two)


@question("messages: modes that exclude each other")
def excluding_modes():
    MessageService().write_message("key", 1, [MODES["UNTIL_READ"], MODES["KEEP_FOREVER"]])


@question("messages: the default")
def default_mode():
    service = MessageService()
    service.write_message("key", 1)
    first = service.read_messages("key"), service.read_messages("key")
    service.end_of_epoch_trigger()
    return first, service.read_messages("key")


@question("messages: between callbacks, over an epoch")
def messages_in_a_fit():
    seen = []
    writer = At(epoch_begin=lambda loop: loop.message_service.write_message("number", loop.epoch))
    reader = At(1, batch_end=lambda loop: seen.append(loop.message_service.read_messages("number")),
                epoch_end=lambda loop: seen.append(loop.message_service.read_messages("number")),
                train_end=lambda loop: seen.append(loop.message_service.read_messages("number")))  # fmt: skip
    made(train=8).fit(num_epochs=2, callbacks=[writer, reader])
    return seen


# The history ----------------------------------------------------------------------------------------------------------


@question("history: as a mapping")
def history_mapping():
    found = TrainingHistory()
    found["mine"] = 1
    found.insert_single_result_into_history("mine", 2)
    found += {"other": 3}
    return (
        found["mine"],
        len(found),
        "mine" in found,
        "no" in found,
        list(found),
        list(found.keys()),
        dict(found.items()),
    )


@question("history: without validation")
def history_without_validation():
    return list(TrainingHistory(has_validation=False).keys()), list(TrainingHistory().keys())


@question("history: get_train_history")
def get_train_history():
    found = TrainingHistory()
    found["loss"] = 0.5
    return found.get_train_history(), found.get_train_history_dict()


@question("history: a name that is not there")
def history_missing():
    return TrainingHistory()["nothing"]


@question("history: wrap_pre_prepared_history")
def wrapped_history():
    found = TrainingHistory().wrap_pre_prepared_history({"loss": [1.0], "mine": [2.0]})
    return found.get_train_history()


@question("history: history + dict")
def history_plus():
    found = TrainingHistory() + {"mine": 1}
    return found.get_train_history()


# Several losses and optimizers ----------------------------------------------------------------------------------------


def parts():
    return MultiLoss({"zeta": torch.tensor(4.0), "alpha": torch.tensor(2.0)})


@question("MultiLoss: as a mapping")
def multi_mapping():
    found = parts()
    found["third"] = torch.tensor(1.0)
    del found["zeta"]
    return (
        list(found),
        len(found),
        "alpha" in found,
        float(found["alpha"]),
        [float(one) for one in found.values()],
        dict(found.get_loss_dict()),
    )


@question("MultiLoss: numpy")
def multi_numpy():
    found = parts().numpy()
    return type(found).__name__, {name: float(part) for name, part in found.items()}


@question("MultiLoss: divided")
def multi_divided():
    half = parts() / 2
    return type(half).__name__, {name: float(part) for name, part in half.items()}


@question("MultiLoss: moved")
def multi_moved():
    return [
        [type(found).__name__, {name: float(part) for name, part in found.items()}]
        for found in (parts().detach(), parts().cpu(), parts().to("cpu"))
    ]


@question("MultiOptimizer: as a sequence")
def multi_optimizer():
    found = both(Heads())
    return len(found), found[1].param_groups[0]["lr"], [one["param_groups"][0]["lr"] for one in found.state_dict()]


@question("MultiOptimizer: state")
def multi_optimizer_state():
    found, other = both(Heads()), both(Heads(), (0.5, 0.5))
    other.load_state_dict(found.state_dict())
    return [other[number].param_groups[0]["lr"] for number in range(2)]


@question("MultiOptimizer: of the loop")
def optimizers_of_the_loop():
    loop = made(model=Heads(), optimizer=both)
    return (
        loop.num_optimizers,
        type(loop.optimizer).__name__,
        len(loop.optimizer),
        made().num_optimizers,
        type(made().optimizer).__name__,
    )


# Result packages ------------------------------------------------------------------------------------------------------

TRUTH = np.array([0, 1, 1, 0, 1, 0, 0, 1])
SCORES = np.array([0.1, 0.8, 0.35, 0.4, 0.9, 0.65, 0.2, 0.7])


def results(package, truth=TRUTH, predicted=SCORES, **more):
    package.prepare_result_package(truth, predicted, **more)
    return package.get_results()


for threshold in (0.5, 0.3, 0.75):

    def ask_binary(threshold=threshold):
        return results(BinaryClassificationResultPackage(positive_class_thresh=threshold))

    question(f"results: BinaryClassificationResultPackage({threshold})")(ask_binary)


@question("results: BinaryClassificationResultPackage, tensors")
def binary_tensors():
    return results(BinaryClassificationResultPackage(), torch.from_numpy(TRUTH), torch.from_numpy(SCORES))


@question("results: BinaryClassificationResultPackage, equal scores")
def binary_ties():
    return results(BinaryClassificationResultPackage(), TRUTH, np.array([0.5, 0.5, 0.5, 0.2, 0.9, 0.9, 0.2, 0.9]))


@question("results: ClassificationResultPackage")
def classification():
    return results(ClassificationResultPackage(), np.array([0, 2, 1, 1]), np.array([0, 2, 2, 1]))


@question("results: ClassificationResultPackage, scores of classes")
def classification_scores():
    return results(ClassificationResultPackage(), np.array([0, 2, 1, 1]), np.eye(3)[[0, 2, 2, 1]])


@question("results: RegressionResultPackage")
def regression():
    return results(RegressionResultPackage(), np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 3.0]))


@question("results: RegressionResultPackage, several numbers")
def regression_of_several():
    return results(RegressionResultPackage(), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 3.0], [3.0, 2.0]]))


class Seen(AbstractResultPackage):
    """What a package is given."""

    def prepare_results_dict(self):
        return {
            "truth": type(self.y_true).__name__,
            "predicted": type(self.y_predicted).__name__,
            "sum": float(sum(self.y_predicted)),
            "hyperparameters": self.hyperparameters,
            "additional": self.additional_results,
        }


@question("results: what a package is given")
def package_given():
    return results(Seen("seen"), hyperparameters={"lr": 0.1}, names=[1, 2])


@question("results: what a package is given, tensors")
def package_given_tensors():
    return results(Seen(), torch.from_numpy(TRUTH), torch.from_numpy(SCORES))


@question("results: what a package is given, lists")
def package_given_lists():
    return results(Seen(), [1, 0], [0.5, 0.25])


@question("results: np_array=False")
def package_without_arrays():
    return results(Seen(np_array=False), torch.from_numpy(TRUTH), torch.from_numpy(SCORES))


@question("results: training_history and metadata")
def package_with_more():
    found = results(Seen(), additional_results={"a": 1}, training_history={"loss": [1.0]})
    return found["additional"]


@question("results: get_hyperparameters")
def package_hyperparameters():
    package = Seen()
    results(package, hyperparameters={"lr": 0.1})
    return package.get_hyperparameters(), package.pkg_name, package.strict_content_check


@question("results: as a mapping")
def package_mapping():
    package = RegressionResultPackage()
    results(package, np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    return len(package), "Mean_squared_error" in package, "no" in package, package["Mean_absolute_error"]


@question("results: before anything was computed")
def package_empty():
    return RegressionResultPackage().get_results()


@question("results: PreCalculatedResultPackage")
def precalculated():
    return PreCalculatedResultPackage({"score": 0.5}).get_results()


@question("results: packages are added before they are prepared")
def package_plus_package():
    return results(BinaryClassificationResultPackage() + RegressionResultPackage())


@question("results: prepared packages are added")
def prepared_packages_added():
    one, other = BinaryClassificationResultPackage(), RegressionResultPackage()
    results(one), results(other)
    return (one + other).get_results()


@question("results: a package plus a dict")
def package_plus_dict():
    package = RegressionResultPackage()
    results(package)
    return (package + {"extra": 1.0}).get_results()


@question("results: a package += a dict")
def package_iadd_dict():
    package = RegressionResultPackage()
    results(package)
    package += {"extra": 1.0}
    return package.get_results()


@question("results: a package += a package")
def package_iadd_package():
    package, other = RegressionResultPackage(), ClassificationResultPackage()
    results(package), results(other, TRUTH, TRUTH)
    package += other
    return package.get_results()


@question("results: a package of one's own with arguments")
def own_package():
    class Share(AbstractResultPackage):
        def __init__(self, factor):
            super().__init__(pkg_name="share", strict_content_check=True, factor=factor)
            self.factor = factor

        def prepare_results_dict(self):
            return {"share": self.factor * float((self.y_true == (self.y_predicted > 0.5)).mean())}

    return results(Share(2.0))


@question("results: metrics from a loop")
def package_in_a_loop():
    loop = made(model=Own())
    seen = []

    class Kept(AbstractResultPackage):
        def prepare_results_dict(self):
            seen.append(
                [
                    type(self.y_true).__name__,
                    type(self.y_predicted).__name__,
                    list(self.y_true.shape),
                    self.hyperparameters,
                    {name: len(value) for name, value in self.additional_results["additional_results"].items()},
                ]
            )
            return {"hits": float((self.y_true == self.y_predicted).mean())}

    loop.fit(num_epochs=1, callbacks=[ModelPerformanceEvaluation(Kept(), {"lr": 0.1})])
    return seen, history(loop)["val_hits"]


# Callbacks of its own -------------------------------------------------------------------------------------------------


class Says(AbstractCallback):
    """Writes given values into the history, one an epoch."""

    def __init__(self, name, values):
        super().__init__("says", execution_order=-1)
        self.metric, self.values = name, values

    def on_epoch_end(self):
        loop = self.train_loop_obj
        loop.insert_metric_result_into_history(self.metric, self.values[loop.epoch])


def ask_stop(name, metric, values, callback):
    @question(f"stops: {name}")
    def ask():
        loop = made(train=8, val=4, test=None)
        loop.fit(num_epochs=len(values), callbacks=[Says(metric, values), callback()])
        return loop.epoch, loop.early_stop


ask_stop("EarlyStopping(patience=0)", "my_loss", [3.0, 2.0, 2.0, 1.0], lambda: EarlyStopping("my_loss"))
ask_stop(
    "EarlyStopping(patience=1)",
    "my_loss",
    [3.0, 2.0, 2.0, 2.5, 1.0, 1.0, 1.0],
    lambda: EarlyStopping("my_loss", patience=1),
)
ask_stop(
    "EarlyStopping(patience=2)",
    "my_loss",
    [3.0, 3.0, 3.0, 2.9, 3.0, 3.0, 3.0, 1.0],
    lambda: EarlyStopping("my_loss", patience=2),
)
ask_stop("EarlyStopping, higher is better", "accuracy", [0.1, 0.2, 0.2, 0.9], lambda: EarlyStopping("accuracy"))
ask_stop("EarlyStopping(min_delta=0.5)", "error", [3.0, 2.6, 1.0, 0.9], lambda: EarlyStopping("error", min_delta=0.5))
ask_stop(
    "EarlyStopping, min_delta is met exactly",
    "error",
    [3.0, 2.5, 1.0, 0.9],
    lambda: EarlyStopping("error", min_delta=0.5, patience=1),
)
ask_stop(
    "EarlyStopping, higher is better, min_delta",
    "score",
    [0.1, 0.5, 0.7, 0.9],
    lambda: EarlyStopping("score", min_delta=0.3),
)
ask_stop("EarlyStopping on val_loss", "other", [0.0] * 6, lambda: EarlyStopping(min_delta=0.05))
ask_stop(
    "ThresholdEarlyStopping, a loss",
    "my_loss",
    [0.5, 2.0, 0.5, 2.0, 2.0, 0.1],
    lambda: ThresholdEarlyStopping("my_loss", 1.0, patience=1),
)
ask_stop(
    "ThresholdEarlyStopping, a score",
    "score",
    [2.0, 0.5, 2.0, 0.5, 0.5, 3.0],
    lambda: ThresholdEarlyStopping("score", 1.0, patience=1),
)
ask_stop("ThresholdEarlyStopping(patience=0)", "score", [2.0, 0.5, 3.0], lambda: ThresholdEarlyStopping("score", 1.0))
ask_stop(
    "ThresholdEarlyStopping, the threshold itself",
    "score",
    [1.0, 1.0, 1.0],
    lambda: ThresholdEarlyStopping("score", 1.0),
)
ask_stop("TerminateOnNaN, NaN", "my_loss", [1.0, math.nan, 1.0], lambda: TerminateOnNaN("my_loss"))
ask_stop("TerminateOnNaN, infinite", "my_loss", [1.0, math.inf, 1.0], lambda: TerminateOnNaN("my_loss"))
ask_stop("TerminateOnNaN, finite", "my_loss", [1.0, 2.0, 1.0], lambda: TerminateOnNaN("my_loss"))


def ask_same(name, **options):
    @question(f"stops: AllPredictionsSame, {name}")
    def ask():
        model = Own()
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        loop = made(model=model, lr=0.0, val=4, test=None)
        loop.fit(num_epochs=3, callbacks=[AllPredictionsSame(**options)])
        return loop.epoch, loop.early_stop


ask_same("stop_training", stop_training=True)
ask_same("another value", value=1.0, stop_training=True)
ask_same("only warns")


def ask_evaluation(
    name,
    epochs=5,
    make=lambda **options: ModelPerformanceEvaluation(ClassificationOfScores(), {}, **options),
    **options,
):
    @question(f"evaluation: {name}")
    def ask():
        loop = made()
        loop.fit(num_epochs=epochs, callbacks=[make(**options)])
        return {key: values for key, values in history(loop).items() if "loss" not in key}


class ClassificationOfScores(ClassificationResultPackage):
    pass


ask_evaluation("ModelPerformanceEvaluation")
ask_evaluation("on_train_data", on_train_data=True)
ask_evaluation("training data alone", on_train_data=True, on_val_data=False)
ask_evaluation("on_each_epoch=False", on_each_epoch=False)
ask_evaluation("eval_frequency=2", eval_frequency=2)
ask_evaluation("eval_frequency=3, on_train_data", eval_frequency=3, on_train_data=True)
ask_evaluation("eval_frequency=2, on_each_epoch=False", eval_frequency=2, on_each_epoch=False)


class RegressionOfScores(RegressionResultPackage):
    def prepare_results_dict(self):
        self.y_predicted = self.y_predicted[:, 0]
        return super().prepare_results_dict()


class Constant(AbstractResultPackage):
    def prepare_results_dict(self):
        return {"constant": 0.25, "other": 3.0}


ask_evaluation("a package of one's own", epochs=2, make=lambda: ModelPerformanceEvaluation(Constant(), None))


def ask_report(name, metrics, **options):
    @question(f"report: {name}")
    def ask():
        loop = made()
        epochs = []
        report = ModelPerformancePrintReport(metrics, **options)
        shown = report.print_performance_report

        def counted(*args, **kwargs):
            epochs.append([loop.epoch, *args, *kwargs.values()])
            return shown(*args, **kwargs)

        report.print_performance_report = counted
        try:
            loop.fit(num_epochs=5, callbacks=[ModelPerformanceEvaluation(ClassificationOfScores(), {}), report])
        except (ValueError, KeyError) as error:
            return epochs, type(error).__name__
        return epochs


ask_report("each epoch", ["val_Accuracy"])
ask_report("report_frequency=2", ["val_Accuracy"], report_frequency=2)
ask_report("on_each_epoch=False", ["val_Accuracy"], on_each_epoch=False)
ask_report("on_each_epoch=False, report_frequency=2", ["val_Accuracy"], on_each_epoch=False, report_frequency=2)
ask_report("a metric that is not there", ["nothing"])
ask_report("a metric that is not there at the end", ["val_Accuracy", "loss"])
ask_report("a metric that is not there, not strict", ["nothing", "loss"], strict_metric_reporting=False)
ask_report("list_tracked_metrics", ["val_Accuracy"], list_tracked_metrics=True)


def ask_derived(name, make, epochs=3):
    @question(f"derived: {name}")
    def ask():
        loop = made()
        loop.fit(num_epochs=epochs, callbacks=[make()])
        return {key: values for key, values in history(loop).items() if key not in ("loss", "accumulated_loss")}


def all_of(name):
    return lambda history: history[name]


def given_to_setter(seen):
    return lambda *given: seen.append(given) or ("double", 2.0)


def doubled(values):
    return "double", 2 * values[-1]


def at_the_end(metric, setter=doubled):
    return TrainHistoryFormatter(all_of(metric), setter, epoch_end=False, train_end=True)


ask_derived("TrainHistoryFormatter", lambda: TrainHistoryFormatter(all_of("loss"), doubled))
ask_derived("TrainHistoryFormatter, a dict", lambda: TrainHistoryFormatter(all_of("loss"), lambda values: {"one": 1.0}))
ask_derived("TrainHistoryFormatter at the end", lambda: at_the_end("loss"))
ask_derived("TrainHistoryFormatter at the end, one epoch", lambda: at_the_end("loss"), epochs=1)
ask_derived("TrainHistoryFormatter at the end, of the end", lambda: at_the_end("train_end_test_loss"))
ask_derived("TrainHistoryFormatter, nothing to get", lambda: TrainHistoryFormatter(all_of("nothing"), doubled))
ask_derived(
    "TrainHistoryFormatter, nothing to get, not strict",
    lambda: TrainHistoryFormatter(all_of("nothing"), doubled, strict_metric_extract=False),
)
ask_derived(
    "TrainHistoryFormatter, a value that is not new", lambda: TrainHistoryFormatter(lambda history: [1.0], doubled)
)
ask_derived(
    "TrainHistoryFormatter, a value that is not new, not strict",
    lambda: TrainHistoryFormatter(lambda history: [1.0], doubled, strict_metric_extract=False),
)
ask_derived(
    "TrainHistoryFormatter, neither end", lambda: TrainHistoryFormatter(all_of("loss"), doubled, epoch_end=False)
)
ask_derived("TrainHistoryFormatter, both ends", lambda: TrainHistoryFormatter(all_of("loss"), doubled, train_end=True))


@question("derived: what the setter gets")
def what_the_setter_gets():
    seen = []
    made().fit(num_epochs=2, callbacks=[TrainHistoryFormatter(all_of("val_loss"), given_to_setter(seen))])
    return [[type(one).__name__ for one in given] for given in seen], seen


ask_derived("MetricHistoryRename", lambda: MetricHistoryRename("val_loss", "renamed"))
ask_derived("MetricHistoryRename with a function", lambda: MetricHistoryRename(all_of("val_loss"), "renamed"))
ask_derived(
    "MetricHistoryRename, not strict", lambda: MetricHistoryRename("nothing", "renamed", strict_metric_extract=False)
)
ask_derived(
    "MetricHistoryRename of the end",
    lambda: MetricHistoryRename("train_end_test_loss", "renamed", epoch_end=False, train_end=True),
)
ask_derived(
    "MetricHistoryRename at the end", lambda: MetricHistoryRename("loss", "renamed", epoch_end=False, train_end=True)
)
ask_derived("MetricHistoryRename, nothing to get", lambda: MetricHistoryRename("nothing", "renamed"))


@question("function: at chosen hooks")
def function_at_hooks():
    calls = []
    chosen = FunctionOnTrainLoop(
        lambda loop: calls.append([loop.epoch, loop.total_iteration_idx]),
        epoch_begin=True,
        batch_end=True,
        train_end=True,
    )
    made().fit(num_epochs=2, callbacks=[chosen])
    return calls


@question("function: at the other hooks")
def function_at_other_hooks():
    calls = []
    chosen = FunctionOnTrainLoop(
        lambda loop: calls.append(loop.total_iteration_idx),
        tl_registration=True,
        epoch_end=True,
        train_begin=True,
        batch_begin=True,
    )
    made().fit(num_epochs=2, callbacks=[chosen])
    return calls


@question("function: at gradient hooks")
def function_at_gradients():
    calls = []
    chosen = FunctionOnTrainLoop(
        lambda loop: calls.append(loop.total_iteration_idx), after_gradient_update=True, after_optimizer_step=True
    )
    made().fit(num_epochs=1, callbacks=[chosen, GradNormClip(9.0)], grad_accumulation=2)
    return calls


@question("function: its order")
def function_order():
    chosen = FunctionOnTrainLoop(lambda loop: None, epoch_end=True, execution_order=7, device_idx_execution=0)
    return chosen.execution_order, chosen.device_idx_execution


CALLBACKS = {
    "EarlyStopping": lambda: EarlyStopping(),
    "ThresholdEarlyStopping": lambda: ThresholdEarlyStopping("loss", 1.0),
    "TerminateOnNaN": lambda: TerminateOnNaN(),
    "AllPredictionsSame": lambda: AllPredictionsSame(),
    "ListRegisteredCallbacks": lambda: ListRegisteredCallbacks(),
    "ModelPerformanceEvaluation": lambda: ModelPerformanceEvaluation(RegressionResultPackage(), {}),
    "ModelPerformancePrintReport": lambda: ModelPerformancePrintReport(["loss"]),
    "ModelTrainHistoryPlot": lambda: ModelTrainHistoryPlot(),
    "ModelTrainHistoryFileWriter": lambda: ModelTrainHistoryFileWriter(),
    "ModelCheckpoint": lambda: ModelCheckpoint("p", "e", "r", {}, cloud_save_mode="local"),
    "ModelIterationCheckpoint": lambda: ModelIterationCheckpoint(2, "p", "e", "r", {}, cloud_save_mode="local"),
    "ModelTrainEndSave": lambda: ModelTrainEndSave(
        "p", "e", "r", {}, RegressionResultPackage(), cloud_save_mode="local"
    ),
    "ModelLoadContinueTraining": lambda: ModelLoadContinueTraining("2024-01-01_00-00-00"),
    "TensorboardFullTracking": lambda: TensorboardFullTracking(),
    "GradNormClip": lambda: GradNormClip(1.0),
    "GradDistributionPlot": lambda: GradDistributionPlot(lambda model: []),
    "StepLRScheduler": lambda: schedules.StepLRScheduler(1),
}


@question("callbacks: order and device")
def orders_and_devices():
    return {name: [make().execution_order, make().device_idx_execution] for name, make in CALLBACKS.items()}


@question("callbacks: AbstractCallback")
def abstract_callback():
    found = AbstractCallback("name", execution_order=3, device_idx_execution=1)
    return found.callback_name, found.execution_order, found.device_idx_execution, found.train_loop_obj


@question("callbacks: AbstractExperimentCallback")
def abstract_experiment_callback():
    found = AbstractExperimentCallback("name", "project", "experiment", "folder", "local")
    names = (
        "project_name",
        "experiment_name",
        "local_model_result_folder_path",
        "cloud_save_mode",
        "bucket_name",
        "cloud_dir_prefix",
    )
    return {name: getattr(found, name) for name in names}


class Inferring(AbstractExperimentCallback):
    def __init__(self, cloud=False, **details):
        super().__init__("infers", **details)
        self.cloud = cloud

    def on_train_loop_registration(self):
        self.try_infer_experiment_details(infer_cloud_details=self.cloud)

    def found(self):
        return [
            self.project_name,
            self.experiment_name,
            self.local_model_result_folder_path,
            self.cloud_save_mode,
            self.bucket_name,
            self.cloud_dir_prefix,
        ]


def experiment(kind=TrainLoopCheckpoint, cloud_save_mode="local", **options):
    Path("results").mkdir(exist_ok=True)
    return made(kind, project_name="digits", experiment_name="cnn", local_model_result_folder_path="results",
                hyperparams={"lr": 0.1, "layers": 2}, cloud_save_mode=cloud_save_mode, **options)  # fmt: skip


for cloud in (False, True):

    def ask_inferred(cloud=cloud):
        one, given = Inferring(cloud), Inferring(cloud, project_name="mine", experiment_name="own")
        experiment(bucket_name="bucket", cloud_dir_prefix="pre").fit(num_epochs=1, callbacks=[one, given])
        return one.found(), given.found()

    question(f"callbacks: try_infer_experiment_details, infer_cloud_details={cloud}")(ask_inferred)


@question("callbacks: nothing to infer from")
def nothing_to_infer():
    made().fit(num_epochs=1, callbacks=[Inferring()])


# Gradients ------------------------------------------------------------------------------------------------------------


@question("gradients: clipped in the hook after the gradient")
def clipped_norm():
    seen = []

    def look(loop):
        seen.append(math.sqrt(sum(float(p.grad.pow(2).sum()) for p in loop.model.parameters())))

    made().fit(num_epochs=1, callbacks=[GradNormClip(0.05), At(1, gradient=look)])
    return seen


@question("gradients: of each batch")
def gradients_of_batches():
    seen = []

    def look(loop):
        seen.append([float(p.grad.abs().sum()) for p in loop.model.parameters()])

    made().fit(num_epochs=1, callbacks=[GradValueClip(9.0), At(1, gradient=look)])
    return seen


@question("gradients: of each batch of a window")
def gradients_of_windows():
    seen = []

    def look(loop):
        seen.append([float(p.grad.abs().sum()) for p in loop.model.parameters()])

    made(train=24).fit(num_epochs=1, callbacks=[GradNormClip(9.0), At(1, gradient=look)], grad_accumulation=2)
    return seen


for every in (False, True):

    def ask_stats(every=every):
        asked = []

        def layers(model):
            asked.append(type(model).__name__)
            return [model.layers[0], model.layers[2]]

        made().fit(num_epochs=2, callbacks=[GradientStatsPrint(layers, on_every_grad_update=every)])
        return len(asked), asked[0]

    question(f"gradients: GradientStatsPrint(on_every_grad_update={every})")(ask_stats)


# Schedules ------------------------------------------------------------------------------------------------------------


def ask_rates(name, make, epochs=4, accumulation=1, **options):
    @question(f"rates: {name}")
    def ask():
        seen = []

        def look(loop):
            groups = getattr(loop.optimizer, "optimizer_list", [loop.optimizer])
            seen.append([group["lr"] for one in groups for group in one.param_groups])

        loop = made(**{key: value() if key == "model" else value for key, value in options.items()})
        loop.fit(
            num_epochs=epochs,
            callbacks=[make(), At(-1, batch_begin=look, train_end=look)],
            grad_accumulation=accumulation,
        )
        return seen


def warmup(name):
    from aitoolbox.torchtrain.schedulers import warmup as found

    return getattr(found, name)


ask_rates("StepLRScheduler", lambda: schedules.StepLRScheduler(2, gamma=0.5))
ask_rates("MultiStepLRScheduler", lambda: schedules.MultiStepLRScheduler([1, 3], gamma=0.1))
ask_rates("LambdaLRScheduler", lambda: schedules.LambdaLRScheduler(lambda step: 0.9**step))
ask_rates(
    "LambdaLRScheduler, batches",
    lambda: schedules.LambdaLRScheduler(lambda step: 0.9**step, execute_epoch_end=False, execute_batch_end=True),
)
ask_rates(
    "LambdaLRScheduler, batches and epochs",
    lambda: schedules.LambdaLRScheduler(lambda step: 0.9**step, execute_batch_end=True),
)
ask_rates(
    "LambdaLRScheduler, accumulation",
    lambda: schedules.LambdaLRScheduler(lambda step: 0.9**step, execute_epoch_end=False, execute_batch_end=True),
    accumulation=2,
)
ask_rates(
    "LambdaLRScheduler, neither", lambda: schedules.LambdaLRScheduler(lambda step: 0.9**step, execute_epoch_end=False)
)
ask_rates(
    "GeneralLRSchedulerCallback",
    lambda: schedules.GeneralLRSchedulerCallback(optim.lr_scheduler.ExponentialLR, gamma=0.5),
)
ask_rates(
    "optimizer_idx",
    lambda: schedules.GeneralLRSchedulerCallback(optim.lr_scheduler.StepLR, optimizer_idx=1, step_size=1),
    model=Heads,
    optimizer=both,
)
ask_rates("optimizer_idx is missing", lambda: schedules.StepLRScheduler(1), model=Heads, optimizer=both)
ask_rates("ReduceLROnPlateauScheduler", lambda: schedules.ReduceLROnPlateauScheduler(patience=0, threshold=0.5))
ask_rates(
    "ReduceLROnPlateauScheduler, main_multi_loss",
    lambda: schedules.ReduceLROnPlateauScheduler("zeta", patience=0, threshold=0.5, optimizer_idx=0),
    model=Heads,
    optimizer=both,
)
ask_rates(
    "ReduceLROnPlateauMetricScheduler",
    lambda: schedules.ReduceLROnPlateauMetricScheduler("accumulated_loss", patience=0, threshold=0.5),
)
ask_rates("ConstantWithWarmupScheduler", lambda: warmup("ConstantWithWarmupScheduler")(4))
ask_rates("ConstantWithWarmupScheduler, accumulation", lambda: warmup("ConstantWithWarmupScheduler")(4), accumulation=2)
ask_rates("LinearWithWarmupScheduler", lambda: warmup("LinearWithWarmupScheduler")(3, 10))
ask_rates("CosineWithWarmupScheduler", lambda: warmup("CosineWithWarmupScheduler")(3, 10))
ask_rates("CosineWithWarmupScheduler, num_cycles", lambda: warmup("CosineWithWarmupScheduler")(2, 12, num_cycles=1.5))
ask_rates(
    "HardRestartsCosineWithWarmupScheduler",
    lambda: warmup("HardRestartsCosineWithWarmupScheduler")(2, 11, num_cycles=2.0),
)
ask_rates(
    "HardRestartsCosineWithWarmupScheduler, default", lambda: warmup("HardRestartsCosineWithWarmupScheduler")(2, 11)
)


@question("rates: names of the module")
def schedule_names():
    from aitoolbox.torchtrain.callbacks import train_schedule

    names = ("GeneralLRSchedulerCallback", "StepLRScheduler", "ConstantWithWarmupScheduler", "CosineWithWarmupScheduler",  # noqa: E501
             "HardRestartsCosineWithWarmupScheduler", "LinearWithWarmupScheduler", "LambdaLRScheduler")  # fmt: skip
    return [hasattr(train_schedule, name) for name in names]


@question("rates: state of a scheduler callback")
def schedule_state():
    one = schedules.StepLRScheduler(2, gamma=0.5)
    made().fit(num_epochs=3, callbacks=[one])
    state = one.state_dict()
    return {name: state[name] for name in ("step_size", "gamma", "last_epoch", "base_lrs")}


# Files ----------------------------------------------------------------------------------------------------------------


def files(loop, root="results"):
    found = [path for path in Path(root).rglob("*") if path.is_file()]
    return sorted(str(path).replace(loop.experiment_timestamp, "TIME") for path in found)


def own_files(loop, root="results"):
    return [name for name in files(loop, root) if not name.endswith(("asking.py", "aitoolbox_1_8.py", "asking_1_8.py"))]


def ask_files(name, kind=TrainLoopCheckpoint, epochs=2, callbacks=list, **options):
    @question(f"files: {name}")
    def ask():
        loop = experiment(kind, **options)
        loop.fit(num_epochs=epochs, callbacks=callbacks())
        return own_files(loop)


PACKAGES = {"val_result_package": ClassificationResultPackage, "test_result_package": ClassificationResultPackage}
ask_files("TrainLoopCheckpoint")
ask_files("TrainLoopCheckpoint, iteration_save_freq=2", iteration_save_freq=2)
ask_files("TrainLoopCheckpoint, the two best of five", epochs=5, rm_subopt_local_models=True)
ask_files("TrainLoopCheckpoint, the best of five", epochs=5, rm_subopt_local_models=True, num_best_checkpoints_kept=1)
ask_files(
    "TrainLoopCheckpoint, the three best",
    epochs=5,
    rm_subopt_local_models="accumulated_loss",
    num_best_checkpoints_kept=3,
)
ask_files("TrainLoopCheckpoint, lazy_experiment_save", lazy_experiment_save=True)
ask_files("ModelTrainHistoryPlot, png", callbacks=lambda: [ModelTrainHistoryPlot()])
ask_files(
    "ModelTrainHistoryPlot, pdf at the end",
    callbacks=lambda: [ModelTrainHistoryPlot(epoch_end=False, train_end=True, file_format="pdf")],
)
ask_files(
    "GradDistributionPlot",
    callbacks=lambda: [GradDistributionPlot(lambda model: [model.layers[0], model.layers[2]]), GradNormClip(9.0)],
)


@question("files: TrainLoopEndSave")
def end_save_files():
    loop = experiment(
        TrainLoopEndSave,
        val_result_package=ClassificationResultPackage(),
        test_result_package=ClassificationResultPackage(),
    )
    loop.fit(num_epochs=2)
    return own_files(loop)


def by_position(kind, *more):
    Path("results").mkdir()
    model = Net()
    steps = optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    return kind(model, loader(), loader(12), loader(12), *steps, "digits", "cnn", "results", {"lr": 0.1}, *more)


@question("files: TrainLoopEndSave, packages by position")
def end_save_by_position():
    loop = by_position(TrainLoopEndSave, ClassificationResultPackage(), ClassificationResultPackage(), "local")
    loop.fit(num_epochs=1)
    return loop.cloud_save_mode, type(loop.val_result_package).__name__, own_files(loop)


@question("files: TrainLoopCheckpoint by position")
def checkpoint_by_position():
    loop = by_position(TrainLoopCheckpoint, "local", "bucket", "prefix", (), True, 1, 2)
    loop.fit(num_epochs=2)
    return (
        loop.rm_subopt_local_models,
        loop.iteration_save_freq,
        loop.bucket_name,
        loop.cloud_dir_prefix,
        own_files(loop),
    )


@question("files: TrainLoopCheckpointEndSave")
def checkpoint_end_save_files():
    loop = experiment(TrainLoopCheckpointEndSave, val_result_package=ClassificationResultPackage())
    loop.fit(num_epochs=2)
    return own_files(loop)


@question("files: TrainLoopCheckpointEndSave by position")
def checkpoint_end_save_by_position():
    loop = by_position(TrainLoopCheckpointEndSave, ClassificationResultPackage(), None, "local")
    loop.fit(num_epochs=1)
    return type(loop.val_result_package).__name__, loop.test_result_package, loop.cloud_save_mode, own_files(loop)


def ask_end_save_refused(name, **options):
    @question(f"files: TrainLoopEndSave, {name}")
    def ask():
        return type(experiment(TrainLoopEndSave, **options)).__name__


ask_end_save_refused("without packages")
ask_end_save_refused(
    "a package for validation without a loader", val=None, val_result_package=ClassificationResultPackage()
)
ask_end_save_refused(
    "a package for test without a loader", test=None, test_result_package=ClassificationResultPackage()
)


@question("files: attributes of an experiment loop")
def experiment_attributes():
    loop = experiment(rm_subopt_local_models=True, iteration_save_freq=3, source_dirs=("one",))
    names = ("project_name", "experiment_name", "local_model_result_folder_path", "hyperparams", "cloud_save_mode", "bucket_name",  # noqa: E501
             "cloud_dir_prefix", "rm_subopt_local_models", "iteration_save_freq")  # fmt: skip
    found = {name: getattr(loop, name) for name in names}
    found["hyperparams"] = {name: found["hyperparams"][name] for name in ("lr", "layers")}
    return found


@question("files: callbacks of an experiment loop")
def experiment_callbacks():
    loop = experiment(TrainLoopCheckpointEndSave, val_result_package=ClassificationResultPackage())
    loop.fit(num_epochs=1)
    return sorted(type(one).__name__ for one in loop.callbacks)


def saved(pattern="checkpoint_model/*.pth"):
    paths = sorted(Path("results").rglob(pattern))
    return torch.load(paths[-1], map_location="cpu", weights_only=False)


@question("files: what a checkpoint holds")
def checkpoint_content():
    loop = experiment()
    loop.fit(num_epochs=2, callbacks=[schedules.StepLRScheduler(1)])
    state = saved()
    return (
        sorted(set(state) - {"amp"}),
        state["epoch"],
        state["iteration_idx"],
        len(state["schedulers_state_dict"]),
        list(state["model_state_dict"]),
        float(sum(value.sum() for value in state["model_state_dict"].values()))
        - sum(float(p.detach().sum()) for p in loop.model.parameters())
        < 1e-5,
    )


@question("files: what a checkpoint of an iteration holds")
def iteration_checkpoint_content():
    experiment(iteration_save_freq=2).fit(num_epochs=1)
    path = next(Path("results").rglob("*_E0_ITER2.pth"))
    state = torch.load(path, map_location="cpu", weights_only=False)
    return state["epoch"], state["iteration_idx"], {name: state["hyperparams"][name] for name in ("lr", "layers")}


@question("files: the model at the end")
def end_model_content():
    loop = experiment(TrainLoopEndSave, val_result_package=ClassificationResultPackage())
    loop.fit(num_epochs=2)
    state = saved("model/*.pth")
    return state["epoch"], state["iteration_idx"], weights(loop)


@question("files: hyper-parameters")
def hyperparameter_lines():
    experiment().fit(num_epochs=1)
    lines = next(Path("results").rglob("hyperparams_list.txt")).read_text().splitlines()
    return [line for line in lines if not line.startswith("experiment_file_path") and "source_dirs" not in line]


@question("files: sources")
def sources():
    Path("code/inner").mkdir(parents=True)
    Path("code/one.py").write_text("1")
    Path("code/inner/two.py").write_text("2")
    experiment(source_dirs=["code"]).fit(num_epochs=1)
    with zipfile.ZipFile(next(Path("results").rglob("source_code.zip"))) as archive:
        return sorted(name for name in archive.namelist() if not name.endswith("/"))


@question("files: results of the end")
def end_results():
    loop = experiment(
        TrainLoopEndSave, val_result_package=ClassificationResultPackage(), test_result_package=RegressionOfScores()
    )
    loop.fit(num_epochs=2)
    path = next(path for path in sorted(Path("results").rglob("results/*")) if path.is_file())
    found = (
        pickle.loads(path.read_bytes()) if path.suffix in (".p", ".pickle", ".pkl") else json.loads(path.read_text())
    )
    return path.suffix, sorted(found), found["metrics"] if "metrics" in found else found["results"]


@question("files: results of one package")
def end_results_of_one():
    loop = experiment(TrainLoopEndSave, test_result_package=RegressionOfScores())
    loop.fit(num_epochs=1)
    found = pickle.loads(next(path for path in Path("results").rglob("results/*.p")).read_bytes())
    place = found["experiment_results_local_path"].replace(loop.experiment_timestamp, "TIME")
    return found["results"], found["experiment_name"], len(found["y_true"]), place


@question("files: results hold the history")
def end_results_history():
    experiment(TrainLoopEndSave, val_result_package=ClassificationResultPackage()).fit(num_epochs=2)
    found = pickle.loads(next(path for path in Path("results").rglob("results/*.p")).read_bytes())
    return {name: found["training_history"][name] for name in ("loss", "val_loss")}, {
        name: found["hyperparameters"][name] for name in ("lr", "layers")
    }


for file_format in ("txt", "tsv", "csv"):

    def ask_written(file_format=file_format):
        loop = experiment()
        loop.fit(num_epochs=2, callbacks=[ModelTrainHistoryFileWriter(file_format=file_format)])
        names = [name for name in own_files(loop) if "checkpoint" not in name]
        path = next(
            Path("results").rglob(f"*.{file_format}")
            if file_format != "txt"
            else (one for one in Path("results").rglob("*.txt") if "hyper" not in one.name)
        )
        lines = path.read_text().splitlines()
        if file_format == "txt":
            pairs = [line.split("\t") for line in lines]
            return names, [[name, *map(float, numbers)] for name, *numbers in pairs]
        separator = "\t" if file_format == "tsv" else ","
        rows = [line.split(separator) for line in lines]
        return names, rows[0], [[float(one) if one else None for one in row] for row in rows[1:]]

    question(f"files: ModelTrainHistoryFileWriter, {file_format}")(ask_written)


@question("files: messages with the paths of the plots")
def plot_messages():
    seen = []

    def look(loop):
        root = f"results/digits/cnn_{loop.experiment_timestamp}/"
        for key in sorted(loop.message_service.message_store):
            for paths in loop.message_service.read_messages(key):
                seen.append([key, [str(path).replace(root, "") for path in paths]])

    loop = experiment()
    loop.fit(num_epochs=2, callbacks=[ModelTrainHistoryPlot(), At(98, epoch_end=look)])
    return seen


@question("files: unknown formats")
def unknown_formats():
    refused = []
    for make in (ModelTrainHistoryPlot, ModelTrainHistoryFileWriter):
        try:
            make(file_format="bmp")
        except Exception as error:
            refused.append(type(error).__name__)
    return refused


def ask_continued(name, before=2, after=4, callbacks=list, load=dict, **options):
    """Weights of a training that loads the checkpoint of another, which was made in the same folder."""

    @question(f"continued: {name}")
    def ask():
        first = experiment(**options)
        first.fit(num_epochs=before, callbacks=callbacks())
        second = experiment(**options)
        for parameter in second.model.parameters():
            nn.init.zeros_(parameter)
        calls = []
        loads = ModelLoadContinueTraining(first.experiment_timestamp, **load())
        second.fit(num_epochs=after, callbacks=[loads, *callbacks(), Log(calls, order=1)])
        return weights(second), history(second), [call[1:3] for call in calls if call[1] == "epoch_begin"]


ask_continued("without epoch_num")
ask_continued("from the last epoch", load=lambda: {"epoch_num": 1})
ask_continued("from a given epoch", load=lambda: {"epoch_num": 0})
ask_continued(
    "momentum",
    optimizer=lambda module: optim.SGD(module.parameters(), lr=0.1, momentum=0.9),
    load=lambda: {"epoch_num": 1},
)
ask_continued("a schedule", callbacks=lambda: [schedules.StepLRScheduler(1, gamma=0.5)], load=lambda: {"epoch_num": 1})
ask_continued(
    "a schedule that is ignored",
    callbacks=lambda: [schedules.StepLRScheduler(1, gamma=0.5)],
    load=lambda: {"epoch_num": 1, "ignore_saved_schedulers": True},
)
ask_continued("an epoch that is not there", load=lambda: {"epoch_num": 7})


@question("continued: the count of batches")
def continued_count():
    first = experiment()
    first.fit(num_epochs=1)
    second, calls = experiment(), []
    second.fit(num_epochs=2, callbacks=[ModelLoadContinueTraining(first.experiment_timestamp, epoch_num=0), Log(calls)])
    return [call[3] for call in calls if call[1] == "batch_end"]


@question("continued: a schedule is missing")
def schedule_missing():
    first = experiment()
    first.fit(num_epochs=1, callbacks=[schedules.StepLRScheduler(1)])
    experiment().fit(num_epochs=2, callbacks=[ModelLoadContinueTraining(first.experiment_timestamp, epoch_num=0)])


# TensorBoard ----------------------------------------------------------------------------------------------------------


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in sorted(events.Tags()["scalars"])
    }


def ask_scalars(name, make, **options):
    @question(f"tensorboard: {name}")
    def ask():
        made(**options).fit(num_epochs=2, callbacks=[make()])
        return scalars("events")


OUTSIDE = {"log_dir": "events", "is_project": False}
ask_scalars("TensorboardTrainBatchLoss", lambda: TensorboardTrainBatchLoss(**OUTSIDE))
ask_scalars(
    "TensorboardTrainBatchLoss, every second", lambda: TensorboardTrainBatchLoss(batch_log_frequency=2, **OUTSIDE)
)
ask_scalars("TensorboardTrainHistoryMetric", lambda: TensorboardTrainHistoryMetric(**OUTSIDE))
ask_scalars("TensorboardTrainHistoryMetric, chosen", lambda: TensorboardTrainHistoryMetric(["val_loss"], **OUTSIDE))
ask_scalars("TensorboardFullTracking", lambda: TensorboardFullTracking(**OUTSIDE))
ask_scalars("TensorboardFullTracking, chosen, every second", lambda: TensorboardFullTracking(["loss"], 2, **OUTSIDE))
ask_scalars("a metric that is not there", lambda: TensorboardTrainHistoryMetric(["nothing"], **OUTSIDE))


@question("tensorboard: metrics and scores")
def tensorboard_metrics():
    measured = [ModelPerformanceEvaluation(ClassificationOfScores(), {}), Says("mine", [0.5, 0.25])]
    made().fit(num_epochs=2, callbacks=[TensorboardTrainHistoryMetric(**OUTSIDE), *measured])
    return scalars("events")


@question("tensorboard: in the folder of the experiment")
def tensorboard_in_experiment():
    loop = experiment()
    loop.fit(num_epochs=1, callbacks=[TensorboardFullTracking()])
    return sorted(scalars(next(Path("results").rglob("*tfevents*")).parent)), sorted(
        {str(Path(name).parent) for name in own_files(loop)}
    )


@question("tensorboard: outside a project without log_dir")
def tensorboard_nowhere():
    made().fit(num_epochs=1, callbacks=[TensorboardFullTracking(is_project=False)])


# Clouds and mails -----------------------------------------------------------------------------------------------------

BUCKET = "model-result"


@cache
def server():
    """A server on this machine that answers as Amazon's does; where it is."""
    from moto.server import ThreadedMotoServer

    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    return "http://{}:{}".format(*made.get_host_and_port())


@contextlib.contextmanager
def amazon():
    """An environment in which that server is asked, with two empty buckets; the client for it."""
    import boto3

    before = dict(os.environ)
    os.environ.update(AWS_ENDPOINT_URL=server(), AWS_DEFAULT_REGION="us-east-1")
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")
    try:
        client = boto3.client("s3")
        for bucket in (BUCKET, "other"):
            client.create_bucket(Bucket=bucket)
            for one in client.list_objects_v2(Bucket=bucket).get("Contents", []):
                client.delete_object(Bucket=bucket, Key=one["Key"])
        yield client
    finally:
        os.environ.clear()
        os.environ.update(before)


def uploaded(client, loop, bucket=BUCKET):
    found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
    names = sorted(one["Key"].replace(loop.experiment_timestamp, "TIME") for one in found)
    return [name for name in names if not name.endswith(("asking.py", "aitoolbox_1_8.py"))]


def ask_cloud(name, kind=TrainLoopCheckpoint, callbacks=list, bucket=BUCKET, **options):
    @question(f"cloud: {name}")
    def ask():
        with amazon() as client:
            loop = experiment(kind, **{"cloud_save_mode": "s3", **options})
            loop.fit(num_epochs=2, callbacks=callbacks())
            return uploaded(client, loop, bucket), own_files(loop)


ask_cloud("TrainLoopCheckpoint")
ask_cloud("bucket and prefix", bucket="other", bucket_name="other", cloud_dir_prefix="pre/fix")
ask_cloud("TrainLoopEndSave", TrainLoopEndSave, test_result_package=ClassificationResultPackage())
ask_cloud("aws_s3", cloud_save_mode="aws_s3")
ask_cloud("a history table", callbacks=lambda: [ModelTrainHistoryFileWriter()])
ask_cloud("plots", callbacks=lambda: [ModelTrainHistoryPlot()])
ask_cloud("local", cloud_save_mode="local")


@question("cloud: events of TensorBoard")
def events_in_cloud():
    with amazon() as client:
        loop = experiment(cloud_save_mode="s3")
        loop.fit(num_epochs=2, callbacks=[TensorboardTrainHistoryMetric()])
        return [str(Path(name).parent) for name in uploaded(client, loop)]


@question("cloud: the default")
def default_cloud():
    loop = by_position(TrainLoopCheckpoint)
    return loop.cloud_save_mode, loop.bucket_name, loop.cloud_dir_prefix


@question("cloud: a log")
def log_upload():
    with amazon() as client:
        Path("training.log").write_text("a line")
        loop = experiment(cloud_save_mode="s3")
        loop.fit(num_epochs=1, callbacks=[LogUpload("training.log")])
        found = client.list_objects_v2(Bucket=BUCKET)["Contents"]
        key = next(one["Key"] for one in found if one["Key"].endswith("log"))
        return uploaded(client, loop), client.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode()


@question("cloud: a log without a cloud")
def log_without_cloud():
    Path("training.log").write_text("a line")
    experiment().fit(num_epochs=1, callbacks=[LogUpload("training.log")])


@question("cloud: mails")
def mails():
    import boto3

    with amazon():
        for region in ("eu-west-1", "us-east-1"):
            boto3.client("ses", region_name=region).verify_email_identity(EmailAddress="me@example.org")
        mail = EmailNotification("Me", "me@example.org", "you@example.org", "digits", "cnn")
        made().fit(num_epochs=2, callbacks=[mail])
        return mail.execution_order, [about(one.raw_data) for one in sent()]


def sent():
    from moto.ses.models import ses_backends

    backends = [one for account in ses_backends.values() for one in account.values()]
    return sorted((one for backend in backends for one in backend.sent_messages), key=lambda one: about(one.raw_data))


def about(raw):
    """Subject and addresses of a mail, and which metrics stand in it."""
    mail = message_from_string(raw)
    texts = [part.get_payload(decode=True).decode() for part in mail.walk() if part.get_content_maintype() == "text"]
    named = [name for name in ("accumulated_loss", "val_loss", "train_end_test_loss") if name in "".join(texts)]
    return mail["Subject"], mail["To"], named


# What is refused ------------------------------------------------------------------------------------------------------

REFUSED = {
    "neither num_epochs nor num_iterations": lambda: made().fit(),
    "num_epochs and num_iterations": lambda: made().fit(num_epochs=1, num_iterations=2),
    "gpu_mode='quad'": lambda: made(gpu_mode="quad"),
    "DataSubsetTestRun without its loader": lambda: made(test=None).fit(
        num_epochs=1, callbacks=[DataSubsetTestRun(num_test_batches=1)]
    ),
    "a wrapped model without a definition": lambda: (
        ModelWrap(nn.Linear(1, 1), None) and made(model=ModelWrap(nn.Linear(4, 3), None))
    ),
    "EarlyStopping on a metric that is not there": lambda: made().fit(
        num_epochs=1, callbacks=[EarlyStopping("nothing")]
    ),
    "GradDistributionPlot in another format": lambda: (
        GradDistributionPlot(lambda model: [], file_format="bmp")
        and experiment().fit(
            num_epochs=1, callbacks=[GradDistributionPlot(lambda model: model.layers[:1], file_format="bmp")]
        )
    ),
    "ModelPerformancePrintReport without metrics": lambda: ModelPerformancePrintReport([]),
    "a model that is no TTModel": lambda: made(model=nn.Linear(4, 3)).fit(num_epochs=1),
}
for name, refused in REFUSED.items():
    question(f"refused: {name}")(lambda refused=refused: type(refused()).__name__)


if __name__ == "__main__":
    main()
