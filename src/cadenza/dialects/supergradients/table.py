"""The rows of the SuperGradients dialect: what its names mean here, and where they differ."""

from __future__ import annotations

from cadenza.dialects.table import Ask, Attribute, Dialect, Hook

FIT = ("fit",)
CONTEXT = ("context",)


def _hook(name: str, points: tuple[str, ...], says: str = "", modes: tuple[str, ...] | None = None) -> Hook:
    return Hook(name, points, says, CONTEXT) if modes is None else Hook(name, points, says, CONTEXT, modes=modes)


HOOKS = (
    _hook("on_training_start", ("before_run",), "Only in fit; `epoch` is None.", FIT),
    _hook("on_train_loader_start", ("before_train_epoch",)),
    _hook("on_train_batch_start", ("before_train_iter",), "After `pre_prediction_callback`."),
    _hook("on_train_batch_loss_end", ("after_loss",), "Only in training."),
    _hook("on_train_batch_backward_end", ("after_backward",)),
    _hook(
        "on_train_batch_gradient_step_start",
        ("before_step",),
        "Only when a step follows. Gradients are unscaled; whether they are clipped depends on the order of callbacks.",
    ),
    _hook(
        "on_train_batch_gradient_step_end",
        ("after_zero_grad",),
        "After the step, the scaler's update, zero_grad and the update of an EMA.",
    ),
    _hook("on_train_batch_end", ("after_train_iter",)),
    _hook("on_train_loader_end", ("after_train_epoch",), "`metrics_dict` holds the metrics of training."),
    _hook("on_validation_loader_start", ("before_val_epoch",)),
    _hook("on_validation_batch_start", ("before_val_iter",), "The context is whole, as in training."),
    _hook("on_validation_batch_end", ("after_val_iter",), "The context is whole, as in training."),
    _hook("on_validation_loader_end", ("after_val_epoch",), "`metrics_dict` holds the metrics of validation."),
    _hook("on_test_loader_start", ("before_test_epoch",), "Of several test loaders, before the first."),
    _hook("on_test_batch_start", ("before_test_iter",), "The context is whole, as in training."),
    _hook("on_test_batch_end", ("after_test_iter",), "The context is whole, as in training."),
    _hook("on_test_loader_end", ("after_test_epoch",), "Of several test loaders, after the last."),
    _hook(
        "on_validation_end_best_epoch",
        ("after_best",),
        "On all processes, also without `save_model`; under a plain trainer it needs a watched metric: `Watch(...)`.",
    ),
    _hook(
        "on_average_best_models_validation_start",
        ("after_run",),
        "After the last epoch, before the averaged model is validated; also if none is.",
        FIT,
    ),
    _hook("on_average_best_models_validation_end", ("after_run",), "After the averaged model was validated.", FIT),
    _hook("on_training_end", ("after_run", "after_error"), "Only in fit; after an exception, too.", FIT),
)

ATTRIBUTES = (
    Attribute("epoch", "epoch", "None before the first; the number of epochs while the averaged model is validated."),
    Attribute("batch_idx", "batch_idx", "That of the last batch between batches."),
    Attribute("optimizer", "optimizer"),
    Attribute(
        "metrics_dict", "metrics", "By the names of the losses and metrics; tests of several sets as `set:metric`."
    ),
    Attribute("inputs", "inputs", "Those of the last batch between batches; setting it does not change the batch."),
    Attribute("preds", "output", "Those of the last batch between batches; setting it does not change the batch."),
    Attribute("target", "targets", "Those of the last batch between batches; setting it does not change the batch."),
    Attribute("metrics_compute_fn", "", "Its `compute()` gives the metrics of this pass that are known by now."),
    Attribute("loss_avg_meter", "", "Its `average` is the mean of the losses of this pass."),
    Attribute("loss_log_items", "", "On the device; reading a number from it waits."),
    Attribute("criterion", "criterion"),
    Attribute("device", "device"),
    Attribute("experiment_name"),
    Attribute("ckpt_dir", "", "A text; the folder is there in `Trainer.train`."),
    Attribute("checkpoints_dir_path", "", "The name that the documentation uses for `ckpt_dir`."),
    Attribute("net", "module"),
    Attribute("lr_warmup_epochs"),
    Attribute("sg_logger", "", "On all processes; it writes on the main one."),
    Attribute("train_loader", "train_loader"),
    Attribute("valid_loader", "val_loader"),
    Attribute("test_loader", "test_loaders", "The one that is tested; between tests the dict of all."),
    Attribute("training_params"),
    Attribute("ddp_silent_mode"),
    Attribute("checkpoint_params"),
    Attribute("architecture"),
    Attribute("arch_params"),
    Attribute("metric_to_watch"),
    Attribute("valid_metrics"),
    Attribute("ema_model", "", "Cadenza's `EMA`, if there is one."),
    Attribute("loss_logging_items_names"),
    Attribute("additional_batch_items", "", "A dict; its items are attributes of the context as well."),
    Attribute("stop_training"),
    Attribute("update_context"),
)

REQUESTS = (
    Ask(
        "context.update_context(stop_training=True)",
        ("stop",),
        "From any hook, validation and test batches included, and on any process: this epoch goes on to its end, then "
        "training ends. In `on_training_start` no epoch is begun. It is cleared at each training.",
    ),
    Ask("@multi_process_safe", (), "The method runs on the first process of each machine."),
)

_MODELS = "models of the zoo, their losses and their post-processing are not carried; register a model of your own"
_VENDOR = "it sends models to a vendor"
_QUANTIZE = "quantisation is not carried"
REFUSED = {
    "DeciLabUploadCallback": _VENDOR,
    "DeciPlatformSGLogger": _VENDOR,
    "RoboflowResultCallback": "a vendor's benchmark; write a Callback with on_training_end",
    "DEKRVisualizationCallback": "pose estimation is not carried",
    "ExtremeBatchPoseEstimationVisualizationCallback": "pose estimation is not carried",
    "PPYoloETrainingStageSwitchCallback": "it changes a model of the zoo; derive from TrainingStageSwitchCallbackBase",
    "SlidingWindowValidationCallback": "it changes models of the zoo; derive from Callback",
    "QATRecipeModificationCallback": _QUANTIZE,
    "QATTrainer": _QUANTIZE,
    "KDTrainer": "distillation is not carried; write a MainCallback that calls both models",
    "KDModelMetricsUpdateCallback": "distillation is not carried",
    "MetricsUpdateCallback": "metrics are updated by the trainer; name them in train_metrics_list, valid_metrics_list",
    "TestLRCallback": "it was an aid for the original's own tests; write a Callback that reads the optimizer's rate",
    "PhaseContextTestCallback": "it was an aid for the original's own tests; write a PhaseCallback",
    "dataloaders": "data sets of the zoo are not carried; give the loaders to Trainer.train",
    "wandb_sg_logger": "use the W&B tracker of cadenza's experiment",
    "clearml_sg_logger": "it sends results to a vendor; derive a logger from BaseSGLogger and register it",
    "dagshub_sg_logger": "it sends results to a vendor; derive a logger from BaseSGLogger and register it",
    "deci_platform_sg_logger": _VENDOR,
    "AutoTrainBatchSizeSelectionCallback": "use cadenza.callbacks.find_batch_size",
    "models": _MODELS,
    "super_gradients.training.models": _MODELS,
    "super_gradients.training.losses": _MODELS,
    "super_gradients.training.datasets": _MODELS,
    "super_gradients.training.dataloaders": _MODELS,
    "super_gradients.training.kd_trainer": "distillation is not carried",
    "super_gradients.training.quantization": _QUANTIZE,
    "WandBSGLogger": "use the W&B tracker of cadenza's experiment",
    "ClearMLSGLogger": "it sends results to a vendor; derive a logger from BaseSGLogger and register it",
    "DagsHubSGLogger": "it sends results to a vendor; derive a logger from BaseSGLogger and register it",
    "evaluate_from_config": "build the model and call Trainer.test",
    "evaluate_checkpoint": "load the checkpoint's net into the model and call Trainer.test",
    "evaluate": "call Trainer.test",
    "resume_experiment": "resume=True, run_id or resume_path among the training parameters does it",
    "quantize_from_config": _QUANTIZE,
    "ptq": _QUANTIZE,
    "qat": _QUANTIZE,
}

_HERE = "cadenza.dialects.supergradients"
_CALLBACKS = f"{_HERE}.callbacks"
MODULES = {
    "super_gradients": f"{_HERE}",
    "super_gradients.training": f"{_HERE}.training",
    "super_gradients.training.sg_trainer": f"{_HERE}.training",
    "super_gradients.training.params": f"{_HERE}.parameters",
    "super_gradients.training.metrics": f"{_HERE}.metrics",
    "super_gradients.training.utils": f"{_HERE}.training",
    "super_gradients.training.utils.callbacks": _CALLBACKS,
    "super_gradients.training.utils.callbacks.base_callbacks": f"{_HERE}.callback",
    "super_gradients.training.utils.callbacks.callbacks": _CALLBACKS,
    "super_gradients.training.utils.callbacks.extreme_batch_case_visualization_callback": f"{_HERE}.extreme_batches",
    "super_gradients.training.utils.early_stopping": f"{_HERE}.early_stop",
    "super_gradients.training.pre_launch_callbacks": f"{_HERE}.registry",
    "super_gradients.training.utils.distributed_training_utils": f"{_HERE}.environment",
    "super_gradients.common": f"{_HERE}.environment",
    "super_gradients.common.environment": f"{_HERE}.environment",
    "super_gradients.common.environment.ddp_utils": f"{_HERE}.environment",
    "super_gradients.common.registry": f"{_HERE}.registry",
    "super_gradients.common.registry.registry": f"{_HERE}.registry",
    "super_gradients.common.sg_loggers": f"{_HERE}.loggers",
    "super_gradients.common.sg_loggers.base_sg_logger": f"{_HERE}.loggers",
    "super_gradients.recipes": f"{_HERE}.recipes",
}

DIALECT = Dialect(
    "supergradients",
    "SuperGradients 3.7.1",
    "context",
    HOOKS,
    ATTRIBUTES,
    REQUESTS,
    refused=REFUSED,
    prefixes=("on_",),
    modules=MODULES,
    real=("super_gradients",),
)
