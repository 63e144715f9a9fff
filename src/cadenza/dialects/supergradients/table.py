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
    _hook("on_train_batch_gradient_step_start", ("before_step",), "Only when a step follows; gradients are unscaled."),
    _hook("on_train_batch_gradient_step_end", ("after_zero_grad",), "After zero_grad and the update of an EMA."),
    _hook("on_train_batch_end", ("after_train_iter",)),
    _hook("on_train_loader_end", ("after_train_epoch",), "`metrics_dict` holds the metrics of training."),
    _hook("on_validation_loader_start", ("before_val_epoch",)),
    _hook("on_validation_batch_start", ("before_val_iter",), "The context is whole, as in training."),
    _hook("on_validation_batch_end", ("after_val_iter",), "The context is whole, as in training."),
    _hook("on_validation_loader_end", ("after_val_epoch",), "`metrics_dict` holds the metrics of validation."),
    _hook("on_test_loader_start", ("before_test_epoch",), "Of several test loaders, before the first."),
    _hook("on_test_start", ("before_test_epoch",), "What one list of the documentation calls on_test_loader_start."),
    _hook("on_test_batch_start", ("before_test_iter",), "The context is whole, as in training."),
    _hook("on_test_batch_end", ("after_test_iter",), "The context is whole, as in training."),
    _hook("on_test_loader_end", ("after_test_epoch",), "Of several test loaders, after the last."),
    _hook("on_test_end", ("after_test_epoch",), "What one list of the documentation calls on_test_loader_end."),
    _hook("on_validation_end_best_epoch", ("after_best",), "Also without `save_model`; on all processes."),
    _hook("on_average_best_models_validation_start", ("after_run",), "Also if no averaged model is validated.", FIT),
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
    Attribute("metrics_compute_fn", "", "The metrics of this pass, with `update`, `compute`, `reset` and `clone`."),
    Attribute("loss_avg_meter", "", "Its `average` is the mean of the losses of this pass."),
    Attribute("loss_log_items", "", "On the device; reading a number from it waits."),
    Attribute("criterion", "criterion"),
    Attribute("device", "device", 'A text, such as "cuda".'),
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
    Attribute("ema_model", "", "Cadenza's `EMA`, if there is one; in `Trainer.train` its `ema` is a model."),
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
    Ask("@multi_process_safe", (), "The method runs, and returns, on the first process of each machine."),
)

_WHY = {
    "it sends models to a vendor": "DeciLabUploadCallback DeciPlatformSGLogger deci_platform_sg_logger",
    "it sends results to a vendor; derive a logger from BaseSGLogger and register it": "clearml_sg_logger "
    "dagshub_sg_logger ClearMLSGLogger DagsHubSGLogger",
    "it is a vendor's benchmark; write a Callback with on_training_end": "RoboflowResultCallback",
    "use the W&B tracker of cadenza's experiment": "wandb_sg_logger WandBSGLogger",
    "models of the zoo, their losses and their post-processing are not carried; register a model of your own": "models "
    "yolox_loss YoloXDetectionLoss super_gradients.training.models super_gradients.training.losses "
    "super_gradients.training.datasets super_gradients.training.dataloaders super_gradients.common.plugins "
    "super_gradients.training.utils.detection_utils super_gradients.training.utils.segmentation_utils DetectionMetrics "
    "super_gradients.training.processing DetectionMetrics_050 DetectionMetrics_050_095 DetectionMetrics_075",
    "the metrics of segmentation and depth are not carried; any metric of torchmetrics will do": "IoU Dice BinaryIOU "
    "BinaryDice PixelAccuracy super_gradients.training.metrics.segmentation_metrics",
    "objects are found by the registries": "super_gradients.common.factories super_gradients.common.decorators",
    "recipes of the zoo are not carried; give training parameters as a dict": "training_hyperparams train_from_recipe",
    "the trainer is not handed out; use context.net and context.update_context": "context_methods",
    "it is called Trainer since release 3": "SgModel",
    "data sets of the zoo are not carried; give the loaders to Trainer.train": "dataloaders Dataloaders Datasets "
    "super_gradients.training.transforms Lighting RandomErase RandomResizedCropAndInterpolation",
    "pose estimation is not carried": "DEKRVisualizationCallback ExtremeBatchPoseEstimationVisualizationCallback",
    "it changes a model of the zoo; derive from TrainingStageSwitchCallbackBase": "PPYoloETrainingStageSwitchCallback",
    "it changes models of the zoo; derive from Callback": "SlidingWindowValidationCallback",
    "quantisation is not carried": "QATRecipeModificationCallback QATTrainer quantize_from_config ptq qat "
    "super_gradients.training.quantization",
    "distillation is not carried; write a MainCallback that calls both models": "KDTrainer "
    "KDModelMetricsUpdateCallback super_gradients.training.kd_trainer",
    "metrics are updated by the trainer; name them in train_metrics_list, valid_metrics_list": "MetricsUpdateCallback",
    "it was an aid for the original's own tests; write a PhaseCallback": "TestLRCallback PhaseContextTestCallback",
    "use cadenza.callbacks.find_batch_size": "AutoTrainBatchSizeSelectionCallback",
    "build the model and call Trainer.test": "evaluate evaluate_from_config evaluate_from_recipe",
    "load the checkpoint's net into the model and call Trainer.test": "evaluate_checkpoint",
    "resume=True, run_id or resume_path among the training parameters does it": "resume_experiment",
}
REFUSED = {name: why for why, names in _WHY.items() for name in names.split()}

_PATHS = {
    "": "super_gradients",
    ".training": "training training.sg_trainer training.sg_trainer.sg_trainer",
    ".parameters": "training.params",
    ".metrics": "training.metrics training.metrics.classification_metrics",
    ".carried": "training.utils training.utils.utils training.utils.sg_trainer_utils common.data_types "
    "common.data_types.enum common.abstractions.abstract_logger pkg_resources",
    ".pre_prediction": "training.datasets.datasets_utils",
    ".callbacks": "training.utils.callbacks training.utils.callbacks.callbacks",
    ".callback": "training.utils.callbacks.base_callbacks",
    ".early_stop": "training.utils.early_stopping",
    ".registry": "training.pre_launch_callbacks common.registry common.registry.registry",
    ".environment": "training.utils.distributed_training_utils common common.environment common.environment.ddp_utils",
    ".object_names": "common.object_names",
    ".loggers": "common.sg_loggers common.sg_loggers.base_sg_logger",
    ".recipes": "recipes",
}
_TOPS = ("super_gradients", "pkg_resources")
MODULES = {
    path if path in _TOPS else f"super_gradients.{path}": f"cadenza.dialects.supergradients{module}"
    for module, paths in _PATHS.items()
    for path in paths.split()
}

DIALECT = Dialect(
    "supergradients", "SuperGradients 3.7.1", "context", HOOKS, ATTRIBUTES, REQUESTS, REFUSED,
    prefixes=("on_",), modules=MODULES, real=("super_gradients",), names="cadenza.dialects.supergradients.carried",
)  # fmt: skip
