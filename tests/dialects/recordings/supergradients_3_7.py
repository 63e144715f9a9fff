"""Questions for SuperGradients 3.7: what it computes, in which order it calls, what it writes and what it returns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import super_gradients
import torch
from asking import main, question
from super_gradients import Trainer, init_trainer, setup_device
from super_gradients.common.environment import ddp_utils
from super_gradients.common.registry import registry
from super_gradients.training import metrics as measures
from super_gradients.training.params import DEFAULT_TRAINING_PARAMS, TrainingParams
from super_gradients.training.utils import callbacks as ready
from super_gradients.training.utils import distributed_training_utils as over_ranks
from super_gradients.training.utils import sg_trainer_utils, utils
from super_gradients.training.utils.callbacks import Callback, Phase, PhaseCallback, PhaseContext
from super_gradients.training.utils.callbacks.callbacks import (
    ExtremeBatchCaseVisualizationCallback,
)
from super_gradients.training.utils.early_stopping import EarlyStop
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Metric

HOOKS = (
    "on_training_start", "on_train_loader_start", "on_train_batch_start", "on_train_batch_loss_end",
    "on_train_batch_backward_end", "on_train_batch_gradient_step_start", "on_train_batch_gradient_step_end",
    "on_train_batch_end", "on_train_loader_end", "on_validation_loader_start", "on_validation_batch_start",
    "on_validation_batch_end", "on_validation_loader_end", "on_validation_end_best_epoch", "on_test_loader_start",
    "on_test_batch_start", "on_test_batch_end", "on_test_loader_end", "on_average_best_models_validation_start",
    "on_average_best_models_validation_end", "on_training_end",
)  # fmt: skip
BATCHES = tuple(hook for hook in HOOKS if "_batch_" in hook)
EPOCH = "TRAIN_EPOCH_END"
setup_device(device="cpu")


# What is trained ------------------------------------------------------------------------------------------------------


def tensors(samples=20):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 4, generator=generator), torch.arange(samples) % 3


def loader(samples=20, batch=8, collate=None):
    return DataLoader(TensorDataset(*tensors(samples)), batch_size=batch, collate_fn=collate)


def with_extras(rows):
    inputs, targets = torch.utils.data.default_collate(rows)
    return inputs, targets, {"sample_weight": torch.ones(len(targets)), "ids": list(range(len(targets)))}


def net(norm=False, dropout=False):
    torch.manual_seed(0)
    extra = [nn.BatchNorm1d(5)] * norm + [nn.Dropout(0.5)] * dropout
    return nn.Sequential(nn.Linear(4, 5), *extra, nn.ReLU(), nn.Linear(5, 3))


class Parts(nn.Module):
    """A loss that returns itself and a row of its parts."""

    def forward(self, preds, target):
        loss = nn.functional.cross_entropy(preds, target)
        return loss * 3, torch.stack([loss, loss * 2]).detach()


class NamedParts(Parts):
    component_names = ("one", "two")


class Share(Metric):
    """A metric with two components."""

    def __init__(self, **options):
        super().__init__(**options)
        self.component_names = ["right", "wrong"]
        self.greater_component_is_better = {"right": True, "wrong": False}
        self.add_state("hits", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds, target):
        self.hits += (preds.argmax(1) == target).sum()
        self.count += len(target)

    def compute(self):
        return {"right": self.hits / self.count, "wrong": 1 - self.hits / self.count}


class Context(Metric):
    """A metric whose ``update`` takes more of the context."""

    def __init__(self, **options):
        super().__init__(**options)
        self.add_state("total", default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds, target, inputs, device):
        assert str(device) == "cpu"
        self.total += inputs.sum() + target.sum()

    def compute(self):
        return self.total


class Weighted(Context):
    """A metric that takes what batches hold beside inputs and targets."""

    def update(self, preds, target, sample_weight):
        self.total += (sample_weight * target).sum()


class Keywords(Context):
    def update(self, preds, target, **kwargs):
        self.total += target.sum() + kwargs.get("batch_idx", 0)


PARAMS = {
    "max_epochs": 2,
    "initial_lr": 0.1,
    "lr_mode": "StepLRScheduler",
    "lr_updates": [100],
    "lr_decay_factor": 0.1,
    "loss": "CrossEntropyLoss",
    "optimizer": "SGD",
    "metric_to_watch": "Accuracy",
    "average_best_models": False,
    "silent_mode": True,
}


def trained(*callbacks, model=None, train=None, valid=None, test=None, experiment="mine", **params):
    trainer = Trainer(experiment, ckpt_root_dir="runs")
    params = {**PARAMS, "valid_metrics_list": [measures.Accuracy()], "phase_callbacks": list(callbacks)} | params
    if params.get("save_model") is None:
        params["save_model"] = False
    trainer.train(
        model=model or net(),
        training_params={key: value for key, value in params.items() if value != "left out"},
        train_loader=train or loader(),
        valid_loader=loader(12) if valid is None else valid,
        test_loaders=test,
    )
    return trainer


def weights(model):
    return [[float(p.detach().sum()), float(p.detach().pow(2).sum())] for p in model.parameters()]


def says(words, call):
    """Which of these words the message of an error has."""
    try:
        call()
    except Exception as error:
        return [word for word in words if word in str(error)]
    return "no error"


def number(value):
    return float(value) if isinstance(value, int | float | np.number | torch.Tensor) else value


def numbers(values):
    return None if values is None else {str(name): number(value) for name, value in values.items()}


class Look(Callback):
    """Calls ``read(context)`` at one hook, or at several, and keeps what it returns."""

    def __init__(self, read, *hooks):
        self.read, self.hooks, self.found = read, hooks, []

    def look(self, hook, context):
        if hook in self.hooks:
            self.found.append(self.read(context))


def _looking(hook):
    return lambda self, context: self.look(hook, context)


for _hook in HOOKS:
    setattr(Look, _hook, _looking(_hook))


def ask_weights(name, make=net, train=None, callbacks=(), **params):
    @question(f"weights: {name}")
    def ask():
        model = make()
        trained(*[one() for one in callbacks], model=model, train=train and train(), **params)
        return weights(model)


def ask_rates(name, callbacks=(), make=net, **params):
    """The learning rates at the beginning of each batch, and the weights at the end."""

    @question(f"rates: {name}")
    def ask():
        model = make()
        look = Look(lambda context: [group["lr"] for group in context.optimizer.param_groups], "on_train_batch_start")
        trained(look, *[one() for one in callbacks], model=model, **{"max_epochs": 4} | params)
        return look.found, weights(model)


def ask_order(name, hooks=HOOKS, act=None, callbacks=(), **params):
    """The hooks that are called, in their order."""

    @question(f"order: {name}")
    def ask():
        found = []

        class Note(Callback):
            pass

        def noting(hook):
            def note(self, context):
                found.append(hook.removeprefix("on_"))
                if act is not None:
                    act(hook, context, found)

            return note

        for hook in hooks:
            setattr(Note, hook, noting(hook))
        params_now = {"save_model": True} | {key: value() if key == "test" else value for key, value in params.items()}
        try:
            trained(Note(), *[one() for one in callbacks], train=loader(16), **params_now)
        except Exception as error:
            found.append(type(error).__name__)
        return found


def ask_context(name, read, *hooks, train=None, valid=None, **params):
    """What ``read(context)`` gives at some hooks."""

    @question(f"context: {name}")
    def ask():
        look = Look(read, *hooks)
        trained(look, train=train and train(), valid=valid and valid(), **params)
        return look.found


# Weights --------------------------------------------------------------------------------------------------------------

ask_weights("SGD, as the defaults are")
ask_weights("without validation metrics", valid_metrics_list=[], metric_to_watch="CrossEntropyLoss")
ask_weights("SGD, no momentum", optimizer_params={"momentum": 0.0, "weight_decay": 0.0})
ask_weights("SGD, nesterov", optimizer_params={"momentum": 0.8, "nesterov": True})
ask_weights("Adam", optimizer="Adam", initial_lr=0.01)
ask_weights("AdamW", optimizer="AdamW", initial_lr=0.01)
ask_weights("RMSprop", optimizer="RMSprop", initial_lr=0.01)
ask_weights("optimizer from torch's class", optimizer=torch.optim.Adagrad)
ask_weights("no decay on bias and norm", make=lambda: net(norm=True), zero_weight_decay_on_bias_and_bn=True)
ask_weights(
    "no decay on bias and norm, strong decay",
    make=lambda: net(norm=True),
    zero_weight_decay_on_bias_and_bn=True,
    optimizer_params={"weight_decay": 0.3, "momentum": 0.0},
)
ask_weights("a norm that trains", make=lambda: net(norm=True))
ask_weights("dropout, by the seed", make=lambda: net(dropout=True), seed=7)
ask_weights("clip_grad_norm", clip_grad_norm=0.1)
for _n in (2, 3, 4, 5):
    ask_weights(f"batch_accumulate={_n}, three batches an epoch", batch_accumulate=_n, max_epochs=3)
ask_weights("batch_accumulate=2, two batches an epoch", batch_accumulate=2, train=lambda: loader(16))
ask_weights("batch_accumulate=2, clip_grad_norm", batch_accumulate=2, clip_grad_norm=0.2, max_epochs=3)
ask_weights("batch_accumulate=2, Adam", batch_accumulate=2, optimizer="Adam", max_epochs=3)
ask_weights("batch_accumulate=2, uneven batches", batch_accumulate=2, train=lambda: loader(9), max_epochs=2)
ask_weights("max_train_batches", max_train_batches=2)
ask_weights("max_train_batches, batch_accumulate=2", max_train_batches=1, batch_accumulate=2, max_epochs=4)
ask_weights("smooth_eps", criterion_params={"smooth_eps": 0.2})
ask_weights("loss said with its arguments", loss={"CrossEntropyLoss": {"smooth_eps": 0.1}})
ask_weights("loss from an object", loss=nn.CrossEntropyLoss(label_smoothing=0.1))
ask_weights("loss by its older name", loss="cross_entropy")
ask_weights("criterion_params: ignore_index", criterion_params={"ignore_index": 1})
ask_weights("a loss in parts", loss=Parts(), metric_to_watch="Accuracy")
ask_weights("mse", loss="MSE", make=lambda: nn.Sequential(net(), nn.Linear(3, 1), nn.Flatten(0)),
            valid_metrics_list=[], metric_to_watch="MSELoss", greater_metric_to_watch_is_better=False)  # fmt: skip
ask_weights("a batch with extras", train=lambda: loader(collate=with_extras))
ask_weights("pre_prediction_callback", pre_prediction_callback=lambda inputs, targets, batch_idx: (inputs * 2, targets))
ask_weights("ema does not change the training", ema=True, ema_params={"decay": 0.9, "decay_type": "constant"})
ask_weights("three epochs, validated every second", max_epochs=3, run_validation_freq=2)
ask_weights("initial_lr by groups", initial_lr={"default": 0.1, "2": 0.01})
ask_weights("initial_lr of 0 for a group", initial_lr={"default": 0.0, "2": 0.1})


@question("weights: the batches of a callback that changes gradients")
def changed_gradients():
    class Halve(Callback):
        def on_train_batch_backward_end(self, context):
            for parameter in context.net.parameters():
                parameter.grad *= 0.5

    model = net()
    trained(Halve(), model=model)
    return weights(model)


@question("weights: gradients zeroed at the step's start")
def zeroed_gradients():
    class Zero(Callback):
        def on_train_batch_gradient_step_start(self, context):
            if context.batch_idx == 1:
                context.optimizer.zero_grad()

    model = net()
    trained(Zero(), model=model, optimizer_params={"momentum": 0.0, "weight_decay": 0.0})
    return weights(model)


@question("weights: an optimizer object")
def optimizer_object():
    model = net()
    trained(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
            initial_lr="left out")  # fmt: skip
    return weights(model)


@question("weights: resumed after two of four epochs")
def resumed():
    first, second, whole = net(), net(), net()
    shared = {"save_model": True, "lr_mode": "cosine", "max_epochs": 4}
    trained(model=whole, experiment="whole", **shared)

    class Stop(Callback):
        def on_validation_loader_end(self, context):
            if context.epoch == 1:
                context.update_context(stop_training=True)

    trained(Stop(), model=first, **shared)
    trained(model=second, resume=True, **shared)
    return weights(first), weights(second), weights(whole)


@question("weights: resumed where a window of batch_accumulate ends")
def resumed_window():
    model = net()
    shared = {"save_model": True, "batch_accumulate": 2}
    trained(model=net(), max_epochs=2, **shared)
    trained(model=model, max_epochs=4, resume=True, **shared)
    return weights(model)


@question("weights: resumed without the optimizer")
def resumed_plainly():
    model = net()
    trained(model=net(), save_model=True)
    trained(model=model, save_model=True, max_epochs=4, resume=True, load_opt_params=False)
    return weights(model)


@question("weights: resumed by resume_path")
def resumed_by_path():
    model = net()
    first = trained(model=net(), save_model=True)
    path = str(Path(first.checkpoints_dir_path) / "ckpt_latest.pth")
    trained(model=model, save_model=True, max_epochs=3, resume_path=path)
    return weights(model)


def ask_average(name, **params):
    @question(f"weights: {name}")
    def ask():
        trainer = trained(save_model=True, average_best_models=True, **params)
        state = torch.load(Path(trainer.checkpoints_dir_path) / "average_model.pth", weights_only=False)["net"]
        return {key: [float(value.sum()), float(value.pow(2).sum())] for key, value in state.items()}


ask_average("the average of the best models", max_epochs=3)
ask_average("the average of the best models by the loss", metric_to_watch="CrossEntropyLoss",
            greater_metric_to_watch_is_better=False, max_epochs=4)  # fmt: skip
ask_average("the average of twelve best models", max_epochs=12)


def ask_ema(name, **params):
    @question(f"weights: {name}")
    def ask():
        trainer = trained(save_model=True, ema=True, **params)
        state = torch.load(Path(trainer.checkpoints_dir_path) / "ckpt_latest.pth", weights_only=False)
        return {key: float(value.float().sum()) for key, value in state["ema_net"].items()}


ask_ema("ema, constant", ema_params={"decay": 0.9, "decay_type": "constant"})
ask_ema("ema, threshold", ema_params={"decay": 0.9, "decay_type": "threshold"})
ask_ema("ema, exp", ema_params={"decay": 0.9, "decay_type": "exp", "beta": 15})
ask_ema("ema with batch_accumulate", ema_params={"decay": 0.5, "decay_type": "constant"}, batch_accumulate=2)


# Learning rates -------------------------------------------------------------------------------------------------------

ask_rates("step", lr_updates=[1, 3], lr_decay_factor=0.5)
ask_rates("step by a frequency", lr_updates=[], step_lr_update_freq=1.5, lr_decay_factor=0.5)
ask_rates("step by its older name", lr_mode="step", lr_updates=[2])
ask_rates("cosine", lr_mode="CosineLRScheduler")
ask_rates("cosine, final ratio", lr_mode="cosine", cosine_final_lr_ratio=0.3)
ask_rates("cosine, warm-up by epochs", lr_mode="cosine", lr_warmup_epochs=2)
ask_rates("cosine, warm-up by batches", lr_mode="cosine", lr_warmup_steps=3, warmup_mode="LinearBatchLRWarmup",
          warmup_initial_lr=0.01)  # fmt: skip
ask_rates("cosine, warm-up longer than an epoch of batches", lr_mode="cosine", lr_warmup_steps=9,
          warmup_mode="LinearBatchLRWarmup", warmup_initial_lr=0.01)  # fmt: skip
ask_rates("cosine, cool-down", lr_mode="cosine", lr_cooldown_epochs=1)
ask_rates("poly", lr_mode="PolyLRScheduler")
ask_rates("poly, warm-up and cool-down", lr_mode="poly", lr_warmup_epochs=1, lr_cooldown_epochs=1)
ask_rates("exp", lr_mode="ExponentialLRScheduler", lr_decay_factor=0.7)
ask_rates("exp, warm-up", lr_mode="exp", lr_decay_factor=0.7, lr_warmup_epochs=1)
ask_rates("step, warm-up", lr_updates=[2], lr_warmup_epochs=1, warmup_initial_lr=0.02)
ask_rates("warm-up, initial_lr by groups", lr_warmup_epochs=2, initial_lr={"default": 0.1, "2": 0.02})
ask_rates("cosine, initial_lr by groups", lr_mode="cosine", initial_lr={"default": 0.1, "2": 0.02})
ask_rates(
    "a function",
    lr_mode="FunctionLRScheduler",
    lr_schedule_function=lambda initial_lr, epoch, iter, max_epoch, iters_per_epoch: (
        initial_lr * (1 - (epoch * iters_per_epoch + iter) / (max_epoch * iters_per_epoch))
    ),
)
ask_rates("torch: StepLR", lr_mode={"StepLR": {"step_size": 1, "gamma": 0.5, "phase": EPOCH}})
ask_rates("torch: StepLR by batches", lr_mode={"StepLR": {"step_size": 2, "gamma": 0.5, "phase": "TRAIN_BATCH_STEP"}})
ask_rates("torch: MultiStepLR", lr_mode={"MultiStepLR": {"milestones": [1, 2], "gamma": 0.1, "phase": EPOCH}})
ask_rates("torch: ExponentialLR", lr_mode={"ExponentialLR": {"gamma": 0.9, "phase": Phase.TRAIN_EPOCH_END}})
ask_rates("torch: CosineAnnealingLR", lr_mode={"CosineAnnealingLR": {"T_max": 4, "phase": EPOCH}})
ask_rates("torch: CosineAnnealingWarmRestarts", lr_mode={"CosineAnnealingWarmRestarts": {"T_0": 2, "phase": EPOCH}})
ask_rates("torch: LinearLR", lr_mode={"LinearLR": {"start_factor": 0.5, "total_iters": 3, "phase": EPOCH}})
ask_rates("torch: ConstantLR", lr_mode={"ConstantLR": {"factor": 0.5, "total_iters": 2, "phase": EPOCH}})
ask_rates("torch: LambdaLR", lr_mode={"LambdaLR": {"lr_lambda": lambda epoch: 0.8**epoch, "phase": EPOCH}})
ask_rates(
    "torch: CyclicLR",
    lr_mode={"CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "phase": "TRAIN_BATCH_STEP"}},
)
ask_rates(
    "torch: ReduceLROnPlateau",
    lr_mode={
        "ReduceLROnPlateau": {"patience": 0, "mode": "max", "metric_name": "Accuracy", "phase": "VALIDATION_EPOCH_END"}
    },
)
ask_rates("torch: StepLR after a warm-up", lr_mode={"StepLR": {"step_size": 1, "gamma": 0.5, "phase": EPOCH}},
          lr_warmup_epochs=2)  # fmt: skip


class Numeric(ready.LRCallbackBase):
    """A schedule whose rate is a plain number."""

    def __init__(self, **options):
        super().__init__(
            Phase.TRAIN_EPOCH_END,
            initial_lr=0.1,
            update_param_groups=False,
            train_loader_len=3,
            net=None,
            training_params=TrainingParams(),
        )

    def is_lr_scheduling_enabled(self, context):
        return True

    def perform_scheduling(self, context):
        self.lr = 0.05 / (context.epoch + 1)
        self.update_lr(context.optimizer, context.epoch, None)


class ByGroup(Numeric):
    def perform_scheduling(self, context):
        self.lr = {name: rate / (context.epoch + 1) for name, rate in self.initial_lr.items()}
        self.update_lr(context.optimizer, context.epoch, None)


ask_rates("a schedule of one's own with a number", callbacks=[Numeric])
ask_rates("a schedule of one's own by groups", callbacks=[ByGroup])


@question("rates: LRSchedulerCallback among phase_callbacks")
def scheduler_callback():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shared = {"initial_lr": "left out", "lr_mode": "left out", "lr_updates": "left out"}
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    look = Look(lambda context: context.optimizer.param_groups[0]["lr"], "on_train_batch_start")
    step = ready.LRSchedulerCallback(schedule, Phase.TRAIN_EPOCH_END)
    trained(look, step, model=model, optimizer=optimizer, max_epochs=3, **shared)
    return look.found, weights(model)


# Orders ---------------------------------------------------------------------------------------------------------------


def stop_at(where, epoch=0):
    def act(hook, context, found):
        if hook == where and (context.epoch or 0) >= epoch:
            context.update_context(stop_training=True)

    return act


def fail_at(where):
    def act(hook, context, found):
        if hook == where:
            raise ArithmeticError

    return act


def interrupt_at(where):
    def act(hook, context, found):
        if hook == where:
            raise KeyboardInterrupt

    return act


def two_sets():
    return {"near": loader(8), "far": loader(16)}


ask_order("one training")
ask_order("without checkpoints", save_model=False)
ask_order("with the average of the best", average_best_models=True)
ask_order("tested every second epoch, three epochs", test=lambda: {"near": loader(8)}, run_test_freq=2, max_epochs=3,
          hooks=HOOKS[8:])  # fmt: skip
ask_order("validated every second epoch", run_validation_freq=2, max_epochs=3)
ask_order("with a test loader", test=lambda: {"near": loader(8)}, hooks=HOOKS[8:])
ask_order("with two test loaders", test=two_sets, hooks=HOOKS[8:])
ask_order("tested every second epoch", test=lambda: {"near": loader(8)}, run_test_freq=2, hooks=HOOKS[8:])
ask_order("batch_accumulate=2", batch_accumulate=2, hooks=BATCHES)
ask_order("batch_accumulate=3, windows over epochs", batch_accumulate=3, max_epochs=3, hooks=BATCHES)
ask_order("max_train_batches, max_valid_batches", max_train_batches=1, max_valid_batches=1)
for _where in ("on_train_loader_start", "on_train_batch_start", "on_train_batch_end", "on_train_loader_end",
               "on_validation_loader_start", "on_validation_loader_end"):  # fmt: skip
    ask_order(f"stopped in {_where}", act=stop_at(_where, 1), max_epochs=4)
for _where in ("on_training_start", "on_train_batch_loss_end", "on_validation_batch_end", "on_train_loader_end"):
    ask_order(f"an exception in {_where}", act=fail_at(_where))
ask_order("the keyboard in on_train_batch_end", act=interrupt_at("on_train_batch_end"))


@question("order: callbacks in the order of their list, beside schedules")
def list_order():
    found = []

    class First(Callback):
        def on_train_batch_gradient_step_end(self, context):
            found.append(["first", context.optimizer.param_groups[0]["lr"]])

    class Second(First):
        def on_train_batch_gradient_step_end(self, context):
            found.append(["second", context.optimizer.param_groups[0]["lr"]])

    trained(Second(), First(), lr_mode="cosine", max_epochs=1)
    return found


@question("order: a PhaseCallback at every phase")
def phases():
    found = []

    class Note(PhaseCallback):
        def __call__(self, context):
            found.append([self.phase.name, context.epoch, context.batch_idx])

    skip = {"AVERAGE_BEST_MODELS_VALIDATION_START", "AVERAGE_BEST_MODELS_VALIDATION_END"}
    trained(*[Note(one) for one in Phase if one.name not in skip], max_epochs=1, save_model=True, train=loader(16))
    return [row for row in found if "VALIDATION_BATCH" not in row[0]]


@question("order: a PhaseCallback by the name of its phase")
def phase_by_name():
    found = []

    class Note(PhaseCallback):
        def __call__(self, context):
            found.append(context.epoch)

    trained(Note("TRAIN_EPOCH_END"), Note("validation_epoch_end".upper()))
    return found


@question("order: PhaseCallback with a name that is none")
def phase_unknown():
    return type(PhaseCallback("TRAIN_EPOCHS_END").phase).__name__


@question("order: the members of Phase")
def phase_members():
    return [one.name for one in Phase]


@question("order: Phase.from_string")
def phase_from_string():
    return [Phase.from_string(one).name for one in ("PRE_TRAINING", "TEST_END", "POST_TRAINING")]


@question("order: Trainer.test")
def test_order():
    found = []

    class Note(Callback):
        def on_test_loader_start(self, context):
            found.append("loader_start")

        def on_test_batch_start(self, context):
            found.append(["batch_start", context.batch_idx])

        def on_test_batch_end(self, context):
            found.append(["batch_end", context.batch_idx, list(context.preds.shape)])

        def on_test_loader_end(self, context):
            found.append("loader_end")

    trainer = Trainer("mine", ckpt_root_dir="runs")
    trainer.test(net(), loader(), nn.CrossEntropyLoss(), True, [measures.Accuracy()], test_phase_callbacks=[Note()])
    return found


@question("order: a stop is forgotten by the next training")
def stop_is_forgotten():
    found = []

    class Stop(Callback):
        def on_train_loader_end(self, context):
            found.append(context.epoch)
            context.update_context(stop_training=len(found) < 3)

    one = Stop()
    trained(one, max_epochs=3)
    trained(one, max_epochs=3)
    return found


# The context ----------------------------------------------------------------------------------------------------------

ask_context("epochs and batches", lambda c: [c.epoch, c.batch_idx], *HOOKS[:9], *HOOKS[12:], save_model=True)
ask_context("metrics of training", lambda c: numbers(c.metrics_dict), "on_train_loader_end",
            train_metrics_list=[measures.Accuracy()])  # fmt: skip
ask_context("metrics of training without any", lambda c: numbers(c.metrics_dict), "on_train_loader_end")
ask_context("metrics of validation", lambda c: numbers(c.metrics_dict), "on_validation_loader_end")
ask_context("metrics at the end", lambda c: numbers(c.metrics_dict), "on_training_end")
ask_context("metrics from one epoch into the next", lambda c: numbers(c.metrics_dict), "on_train_loader_start",
            "on_train_batch_end")  # fmt: skip
ask_context("losses of batches", lambda c: c.loss_log_items, "on_train_batch_loss_end", "on_train_batch_end")
ask_context("losses of a validation's batches", lambda c: c.loss_log_items, "on_validation_batch_end")
ask_context("names of losses", lambda c: c.loss_logging_items_names, "on_train_batch_loss_end", "on_train_batch_end")
ask_context("names of losses in validation", lambda c: c.loss_logging_items_names, "on_validation_batch_end")
ask_context("names of losses in parts", lambda c: c.loss_logging_items_names, "on_train_batch_end", loss=Parts())
ask_context("losses in parts", lambda c: c.loss_log_items, "on_train_batch_end", "on_validation_batch_end",
            loss=Parts())  # fmt: skip
ask_context("metrics with losses in parts", lambda c: numbers(c.metrics_dict), "on_train_loader_end",
            "on_validation_loader_end", loss=Parts())  # fmt: skip
ask_context("names of losses with named parts", lambda c: c.loss_logging_items_names, "on_train_batch_end",
            loss=NamedParts(), metric_to_watch="NamedParts/one")  # fmt: skip
ask_context("metrics with named parts", lambda c: numbers(c.metrics_dict), "on_train_loader_end",
            "on_validation_loader_end", loss=NamedParts(), metric_to_watch="NamedParts/one")  # fmt: skip
ask_context("names of losses given", lambda c: c.loss_logging_items_names, "on_train_batch_end", loss=Parts(),
            loss_logging_items_names=["a", "b"])  # fmt: skip
ask_context("the mean of losses", lambda c: c.loss_avg_meter.average, "on_train_batch_end", "on_train_loader_end")
ask_context("the mean of losses in validation", lambda c: c.loss_avg_meter.average, "on_validation_batch_end")
ask_context("predictions", lambda c: [list(c.preds.shape), c.preds.sum()], "on_train_batch_loss_end",
            "on_train_batch_end", "on_validation_batch_end")  # fmt: skip
ask_context("inputs and targets", lambda c: [c.inputs.sum(), c.target.sum()], "on_train_batch_start",
            "on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end")  # fmt: skip
ask_context("further items of a batch", lambda c: [sorted(c.additional_batch_items), c.sample_weight.sum(), len(c.ids)],
            "on_train_batch_start", "on_train_batch_end", "on_validation_batch_start",
            train=lambda: loader(collate=with_extras), valid=lambda: loader(12, collate=with_extras))  # fmt: skip
ask_context("further items where there are none", lambda c: c.additional_batch_items, "on_train_batch_start")
ask_context("what is known in training", lambda c: sorted(name for name in KNOWN if getattr(c, name) is not None),
            "on_training_start", "on_train_loader_start", "on_train_batch_start", "on_train_batch_end")  # fmt: skip
ask_context("the device, and silence", lambda c: [str(c.device), c.ddp_silent_mode], "on_training_start",
            "on_train_batch_end")  # fmt: skip
ask_context("the device is a text", lambda c: [type(c.device).__name__, c.device == "cpu"], "on_training_start",
            "on_train_batch_end", "on_validation_batch_end")  # fmt: skip
ask_context("parameters of the checkpoint and the model", lambda c: [type(c.checkpoint_params).__name__,
            c.checkpoint_params.to_dict(), type(c.arch_params).__name__, c.arch_params.to_dict()],
            "on_training_start")  # fmt: skip
ask_context("the names of the experiment", lambda c: [c.experiment_name, c.metric_to_watch, c.lr_warmup_epochs],
            "on_training_start", "on_train_loader_end")  # fmt: skip
ask_context("the folder of the experiment", lambda c: Path(c.ckpt_dir).parts[-2], "on_training_start")
ask_context("parameters", lambda c: [c.training_params.max_epochs, c.training_params.batch_accumulate,
            c.training_params.optimizer_params], "on_training_start")  # fmt: skip
ask_context("loaders", lambda c: [len(c.train_loader), len(c.valid_loader)], "on_training_start", "on_train_batch_end")
ask_context("the loss and the model", lambda c: [type(c.criterion).__name__, c.net.training], "on_train_batch_end",
            "on_train_loader_end")  # fmt: skip
ask_context("modes of the model", lambda c: c.net.training, "on_validation_batch_start", "on_validation_batch_end")
ask_context("stop_training", lambda c: c.stop_training, "on_training_start", "on_train_batch_end", "on_training_end")
ask_context("gradients at each hook", lambda c: [None if p.grad is None else float(p.grad.abs().sum()) > 0
            for p in c.net.parameters()], *HOOKS[2:8])  # fmt: skip
ask_context("the optimizer", lambda c: [type(c.optimizer).__name__, len(c.optimizer.param_groups),
            c.optimizer.param_groups[0]["weight_decay"], c.optimizer.param_groups[0]["momentum"]],
            "on_training_start")  # fmt: skip
ask_context("names of parameter groups", lambda c: [[g.get("name"), len(g["params"]), g["lr"], g["weight_decay"]]
            for g in c.optimizer.param_groups], "on_training_start", initial_lr={"default": 0.1, "2": 0.02},
            zero_weight_decay_on_bias_and_bn=True)  # fmt: skip
ask_context("names of one parameter group", lambda c: [g.get("name") for g in c.optimizer.param_groups],
            "on_training_start")  # fmt: skip

KNOWN = (
    "epoch", "batch_idx", "optimizer", "inputs", "preds", "target", "metrics_compute_fn", "loss_avg_meter",
    "loss_log_items", "criterion", "device", "experiment_name", "ckpt_dir", "net", "lr_warmup_epochs", "sg_logger",
    "train_loader", "valid_loader", "test_loader", "training_params", "ddp_silent_mode", "architecture",
    "metric_to_watch", "ema_model", "loss_logging_items_names",
)  # fmt: skip


@question("context: fields of a new one")
def new_context():
    context = PhaseContext(epoch=3)
    context.update_context(batch_idx=1, mine="here", targets=7, losses=[1])
    return [context.epoch, context.batch_idx, context.preds, context.mine, context.targets, context.losses,
            context.stop_training]  # fmt: skip


@question("context: attributes of one's own that resemble known ones")
def own_attributes():
    found = []

    class Put(Callback):
        def on_train_batch_start(self, context):
            context.targets, context.loss_log_item, context.input = 1, 2, 3
            context.update_context(metric_dict=4, batch_id=5)

        def on_train_batch_end(self, context):
            found.append([context.targets, context.loss_log_item, context.input, context.metric_dict, context.batch_id])

    trained(Put())
    return found


def ask_compute(name, hook, read, **params):
    @question(f"context: metrics_compute_fn, {name}")
    def ask():
        look = Look(read, hook)
        trained(look, train_metrics_list=[measures.Accuracy()], **params)
        return look.found


ask_compute("batches of training", "on_train_batch_end", lambda c: numbers(c.metrics_compute_fn.compute()))
ask_compute("batches of validation", "on_validation_batch_end", lambda c: numbers(c.metrics_compute_fn.compute())
            if c.batch_idx else None)  # fmt: skip
ask_compute("its clone", "on_train_batch_end", lambda c: [sorted(c.metrics_compute_fn.clone().keys()),
            numbers(c.metrics_compute_fn.clone().compute())])  # fmt: skip


def updated(context):
    another = context.metrics_compute_fn.clone()
    another.reset()
    another.update(preds=context.preds, target=context.target)
    return numbers(another.compute())


ask_compute("a clone that is updated", "on_validation_batch_end", updated)
ask_compute("its items", "on_train_batch_end", lambda c: [[name, type(one).__name__, number(one.compute())]
            for name, one in c.metrics_compute_fn.items()])  # fmt: skip


# Metrics --------------------------------------------------------------------------------------------------------------


def ask_metric(name, metric, watch=None, extras=False, **params):
    """What a validation says of a metric."""

    @question(f"metric: {name}")
    def ask():
        look = Look(lambda context: numbers(context.metrics_dict), "on_train_loader_end", "on_validation_loader_end")
        collate = with_extras if extras else None
        trained(look, train=loader(collate=collate), valid=loader(12, collate=collate), train_metrics_list=[metric()],
                valid_metrics_list=[metric()], metric_to_watch=watch or "CrossEntropyLoss", **params)  # fmt: skip
        return look.found


ask_metric("Accuracy", measures.Accuracy)
ask_metric("Accuracy by name", lambda: "Accuracy")
ask_metric("Accuracy with its arguments", lambda: {"Accuracy": {}})
ask_metric("of two components", Share)
ask_metric("that takes inputs and the device", Context)
ask_metric("that takes an item of the batch", Weighted, extras=True)
ask_metric("that takes any keyword", Keywords)
ask_metric("Accuracy, batches with extras", measures.Accuracy, extras=True)


def ask_best(name, watch, greater, metric=None, **params):
    """The epochs that were best, by what is watched."""

    @question(f"metric to watch: {name}")
    def ask():
        look = Look(lambda context: context.epoch, "on_validation_end_best_epoch")
        trainer = trained(look, save_model=True, max_epochs=4, metric_to_watch=watch, initial_lr=1.0,
                          greater_metric_to_watch_is_better=greater,
                          valid_metrics_list=[metric() if metric else measures.Accuracy()], **params)  # fmt: skip
        state = torch.load(Path(trainer.checkpoints_dir_path) / "ckpt_best.pth", weights_only=False)
        return look.found, state["epoch"], number(state["acc"]), numbers(state["metrics"]["valid"])


ask_best("Accuracy", "Accuracy", True)
ask_best("the loss", "CrossEntropyLoss", False)
ask_best("in other letters", "accuracy", True)
ask_best("a component", "right", True, Share)
ask_best("a component that falls", "wrong", False, Share)
ask_best("a part of the loss", "Parts/loss_1", False, loss=Parts())
ask_best("the wrong way round", "CrossEntropyLoss", True)


@question("metric to watch: one that is not there")
def watch_unknown():
    trained(metric_to_watch="F1")


@question("metric to watch: the best before a resume")
def best_before():
    shared = {"save_model": True, "initial_lr": 1.0}
    trained(max_epochs=2, **shared)
    look = Look(lambda context: context.epoch, "on_validation_end_best_epoch")
    trained(look, max_epochs=5, resume=True, **shared)
    return look.found


@question("metric: Accuracy by hand")
def accuracy_by_hand():
    metric = measures.Accuracy()
    metric.update(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]]), torch.tensor([1, 1, 0]))
    first = metric.compute()
    metric.reset()
    metric.update(preds=torch.tensor([[0.1, 0.9], [0.8, 0.2]]), target=torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    return first, metric.compute()


@question("metric: Accuracy called")
def accuracy_called():
    metric = measures.Accuracy()
    return metric(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])), metric.clone().compute()


@question("metric: Top5 by hand")
def top5_by_hand():
    metric = measures.Top5()
    metric.update(torch.arange(14.0).reshape(2, 7), torch.tensor([1, 3]))
    return metric.compute()


@question("metric: the function accuracy")
def accuracy_function():
    scores = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.15, 0.05], [0.2, 0.3, 0.5]])
    return measures.accuracy(scores, torch.tensor([1, 1, 0]), topk=(1, 2))


# Testing --------------------------------------------------------------------------------------------------------------


def ask_test(name, loss=None, metrics=None, samples=20, **options):
    @question(f"Trainer.test: {name}")
    def ask():
        trainer = Trainer("mine", ckpt_root_dir="runs")
        found = trainer.test(
            net(), loader(samples), loss, silent_mode=True, test_metrics_list=metrics() if metrics else None, **options
        )
        return numbers(found)


ask_test("a loss and a metric", nn.CrossEntropyLoss(), lambda: [measures.Accuracy(), measures.Top5()][:1])
ask_test("a loss in parts", Parts(), lambda: [measures.Accuracy()], loss_logging_items_names=["a", "b"])
ask_test("a metric of components", nn.CrossEntropyLoss(), lambda: [Share()])


@question("Trainer.test: after a training")
def test_after():
    trainer = trained()
    return numbers(trainer.test(test_loader=loader(16), silent_mode=True, test_metrics_list=[measures.Accuracy()],
                                loss=nn.CrossEntropyLoss()))  # fmt: skip


@question("Trainer.test: after a training, as it was validated")
def test_as_validated():
    trainer = trained()
    return numbers(trainer.test(test_loader=loader(16), silent_mode=True))


@question("test loaders: metrics in training")
def test_loaders():
    look = Look(lambda context: numbers(context.metrics_dict), "on_test_loader_end")
    trained(look, test=two_sets())
    return look.found


@question("Trainer.train returns")
def train_returns():
    trainer = Trainer("mine", ckpt_root_dir="runs")
    return trainer.train(net(), {**PARAMS, "valid_metrics_list": [measures.Accuracy()], "save_model": False}, loader(),
                         loader(12))  # fmt: skip


# Stopping early -------------------------------------------------------------------------------------------------------


def ask_early(name, values, *, phase=Phase.VALIDATION_EPOCH_END, **options):
    """How many epochs are trained if the metric takes these values."""

    @question(f"EarlyStop: {name}")
    def ask():
        class Put(Callback):
            def on_train_loader_end(self, context):
                context.metrics_dict["mine"] = values[context.epoch]

            on_validation_loader_end = on_train_loader_end

        look = Look(lambda context: context.epoch, "on_train_loader_end")
        stop = EarlyStop(phase=phase, monitor="mine", **options)
        trained(Put(), look, stop, max_epochs=len(values))
        return look.found


ask_early("patience", [3.0, 2.0, 2.5, 2.4, 2.3, 2.2, 1.0], patience=3)
ask_early("patience of 1", [3.0, 2.0, 2.0, 1.0], patience=1)
ask_early("patience of 0", [3.0, 2.0, 2.0, 1.0], patience=0)
ask_early("mode max", [1.0, 2.0, 1.0, 1.0, 3.0], mode="max", patience=2)
ask_early("min_delta", [3.0, 2.5, 2.1, 1.7, 1.3], min_delta=0.5, patience=2)
ask_early("min_delta just met", [3.0, 2.5, 2.0, 1.5, 1.0], min_delta=0.5, patience=2)
ask_early("not finite", [3.0, float("nan"), 1.0])
ask_early("not finite, unchecked", [3.0, float("nan"), 1.0, 0.5, 0.4], check_finite=False, patience=2)
ask_early("threshold", [3.0, 2.0, 0.9, 0.8], threshold=1.0)
ask_early("threshold, max", [0.1, 0.5, 0.9, 0.95], threshold=0.8, mode="max")
ask_early("in training", [3.0, 3.0, 3.0, 3.0], phase=Phase.TRAIN_EPOCH_END, patience=2)


@question("EarlyStop: a metric that is not there")
def early_strict():
    trained(EarlyStop(Phase.VALIDATION_EPOCH_END, "none"))


@question("EarlyStop: a metric that is not there, not strict")
def early_lax():
    look = Look(lambda context: context.epoch, "on_train_loader_end")
    trained(look, EarlyStop(Phase.VALIDATION_EPOCH_END, "none", strict=False))
    return look.found


@question("EarlyStop: another phase")
def early_phase():
    EarlyStop(Phase.TRAIN_BATCH_END, "mine")


@question("EarlyStop: another mode")
def early_mode():
    return says(["mode", "least"], lambda: EarlyStop(Phase.VALIDATION_EPOCH_END, "mine", mode="least"))


@question("EarlyStop: by the loss of a training")
def early_real():
    look = Look(lambda context: context.epoch, "on_train_loader_end")
    trained(look, EarlyStop(Phase.VALIDATION_EPOCH_END, "CrossEntropyLoss", min_delta=0.5, patience=2), max_epochs=6)
    return look.found


# Ready-made callbacks -------------------------------------------------------------------------------------------------


@question("callback: TrainingStageSwitchCallbackBase")
def stage_switch():
    found = []

    class Switch(ready.TrainingStageSwitchCallbackBase):
        def apply_stage_change(self, context):
            found.append(context.epoch)

    trained(Switch(next_stage_start_epoch=2), max_epochs=4)
    return found


@question("callback: YoloXTrainingStageSwitchCallback")
def yolox_switch():
    class Loss(nn.CrossEntropyLoss):
        use_l1 = False

    class Transform:
        closed = False

        def close(self):
            self.closed = True

    data = loader()
    data.dataset.transforms = [Transform()]
    data.dataset.close = None
    loss = Loss()
    found = []
    look = Look(lambda c: found.append([c.criterion.use_l1, data.dataset.transforms[0].closed]), "on_train_batch_end")
    trained(ready.YoloXTrainingStageSwitchCallback(1), look, train=data, loss=loss, metric_to_watch="Accuracy")
    return found


class Pictures:
    """A logger that keeps what it is given."""

    def __init__(self, found):
        self.found = found

    def __getattr__(self, name):
        def take(*args, **kwargs):
            shapes = [list(np.shape(one)) if hasattr(one, "shape") else one for one in (*args, *kwargs.values())]
            self.found.append([name, *shapes, *kwargs])

        return take


def shown(callback, **fields):
    """What a callback gives to the logger at its phase."""
    found = []
    fields = {"epoch": 0, "batch_idx": 0, "ddp_silent_mode": False} | fields
    context = PhaseContext(sg_logger=Pictures(found), **fields)
    callback(context)
    return found


@question("callback: DetectionVisualizationCallback")
def detection_pictures():
    asked = []

    def post(*given):
        asked.append(len(given))
        return [torch.tensor([[2.0, 2.0, 10.0, 10.0, 0.9, 1.0]]), torch.zeros(0, 6)]

    callback = ready.DetectionVisualizationCallback(Phase.VALIDATION_BATCH_END, 1, post, ["a", "b"], 0, 1)
    target = torch.tensor([[0.0, 1.0, 6.0, 6.0, 8.0, 8.0], [1.0, 0.0, 6.0, 6.0, 4.0, 4.0]])
    found = shown(callback, inputs=torch.rand(2, 3, 32, 32), preds=torch.zeros(2, 3), target=target)
    return asked, [[row[0], row[1], row[2][0], *row[3:]] for row in found]


@question("callback: DetectionVisualizationCallback, in other epochs and batches")
def detection_pictures_skipped():
    callback = ready.DetectionVisualizationCallback(Phase.VALIDATION_BATCH_END, 2, lambda *given: [], ["a"], 1)
    images = {"inputs": torch.rand(2, 3, 32, 32), "preds": torch.zeros(2, 3), "target": torch.zeros(0, 6)}
    return shown(callback, **images), shown(callback, epoch=1, batch_idx=1, **images)


@question("callback: BinarySegmentationVisualizationCallback")
def segmentation_pictures():
    callback = ready.BinarySegmentationVisualizationCallback(Phase.VALIDATION_BATCH_END, 1, 0, 1)
    preds, target = torch.randn(2, 1, 16, 16), torch.ones(2, 1, 16, 16)
    found = shown(callback, inputs=torch.rand(2, 3, 16, 16), preds=preds, target=target)
    return [[row[0], row[1], row[2][0], *row[3:]] for row in found]


def extreme(name, **options):
    @question(f"callback: the extreme batch, {name}")
    def ask():
        kept, found = [], []

        class Show(ExtremeBatchCaseVisualizationCallback):
            def process_extreme_batch(self):
                kept.append([self.extreme_batch.sum(), number(self.extreme_score)])
                return np.zeros((1, 3, 4, 4))

        class Swap(Callback):
            def on_training_start(self, context):
                context.sg_logger.add_images = Pictures(found).add_images

        given = {key: value() if key == "metric" else value for key, value in options.items()}
        trained(Swap(), Show(**given), max_epochs=2)
        return kept, [row[:2] + row[3:] for row in found]


extreme("by the loss", loss_to_monitor="CrossEntropyLoss", max=True)
extreme("the least loss, in training, too", loss_to_monitor="CrossEntropyLoss", enable_on_train_loader=True)
extreme("by a metric", metric=measures.Accuracy)
extreme("by a component", metric=Share, metric_component_name="wrong", max=True)
extreme("every second epoch", loss_to_monitor="CrossEntropyLoss", freq=2)


@question("callback: the extreme batch by nothing")
def extreme_nothing():
    class Show(ExtremeBatchCaseVisualizationCallback):
        def process_extreme_batch(self):
            return None

    return says(["metric", "loss"], Show), says(["metric", "loss"], lambda: Show(Share(), loss_to_monitor="a"))


@question("callback: ModelConversionCheckCallback")
def conversion():
    class Meta:
        model_name, primary_batch_size, input_dimensions = "mine", 2, (4,)

    look = Look(lambda context: context.epoch, "on_train_loader_end")
    check = ready.ModelConversionCheckCallback("mine", (4,), 2, opset_version=17, rtol=1, atol=1)
    trained(check, look, max_epochs=1)
    return look.found


@question("callback: tags of TimerCallback")
def timer():
    found = []

    class Swap(Callback):
        def on_training_start(self, context):
            context.sg_logger.add_scalar = Pictures(found).add_scalar

    trained(ready.TimerCallback(), Swap(), max_epochs=1)
    return sorted({str(row[1] if isinstance(row[1], str) else row) for row in found if "timer" in str(row)})


@question("callback: MultiscalePrePredictionCallback on one size")
def multiscale():
    from super_gradients.training.datasets.datasets_utils import MultiscalePrePredictionCallback

    change = MultiscalePrePredictionCallback(multiscale_range=0, image_size_steps=32, change_frequency=10)
    images, targets = change(torch.ones(2, 3, 64, 64), torch.ones(2), 0)
    return list(images.shape), images.sum(), targets


@question("callback: names in the module")
def callback_names():
    names = ("Callback", "Phase", "PhaseContext", "PhaseCallback", "LRCallbackBase", "LinearEpochLRWarmup",
             "LinearBatchLRWarmup", "StepLRScheduler", "ExponentialLRScheduler", "PolyLRScheduler", "CosineLRScheduler",
             "LRSchedulerCallback", "CallbackHandler", "TimerCallback", "CALLBACKS", "LR_SCHEDULERS_CLS_DICT",
             "LR_WARMUP_CLS_DICT")  # fmt: skip
    return [name for name in names if hasattr(ready, name)]


@question("callback: CallbackHandler calls them in order")
def handler():
    found = []

    class One(Callback):
        def on_train_batch_start(self, context):
            found.append(["one", context.epoch])

    class Two(Callback):
        def on_train_batch_start(self, context):
            found.append(["two", context.epoch])

    ready.CallbackHandler([Two(), One()]).on_train_batch_start(PhaseContext(epoch=4))
    return found


# Files ----------------------------------------------------------------------------------------------------------------


def kinds(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.suffix == ".pth")


def ask_files(name, **params):
    @question(f"files: {name}")
    def ask():
        trainer = trained(save_model=True, **params)
        return kinds(trainer.checkpoints_dir_path)


ask_files("checkpoints")
ask_files("checkpoints of chosen epochs", save_ckpt_epoch_list=[1, 2], max_epochs=3)
ask_files("the best under another name", ckpt_best_name="top.pth")
ask_files("with averages", average_best_models=True)


@question("files: nothing is saved")
def files_none():
    return kinds(trained(save_model=False).checkpoints_dir_path)


@question("files: names of folders")
def folders():
    trainer = trained(save_model=True)
    folder = Path(trainer.checkpoints_dir_path)
    return [folder.parts[-3], folder.parts[-2], folder.name[:4]]


def ask_state(name, read, **params):
    @question(f"files: {name}")
    def ask():
        trainer = trained(save_model=True, **params)
        return read(torch.load(Path(trainer.checkpoints_dir_path) / "ckpt_latest.pth", weights_only=False))


ask_state("keys of a checkpoint", lambda state: [key for key in ("net", "acc", "epoch", "metrics", "packages",
          "_best_ckpt_metrics", "optimizer_state_dict", "ema_net") if key in state])  # fmt: skip
ask_state("keys of a checkpoint with ema", lambda state: "ema_net" in state, ema=True)
ask_state("the epoch of a checkpoint", lambda state: [state["epoch"], number(state["acc"])], max_epochs=3)
ask_state("metrics of a checkpoint", lambda state: {key: value if isinstance(value, str) else
          numbers(value) for key, value in state["metrics"].items()})  # fmt: skip
ask_state("best metrics of a checkpoint", lambda state: sorted(map(str, state["_best_ckpt_metrics"])))
ask_state("weights of a checkpoint", lambda state: {key: value.sum() for key, value in state["net"].items()})
ask_state("optimizer of a checkpoint", lambda state: [len(state["optimizer_state_dict"]["state"]),
          state["optimizer_state_dict"]["param_groups"][0]["lr"]])  # fmt: skip


@question("files: a run is resumed in its folder")
def resumed_folder():
    first = trained(save_model=True)
    second = trained(save_model=True, max_epochs=3, resume=True)
    return first.checkpoints_dir_path == second.checkpoints_dir_path


@question("files: epochs after a resume")
def resumed_epochs():
    trained(save_model=True)
    look = Look(lambda context: context.epoch, "on_train_loader_start")
    trained(look, save_model=True, max_epochs=4, resume=True)
    return look.found


@question("files: a run is resumed by its id")
def resumed_run():
    first = trained(save_model=True)
    trained(save_model=True)
    name = Path(first.checkpoints_dir_path).name
    again = trained(save_model=True, max_epochs=3, run_id=name)
    return Path(again.checkpoints_dir_path).name == name


@question("files: a resume without a run")
def resumed_nothing():
    trained(save_model=True, resume=True)


def scalars(folder):
    """The scalars that were written for TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {tag: [[row.step, row.value] for row in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def ask_scalars(name, wanted, **params):
    @question(f"TensorBoard: {name}")
    def ask():
        trainer = trained(save_model=True, **params)
        found = scalars(trainer.checkpoints_dir_path)
        return {tag: found[tag] for tag in sorted(found) if wanted(tag)}


def of(*stages):
    return lambda tag: tag.startswith(stages) and "time" not in tag


ask_scalars("metrics of training and validation", of("train_", "valid_"), train_metrics_list=["Accuracy"])
ask_scalars("validated every second epoch", of("valid_"), run_validation_freq=2, max_epochs=3)
ask_scalars("rates", of("lr"), lr_mode="cosine")
ask_scalars("rates of groups", of("lr"), initial_lr={"default": 0.1, "2": 0.02})
ask_scalars("tests", of("test_"), test={"near": loader(8)})
ask_scalars("losses in parts", of("train_", "valid_"), loss=Parts())
ask_scalars("components of a metric", of("valid_"), valid_metrics_list=[Share()], metric_to_watch="right")


@question("TensorBoard: what a callback adds")
def own_scalars():
    class Add(Callback):
        def on_train_loader_end(self, context):
            context.sg_logger.add_scalar("mine/one", 0.5, context.epoch)
            context.sg_logger.add_scalars({"mine/two": 1.0, "mine/three": 2.0}, context.epoch)

    trainer = trained(Add(), save_model=True)
    return {tag: rows for tag, rows in scalars(trainer.checkpoints_dir_path).items() if tag.startswith("mine")}


@question("logger: its folder")
def logger_folder():
    look = Look(lambda context: context.sg_logger.local_dir() in (context.ckpt_dir, context.ckpt_dir + "/"),
                "on_training_start")  # fmt: skip
    trained(look)
    return look.found


@question("logger: sg_logger_params of the default recipe")
def logger_params():
    model = net()
    off = ("tb_files_user_prompt", "launch_tensorboard", "save_checkpoints_remote", "save_tensorboard_remote",
           "save_logs_remote", "monitor_system")  # fmt: skip
    params = {"project_name": "", "tensorboard_port": None, **dict.fromkeys(off, False)}
    trained(model=model, sg_logger_params=params)
    return weights(model)


# Parameters, registries, recipes --------------------------------------------------------------------------------------


@question("parameters: defaults")
def defaults():
    left_out = {"sg_logger_params", "torch_compile_options", "ema_params", "lr_updates"}
    names = [name for name in sorted(NAMES) if name not in left_out]
    return {name: getattr(TrainingParams(), name) for name in names}


NAMES = (
    "batch_accumulate", "ckpt_best_name", "ckpt_name", "clip_grad_norm", "cosine_final_lr_ratio", "criterion_params",
    "ema", "greater_metric_to_watch_is_better", "initial_lr", "lr_cooldown_epochs", "lr_mode", "lr_schedule_function",
    "lr_warmup_epochs", "lr_warmup_steps", "max_train_batches", "max_valid_batches", "metric_to_watch",
    "mixed_precision", "optimizer", "optimizer_params", "phase_callbacks", "pre_prediction_callback", "precise_bn",
    "precise_bn_batch_size", "resume", "resume_path", "resume_strict_load", "run_test_freq", "run_validation_freq",
    "save_ckpt_epoch_list", "save_model", "seed", "sg_logger", "silent_mode", "step_lr_update_freq", "sync_bn",
    "torch_compile", "torch_compile_loss", "train_metrics_list", "valid_metrics_list", "warmup_initial_lr",
    "warmup_mode", "zero_weight_decay_on_bias_and_bn", "average_best_models", "load_opt_params",
    "log_installed_packages", "kill_ddp_pgroup_on_end", "finetune", "enable_qat", "dataset_statistics",
    "launch_tensorboard", "tb_files_user_prompt", "tensorboard_port", "save_tensorboard_to_s3",
    "resume_from_remote_sg_logger",
)  # fmt: skip


@question("parameters: DEFAULT_TRAINING_PARAMS")
def default_params():
    return {name: DEFAULT_TRAINING_PARAMS[name] for name in ("batch_accumulate", "seed", "ema", "save_model",
            "launch_tensorboard", "ckpt_best_name", "resume_from_remote_sg_logger")}  # fmt: skip


@question("parameters: attributes and overrides")
def param_values():
    params = TrainingParams()
    params.override(max_epochs=3, initial_lr=0.1, lr_mode="cosine", loss="CrossEntropyLoss", batch_accumulate=4)
    return params.max_epochs, params.batch_accumulate, params.seed, utils.get_param(params, "max_epochs")


@question("parameters: without max_epochs")
def no_epochs():
    return says(["max_epochs"], lambda: trained(max_epochs="left out"))


@question("parameters: without a loss")
def no_loss():
    return says(["loss"], lambda: trained(loss="left out"))


@question("parameters: a loss that is not there")
def unknown_loss():
    return says(["none_of_them"], lambda: trained(loss="none_of_them"))


@question("parameters: an optimizer that is not there")
def unknown_optimizer():
    return says(["none_of_them"], lambda: trained(optimizer="none_of_them"))


@question("parameters: callbacks from a recipe")
def callbacks_by_name():
    @registry.register_callback("EveryEpoch")
    class EveryEpoch(Callback):
        found = []

        def __init__(self, what="nothing"):
            self.what = what

        def on_train_loader_end(self, context):
            self.found.append([self.what, context.epoch])

    trained(max_epochs=1, phase_callbacks=["EveryEpoch", {"EveryEpoch": {"what": "this"}}, {"every_epoch": {}}])
    return EveryEpoch.found


@question("registry: names that are taken")
def taken():
    registry.register_model("TakenModel")(net)
    registry.register_model("TakenModel")(net)
    return says(["TakenModel"], lambda: registry.register_model("TakenModel")(loader))


@question("registry: a metric by its registered name")
def registered_metric():
    registry.register_metric("MyShare")(Share)
    look = Look(lambda context: numbers(context.metrics_dict), "on_validation_loader_end")
    trained(look, valid_metrics_list=["MyShare", {"Accuracy": {}}], metric_to_watch="right")
    return look.found


@question("registry: a loss by its registered name")
def registered_loss():
    registry.register_loss("my_parts")(Parts)
    model = net()
    trained(model=model, loss="my_parts")
    return weights(model)


@question("registry: a schedule by its registered name")
def registered_schedule():
    registry.register_lr_scheduler("by_hand")(ByGroup)
    look = Look(lambda context: context.optimizer.param_groups[0]["lr"], "on_train_batch_start")
    trained(look, lr_mode="by_hand", max_epochs=3)
    return look.found


@question("registry: a warm-up by its registered name")
def registered_warmup():
    class Slow(ready.LRCallbackBase):
        def __init__(self, **options):
            super().__init__(Phase.TRAIN_EPOCH_START, **options)

        def is_lr_scheduling_enabled(self, context):
            return context.epoch < self.training_params.lr_warmup_epochs

        def perform_scheduling(self, context):
            self.lr = dict.fromkeys(self.initial_lr, 0.01 * (context.epoch + 1))
            self.update_lr(context.optimizer, context.epoch, None)

    registry.register_lr_warmup("slow")(Slow)
    look = Look(lambda context: context.optimizer.param_groups[0]["lr"], "on_train_batch_start")
    trained(look, lr_warmup_epochs=2, warmup_mode="slow", lr_mode="cosine", max_epochs=4)
    return look.found


@question("registry: an optimizer by its registered name")
def registered_optimizer():
    registry.register_optimizer("mine_sgd")(torch.optim.SGD)
    model = net()
    trained(model=model, optimizer="mine_sgd", optimizer_params={"momentum": 0.5})
    return weights(model)


@question("recipe: train_from_config")
def from_config():
    from omegaconf import OmegaConf

    class RecipeNet(nn.Module):
        def __init__(self, arch_params=None, **_):
            super().__init__()
            self.inner = net()

        def forward(self, inputs):
            return self.inner(inputs)

    registry.register_model("recipe_net")(RecipeNet)
    registry.register_dataloader("recipe_loader")(lambda dataset_params=None, dataloader_params=None, **_: loader(12))
    recipe = OmegaConf.create(
        {
            "experiment_name": "from_recipe",
            "ckpt_root_dir": "runs",
            "architecture": "recipe_net",
            "arch_params": {"num_classes": 3},
            "num_classes": 3,
            "checkpoint_params": {
                "strict_load": "no_key_matching", "pretrained_weights": None, "load_backbone": False,
                "checkpoint_path": None, "checkpoint_num_classes": None, "num_classes": 3,
            },
            "train_dataloader": "recipe_loader",
            "val_dataloader": "recipe_loader",
            "dataset_params": {
                "train_dataset_params": {}, "val_dataset_params": {},
                "train_dataloader_params": {}, "val_dataloader_params": {},
            },
            "device": "cpu", "multi_gpu": None, "num_gpus": None,
            "training_hyperparams": {**PARAMS, "save_model": False, "valid_metrics_list": ["Accuracy"]},
        }
    )  # fmt: skip
    model, _ = Trainer.train_from_config(recipe)
    return weights(model)


@question("recipe: the folder of recipes")
def recipes():
    import super_gradients.recipes

    folder = Path(next(iter(super_gradients.recipes.__path__)))
    return (folder / "training_hyperparams" / "default_train_params.yaml").exists()


@question("recipe: the default parameters of training")
def default_recipe():
    import super_gradients.recipes
    import yaml

    folder = Path(next(iter(super_gradients.recipes.__path__)))
    text = (folder / "training_hyperparams" / "default_train_params.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(text)
    return {name: found[name] for name in sorted(NAMES) if name in found}


# Processes and helpers ------------------------------------------------------------------------------------------------


@question("processes: multi_process_safe returns")
def safe():
    class One:
        @ddp_utils.multi_process_safe
        def method(self, a, b=2):
            return a + b

    return One().method(1), One().method(1, b=5), One.method.__name__


@question("processes: alone")
def alone():
    return [ddp_utils.is_distributed(), ddp_utils.is_main_process(), ddp_utils.get_local_rank(),
            ddp_utils.get_world_size(), ddp_utils.is_ddp_subprocess(), ddp_utils.broadcast_from_master([1]),
            ddp_utils.execute_and_distribute_from_master(lambda a: a + 1)(2)]  # fmt: skip


@question("processes: means and lists")
def means():
    return [over_ranks.maybe_all_reduce_tensor_average(torch.tensor([2.0])),
            over_ranks.maybe_all_gather_as_list(torch.tensor([2.0]))]  # fmt: skip


@question("processes: find_free_port")
def free_port():
    return 0 < ddp_utils.find_free_port() < 65536


@question("processes: init_trainer and setup_device")
def setups():
    return init_trainer.__name__, setup_device(device="cpu")


@question("version")
def version():
    return super_gradients.__version__


def ask_helper(name, call):
    question(f"helper: {name}")(call)


ask_helper("get_param", lambda: [utils.get_param({"a": 1}, "a"), utils.get_param({"a": 1}, "b"),
           utils.get_param({"a": 1}, "b", 2), utils.get_param(TrainingParams(), "batch_accumulate", 7),
           utils.get_param({"My_Name": 4}, "myname"), utils.get_param({"a": None}, "a", 5)])  # fmt: skip
ask_helper("HpmStruct", lambda: [utils.HpmStruct(a=1, b="x").a, utils.HpmStruct(a=1, b="x").to_dict(),
           utils.get_param(utils.HpmStruct(a=1), "c", 9)])  # fmt: skip


@question("helper: HpmStruct.override")
def struct():
    made = utils.HpmStruct(a=1)
    made.override(a=2, b=3)
    return made.to_dict()


@question("helper: AverageMeter")
def meter():
    made = utils.AverageMeter()
    made.update(torch.tensor([1.0, 4.0]), 1)
    made.update(torch.tensor([3.0, 0.0]), 3)
    one = utils.AverageMeter()
    one.update(2.0, 2)
    one.update(5.0, 1)
    return made.average, one.average


@question("helper: AverageMeter of nothing")
def empty_meter():
    return utils.AverageMeter().average


@question("helper: an AverageMeter goes on")
def meter_goes_on():
    made, found = utils.AverageMeter(), []
    for number_ in (1.0, 2.0, 4.0):
        made.update(torch.tensor([number_]), 2)
        found.append(made.average)
    return found


ask_helper("convert_to_tensor", lambda: [utils.convert_to_tensor([1, 2]), utils.convert_to_tensor(np.ones(2)),
           utils.convert_to_tensor(torch.ones(1), dtype=torch.float64).dtype == torch.float64])  # fmt: skip
ask_helper("tensor_container_to_device", lambda: utils.tensor_container_to_device(
           {"a": torch.ones(1), "b": [torch.zeros(2), "text"], "c": (1, torch.ones(1))}, "cpu"))  # fmt: skip
ask_helper("unwrap_model", lambda: type(utils.unwrap_model(nn.DataParallel(net()))).__name__)
ask_helper("infer_model_device", lambda: str(utils.infer_model_device(net())))
ask_helper("check_models_have_same_weights", lambda: [utils.check_models_have_same_weights(net(), net()),
           utils.check_models_have_same_weights(net(), nn.Sequential(nn.Linear(4, 5)))])  # fmt: skip
ask_helper("random_seed", lambda: [utils.random_seed(False, "cpu", 3), torch.rand(2), np.random.rand()])
ask_helper("unpack_batch_items", lambda: [sg_trainer_utils.unpack_batch_items((1, 2)),
           sg_trainer_utils.unpack_batch_items((1, 2, {"a": 3}))])  # fmt: skip


def value_of(one):
    return [one.name, number(one.current), number(one.previous), number(one.best), number(one.change_from_previous),
            number(one.change_from_best)]  # fmt: skip


@question("helper: MonitoredValue")
def monitored():
    value = sg_trainer_utils.MonitoredValue("loss", greater_is_better=False)
    found = [value_of(value)]
    for number_ in (3.0, 2.0, 2.5):
        value = sg_trainer_utils.update_monitored_value(value, number_)
        found.append(value_of(value))
    return found


@question("helper: update_monitored_values_dict")
def monitored_dict():
    values = {"a": sg_trainer_utils.MonitoredValue("a", True, current=1.0, best=1.0)}
    found = sg_trainer_utils.update_monitored_values_dict(values, {"a": 2.0})
    return {name: value_of(one) for name, one in found.items()}


if __name__ == "__main__":
    main()
