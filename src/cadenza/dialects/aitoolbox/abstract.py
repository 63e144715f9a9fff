"""The classes that users derive their callbacks from, and how they are played."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cadenza.dialects.adapter import Adapter, Foreign, Section
from cadenza.dialects.aitoolbox.folders import check_cloud
from cadenza.dialects.aitoolbox.loop_object import LoopObject
from cadenza.dialects.aitoolbox.messages import MessageService
from cadenza.dialects.aitoolbox.table import DIALECT
from cadenza.dialects.table import Hook
from cadenza.registration.checks import CallbackError

if TYPE_CHECKING:
    from cadenza.run import Run


class LoopSection(Section):
    """Keeps the loop object of one trainer up to date, before any callback of this dialect looks at it."""

    dialect = DIALECT
    facade_class = LoopObject
    facade: LoopObject

    def bookkeeping(self) -> dict[str, Callable[[Run], Any]]:
        loop = self.facade
        return {
            "before_epoch": loop.begin_epoch, "after_train_epoch": loop.end_train_epoch, "after_epoch": loop.end_epoch,
            "before_train_iter": loop.begin_batch, "after_train_iter": loop.end_batch,
            "after_val_iter": loop.end_val_batch, "after_run": loop.end_training,
        }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.adapters: list[CallbackAdapter] = []

    def join(self, run: Run) -> None:
        super().join(run)
        if run.mode == "fit":
            self.facade.begin_training(self)
            for one in self.adapters:  # in the order in which they were added, not in that in which they play
                if one in run.callbacks:
                    one.foreign.register_train_loop_object(self.facade)

    def state_dict(self) -> dict[str, Any]:
        return self.facade.kept()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.facade.take_back(state)


class CallbackAdapter(Adapter):
    """Plays one callback. It is always registered, so that it knows its loop."""

    foreign: AbstractCallback

    def __init__(self, foreign: Foreign, section: LoopSection) -> None:
        super().__init__(foreign, section)
        section.adapters.append(self)
        if not hasattr(foreign, "callback_name"):
            kind = type(foreign).__name__
            raise CallbackError(f"aitoolbox: {kind} has no callback_name: call super().__init__(name) in its __init__")
        self.name = self.foreign.callback_name or type(foreign).__name__
        place = self.foreign.device_idx_execution
        self.ranks = "all" if place is None else frozenset({place})

    def order_of(self, foreign: Foreign) -> int:
        return int(getattr(foreign, "execution_order", 0))

    def points_of(self, row: Hook) -> tuple[str, ...]:
        return () if row.name == "register_train_loop_object" else row.points  # the section registers all of them

    def player(self, row: Hook, point: str) -> Callable[[Run], Any]:
        method: Callable[..., Any] = getattr(self.foreign, row.name)
        if row.name == "on_after_gradient_update":
            return lambda run: [method(index) for index in range(len(run.optimizers))]
        if row.name == "on_after_optimizer_step":
            return lambda run: [method() for _ in run.optimizers]
        if row.name == "on_multiprocess_start":
            return lambda run: method() if run.world_size > 1 else None
        return super().player(row, point)


class AbstractCallback(Foreign):
    """The base of callbacks. Override hooks; the loop is ``self.train_loop_obj`` from the registration on.

    >>> class Report(AbstractCallback):
    ...     def __init__(self):
    ...         super().__init__("report")
    ...     def on_epoch_end(self):
    ...         print(f"epoch {self.train_loop_obj.epoch} is over")
    """

    __dialect_base__ = True
    dialect = DIALECT
    section_class = LoopSection
    adapter_class = CallbackAdapter

    def __init__(
        self, callback_name: str, execution_order: int = 0, device_idx_execution: int | None = None, **kwargs: Any
    ) -> None:
        if kwargs:
            raise TypeError(f"aitoolbox: AbstractCallback has no argument {next(iter(kwargs))!r}")
        self.callback_name = callback_name
        self.execution_order = execution_order
        self.device_idx_execution = device_idx_execution
        self.train_loop_obj: Any = None
        self.message_service: MessageService = MessageService()

    def register_train_loop_object(self, train_loop_obj: Any) -> AbstractCallback:
        """Keeps the loop and its message service, and says so to ``on_train_loop_registration``."""
        self.train_loop_obj = train_loop_obj
        self.message_service = train_loop_obj.message_service
        self.on_train_loop_registration()
        return self

    def on_train_loop_registration(self) -> None: ...
    def on_multiprocess_start(self) -> None: ...
    def on_train_begin(self) -> None: ...
    def on_epoch_begin(self) -> None: ...
    def on_batch_begin(self) -> None: ...
    def on_after_gradient_update(self, optimizer_idx: int) -> None: ...
    def on_after_optimizer_step(self) -> None: ...
    def on_batch_end(self) -> None: ...
    def on_epoch_end(self) -> None: ...
    def on_train_end(self) -> None: ...
    def on_after_batch_prediction(
        self, y_pred_batch: Any, y_test_batch: Any, metadata_batch: Any, dataset_info: Any
    ) -> None: ...


PLACE = ("project_name", "experiment_name", "local_model_result_folder_path")
CLOUD = ("cloud_save_mode", "bucket_name", "cloud_dir_prefix")


class AbstractExperimentCallback(AbstractCallback):
    """A callback that knows the project, the experiment and its folder, as given or as the loop knows them."""

    __dialect_base__ = True

    def __init__(
        self, callback_name: str, project_name: str | None = None, experiment_name: str | None = None,
        local_model_result_folder_path: str | None = None, cloud_save_mode: str | None = None,
        bucket_name: str | None = None, cloud_dir_prefix: str | None = None, execution_order: int = 0,
        device_idx_execution: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(callback_name, execution_order, device_idx_execution)
        check_cloud(cloud_save_mode)
        self.project_name, self.experiment_name = project_name, experiment_name
        self.local_model_result_folder_path = local_model_result_folder_path
        self.cloud_save_mode, self.bucket_name, self.cloud_dir_prefix = cloud_save_mode, bucket_name, cloud_dir_prefix

    def try_infer_experiment_details(self, infer_cloud_details: bool = False) -> None:
        """Fills in what was not given from the loop, or from ``run.experiment``. If neither knows an experiment,
        AttributeError."""
        for name in (*PLACE, *(CLOUD if infer_cloud_details else ())):
            if getattr(self, name) is None:
                setattr(self, name, getattr(self.train_loop_obj, name))


__all__ = ["AbstractCallback", "AbstractExperimentCallback"]
