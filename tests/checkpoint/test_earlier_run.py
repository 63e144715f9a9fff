"""A run that an earlier Cadenza saved is resumed by this one. What is in ``data/saved-runs`` is never written again."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer
from cadenza.callbacks import EMA, Accumulate, Checkpoint, EarlyStopping, GradientClip, Metrics
from cadenza.checkpoint import Shelf

from ..processes import ranks

RUNS = Path(__file__).parent / "data" / "saved-runs"
"""One folder for each version that wrote one, named after its commit."""


class Noise(Callback):
    """Draws from all three generators, so that the test sees whether each of them was restored."""

    def before_forward(self, run: Any) -> None:
        if run.training:
            run.batch[0].add_(0.1 * torch.randn(()) + 0.1 * random.random() + 0.1 * float(numpy.random.rand()))


class Interrupt(Callback):
    """Asks for a save in mid-epoch, while gradients wait for a step, and ends the run a batch later."""

    def before_iter(self, run: Any) -> None:
        if run.clock.batches == 8:
            raise KeyboardInterrupt

    def after_train_iter(self, run: Any) -> None:
        if run.clock.batches == 7:
            run.save()


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).double().mean()


def trainer(*callbacks: Callback) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    first = torch.optim.AdamW(model[:2].parameters(), lr=0.01)
    second = torch.optim.SGD(model[2:].parameters(), lr=0.05, momentum=0.9)
    more = [Accumulate(2), EMA(0.9), GradientClip(norm=1.0), Metrics({"accuracy": accuracy}), Noise()]
    return Trainer(
        model,
        [first, second],
        nn.CrossEntropyLoss(),
        scheduler=torch.optim.lr_scheduler.StepLR(first, 3),
        callbacks=[*more, EarlyStopping("val/loss", patience=50), *callbacks],
        device="cpu",
        seed=4,
    )


def loader(seed: int) -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(seed)
    data = TensorDataset(torch.randn(38, 4, generator=draw), torch.randint(0, 3, (38,), generator=draw))
    return DataLoader(data, batch_size=4, shuffle=True)


def fit(made: Trainer, resume: Any = None) -> Trainer:
    made.fit(loader(1), loader(2), epochs=2, resume=resume)
    return made


def write(folder: Path) -> None:
    """How a folder in ``data/saved-runs`` was made, by the code of the commit that it is named after."""
    with pytest.raises(KeyboardInterrupt):
        fit(trainer(Checkpoint(None, to=folder, background=False, final=False), Interrupt()))


@pytest.mark.parametrize("version", sorted(path.name for path in RUNS.iterdir()))
def test_it_is_resumed_and_ends_as_the_whole_run(version: str, tmp_path: Path) -> None:
    shutil.copytree(RUNS / version, tmp_path / "run")
    whole = fit(trainer())
    saving = Checkpoint("1 step", keep_last=1, keep_best=0, to=tmp_path / "run")
    resumed = fit(trainer(saving), "auto")
    assert resumed.clock.steps == whole.clock.steps == 10
    assert len(resumed.history.epochs) == 2
    for one, other in zip(resumed.history.epochs, whole.history.epochs, strict=True):
        for name in ("train/loss", "val/loss", "val/accuracy"):
            assert one[name] == pytest.approx(other[name], rel=1e-4), "the noise is drawn, so the generators count"
    expected = whole.model.state_dict()
    for name, value in resumed.model.state_dict().items():  # other machines round otherwise
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    assert Shelf(tmp_path / "run").read("last").meta["step"] == 10


def test_it_was_saved_in_the_middle_of_an_epoch_and_of_a_step() -> None:
    for path in RUNS.iterdir():
        saved = Shelf(path).read("last")
        assert (saved.meta["step"], saved.state["position"]["pass"]["consumed"]) == (3, 7)
        assert saved.state["gradients"]


def resumed_by_two(folder: str) -> int:
    torch.set_num_threads(1)
    return fit(trainer(Checkpoint(None, to=folder, background=False)), "auto").clock.samples


@pytest.mark.parametrize("version", sorted(path.name for path in RUNS.iterdir()))
def test_two_processes_resume_a_checkpoint_with_the_keys_of_then(version: str, tmp_path: Path) -> None:
    """What is kept was saved within a step, which another number of processes cannot resume."""
    known = Shelf(RUNS / version).read("last").state.keys()
    fit(trainer(Checkpoint("3 steps", keep_last=9, keep_best=0, to=tmp_path / "now", background=False)))
    names = [name for name in Shelf(tmp_path / "now").names() if name.endswith("step=3")]
    saved = Shelf(tmp_path / "now").read(names[0])
    then = {name: value for name, value in saved.state.items() if name in known}
    assert len(then) < len(saved.state)
    Shelf(tmp_path / "then").write("then", then, saved.meta)
    assert ranks(resumed_by_two, str(tmp_path / "then"), results="all") == [76, 76]
