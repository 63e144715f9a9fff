"""What the names of fastai v1, and of the blog that simplified it, mean here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    *(Attribute(flag, "", "See requests.")
      for flag in ("stop_training", "stop_epoch", "skip_validate", "skip_bwd", "skip_step", "skip_zero")),
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
        "Neither step nor zero_grad are made; the original steps, which still applies weight decay."),
    Ask("{'skip_step': True}", ("skip_step",), "Once asked, it is not taken back by a later False."),
    Ask("{'skip_zero': True}", ("skip_zero_grad",), "The gradients stay, and nothing steps on them by itself."),
    Ask("return True", ("end_epoch", "skip_batch", "skip_backward", "skip_step", "skip_zero_grad"),
        "The blog's skip: which of them, the hook decides. From on_batch_end and on_epoch_end it has no effect, as in "
        "the blog's loop; from any other hook it raises an error."),
)  # fmt: skip

_GAN = "a GAN has two steps in an iteration; examples/22_gan.py shows one with a main callback"
_RANKS = "processes are started around the script: cadenza launch, torchrun, or cadenza.launch(...)"
_METHOD = "a method of the Learner does this"
ZOO = "models, transforms and datasets of the library are not carried, nor most of its helpers; its training loop is"
REFUSED = {
    "GANTrainer": _GAN,
    "FixedGANSwitcher": _GAN,
    "AdaptiveGANSwitcher": _GAN,
    "GANDiscriminativeLR": _GAN,
    "CycleGANTrainer": "CycleGAN is not carried",
    "GANTensorboardWriter": _GAN,
    "ImageGenTensorboardWriter": ZOO,
    "DistributedTrainer": _RANKS,
    "DistributedRecorder": _RANKS,
    "to_distributed": _RANKS,
    "to_parallel": _RANKS,
    "load_learner": "an exported Learner is a pickle; make the Learner anew and load() its weights",
    "export": "it would be a pickle; save() writes the weights",
    "purge": "nothing needs to be purged",
    "predict": "call the model, or get_preds() over a loader",
    "destroy": "nothing needs to be destroyed",
    "summary": "use model_summary(learn) of fastai.callbacks.hooks, or cadenza.callbacks.ModelSummary",
    **dict.fromkeys(("fit", "loss_batch", "train_epoch", "validate", "get_preds"), _METHOD),
    "CallbackHandler": "the plan of cadenza.Trainer takes its place; trainer.explain() prints who plays where",
    "fastai.vision.all": "it belongs to fastai v2; this dialect carries v1",
    "fastai.widgets": ZOO,
}

STAR: dict[str, Any] = json.loads((Path(__file__).parent / "star_names.json").read_text(encoding="utf-8"))
"""What star imports of the original bring: ``modules``, some under another name; ``names`` by module; ``types`` that
stand in annotations alone; and what is ``absent``: using that says so, and so does using a name of a package that is
not installed. ``elsewhere`` is absent too, but only the star imports of ``stars`` bring it, which are of modules that
bring less than all; ``paths`` are the modules of the library that have no file here."""
_PACKAGE = {
    **{
        one: one
        for one in ("csv_logger", "fp16", "hooks", "loss_metrics", "lr_finder", "misc", "mixup", "rnn", "tracker")
    },
    **dict.fromkeys(("flat_cos_anneal", "general_sched", "one_cycle"), "phases"),
    **dict.fromkeys(("oversampling", "undersampling"), "sampling"),
    **dict.fromkeys(("mlflow", "tensorboard"), "trackers"),
    "mem": "loss_metrics",
}

DIALECT = Dialect(
    "fastai", "fastai v1 (fastai 1.0.61) and its simplification in a blog", "kwargs",
    HOOKS, ATTRIBUTES, REQUESTS, REFUSED,
    prefixes=("on_",),
    modules={
        "fastai": f"{_MODULE}.basics",
        **{f"fastai.{part}": f"{_MODULE}.basics" for part in STAR["paths"]},
        "fastai.basic_train": f"{_MODULE}.basic_train",
        "fastai.basic_data": f"{_MODULE}.data",
        "fastai.callback": f"{_MODULE}.callback",
        "fastai.callbacks": f"{_MODULE}.callbacks",
        "fastai.metrics": f"{_MODULE}.metrics",
        "fastai.train": f"{_MODULE}.train",
        **{f"fastai.callbacks.{name}": f"{_MODULE}.callbacks.{module}" for name, module in _PACKAGE.items()},
    },
    real=("fastai",),
    names=f"{_MODULE}.basics",
    stars={
        **{f"fastai.{path}": names for path, names in STAR["stars"].items()},
        "fastai.callbacks.mem": ("CpuPeakMemMetric", "PeakMemMetric"),
    },
)  # fmt: skip
