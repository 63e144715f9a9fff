"""The rows of the AIToolbox dialect: what its names mean here, and where they differ."""

from __future__ import annotations

from cadenza.dialects.table import Ask, Attribute, Dialect, Hook

FIT = ("fit",)

HOOKS = (
    Hook("register_train_loop_object", ("after_register",),
         "It keeps the loop and its message service on the callback, then calls on_train_loop_registration.",
         ("train_loop_obj",), calls="on_train_loop_registration", modes=FIT),
    Hook("on_train_loop_registration", ()),
    Hook("on_multiprocess_start", ("after_launch",), "Only where there are several processes.", modes=FIT),
    Hook("on_train_begin", ("before_run",), "Only in fit.", modes=FIT),
    Hook("on_epoch_begin", ("before_epoch",)),
    Hook("on_batch_begin", ("before_train_iter",), "By then `total_iteration_idx` is that of this batch."),
    Hook("on_after_gradient_update", ("after_backward",),
         "Once for each optimizer, with its index; it needs no `grad_cb_used`. With several optimizers all gradients "
         "are there at the first call.", ("optimizer_idx",)),
    Hook("on_after_optimizer_step", ("after_step",), "Once for each optimizer; it needs no grad_cb_used."),
    Hook("on_batch_end", ("after_train_iter",)),
    Hook("on_epoch_end", ("after_epoch",), "The losses of the epoch are in train_history by now."),
    Hook("on_train_end", ("after_run",), "Only in fit.", modes=FIT),
    Hook("on_after_batch_prediction", (),
         "Called for each batch of predict_on_*_set(execute_callbacks=True), unless the answer was kept.",
         ("y_pred_batch", "y_test_batch", "metadata_batch", "dataset_info")),
)  # fmt: skip

_NAMES = {
    "Kept by the loop: setting it is refused.": "gpu_mode prediction_store message_service callbacks_handler",
    "May be set: it is used from the next epoch on.": "train_loader validation_loader",
    "May be set; the fit is as long as fit() was told.": "num_epochs num_iterations",
    "Of an experiment loop, else of run.experiment.": "project_name experiment_name",
    "": "batch_model_feed_def test_loader num_optimizers collate_batch_pred_fn pred_transform_fn end_auto_eval "
    "lazy_experiment_save print_callbacks use_amp amp_scaler amp_scaler_init experiment_timestamp iteration "
    "train_history ddp_training_mode callbacks early_stop predict_on_train_set predict_on_validation_set "
    "predict_on_test_set evaluate_loss_on_train_set evaluate_loss_on_validation_set evaluate_loss_on_test_set "
    "evaluate_model_loss predict_with_model get_schedulers get_num_training_steps should_execute_optimizer_update "
    "is_main_process parse_loss hyperparams cloud_save_mode bucket_name cloud_dir_prefix source_dirs "
    "rm_subopt_local_models iteration_save_freq val_result_package test_result_package",
}
"""What there is to say of several names at once: nothing, of most."""
ATTRIBUTES = (
    Attribute("model", "module", "May be set: the run goes on with that module."),
    Attribute("optimizer", "", "May be set: the run steps that one from now on."),
    Attribute("criterion", "", "May be set."),
    Attribute("device", "device"),
    Attribute("loss_batch_accum", "", "Losses of the batches of this epoch; skipped ones are left out."),
    Attribute("epoch", "", "May be set: the training continues there at its beginning; later it is only a number."),
    Attribute("total_iteration_idx", "", "Continues over several fits, and after a resume."),
    Attribute("grad_accumulation", "", "May be set: it counts from this batch on."),
    Attribute("ddp_handler", "", "None: processes are started from outside and the trainer wraps the model."),
    Attribute("ddp_rank", "", "None on a single process."),
    Attribute("grad_cb_used", "", "May be set and changes nothing: the gradient hooks are always called."),
    Attribute("insert_metric_result_into_history", "", "Also logged in the run under the same name."),
    Attribute("local_model_result_folder_path", "", "Of an experiment loop, else the root of run.experiment."),
    *(Attribute(name, "", says) for says, names in _NAMES.items() for name in names.split()),
)

REQUESTS = (
    Ask("train_loop_obj.early_stop = True", ("stop",),
        "The epoch goes on to its end, validation included, then the fit ends. The flag is cleared at each fit; set on "
        "one process it stops all."),
    Ask("device_idx_execution=k", (), "The callback plays in the process of rank k alone, on CPU as on GPU."),
    Ask("execution_order=n", (), "Counted from the order of native callbacks, 200: n = 100 plays at 300."),
)  # fmt: skip

_REFUSED = {
    "use the W&B tracker of cadenza's experiment": "WandBTracking aitoolbox.torchtrain.callbacks.wandb",
    "it belongs to WandBTracking; use the W&B tracker of cadenza's experiment": "AlertConfig",
    "torch.nn.DataParallel is not carried; start several processes and use gpu_mode='ddp'": "TTBasicMultiGPUModel "
    "TTDataParallel MultiGPUModelWrap",
    "each process builds its own loaders in its own script": "InMultiProcessDataLoad",
    "the trainer tells each sampler its epoch": "DistributedSamplerSetEpoch",
    "the trainer tells each sampler its epoch; loaders are built by the script": "aitoolbox.torchtrain.callbacks.ddp",
    "give the metrics to cadenza.callbacks.Metrics, or compute them in an AbstractResultPackage of your own": (
        "TorchMetricsPackage aitoolbox.experiment.result_package.torch_metrics_packages"
    ),
    "give the model to TrainLoop, and use TrainLoopCheckpointEndSave": "aitoolbox.experiment.local_experiment_saver",
    "it is of a version before 1.8; use TrainLoop(..., gpu_mode='ddp') and fit": "fit_distributed",
    "use predict and validate of cadenza.Trainer": "PyTorchModelPredictor aitoolbox.torchtrain.model_predict",
    "compute it in an AbstractResultPackage of your own": "HFEvaluateResultPackage "
    "aitoolbox.experiment.result_package.hf_evaluate_packages",
    "task models and their metrics are not carried; write an AbstractResultPackage of your own": "NLPResultPackage "
    "aitoolbox.nlp",
}
REFUSED = {name: why for why, names in _REFUSED.items() for name in names.split()}

_CALLBACKS = ("abstract", "basic", "performance_eval", "model_save", "gradient", "model_load", "tensorboard")
_PATHS = {
    "": ". torchtrain torchtrain.callbacks",
    ".models": "torchtrain.model torchtrain.data torchtrain.data.batch_model_feed_defs",
    ".multi": "torchtrain.multi_loss_optim",
    ".train_loop": "torchtrain.train_loop torchtrain.train_loop.train_loop torchtrain.train_loop.train_loop_tracking",
    ".messages": "torchtrain.train_loop.components torchtrain.train_loop.components.message_passing",
    ".components": "torchtrain.train_loop.components.callback_handler "
    "torchtrain.train_loop.components.model_prediction_store torchtrain.train_loop.components.pred_collate_fns "
    "experiment.training_history",
    ".train_schedule": "torchtrain.callbacks.train_schedule torchtrain.schedulers torchtrain.schedulers.basic "
    "torchtrain.schedulers.warmup",
    ".core_metrics": "experiment.core_metrics experiment.core_metrics.abstract_metric "
    "experiment.core_metrics.classification experiment.core_metrics.regression",
    ".results": "experiment experiment.result_package experiment.result_package.abstract_result_packages "
    "experiment.result_package.basic_packages",
    **{f".{name}": f"torchtrain.callbacks.{name}" for name in _CALLBACKS},
}
"""Our modules, and the paths below ``aitoolbox`` that lead to them."""
MODULES = {
    f"aitoolbox.{path}".rstrip("."): f"{__package__}{module}"
    for module, paths in _PATHS.items()
    for path in paths.split()
}

DIALECT = Dialect(
    "aitoolbox", "AIToolbox 1.8.0", "train_loop_obj", HOOKS, ATTRIBUTES, REQUESTS, REFUSED,
    prefixes=("on_",), modules=MODULES, real=("aitoolbox",),
)  # fmt: skip
