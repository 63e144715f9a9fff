"""Predictions and losses over whole data sets, as callbacks of AIToolbox ask their loop for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cadenza.data import split
from cadenza.dialects.aitoolbox.components import Collected, PredictionStore
from cadenza.dialects.aitoolbox.multi import MultiLoss
from cadenza.dialects.facade import Facade

LOADERS = {"train": "train_loader", "validation": "validation_loader", "test": "test_loader"}


def _over(method: str, dataset: str) -> Callable[..., Any]:
    """A method of the loop over one data set: ``force_prediction`` computes anew, the other argument is its own."""

    def compute(self: Any, force_prediction: bool = False, *options: bool, **named: bool) -> Any:
        return getattr(self, method)(dataset, force_prediction, *options, **named)

    return compute


class Evaluations(Facade):
    """The part of the loop object that computes. What was computed is kept until the training goes on."""

    collate_batch_pred_fn: Callable[..., Any]
    pred_transform_fn: Callable[..., Any]
    prediction_store: PredictionStore
    total_iteration_idx: int
    callbacks: Any

    predict_on_train_set, predict_on_validation_set, predict_on_test_set = (
        _over("_predicted", name) for name in LOADERS
    )
    evaluate_loss_on_train_set, evaluate_loss_on_validation_set, evaluate_loss_on_test_set = (
        _over("_evaluated", name) for name in LOADERS
    )

    def evaluate_model_loss(
        self, data_loader: Iterable[Any], move_to_cpu: bool = False, dataset_info: dict[str, str] | None = None
    ) -> Any:
        """The mean of the losses of the batches in ``data_loader``: a tensor, or several by name."""
        return self.parse_loss([self._loss_of(batch) for batch in data_loader])

    def predict_with_model(
        self, data_loader: Iterable[Any], execute_callbacks: bool = False, move_to_cpu: bool = False,
        dataset_info: dict[str, str] | None = None,
    ) -> tuple[Any, Any, dict[str, Any]]:  # fmt: skip
        """Predictions, targets and further data for ``data_loader``. The run is as it was afterwards."""
        collected = Collected(self.collate_batch_pred_fn, self.pred_transform_fn)
        hooks = [one.on_after_batch_prediction for one in self.callbacks] if execute_callbacks else []
        for batch in data_loader:
            found = self._prediction_of(batch)
            collected.add(*found)
            for hook in hooks:
                hook(*found, dataset_info)
        return collected.whole()

    def _loss_of(self, batch: Any) -> Any:
        return torch.tensor(self.run.evaluate([batch])["loss"])

    def _prediction_of(self, batch: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Predictions, targets and further data of one batch."""
        return self.run.predict([batch]), split(batch)[1], {}

    @staticmethod
    def parse_loss(loss_record: Sequence[Any]) -> Any:
        """The mean of a list of losses: a tensor, or a ``MultiLoss`` of the means by name."""
        if isinstance(loss_record[0], MultiLoss):
            return MultiLoss(
                {name: Evaluations.parse_loss([one[name] for one in loss_record]) for name in loss_record[0]}
            )
        return torch.stack([torch.as_tensor(loss).detach().float().cpu() for loss in loss_record]).mean()

    def _predicted(self, dataset: str, force: bool, execute_callbacks: bool = False) -> Any:
        def predict() -> Any:
            info = {"type": dataset}
            return self.predict_with_model(self._loader(dataset), execute_callbacks, dataset_info=info)

        return self._kept_or(f"{dataset}_predictions", force, predict)

    def _evaluated(self, dataset: str, force: bool, float_dict_format: bool = False) -> Any:
        value = self._kept_or(f"{dataset}_loss", force, lambda: self.evaluate_model_loss(self._loader(dataset)))
        return value.item() if float_dict_format else value

    def _kept_or(self, what: str, force: bool, compute: Callable[[], Any]) -> Any:
        """What was computed since the last step, or else what ``compute`` returns, which is kept."""
        store, now = self.prediction_store, self.total_iteration_idx
        if force or not store.has(what, now):
            store.insert(what, compute(), now, force_prediction=True)
        return store.get(what, now)

    def _loader(self, dataset: str) -> Any:
        loader = getattr(self, LOADERS[dataset])
        if loader is None:
            raise TypeError(f"aitoolbox: this loop has no {LOADERS[dataset]}, so there is nothing to compute it on")
        return loader
