"""Predictions and losses that were already computed since the last step: ``train_loop_obj.prediction_store``."""

from __future__ import annotations

from typing import Any


class PredictionStore:
    """Keeps what was computed for a data set until the training goes on by one iteration.

    >>> store = PredictionStore()
    >>> store.insert("validation_loss", 0.5, iteration=3)
    >>> store.has("validation_loss", iteration=3), store.has("validation_loss", iteration=4)
    (True, False)
    """

    def __init__(self) -> None:
        self.iteration: int | None = None
        self.kept: dict[str, Any] = {}

    def auto_purge(self, iteration: int) -> None:
        """Lets go of everything that was computed in another iteration than this."""
        if iteration != self.iteration:
            self.iteration = iteration
            self.kept.clear()

    def has(self, what: str, iteration: int) -> bool:
        self.auto_purge(iteration)
        return what in self.kept

    def get(self, what: str, iteration: int) -> Any:
        if not self.has(what, iteration):
            raise ValueError(f"nothing was computed for {what!r} in iteration {iteration}; ask the loop to predict")
        return self.kept[what]

    def insert(self, what: str, value: Any, iteration: int, force_prediction: bool = False) -> None:
        if self.has(what, iteration) and not force_prediction:
            raise ValueError(
                f"{what!r} was already computed in iteration {iteration}; force_prediction=True replaces it"
            )
        self.kept[what] = value
