"""On a CUDA device: a training in each dialect goes there by itself, and does there what it does on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.dialects import fastai, orca, supergradients
from cadenza.dialects.aitoolbox import TrainLoop
from cadenza.dialects.fastai.callbacks.hooks import model_summary
from cadenza.testing import tiny_classifier, tiny_loader

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
PARAMS: dict[str, Any] = {
    "max_epochs": 4,
    "initial_lr": 0.1,
    "lr_mode": "cosine",
    "optimizer": "Adam",
    "loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
    "valid_metrics_list": ["Accuracy"],
    "metric_to_watch": "Accuracy",
    "silent_mode": True,
    "ema": True,
    "average_best_models": False,
}


def on_cuda(model: nn.Module) -> bool:
    return all(parameter.device.type == "cuda" for parameter in model.parameters())


class Interrupts(supergradients.Callback):
    def on_train_loader_start(self, context: supergradients.PhaseContext) -> None:
        if context.epoch == 2:
            raise KeyboardInterrupt


def test_a_training_of_supergradients_is_resumed(tmp_path: Path) -> None:
    def trained(name: str, **params: Any) -> Any:
        torch.manual_seed(0)
        trainer = supergradients.Trainer("mine", str(tmp_path / name))
        trainer.train(tiny_classifier(), {**PARAMS, **params}, tiny_loader(24, batch_size=8), tiny_loader())
        return trainer

    whole = trained("whole")
    trained("parts", phase_callbacks=[Interrupts()])
    again = trained("parts", resume=True)
    assert on_cuda(again.net)
    for mine, theirs in zip(again.net.parameters(), whole.net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_learner_of_fastai_trains_predicts_and_is_saved(tmp_path: Path) -> None:
    def learner() -> Any:
        data = tiny_loader(), tiny_loader(10, batch_size=4)
        return fastai.Learner(data, tiny_classifier(), loss_func=nn.CrossEntropyLoss(), path=tmp_path, silent=True)

    learn, other = learner(), learner()
    learn.fit(2, 0.1)
    assert on_cuda(learn.model)
    assert "Linear" in model_summary(learn)
    outputs, targets = learn.get_preds()
    assert len(outputs) == len(targets) == 10
    learn.save("one")
    other.load("one")
    other.fit(1, 0.1)
    learn.fit(1, 0.1)
    for mine, theirs in zip(learn.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_loop_of_aitoolbox_trains_and_evaluates() -> None:
    model = tiny_classifier()
    loaders = [tiny_loader(24, batch_size=8) for _ in range(3)]
    loop = TrainLoop(model, *loaders, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    loop.fit(num_epochs=2)
    assert on_cuda(model)
    outputs, targets, _ = loop.predict_on_test_set()
    assert outputs.shape == (24, 3)
    assert targets.shape == (24,)
    assert loop.evaluate_loss_on_validation_set() > 0


def test_an_estimator_of_orca_trains_evaluates_predicts_and_is_saved(tmp_path: Path) -> None:
    def estimator() -> Any:
        return orca.Estimator.from_torch(
            model=lambda config: tiny_classifier(),
            optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=0.01),
            loss=nn.CrossEntropyLoss(),
            metrics=[orca.metrics.Accuracy()],
            backend="local",
        )

    def data(config: dict[str, Any], batch_size: int) -> Any:
        return tiny_loader(24, batch_size)

    one, other = estimator(), estimator()
    one.fit(data, epochs=2, batch_size=8, validation_data=data)
    assert on_cuda(one.get_model())
    assert one.evaluate(data, batch_size=7)["num_samples"] == 24
    assert one.predict(data, batch_size=5).shape == (24, 3)
    one.save(str(tmp_path / "one"))
    other.load(str(tmp_path / "one"))
    for mine, theirs in zip(one.get_model().parameters(), other.get_model().parameters(), strict=True):
        assert torch.equal(mine.cpu(), theirs.cpu())
    other.fit(data, epochs=1, batch_size=8)
