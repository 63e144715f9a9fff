"""What the names of Orca mean here."""

from __future__ import annotations

from cadenza.dialects.table import Ask, Attribute, Dialect, Hook

_R = ("runner",)
WITHOUT_GRADIENTS = "Without gradients."
_MODULE = "cadenza.dialects.orca"

HOOKS = (
    Hook("before_run", ("before_run",), "Only in fit.", _R, calls="on_run_begin", modes=("fit",)),
    Hook("before_epoch", (), "Called by the stages' own: in training and in validation.", _R, calls="on_epoch_begin"),
    Hook("before_train_epoch", ("before_train_epoch",), "", _R, calls="before_epoch"),
    Hook("before_iter", (), "Called by the three hooks of the stages.", _R, calls="on_iter_begin"),
    Hook("before_train_iter", ("before_train_iter",), "", _R, calls="before_iter"),
    Hook("on_train_forward", ("on_train_forward",), "Only on the main callback.", _R, calls="on_iter_forward"),
    Hook("on_iter_forward", ("on_iter_forward",),
         "Only on the main callback. If it sets no loss, the criterion computes it; the original failed.", _R),
    Hook("on_iter_backward", ("on_iter_backward",),
         "Only on the main callback; zero_grad, backward and step. An override that does not step keeps the gradients "
         "for the next batch. The default is separate actions, so that a native clip can stand between them.", _R),
    Hook("after_iter", (), "Called by the three hooks of the stages.", _R, calls="on_iter_end"),
    Hook("after_train_iter", ("after_train_iter",),
         "The batch is counted already. If a native callback skipped it, there is no output and no loss.", _R,
         calls="after_iter"),
    Hook("on_lr_adjust", ("after_train_epoch", "after_train_iter"),
         "Only on the main callback; before validation, which is earlier than the native one. If its code names batch, "
         "batch_idx, output or loss, it is called in each iteration after backward, before all after_train_iter. A "
         "plateau schedule is stepped after validation, with its loss. The original fails at both.", _R),
    Hook("before_val_epoch", ("before_val_epoch",), WITHOUT_GRADIENTS, _R, calls="before_epoch"),
    Hook("before_val_iter", ("before_val_iter",), WITHOUT_GRADIENTS, _R, calls="before_iter"),
    Hook("on_val_forward", ("on_val_forward", "on_test_forward"),
         "Only on the main callback. In a native test pass, too.", _R, calls="on_iter_forward"),
    Hook("after_val_iter", ("after_val_iter",), WITHOUT_GRADIENTS, _R, calls="after_iter"),
    Hook("after_val_epoch", ("after_val_epoch",), "", _R, calls="after_epoch"),
    Hook("after_epoch", (), "Called by the stages' own: in training and in validation.", _R, calls="on_epoch_end"),
    Hook("after_train_epoch", ("after_epoch",),
         "When the epoch counts. The native point of this name comes before validation.", _R, calls="after_epoch"),
    Hook("after_run", ("after_run",), "Not after an exception.", _R, calls="on_run_end", modes=("fit",)),
    Hook("before_pred_epoch", ("before_pred_epoch",), WITHOUT_GRADIENTS, _R, calls="before_epoch"),
    Hook("before_pred_iter", ("before_pred_iter",), WITHOUT_GRADIENTS, _R, calls="before_iter"),
    Hook("on_pred_forward", ("on_pred_forward",),
         "Only on the main callback. The default forwards all parts of the batch but the last if there are several, "
         "squeezes trailing dimensions of size 1, and keeps tensors; Estimator.predict returns arrays.", _R),
    Hook("after_pred_iter", ("after_pred_iter",), WITHOUT_GRADIENTS, _R, calls="after_iter"),
    Hook("after_pred_epoch", ("after_pred_epoch",), "", _R, calls="after_epoch"),
    *(Hook(f"on_{span}_{word}", (), f"Another name of {kind}_{span}, from the tutorial; no release ever called it.", _R)
      for span in ("run", "epoch", "iter") for word, kind in (("begin", "before"), ("end", "after"))),
)  # fmt: skip

ATTRIBUTES = (
    Attribute("num_epochs", "", "The epochs of this fit; may be set in before_run."),
    Attribute("epochs", "clock.epochs", "How many epochs are finished: 0 in the first."),
    Attribute("epoch", "", "The number of this epoch, from 1, as in the tutorial; the original has none. May be set."),
    Attribute("global_step", "clock.batches", "Training batches so far, over all fits, from after_train_iter on."),
    Attribute("train_loader", "train_loader", "Of an Estimator: in the order of DistributedSampler(shuffle=True)."),
    Attribute("val_loader", "val_loader", "Of an Estimator: in that order for epoch 0; in evaluate in its own."),
    Attribute("stop", "", "See requests."),
    Attribute("rank", "rank"),
    Attribute("size", "world_size"),
    Attribute("backend", "", "What Estimator.from_torch was given, else \"local\"."),
    Attribute("config", "", "The config of the Estimator, else an empty dict."),
    Attribute("logger", "", "The logger cadenza.dialects.orca."),
    Attribute("timers", "", "timers.record(name) is a context manager, timers.stats() the means: mean_<name>_s."),
    Attribute("metrics", "", "The metrics of the Estimator, else an empty list."),
    Attribute("sync_stats", "", "As the Estimator was given it; ours are always over all ranks."),
    Attribute("model", "", "What is called in training, the user's own module in validation and prediction."),
    Attribute("models", "", "A list with the user's own module."),
    Attribute("training_models", "", "A list with what is called in training."),
    Attribute("optimizer", "optimizer", "The first."),
    Attribute("optimizers", "optimizers"),
    Attribute("scheduler", "scheduler", "The first, or None."),
    Attribute("lr_scheduler", "scheduler", "The tutorial's name of scheduler."),
    Attribute("schedulers", "schedulers"),
    Attribute("criterion", "criterion"),
    Attribute("batch", "", "In an iteration; may be set."),
    Attribute("batch_idx", "batch_idx", "In an iteration."),
    Attribute("output", "", "From the forward to the end of the iteration; may be set."),
    Attribute("outputs", "", "The tutorial's name of output; it does not leak into the next iteration."),
    Attribute("loss", "", "From the forward to the end of the iteration; may be set."),
    Attribute("target", "", "From the forward to the end of the iteration; may be set, and metrics read it."),
    Attribute("metrics_stats", "", "At after_train_iter: train_loss and num_samples. Reading it waits for the device."),
    Attribute("epoch_stats", "", "At after_train_epoch and after_run; None in before_run."),
    Attribute("num_steps", "", "The limit of evaluate, only inside it. A script may set one of its own."),
    Attribute("put", "", "Keeps a value under a name; warns in the log if there was one."),
    Attribute("get", "", "The value of a name; an error if there is none."),
    Attribute("update", "", "Replaces a value; warns in the log if there was none."),
    Attribute("remove", "", "Forgets a value; an error if there is none."),
    Attribute("save_checkpoint", "", "On rank 0, also to remote paths. The file holds the same keys."),
    Attribute("load_checkpoint", "", "No pickle is executed."),
    Attribute("remove_checkpoint", "", "On rank 0."),
    Attribute("get_state_dict", ""),
    Attribute("load_state_dict", ""),
    Attribute("with_sampler", "", "A loader of this rank's share, in the order of DistributedSampler."),
    Attribute("call_hook", "", "Calls a hook of all Orca callbacks, in order."),
)  # fmt: skip

REQUESTS = (
    Ask("runner.stop = True", ("end_epoch", "stop"),
        "The training pass ends after this batch; the learning rate, validation and after_train_epoch of this epoch "
        "follow, and no further epoch. In the original later epochs still ran one batch each, and the flag stuck in "
        "the next fit."),
)  # fmt: skip

_OLD = "it is of the callbacks of 2.0 and 2.1; "
REFUSED = {
    "on_train_begin": _OLD + "use before_run",
    "on_train_end": _OLD + "use after_run",
    "on_batch_begin": _OLD + "use before_train_iter",
    "on_batch_end": _OLD + "use after_train_iter",
    "set_model": _OLD + "read runner.model",
    "set_param": _OLD + "read runner.config",
    "set_trainer": _OLD + "the runner is handed to every hook",
    "from_mmcv": "mmcv runners have a loop of their own; write their hooks as callbacks",
    **dict.fromkeys(("bigdl.orca.learn.tf", "bigdl.orca.learn.tf2"), "TensorFlow is not carried, PyTorch alone is"),
    **dict.fromkeys(
        ("bigdl.orca.learn.trigger", "bigdl.orca.learn.optimizers"), "it is of the backend bigdl, in Spark"
    ),
    "bigdl.orca.data": "data is given as a function that returns a DataLoader",
}

_CALLBACKS = {
    "base": "callback", "maincallback": "callback", "model_checkpoint": "ready_callbacks", "tensorboard": "loggers",
    "wandb": "loggers", "tqdm": "ready_callbacks", "maxsteps": "ready_callbacks",
}  # fmt: skip
_BASE = "bigdl.orca.learn.pytorch"
DIALECT = Dialect(
    "orca", "Orca (bigdl-orca 2.4.0)", "runner",
    HOOKS, ATTRIBUTES, REQUESTS, REFUSED,
    prefixes=("before_", "after_", "on_", "set_model", "set_param", "set_trainer"),
    modules={
        "bigdl.orca": f"{_MODULE}.context",
        "bigdl.orca.common": f"{_MODULE}.context",
        "bigdl.dllib.utils.file_utils": f"{_MODULE}.checkpoints",
        "bigdl.dllib.utils.log4Error": f"{_MODULE}.context",
        "bigdl.orca.data.file": f"{_MODULE}.checkpoints",
        "bigdl.orca.learn.metrics": f"{_MODULE}.metrics",
        _BASE: f"{_MODULE}.estimator",
        f"{_BASE}.estimator": f"{_MODULE}.estimator",
        f"{_BASE}.pytorch_metrics": f"{_MODULE}.metrics",
        f"{_BASE}.callbacks": _MODULE,
        **{f"{_BASE}.callbacks.{name}": f"{_MODULE}.{ours}" for name, ours in _CALLBACKS.items()},
    },
    real=("bigdl.orca",),
)  # fmt: skip
