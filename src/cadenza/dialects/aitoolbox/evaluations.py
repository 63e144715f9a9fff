"""Predictions and losses over whole data sets, as callbacks of AIToolbox ask their loop for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cadenza.data import split
from cadenza.dialects.aitoolbox.collecting import Collected
from cadenza.dialects.aitoolbox.predictions import PredictionStore
from cadenza.dialects.facade import Facade

LOADERS = {"train": "train_loader", "validation": "validation_loader", "test": "test_loader"}


class Evaluations(Facade):
    """The part of the loop object that computes. What was computed is kept until the training goes on."""

    collate_batch_pred_fn: Callable[..., Any]
    pred_transform_fn: Callable[..., Any]
    prediction_store: PredictionStore
    total_iteration_idx: int
    callbacks: Any

    def predict_on_train_set(self, force_prediction: bool = False, execute_callbacks: bool = False) -> Any:
        return self._predicted("train", force_prediction, execute_callbacks)

    def predict_on_validation_set(self, force_prediction: bool = False, execute_callbacks: bool = False) -> Any:
        return self._predicted("validation", force_prediction, execute_callbacks)

    def predict_on_test_set(self, force_prediction: bool = False, execute_callbacks: bool = False) -> Any:
        return self._predicted("test", force_prediction, execute_callbacks)

    def evaluate_loss_on_train_set(self, force_prediction: bool = False, float_dict_format: bool = False) -> Any:
        return self._evaluated("train", force_prediction, float_dict_format)

    def evaluate_loss_on_validation_set(self, force_prediction: bool = False, float_dict_format: bool = False) -> Any:
        return self._evaluated("validation", force_prediction, float_dict_format)

    def evaluate_loss_on_test_set(self, force_prediction: bool = False, float_dict_format: bool = False) -> Any:
        return self._evaluated("test", force_prediction, float_dict_format)

    def evaluate_model_loss(self, data_loader: Iterable[Any], float_dict_format: bool = False) -> Any:
        """The mean loss over ``data_loader``: a number, or with ``float_dict_format`` a dict of it by name."""
        value = self.run.evaluate(data_loader)["loss"]
        return {"loss": value} if float_dict_format else value

    def predict_with_model(
        self, data_loader: Iterable[Any], execute_callbacks: bool = False, dataset_info: dict[str, str] | None = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Predictions, targets and further data for ``data_loader``. The run is as it was afterwards."""
        collected = Collected(self.collate_batch_pred_fn, self.pred_transform_fn)
        hooks = [one.on_after_batch_prediction for one in self.callbacks] if execute_callbacks else []

        def watched() -> Iterator[Any]:
            for batch in data_loader:
                yield batch  # the run computes run.output before it asks for the next
                found = (self.run.output, *self._answers(batch))
                collected.add(*found)
                for hook in hooks:
                    hook(*found, dataset_info)

        self.run.predict(watched())
        return collected.whole()

    def _answers(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """The targets and further data of the batch that was just predicted."""
        return split(batch)[1], {}

    def _predicted(self, dataset: str, force: bool, execute_callbacks: bool) -> Any:
        store, now, what = self.prediction_store, self.total_iteration_idx, f"{dataset}_predictions"
        if force or not store.has(what, now):
            found = self.predict_with_model(self._loader(dataset), execute_callbacks, {"type": dataset})
            store.insert(what, found, now, force_prediction=True)
        return store.get(what, now)

    def _evaluated(self, dataset: str, force: bool, as_dict: bool) -> Any:
        store, now, what = self.prediction_store, self.total_iteration_idx, f"{dataset}_loss"
        if force or not store.has(what, now):
            store.insert(what, self.evaluate_model_loss(self._loader(dataset)), now, force_prediction=True)
        value = store.get(what, now)
        return {"loss": value} if as_dict and not isinstance(value, dict) else value

    def _loader(self, dataset: str) -> Any:
        loader = getattr(self, LOADERS[dataset])
        if loader is None:
            raise ValueError(f"aitoolbox: this loop has no {LOADERS[dataset]}, so there is nothing to compute it on")
        return loader
