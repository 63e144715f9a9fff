"""What the names of Orca mean here."""

from __future__ import annotations

from cadenza.dialects.table import Ask, Attribute, Dialect, Hook

_R = ("runner",)
_MODULE = "cadenza.dialects.orca"

HOOKS = (
    Hook("before_run", ("before_run",), "Only in fit.", _R, calls="on_run_begin", modes=("fit",)),
    Hook("before_epoch", (), "Called by the three hooks of the stages, so in training and in validation.", _R,
         calls="on_epoch_begin"),
    Hook("before_train_epoch", ("before_train_epoch",), "", _R, calls="before_epoch"),
    Hook("before_iter", (), "Called by the three hooks of the stages.", _R, calls="on_iter_begin"),
    Hook("before_train_iter", ("before_train_iter",), "", _R, calls="before_iter"),
    Hook("on_train_forward", ("on_train_forward",), "Only on the main callback.", _R, calls="on_iter_forward"),
    Hook("on_iter_forward", ("on_iter_forward",),
         "Only on the main callback. If it sets no loss, the criterion computes it; the original failed.", _R),
    Hook("on_iter_backward", ("on_iter_backward",),
         "Only on the main callback; zero_grad, backward and step in one. An override that does not step keeps the "
         "gradients for the next batch. The default is played as separate actions, so that a native clip can stand "
         "between them.", _R),
    Hook("after_iter", (), "Called by the three hooks of the stages.", _R, calls="on_iter_end"),
    Hook("after_train_iter", ("after_train_iter",),
         "The batch is counted already, as in the original. It is also called for a batch that a native callback "
         "skipped; output and loss do not exist then.", _R, calls="after_iter"),
    Hook("on_lr_adjust", ("after_train_epoch", "after_train_iter"),
         "Only on the main callback; after the last training batch and before validation, which is earlier than the "
         "native one. An override whose code names batch, batch_idx, output or loss is called in each iteration after "
         "backward instead, before all after_train_iter; the original failed there. A plateau schedule is stepped "
         "after validation, with its loss; the original failed.", _R),
    Hook("before_val_epoch", ("before_val_epoch",), "Without gradients.", _R, calls="before_epoch"),
    Hook("before_val_iter", ("before_val_iter",), "Without gradients.", _R, calls="before_iter"),
    Hook("on_val_forward", ("on_val_forward", "on_test_forward"),
         "Only on the main callback. In a native test pass too, which the original does not have.", _R,
         calls="on_iter_forward"),
    Hook("after_val_iter", ("after_val_iter",), "Without gradients.", _R, calls="after_iter"),
    Hook("after_val_epoch", ("after_val_epoch",), "", _R, calls="after_epoch"),
    Hook("after_epoch", (), "Called by the three hooks of the stages, so in training and in validation.", _R,
         calls="on_epoch_end"),
    Hook("after_train_epoch", ("after_epoch",),
         "After validation, when the epoch counts; the native point of this name comes before validation.", _R,
         calls="after_epoch"),
    Hook("after_run", ("after_run",), "Only in fit, and not after an exception.", _R, calls="on_run_end",
         modes=("fit",)),
    Hook("before_pred_epoch", ("before_pred_epoch",), "Without gradients.", _R, calls="before_epoch"),
    Hook("before_pred_iter", ("before_pred_iter",), "Without gradients.", _R, calls="before_iter"),
    Hook("on_pred_forward", ("on_pred_forward",),
         "Only on the main callback. The default forwards all parts of the batch but the last if there are several, "
         "squeezes trailing dimensions of size 1, and keeps tensors; Estimator.predict returns arrays.", _R),
    Hook("after_pred_iter", ("after_pred_iter",), "Without gradients.", _R, calls="after_iter"),
    Hook("after_pred_epoch", ("after_pred_epoch",), "", _R, calls="after_epoch"),
    Hook("on_run_begin", (), "Another name of before_run, from the tutorial; no release ever called it.", _R),
    Hook("on_run_end", (), "Another name of after_run, from the tutorial.", _R),
    Hook("on_epoch_begin", (), "Another name of before_epoch, from the tutorial.", _R),
    Hook("on_epoch_end", (), "Another name of after_epoch, from the tutorial.", _R),
    Hook("on_iter_begin", (), "Another name of before_iter, from the tutorial.", _R),
    Hook("on_iter_end", (), "Another name of after_iter, from the tutorial.", _R),
)  # fmt: skip

ATTRIBUTES = (
    Attribute("num_epochs", "", "The epochs of this fit; may be set in before_run."),
    Attribute("epochs", "clock.epochs", "How many epochs are finished: 0 in the first."),
    Attribute("global_step", "clock.batches", "Training batches so far, over all fits; this one counts from "
              "after_train_iter on."),
    Attribute("train_loader", "train_loader"),
    Attribute("val_loader", "val_loader"),
    Attribute("stop", "", "See requests."),
    Attribute("rank", "rank"),
    Attribute("size", "world_size"),
    Attribute("backend", "", "What Estimator.from_torch was given, else \"local\"."),
    Attribute("config", "", "The config of the Estimator, else an empty dict."),
    Attribute("logger", "", "The logger cadenza.dialects.orca."),
    Attribute("timers", "", "timers.record(name) is a context manager, timers.stats() the seconds by name."),
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
    Attribute("target", "", "In an iteration; in the original the last one of training was left behind."),
    Attribute("metrics_stats", "", "At after_train_iter: train_loss and num_samples. Reading it waits for the device."),
    Attribute("epoch_stats", "", "At after_train_epoch and after_run; None in before_run."),
    Attribute("num_steps", "", "Only inside evaluate."),
    Attribute("put", "", "Keeps a value under a name; warns in the log if there was one."),
    Attribute("get", "", "The value of a name; an error if there is none."),
    Attribute("update", "", "Replaces a value; warns in the log if there was none."),
    Attribute("remove", "", "Forgets a value; an error if there is none."),
    Attribute("save_checkpoint", "", "On rank 0, also to remote paths. The file holds the same keys."),
    Attribute("load_checkpoint", "", "No pickle is executed."),
    Attribute("remove_checkpoint", "", "On rank 0."),
    Attribute("get_state_dict", ""),
    Attribute("load_state_dict", ""),
    Attribute("with_sampler", "", "A loader of this rank's share."),
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
    "bigdl.orca.learn.tf": "TensorFlow is not carried, PyTorch alone is",
    "bigdl.orca.learn.tf2": "TensorFlow is not carried, PyTorch alone is",
    "bigdl.orca.data": "data is given as a function that returns a DataLoader",
}

_BASE = "bigdl.orca.learn.pytorch"
DIALECT = Dialect(
    name="orca",
    original="Orca (bigdl-orca 2.4.0)",
    handed="runner",
    hooks=HOOKS,
    attributes=ATTRIBUTES,
    requests=REQUESTS,
    refused=REFUSED,
    prefixes=("before_", "after_", "on_"),
    modules={
        "bigdl.orca": f"{_MODULE}.context",
        "bigdl.orca.common": f"{_MODULE}.context",
        "bigdl.orca.learn.metrics": f"{_MODULE}.metrics",
        _BASE: f"{_MODULE}.estimator",
        f"{_BASE}.estimator": f"{_MODULE}.estimator",
        f"{_BASE}.callbacks": _MODULE,
        f"{_BASE}.callbacks.base": f"{_MODULE}.callback",
        f"{_BASE}.callbacks.maincallback": f"{_MODULE}.callback",
        f"{_BASE}.callbacks.model_checkpoint": f"{_MODULE}.model_checkpoint",
        f"{_BASE}.callbacks.tensorboard": f"{_MODULE}.loggers",
        f"{_BASE}.callbacks.wandb": f"{_MODULE}.loggers",
        f"{_BASE}.callbacks.tqdm": f"{_MODULE}.progress",
        f"{_BASE}.callbacks.maxsteps": f"{_MODULE}.max_steps",
    },
    real=("bigdl.orca",),
)
