"""What the names of fastai v1, and of the blog that simplified it, mean here."""

from __future__ import annotations

from cadenza.dialects.table import Ask, Attribute, Dialect, Hook

_MODULE = "cadenza.dialects.fastai"
_FIT = ("epoch", "iteration", "metrics", "n_epochs", "num_batch", "pbar", "skip_validate")
_EPOCH = (*_FIT, "stop_training")
_BATCH = (*_EPOCH, "last_input", "last_target", "skip_bwd", "skip_step", "skip_zero", "stop_epoch", "train")
_OUTPUT = (*_BATCH, "last_output")
_LOSS = (*_OUTPUT, "last_loss", "smooth_loss")
_BLOG = "Only in the blog. "

HOOKS = (
    Hook("on_train_begin", ("before_run",), "In fit, and once in validate.", (*_FIT, "metrics_names"),
         modes=("fit", "validate")),
    Hook("on_epoch_begin", ("before_train_epoch", "before_val_epoch"),
         "The second in validate alone. A skip from the blog ends the epoch.", _EPOCH),
    Hook("on_batch_begin", ("before_train_iter", "before_val_iter", "before_pred_iter"),
         "Training and validation alike, told apart by train. A skip from the blog skips the batch.", _BATCH),
    Hook("on_loss_begin", ("before_loss", "after_forward"),
         "The second in prediction alone, which has no loss.", _OUTPUT),
    Hook("on_loss_end", ("after_loss",), _BLOG + "In training; a skip skips the backward.", _LOSS),
    Hook("on_backward_begin", ("before_backward",), "", _LOSS),
    Hook("on_backward_end", ("after_backward", "after_train_iter"),
         "Also called when the backward was skipped, as in the original: at the end of the iteration, before all "
         "on_batch_end.", _LOSS),
    Hook("on_step_begin", ("before_step",), _BLOG + "A skip skips the step. Not called if it was skipped before.",
         _LOSS),
    Hook("on_step_end", ("after_step", "before_zero_grad", "after_train_iter"),
         "Also called when the step was skipped, as in the original: at before_zero_grad, or if that is skipped too, "
         "at the end of the iteration, before all on_batch_end. A skip from the blog skips the zero_grad.", _LOSS),
    Hook("on_batch_end", ("after_train_iter", "after_val_iter", "after_pred_iter"),
         "last_loss is detached, and stays on its device.", _LOSS),
    Hook("on_epoch_end", ("after_epoch", "after_val_epoch"), "The second in validate alone.",
         (*_LOSS, "last_metrics")),
    Hook("on_train_end", ("after_run", "after_error"), "In fit; always called, with the exception or False.",
         (*_LOSS, "last_metrics", "exception"), modes=("fit",)),
    Hook("jump_to_epoch", (), "Called on all callbacks when an on_train_begin returned an epoch.", ("epoch",)),
    Hook("get_state", (), "What a checkpoint keeps of a callback that says so in `state_in_checkpoint`.", ("minimal",)),
)  # fmt: skip

ATTRIBUTES = (
    Attribute("epoch", "", "From 0 in each fit."),
    Attribute("iteration", "", "Training batches of this fit; counted after on_batch_end."),
    Attribute("num_batch", "", "Training batches of this epoch; counted after on_batch_end."),
    Attribute("n_epochs", "", "The epochs of this fit."),
    Attribute("metrics", "", "The metrics of the Learner."),
    Attribute("metrics_names", "", "Only in on_train_begin."),
    Attribute("pbar", "", "It has write(text); nothing else of a progress bar."),
    Attribute("last_input", "inputs", "Returned from on_batch_begin, it replaces the input."),
    Attribute("last_target", "targets", "Returned from on_batch_begin, it replaces the target."),
    Attribute("last_output", "output", "Returned from on_loss_begin, it replaces the output."),
    Attribute("last_loss", "loss", "Returned from on_backward_begin, it is what is back-propagated."),
    Attribute("smooth_loss", "", "The mean of the losses with weights that fade by 0.98, without bias."),
    Attribute("last_metrics", "", "The validation loss, or None, and what the metrics added."),
    Attribute("train", "", "Whether the last batch was one of training."),
    Attribute("stop_training", "", "See requests."),
    Attribute("stop_epoch", "", "See requests."),
    Attribute("skip_validate", "", "See requests."),
    Attribute("skip_bwd", "", "See requests."),
    Attribute("skip_step", "", "See requests."),
    Attribute("skip_zero", "", "See requests."),
    Attribute("exception", "error", "Only in on_train_end: the exception, or False."),
    Attribute("self.model", "model", "In a callback that has none of its own. Assigning it replaces what the run "
              "calls, until the end of training."),
    Attribute("self.optimizer", "optimizer", "In a callback that has none of its own; with lr, mom and wd."),
)  # fmt: skip

REQUESTS = (
    Ask("{'stop_training': True}", ("stop",), "When the epoch ends."),
    Ask("{'stop_epoch': True}", ("end_epoch",), ""),
    Ask("{'skip_validate': True}", ("skip_validation",), "In this epoch and those after it."),
    Ask("{'skip_bwd': True}", ("skip_backward",),
        "Neither step nor zero_grad are made; the original made them, with whatever gradients were left."),
    Ask("{'skip_step': True}", ("skip_step",), "Once asked, it is not taken back by a later False."),
    Ask("{'skip_zero': True}", ("skip_zero_grad",), "The gradients stay, and nothing steps on them by itself."),
    Ask("return True", ("end_epoch", "skip_batch", "skip_backward", "skip_step", "skip_zero_grad"),
        "The blog's skip: which of them, the hook decides. From any other hook it is refused."),
)  # fmt: skip

_GAN = "a GAN has two steps in an iteration; examples/22_gan.py shows one with a main callback"
_RANKS = "processes are started around the script: cadenza launch, torchrun, or cadenza.launch(...)"
_ZOO = "models, transforms and datasets of the library are not carried, its training loop is"
REFUSED = {
    "GANTrainer": _GAN,
    "FixedGANSwitcher": _GAN,
    "AdaptiveGANSwitcher": _GAN,
    "GANDiscriminativeLR": _GAN,
    "CycleGANTrainer": "CycleGAN is not carried",
    "GANTensorboardWriter": _GAN,
    "ImageGenTensorboardWriter": _ZOO,
    "DistributedTrainer": _RANKS,
    "DistributedRecorder": _RANKS,
    "to_distributed": _RANKS,
    "to_parallel": _RANKS,
    "load_learner": "an exported Learner is a pickle; make the Learner anew and load() its weights",
    "export": "it would be a pickle; save() writes the weights",
    "purge": "nothing needs to be purged",
    "freeze_to": "set requires_grad, or use cadenza.callbacks.Freeze",
    "split": "give the optimizer parameter groups of its own: opt_func is a function of parameters",
    "fit_fc": "give FlatCosAnnealScheduler to fit: learn.fit(n, callbacks=[FlatCosAnnealScheduler(learn)])",
    "predict": "call the model, or get_preds() over a loader",
    "pred_batch": "call the model on the batch, or get_preds() over a loader",
    "destroy": "nothing needs to be destroyed",
    "summary": "use model_summary(learn) of fastai.callbacks.hooks, or cadenza.callbacks.ModelSummary",
    "CallbackHandler": "the plan of cadenza.Trainer takes its place; trainer.explain() prints who plays where",
    "MultiLabelFbeta": "compute it in a Callback of your own, or with cadenza.callbacks.Metrics",
    "unfreeze": "set requires_grad, or use cadenza.callbacks.Freeze",
    "freeze": "set requires_grad, or use cadenza.callbacks.Freeze",
    "fastai.vision": _ZOO,
    "fastai.text": _ZOO,
    "fastai.tabular": _ZOO,
    "fastai.collab": _ZOO,
    "fastai.widgets": _ZOO,
    "fastai.distributed": _RANKS,
}

_PACKAGE = {
    "csv_logger": "csv_logger",
    "flat_cos_anneal": "phases",
    "fp16": "fp16",
    "general_sched": "phases",
    "hooks": "hooks",
    "loss_metrics": "loss_metrics",
    "lr_finder": "lr_finder",
    "mem": "memory",
    "misc": "misc",
    "mixup": "mixup",
    "mlflow": "trackers",
    "one_cycle": "phases",
    "oversampling": "sampling",
    "rnn": "rnn",
    "tensorboard": "trackers",
    "tracker": "tracker",
}

DIALECT = Dialect(
    name="fastai",
    original="fastai v1 (fastai 1.0.61) and its simplification in a blog",
    handed="kwargs",
    hooks=HOOKS,
    attributes=ATTRIBUTES,
    requests=REQUESTS,
    refused=REFUSED,
    prefixes=("on_",),
    modules={
        "fastai": _MODULE,
        "fastai.basics": _MODULE,
        "fastai.basic_train": f"{_MODULE}.basic_train",
        "fastai.basic_data": f"{_MODULE}.data",
        "fastai.callback": f"{_MODULE}.callback",
        "fastai.callbacks": f"{_MODULE}.callbacks",
        "fastai.metrics": f"{_MODULE}.metrics",
        "fastai.train": f"{_MODULE}.train",
        **{f"fastai.callbacks.{name}": f"{_MODULE}.callbacks.{module}" for name, module in _PACKAGE.items()},
    },
    real=("fastai",),
)
