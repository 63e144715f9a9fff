"""The points at which a phase callback is called, by their older names."""

from __future__ import annotations

from enum import Enum, unique

from cadenza.dialects.table import nearest


@unique
class Phase(Enum):
    """When a ``PhaseCallback`` is called. Each member stands for one method of ``Callback``."""

    PRE_TRAINING = "PRE_TRAINING"
    TRAIN_EPOCH_START = "TRAIN_EPOCH_START"
    TRAIN_BATCH_END = "TRAIN_BATCH_END"
    TRAIN_BATCH_STEP = "TRAIN_BATCH_STEP"
    TRAIN_EPOCH_END = "TRAIN_EPOCH_END"
    VALIDATION_BATCH_END = "VALIDATION_BATCH_END"
    VALIDATION_EPOCH_END = "VALIDATION_EPOCH_END"
    VALIDATION_END_BEST_EPOCH = "VALIDATION_END_BEST_EPOCH"
    TEST_BATCH_END = "TEST_BATCH_END"
    TEST_END = "TEST_END"
    AVERAGE_BEST_MODELS_VALIDATION_START = "AVERAGE_BEST_MODELS_VALIDATION_START"
    AVERAGE_BEST_MODELS_VALIDATION_END = "AVERAGE_BEST_MODELS_VALIDATION_END"
    POST_TRAINING = "POST_TRAINING"

    @staticmethod
    def from_string(name: str) -> Phase:
        """The phase of this name.

        >>> Phase.from_string("train_epoch_end")
        <Phase.TRAIN_EPOCH_END: 'TRAIN_EPOCH_END'>
        """
        return as_phase(name)


METHOD: dict[Phase, str] = {
    Phase.PRE_TRAINING: "on_training_start",
    Phase.TRAIN_EPOCH_START: "on_train_loader_start",
    Phase.TRAIN_BATCH_END: "on_train_batch_loss_end",
    Phase.TRAIN_BATCH_STEP: "on_train_batch_gradient_step_end",
    Phase.TRAIN_EPOCH_END: "on_train_loader_end",
    Phase.VALIDATION_BATCH_END: "on_validation_batch_end",
    Phase.VALIDATION_EPOCH_END: "on_validation_loader_end",
    Phase.VALIDATION_END_BEST_EPOCH: "on_validation_end_best_epoch",
    Phase.TEST_BATCH_END: "on_test_batch_end",
    Phase.TEST_END: "on_test_loader_end",
    Phase.AVERAGE_BEST_MODELS_VALIDATION_START: "on_average_best_models_validation_start",
    Phase.AVERAGE_BEST_MODELS_VALIDATION_END: "on_average_best_models_validation_end",
    Phase.POST_TRAINING: "on_training_end",
}
"""The method that each phase stands for."""


def as_phase(phase: Phase | str) -> Phase:
    """A phase, given as such or by its name, as a recipe gives it; case does not matter."""
    if isinstance(phase, Phase):
        return phase
    name = str(phase).removeprefix("Phase.").upper()
    if name in Phase.__members__:
        return Phase[name]
    near = nearest(name, Phase.__members__)
    hint = f"; did you mean Phase.{near}?" if near else "."
    raise ValueError(f"supergradients: {phase!r} is no phase{hint} There are {', '.join(Phase.__members__)}")
