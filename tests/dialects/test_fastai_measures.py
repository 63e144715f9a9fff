"""What fastai callbacks measure: hooks, memory, trackers and metrics."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza.dialects.fastai import Callback
from cadenza.dialects.fastai import metrics as measures
from cadenza.dialects.fastai.callbacks import (
    ActivationStats,
    HookCallback,
    LearnerTensorboardWriter,
    MLFlowTracker,
    OverSamplingCallback,
    PeakMemMetric,
    UnderSamplingCallback,
    model_summary,
)

from .test_fastai_learner import learner


def test_over_and_under_sampling_change_how_many_samples_are_seen() -> None:
    data = TensorDataset(torch.randn(12, 4), torch.tensor([0] * 9 + [1] * 3))
    for kind, options, samples in (
        (OverSamplingCallback, {}, 18),
        (UnderSamplingCallback, {}, 6),
        (OverSamplingCallback, {"weights": torch.ones(12)}, 18),  # weights say which, not how many
    ):
        loader = DataLoader(data, batch_size=3)
        learn = learner(data=loader, callback_fns=[partial(kind, **options)])
        learn.fit(1)
        assert learn.trainer.clock.samples == samples
        assert learn.data.train_dl is loader


def test_hooks_are_held_for_the_time_of_a_fit() -> None:
    class Shapes(HookCallback):
        def hook(self, module: nn.Module, inputs: Any, output: Any) -> Any:
            return tuple(output.shape)

        def on_batch_end(self, train: bool, **kwargs: Any) -> None:
            if train:
                self.seen = self.hooks.stored

    learn = learner(callback_fns=[Shapes, ActivationStats])
    learn.fit(2)
    assert learn.shapes.seen == [(8, 8), (8, 3)]
    assert tuple(learn.activation_stats.stats.shape) == (2, 2, 6)  # mean and deviation, modules, batches
    assert not any(module._forward_hooks for module in learn.model.modules())
    assert [line.split()[0] for line in model_summary(learn).splitlines()[2:]] == ["Linear", "ReLU", "Linear"]


def test_memory_as_columns() -> None:
    learn = learner(callback_fns=[PeakMemMetric])
    learn.fit(1)
    assert len(learn.recorder.metrics[0]) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_metrics_at_their_iterations(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = partial(LearnerTensorboardWriter, base_dir=tmp_path, name="run", loss_iters=2, stats_iters=3, hist_iters=6)
    learn = learner(metrics=[measures.accuracy], callback_fns=[writer])
    learn.fit(2)
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [event.step for event in events.Scalars("metrics/train_loss")] == [0, 2, 4]
    assert [event.step for event in events.Scalars("gradients/max_norm")] == [0, 3]
    assert [event.step for event in events.Scalars("metrics/accuracy")] == [3, 6]
    assert events.Tags()["histograms"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_the_metrics_of_each_epoch(tmp_path: Path) -> None:
    import mlflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    learn = learner(callback_fns=[partial(MLFlowTracker, exp_name="mine", params={"lr": 0.1}, uri=uri)])
    learn.fit(2)
    found = mlflow.MlflowClient(uri).get_metric_history(learn.ml_flow_tracker.run.info.run_id, "valid_loss")
    assert [entry.step for entry in found] == [0, 1]


def test_metrics_of_a_whole_validation() -> None:
    output, target = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0], [0.0, 4.0]]), torch.tensor([0, 1, 1, 1])
    expected = {
        measures.Precision(): 1.0,
        measures.Recall(): 2 / 3,
        measures.FBeta(beta=1): 0.8,
        measures.KappaScore(): 0.5,
        measures.MatthewsCorreff(): 1 / math.sqrt(3),
        measures.AUROC(): 5 / 6,
        measures.Recall(average="macro"): 5 / 6,
        measures.Recall(average="micro"): 0.75,
    }
    for metric, value in expected.items():
        metric.on_epoch_begin()
        metric.on_batch_end(last_output=output[:3], last_target=target[:3], train=False)
        metric.on_batch_end(last_output=output[3:], last_target=target[3:], train=False)
        assert float(metric.on_epoch_end([1.0])["last_metrics"][1]) == pytest.approx(value), type(metric).__name__
    lines, points = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 5.0])
    assert float(measures.R2Score().measure(lines, points)) == pytest.approx(1 - 4 / (26 / 3))
    assert float(measures.RMSE().measure(lines, points)) == pytest.approx(math.sqrt(4 / 3))
    assert float(measures.ExplainedVariance().measure(lines, lines)) == 1.0
    assert float(measures.ExpRMSPE().measure(lines, lines)) == 0.0
    assert float(measures.Perplexity().measure(torch.zeros(4, 3), torch.zeros(4).long())) == pytest.approx(3.0)
    assert float(measures.top_k_accuracy(output, target, k=2)) == 1.0
    assert float(measures.accuracy_thresh(torch.tensor([0.9, -0.9]), torch.tensor([1, 1]))) == 0.5
    assert float(measures.mean_absolute_error(lines, points)) == pytest.approx(2 / 3)


def test_a_metric_of_the_users_own_plays_before_callbacks() -> None:
    told: list[str] = []

    class Mine(measures.RegMetrics):
        def on_epoch_begin(self, **kwargs: Any) -> None:
            told.append("metric")
            super().on_epoch_begin(**kwargs)

        def measure(self, preds: Any, targs: Any) -> Any:
            return preds.mean()

    class Early(Callback):
        _order = -20

        def on_epoch_begin(self, **kwargs: Any) -> None:
            told.append("early")

    learn = learner(metrics=[Mine()], callbacks=[Early()])
    learn.fit(1)
    assert told == ["metric", "early"]
    assert learn.trainer.history.names()
    assert "val/mine" in learn.trainer.history
