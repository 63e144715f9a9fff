"""``run.predict`` and ``run.evaluate``: passes for callbacks that play no points and leave no trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from cadenza import Callback, MainCallback, Run, Trainer
from cadenza.points import POINTS
from cadenza.testing import Recorder, tiny_classifier, tiny_data, tiny_loader


def model_with_everything() -> nn.Module:
    plain = tiny_classifier()
    model = nn.Sequential(plain[0], nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.BatchNorm1d(8), plain[2])
    model[4].eval()
    return model


def made(*callbacks: Any, model: nn.Module | None = None) -> Trainer:
    model = model_with_everything() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def drawing_loader() -> DataLoader[Any]:
    """Draws from every generator: the sampler from torch, the items from Python and NumPy."""

    def collate(items: list[Any]) -> Any:
        random.random()
        np.random.rand()
        return torch.utils.data.default_collate(items)

    return DataLoader(tiny_data(12), batch_size=5, shuffle=True, collate_fn=collate)


def everything(run: Run) -> dict[str, Any]:
    """All that a nested pass could disturb."""
    fields = {
        name: getattr(run, name) for name in ("batch", "batch_idx", "output", "loss", "skipped") if hasattr(run, name)
    }
    return {
        **{name: id(value) for name, value in fields.items()},
        "place": (run.mode, run.stage, run.epoch, run.loader_name, run.training),
        "metrics": dict(run.metrics),
        "rows": len(run.history),
        "clock": {unit: value for unit, value in run.clock.state_dict().items() if unit != "seconds"},
        "flags": [module.training for module in run.module.modules()],
        "weights": [value.tolist() for value in run.module.state_dict().values()],
        "gradients": [None if p.grad is None else p.grad.tolist() for p in run.module.parameters()],
        "random": (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()),
        "gradient mode": torch.is_grad_enabled(),
        "weight of the loss": run.loss_weight,
    }


class Nests(Callback):
    """Runs nested passes at ``point``, and compares before and after."""

    def __init__(self, point: str, *acts: Callable[[Run], Any]) -> None:
        self.point, self.acts = point, acts
        self.results: list[Any] = []

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        return {self.point: self._play}

    def _play(self, run: Run) -> None:
        for act in self.acts:
            before = everything(run)
            self.results.append(act(run))
            after = everything(run)
            for name in before | after:
                assert before.get(name) == after.get(name), name


PLACES = [name for name in POINTS if name.startswith(("before_", "after_")) and "pred" not in name]
UNPLAYED = ("before_save", "after_save", "after_load", "after_error")


@pytest.mark.parametrize("point", [name for name in PLACES if name not in UNPLAYED])
def test_nothing_is_disturbed_wherever_it_is_asked(point: str) -> None:
    nests = Nests(point, lambda run: run.predict(drawing_loader()), lambda run: run.evaluate(drawing_loader()))
    nests.monitor = "val/loss"
    trainer = made(nests)
    trainer.on("after_loss")(lambda run: run.log("a", 1.0))
    trainer.fit(list(tiny_loader()), list(tiny_loader(8)), test_loaders=list(tiny_loader(8)), epochs=1)
    assert len(nests.results) >= 2
    assert nests.results[0].shape == (12, 3)


@pytest.mark.parametrize("point", ["before_train_iter", "after_backward", "after_epoch"])
def test_the_training_is_the_same_with_and_without(point: str) -> None:
    plain = made()
    nested = made(Nests(point, lambda run: run.evaluate(drawing_loader()), lambda run: run.predict(drawing_loader())))
    for trainer in (plain, nested):
        torch.manual_seed(3)
        trainer.fit(tiny_loader(shuffle=True), tiny_loader(8), epochs=2)
    assert all(map(torch.equal, plain.model.state_dict().values(), nested.model.state_dict().values()))
    assert plain.history.to_rows() == nested.history.to_rows()


def test_no_points_are_played() -> None:
    recorder = Recorder(arounds=True)
    plain = Recorder(arounds=True)
    made(plain).fit(tiny_loader(), epochs=1)
    made(
        recorder, Nests("after_epoch", lambda run: run.predict(tiny_loader()), lambda run: run.evaluate(tiny_loader()))
    ).fit(tiny_loader(), epochs=1)
    assert recorder.trace == plain.trace


def test_the_same_numbers_as_from_the_trainer() -> None:
    loader = list(tiny_loader(20))
    nests = Nests("after_run", lambda run: run.predict(loader), lambda run: run.evaluate(loader))
    trainer = made(nests)
    trainer.fit(tiny_loader(), epochs=1)
    outputs, metrics = nests.results
    trainer.remove(nests)
    assert torch.equal(outputs, trainer.predict(loader))
    assert metrics == {"loss": trainer.validate(loader)["val/loss"]}


def test_the_users_behaviours_are_used() -> None:
    class Own(MainCallback):
        def on_val_forward(self, run: Run) -> None:
            assert run.stage == "val"
            run.output = run.model(run.inputs)
            run.loss = torch.tensor(float(run.batch_idx))

        def on_pred_forward(self, run: Run) -> None:
            assert run.stage == "pred"
            run.output = torch.full((len(run.inputs),), 7.0 + run.batch_idx)

    nests = Nests(
        "after_epoch", lambda run: run.predict(tiny_loader(8, 4)), lambda run: run.evaluate(tiny_loader(12, 4))
    )
    made(Own(), nests).fit(tiny_loader(), epochs=1)
    assert nests.results[0].tolist() == [7.0] * 4 + [8.0] * 4
    assert nests.results[1] == {"loss": 1.0}


def test_an_error_inside_leaves_everything_as_it_was() -> None:
    def broken() -> Iterator[Any]:
        yield next(iter(tiny_loader()))
        raise OSError("gone")

    def act(run: Run) -> str:
        for nested in (run.predict, run.evaluate):
            with pytest.raises(OSError, match="gone"):
                nested(broken())
        return "caught"

    nests = Nests("after_backward", act)
    trainer = made(nests)
    trainer.fit(list(tiny_loader()), epochs=1)
    assert nests.results == ["caught"] * 3
    assert trainer.clock.steps == 3


def test_nothing_to_evaluate() -> None:
    trainer = made()
    trainer.on("after_epoch")(lambda run: run.evaluate([]))
    with pytest.raises(ValueError, match="gave no batch to evaluate"):
        trainer.fit(tiny_loader(), epochs=1)


def test_an_empty_prediction_is_refused_as_by_the_trainer() -> None:
    trainer = made()
    trainer.on("after_epoch")(lambda run: run.predict([]))
    with pytest.raises(ValueError, match="no batch"):
        trainer.fit(tiny_loader(), epochs=1)


def test_a_module_whose_train_method_has_an_effect() -> None:
    class Counting(nn.Module):
        """Keeps two weights for evaluation, as a reparametrised layer does."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.fused = tiny_classifier(), False

        def train(self, mode: bool = True) -> Counting:
            self.fused = not mode
            return super().train(mode)

        def forward(self, x: Tensor) -> Tensor:
            assert self.fused != self.training
            return self.inner(x)

    nests = Nests("after_train_iter", lambda run: run.evaluate(tiny_loader(8)))
    trainer = made(nests, model=Counting())
    trainer.fit(tiny_loader(), epochs=2)
    assert trainer.clock.steps == 6


def test_a_value_logged_while_it_goes_on_has_a_row() -> None:
    """A behaviour may log; that must not disturb the row of the iteration around it."""

    class Logs(MainCallback):
        def on_iter_loss(self, run: Run) -> None:
            super().on_iter_loss(run)
            run.log(f"{run.stage}/inner", run.loss)

    trainer = made(Logs())
    trainer.on("after_backward")(lambda run: run.evaluate(tiny_loader(8)))
    trainer.on("after_train_iter")(lambda run: run.log("mine", run.batch_idx))
    rows = trainer.fit(tiny_loader(), epochs=1).iters
    assert [row["mine"] for row in rows if "mine" in row] == [0.0, 1.0, 2.0]
    assert all("train/inner" in row for row in rows if "mine" in row)
