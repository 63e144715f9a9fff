"""The rows of the AIToolbox dialect: what its names mean here, and where they differ."""

from __future__ import annotations

from cadenza.dialects.table import Ask, Attribute, Dialect, Hook

FIT = ("fit",)
BATCH_PREDICTION = ("y_pred_batch", "y_test_batch", "metadata_batch", "dataset_info")

HOOKS = (
    Hook(
        "register_train_loop_object",
        ("after_register",),
        "It keeps the loop and its message service on the callback, then calls on_train_loop_registration.",
        arguments=("train_loop_obj",),
        calls="on_train_loop_registration",
        modes=FIT,
    ),
    Hook("on_train_loop_registration", (), "In the order of execution_order, as all other hooks, not of the list."),
    Hook("on_multiprocess_start", ("after_launch",), "Only where there are several processes.", modes=FIT),
    Hook("on_train_begin", ("before_run",), "Only in fit.", modes=FIT),
    Hook("on_epoch_begin", ("before_epoch",)),
    Hook("on_batch_begin", ("before_train_iter",), "By then `total_iteration_idx` is that of this batch."),
    Hook(
        "on_after_gradient_update",
        ("after_backward",),
        "Once for each optimizer, with its index; it needs no `grad_cb_used`. With several optimizers all gradients "
        "are there at the first call.",
        arguments=("optimizer_idx",),
    ),
    Hook("on_after_optimizer_step", ("after_step",), "Once for each optimizer; it needs no grad_cb_used."),
    Hook("on_batch_end", ("after_train_iter",)),
    Hook("on_epoch_end", ("after_epoch",), "The losses of the epoch are in train_history by now."),
    Hook("on_train_end", ("after_run",), "Only in fit.", modes=FIT),
    Hook(
        "on_after_batch_prediction",
        (),
        "Called for each batch of predict_on_*_set(execute_callbacks=True), unless the answer was kept.",
        arguments=BATCH_PREDICTION,
    ),
)

ATTRIBUTES = (
    Attribute("model", "module", "May be set: the run goes on with that module."),
    Attribute("batch_model_feed_def"),
    Attribute("train_loader", "", "May be set: it is used from the next epoch on."),
    Attribute("validation_loader", "", "May be set: it is used from the next epoch on."),
    Attribute("test_loader"),
    Attribute("optimizer", "", "May be set: the run steps that one from now on."),
    Attribute("criterion", "", "May be set."),
    Attribute("num_optimizers"),
    Attribute("collate_batch_pred_fn"),
    Attribute("pred_transform_fn"),
    Attribute("end_auto_eval"),
    Attribute("lazy_experiment_save"),
    Attribute("print_callbacks"),
    Attribute("gpu_mode"),
    Attribute("use_amp"),
    Attribute("amp_scaler", "scaler"),
    Attribute("amp_scaler_init"),
    Attribute("device", "device"),
    Attribute("experiment_timestamp"),
    Attribute("loss_batch_accum", "", "Losses of the batches of this epoch; skipped ones are left out."),
    Attribute("epoch", "epoch"),
    Attribute("iteration"),
    Attribute("total_iteration_idx", "", "Goes on over several fits, and after a resume."),
    Attribute("num_epochs", "num_epochs"),
    Attribute("num_iterations"),
    Attribute("grad_accumulation"),
    Attribute("train_history"),
    Attribute("prediction_store"),
    Attribute("message_service"),
    Attribute("ddp_training_mode"),
    Attribute("ddp_handler", "", "None: processes are started from outside and the trainer wraps the model."),
    Attribute("ddp_rank", "rank"),
    Attribute("callbacks"),
    Attribute("callbacks_handler"),
    Attribute("early_stop"),
    Attribute("grad_cb_used", "", "May be set and changes nothing: the gradient hooks are always called."),
    Attribute("predict_on_train_set"),
    Attribute("predict_on_validation_set"),
    Attribute("predict_on_test_set"),
    Attribute("evaluate_loss_on_train_set", "", "The mean over samples: a smaller last batch weighs less."),
    Attribute("evaluate_loss_on_validation_set", "", "The mean over samples: a smaller last batch weighs less."),
    Attribute("evaluate_loss_on_test_set", "", "The mean over samples: a smaller last batch weighs less."),
    Attribute("evaluate_model_loss"),
    Attribute("predict_with_model"),
    Attribute("insert_metric_result_into_history", "", "Also logged in the run under the same name."),
    Attribute("get_schedulers"),
    Attribute("get_num_training_steps"),
    Attribute("should_execute_optimizer_update"),
    Attribute("is_main_process"),
    Attribute("parse_loss"),
    Attribute("project_name", "", "Of an experiment loop, else of run.experiment."),
    Attribute("experiment_name", "", "Of an experiment loop, else of run.experiment."),
    Attribute("local_model_result_folder_path", "", "Of an experiment loop, else the root of run.experiment."),
    Attribute("hyperparams"),
    Attribute("cloud_save_mode", "", "None: nothing is uploaded."),
    Attribute("bucket_name", "", "None: nothing is uploaded."),
    Attribute("cloud_dir_prefix", "", "Empty: nothing is uploaded."),
    Attribute("source_dirs"),
    Attribute("rm_subopt_local_models"),
    Attribute("iteration_save_freq"),
    Attribute("val_result_package"),
    Attribute("test_result_package"),
)

REQUESTS = (
    Ask(
        "train_loop_obj.early_stop = True",
        ("stop",),
        "The epoch goes on to its end, validation included, then the fit ends. The flag is cleared at each fit; set on "
        "one process it stops all.",
    ),
    Ask(
        "device_idx_execution=k",
        (),
        "The callback plays in the process of rank k alone, on CPU as on GPU.",
    ),
    Ask("execution_order=n", (), "Counted from the order of native callbacks, 200: n = 100 plays at 300."),
)

_UPLOAD = "files stay on this machine; copy the experiment's folder with the tools of your cloud"
REFUSED = {
    "EmailNotification": "mail through a vendor's service; use cadenza.callbacks.Notify with a channel of your own",
    "LogUpload": _UPLOAD,
    "WandBTracking": "use the W&B tracker of cadenza's experiment",
    "AlertConfig": "it belongs to WandBTracking; use the W&B tracker of cadenza's experiment",
    "TTBasicMultiGPUModel": "torch.nn.DataParallel is not carried; start several processes and use gpu_mode='ddp'",
    "MultiGPUModelWrap": "torch.nn.DataParallel is not carried; start several processes and use gpu_mode='ddp'",
    "InMultiProcessDataLoad": "each process builds its own loaders in its own script",
    "DistributedSamplerSetEpoch": "the trainer tells each sampler its epoch",
    "HFEvaluateResultPackage": "compute it in an AbstractResultPackage of your own",
    "NLPResultPackage": "task metrics are not carried; compute them in an AbstractResultPackage of your own",
    "S3ModelSaver": _UPLOAD,
    "GoogleStorageModelSaver": _UPLOAD,
}

_HERE = "cadenza.dialects.aitoolbox"
MODULES = {
    "aitoolbox": f"{_HERE}",
    "aitoolbox.torchtrain": f"{_HERE}",
    "aitoolbox.torchtrain.model": f"{_HERE}.models",
    "aitoolbox.torchtrain.multi_loss_optim": f"{_HERE}.multi",
    "aitoolbox.torchtrain.data": f"{_HERE}.models",
    "aitoolbox.torchtrain.data.batch_model_feed_defs": f"{_HERE}.models",
    "aitoolbox.torchtrain.train_loop": f"{_HERE}.train_loop",
    "aitoolbox.torchtrain.train_loop.train_loop": f"{_HERE}.train_loop",
    "aitoolbox.torchtrain.train_loop.components": f"{_HERE}.messages",
    "aitoolbox.torchtrain.train_loop.components.message_passing": f"{_HERE}.messages",
    "aitoolbox.torchtrain.callbacks": f"{_HERE}",
    "aitoolbox.torchtrain.callbacks.abstract": f"{_HERE}.abstract",
    "aitoolbox.torchtrain.callbacks.basic": f"{_HERE}.basic",
    "aitoolbox.torchtrain.callbacks.performance_eval": f"{_HERE}.performance_eval",
    "aitoolbox.torchtrain.callbacks.model_save": f"{_HERE}.model_save",
    "aitoolbox.torchtrain.callbacks.train_schedule": f"{_HERE}.train_schedule",
    "aitoolbox.torchtrain.callbacks.gradient": f"{_HERE}.gradient",
    "aitoolbox.torchtrain.callbacks.model_load": f"{_HERE}.model_load",
    "aitoolbox.torchtrain.callbacks.tensorboard": f"{_HERE}.tensorboard",
    "aitoolbox.experiment": f"{_HERE}.results",
    "aitoolbox.experiment.result_package": f"{_HERE}.results",
    "aitoolbox.experiment.result_package.abstract_result_packages": f"{_HERE}.results",
    "aitoolbox.experiment.result_package.basic_packages": f"{_HERE}.results",
    "aitoolbox.experiment.training_history": f"{_HERE}.history",
}

DIALECT = Dialect(
    "aitoolbox",
    "AIToolbox 1.8.0",
    "train_loop_obj",
    HOOKS,
    ATTRIBUTES,
    REQUESTS,
    refused=REFUSED,
    prefixes=("on_",),
    modules=MODULES,
    real=("aitoolbox",),
)
