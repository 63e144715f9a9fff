"""A resumed run continues with what a state dict leaves out: buffers, generators, parameter groups, parameter names."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from cadenza import Callback, Preempted, Trainer
from cadenza.callbacks import Accumulate, Checkpoint, Freeze, StageSwitch
from cadenza.certify.compare import first_difference, leaves
from cadenza.checkpoint import Shelf, load_weights
from cadenza.resume.collect import alike

EPOCHS = 3


class Oops(Exception):
    """Ends a run in these tests."""


class Break(Callback):
    """Raises at the n-th call of one point."""

    order = 10**6

    def __init__(self, point: str, count: int) -> None:
        self.point, self.left = point, count

    def plays(self) -> dict[str, Any]:
        return {self.point: self.count}

    def count(self, run: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise Oops


def data(seed: int = 1) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(26, 4, generator=draw), torch.randint(0, 3, (26,), generator=draw))


def loader() -> DataLoader[Any]:
    return DataLoader(data(), batch_size=6, shuffle=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def saving(folder: Path) -> Checkpoint:
    return Checkpoint("1 step", to=folder, background=False)


def values(trainer: Trainer) -> dict[str, Any]:
    """What a training ended with: all tensors of the model, and the optimizers by the names of their parameters."""
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    moments = [
        {names[id(p)]: copy.deepcopy(state) for p, state in optimizer.state.items()}
        for optimizer in trainer._training.optimizers
    ]
    groups = [
        [{**group, "params": [names[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
        for optimizer in trainer._training.optimizers
    ]
    tensors = dict([*trainer.model.named_parameters(), *trainer.model.named_buffers()])
    return dict(leaves({"tensors": copy.deepcopy(tensors), "moments": moments, "groups": groups}))


# Buffers that a state dict leaves out ---------------------------------------------------------------------------------


class Counting(nn.Module):
    """Scales its output by a buffer that changes in each forward and is not in the state dict."""

    seen: Tensor
    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("cache", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
            self.cache = x.mean(0) if self.cache is None else torch.cat([self.cache, x.mean(0)])[-12:]
        return self.inner(x + (0 if self.cache is None else self.cache.mean())) / (1 + self.seen)


class Weighted(nn.Module):
    """A criterion with such a buffer of its own."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.ones(()), persistent=False)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(output, target) / self.calls


def counting(*callbacks: Callback) -> Trainer:
    model = Counting()
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return Trainer(model, sgd, Weighted(), callbacks=callbacks, device="cpu", seed=2)


@pytest.mark.parametrize("breaks", [("after_step", 7), ("after_epoch", 2), ("before_val_iter", 2)])
def test_buffers_that_are_not_persistent_are_restored(breaks: tuple[str, int], tmp_path: Path) -> None:
    def fit(trainer: Trainer) -> Trainer:
        trainer.fit(loader(), loader(), epochs=EPOCHS, resume="auto")
        return trainer

    whole = fit(counting(saving(tmp_path / "whole")))
    with pytest.raises(Oops):
        fit(counting(saving(tmp_path / "other"), Break(*breaks)))
    other = fit(counting(saving(tmp_path / "other")))
    assert first_difference(values(whole), values(other)) is None
    assert torch.equal(whole._training.criterion.calls, other._training.criterion.calls)  # type: ignore[union-attr]


class Centred(nn.Module):
    """Subtracts a mean that its first forward creates, as a buffer of the state dict."""

    mean: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = x.detach().mean(0) if self.mean is None else self.mean.lerp(x.detach().mean(0), 0.1)
        return x if self.mean is None else x - self.mean


def centred(*callbacks: Callback) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), Centred())
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", seed=2)


@pytest.mark.parametrize("breaks", [("after_step", 7), ("after_epoch", 2), ("after_run", 1), None], ids=str)
def test_a_buffer_that_training_creates_is_restored(breaks: tuple[str, int] | None, tmp_path: Path) -> None:
    def fit(*callbacks: Callback, folder: str) -> Trainer:
        trainer = centred(saving(tmp_path / folder), *callbacks)
        trainer.fit(loader(), loader(), epochs=EPOCHS, resume="auto")
        return trainer

    whole = fit(folder="whole")
    with contextlib.suppress(Oops):
        fit(*([] if breaks is None else [Break(*breaks)]), folder="other")
    assert first_difference(values(whole), values(fit(folder="other"))) is None


def test_a_buffer_that_fits_is_restored_in_place(tmp_path: Path) -> None:
    """Other modules may hold the same tensor, or a view of it."""
    counting(saving(tmp_path)).fit(loader(), epochs=1)
    other = counting(saving(tmp_path))
    seen: Any = other.model.seen
    other.fit(loader(), epochs=1, resume="auto")
    assert other.model.seen is seen
    assert seen == 26


def test_states_are_compared_by_their_bits() -> None:
    nan, zero, minus_zero = ({"value": torch.tensor([value, 1.0])} for value in (math.nan, 0.0, -0.0))
    assert alike(nan, copy.deepcopy(nan))
    assert not alike(zero, minus_zero)
    assert alike(torch.empty(0, 3), torch.empty(0, 3))


def test_exported_weights_hold_no_buffer_that_the_state_dict_leaves_out(tmp_path: Path) -> None:
    counting(saving(tmp_path)).fit(loader(), epochs=1)
    assert sorted(load_weights(tmp_path)) == ["inner.bias", "inner.weight"]
    assert sorted(Shelf(tmp_path).read("last").state["buffers"]) == ["criterion.calls", "model.cache", "model.seen"]


def test_what_no_checkpoint_can_hold_is_left_out_of_the_store(tmp_path: Path) -> None:
    trainer = counting(saving(tmp_path))
    trainer.store.update(kept={"values": [1, "two", torch.ones(2)]}, left={"values": [object()]})
    trainer.fit(loader(), epochs=1)
    assert list(Shelf(tmp_path).read("last").state["store"]) == ["kept"]


# What is logged while the run is opened again -------------------------------------------------------------------------


class Logs(Callback):
    """Logs when an epoch opens, under a name that is another one when a run is resumed in mid-epoch."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []

    def before_epoch(self, run: Any) -> None:
        run.log(f"opened/{run.clock.steps}", 1.0)

    def after_train_epoch(self, run: Any) -> None:
        self.names.append(sorted(run.metrics))


def test_rows_and_metrics_hold_nothing_that_was_logged_while_an_epoch_was_opened_again(tmp_path: Path) -> None:
    whole, other = Logs(), Logs()
    expected = counting(saving(tmp_path / "whole"), whole).fit(loader(), epochs=2)
    with pytest.raises(Oops):
        counting(saving(tmp_path / "other"), Logs(), Break("after_step", 7)).fit(loader(), epochs=2)
    found = counting(saving(tmp_path / "other"), other).fit(loader(), epochs=2, resume="auto")
    assert "opened/5" in expected.epochs[1]
    assert [sorted(row) for row in found.epochs] == [sorted(row) for row in expected.epochs]
    assert other.names == whole.names[1:]


# A run that had ended -------------------------------------------------------------------------------------------------


class Noise(IterableDataset[Any]):
    """A stream with a position that it keeps itself."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        for _ in range(12):
            self.at += 1
            yield torch.full((4,), self.at / 100), self.at % 3

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Batches:
    """A loader that keeps its own position."""

    def __init__(self) -> None:
        self.draw = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(3):
            yield torch.randn(4, 4, generator=self.draw), torch.randint(0, 3, (4,), generator=self.draw)

    def state_dict(self) -> dict[str, Any]:
        return {"draw": self.draw.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draw.set_state(state["draw"])


class Replayed:
    """A loader with a generator and nothing else."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(6)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(3):
            yield torch.randn(4, 4, generator=self.generator), torch.tensor([0, 1, 2, 0])


def seeded() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(3)
    return DataLoader(data(), batch_size=6, sampler=RandomSampler(data(), generator=draw), generator=draw)


LOADERS: dict[str, Callable[[], Any]] = {
    "plain": loader,
    "generator": seeded,
    "stream": lambda: DataLoader(Noise(), batch_size=4),
    "stateful": Batches,
    "replayed": Replayed,
}


def two_stages(folder: Path, make: Callable[[], Any], *, killed_at: str | None = None) -> dict[str, Any]:
    """Trains, evaluates, and trains a second model on the same loaders."""
    train, val = make(), make()

    def stage(number: int) -> Trainer:
        torch.manual_seed(number) if number == 1 else None
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))  # of the second: drawn after the first
        breaks = [Break("before_train_iter", 2)] if killed_at == f"{number}" else []
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        made = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[saving(folder / f"{number}"), *breaks])
        made.fit(train, val, epochs=2, resume="auto")
        return made

    torch.manual_seed(1)
    stage(1).validate(val)
    return values(stage(2))


@pytest.mark.parametrize("kind", LOADERS)
def test_the_stage_after_a_run_that_had_ended_begins_as_it_would_have(kind: str, tmp_path: Path) -> None:
    expected = two_stages(tmp_path / "whole", LOADERS[kind])
    with pytest.raises(Oops):
        two_stages(tmp_path / "other", LOADERS[kind], killed_at="2")
    shutil.rmtree(tmp_path / "other" / "2")  # as if the kill had come before the first save of stage 2
    torch.manual_seed(99)
    assert first_difference(expected, two_stages(tmp_path / "other", LOADERS[kind])) is None


@pytest.mark.parametrize("breaks", [("after_step", 4), ("after_run", 1), None], ids=str)
def test_a_generator_that_the_checkpoint_does_not_hold_is_seeded_again(
    breaks: tuple[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training on the CPU saves no state of a GPU, which the stage after it may draw from."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)

    def train(*callbacks: Callback) -> None:
        torch.manual_seed(0)
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        callbacks = (saving(tmp_path), *callbacks)
        trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", seed=7)
        trainer.fit(loader(), epochs=2, resume="auto")

    with contextlib.suppress(Oops):
        train(*([] if breaks is None else [Break(*breaks)]))
    assert seeds[-1] == 7
    train()
    assert seeds[-1] == 7


@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_resumed_only_to_end_leaves_its_loaders_as_they_were(kind: str, tmp_path: Path) -> None:
    """Killed after the last batch and before the last save: no pass is opened again."""

    def train(*callbacks: Callback) -> Any:
        torch.manual_seed(4)
        model, train, val = network(), LOADERS[kind](), LOADERS[kind]()
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        made = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks)
        made.fit(train, val, epochs=2, resume="auto")
        return [list(train), list(val), torch.rand(3)]

    expected = train(Checkpoint(to=tmp_path / "whole", background=False))
    with pytest.raises(Oops):
        train(Checkpoint(to=tmp_path / "other", background=False, final=False), Break("after_run", 1))
    torch.manual_seed(99)
    found = train(Checkpoint(to=tmp_path / "other", background=False))
    assert first_difference(dict(leaves(expected)), dict(leaves(found))) is None


# Parameter groups -----------------------------------------------------------------------------------------------------


class Unfreeze(Callback):
    """Gradual unfreezing as users write it: a further group at the beginning of an epoch."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch

    def before_epoch(self, run: Any) -> None:
        if run.epoch == self.epoch:
            run.optimizer.add_param_group({"params": run.module[0].parameters(), "lr": 0.01, "name": "body"})


class AtTheStart(Callback):
    """Adds the group whenever a run begins, a resumed one too."""

    def before_run(self, run: Any) -> None:
        run.optimizer.add_param_group({"params": run.module[0].parameters(), "lr": 0.01})


class AtAStep(Callback):
    """Widens the only group in the middle of an epoch."""

    def after_step(self, run: Any) -> None:
        if run.clock.steps == 4:
            run.optimizer.param_groups[0]["params"] += list(run.module[0].parameters())


def unfreezing(kind: type[Callback], *callbacks: Callback, adam: bool = True) -> Trainer:
    model = network()
    make: Any = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = make(model[2].parameters(), lr=0.05)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=[*callbacks, kind()], device="cpu", seed=2)


@pytest.mark.parametrize("breaks", [("after_step", 3), ("after_step", 8), ("after_epoch", 2), ("after_step", 13)])
@pytest.mark.parametrize("kind", [Unfreeze, AtTheStart, AtAStep])
def test_added_parameter_groups_are_recreated(kind: type[Callback], breaks: tuple[str, int], tmp_path: Path) -> None:
    whole = unfreezing(kind, saving(tmp_path / "whole"))
    whole.fit(loader(), epochs=EPOCHS)
    with pytest.raises(Oops):
        unfreezing(kind, saving(tmp_path / "other"), Break(*breaks)).fit(loader(), epochs=EPOCHS)
    other = unfreezing(kind, saving(tmp_path / "other"))
    other.fit(loader(), epochs=EPOCHS, resume="auto")
    assert first_difference(values(whole), values(other)) is None


def test_a_run_that_had_ended_with_more_groups_can_be_continued(tmp_path: Path) -> None:
    whole = unfreezing(Unfreeze, saving(tmp_path / "whole"))
    whole.fit(loader(), epochs=EPOCHS)
    unfreezing(Unfreeze, saving(tmp_path / "other")).fit(loader(), epochs=2)
    other = unfreezing(Unfreeze, saving(tmp_path / "other"))
    other.fit(loader(), epochs=EPOCHS, resume="auto")
    assert first_difference(values(whole), values(other)) is None
    again = unfreezing(Unfreeze, saving(tmp_path / "other"))
    again.fit(loader(), epochs=EPOCHS, resume="auto")
    assert first_difference(values(whole), values(again)) is None


def test_a_group_can_be_added_again_after_the_run(tmp_path: Path) -> None:
    """What a resume tolerates while it opens the run is an error everywhere else."""
    unfreezing(Unfreeze, saving(tmp_path)).fit(loader(), epochs=2)
    other = unfreezing(Unfreeze, saving(tmp_path))
    other.fit(loader(), epochs=EPOCHS, resume="auto")
    with pytest.raises(ValueError, match="appear in more than one parameter group"):
        other._training.optimizers[0].add_param_group({"params": other.model[0].parameters()})  # type: ignore[index]


@pytest.mark.parametrize("breaks", [("after_step", 3), ("after_step", 8), ("after_epoch", 2), ("before_val_iter", 3)])
def test_freezing_by_a_schedule_is_resumed(breaks: tuple[str, int], tmp_path: Path) -> None:
    def train(folder: Path, *more: Callback) -> Trainer:
        model = network()
        freeze = Freeze({"0": "2 epochs", "2.bias": "7 steps"})
        adam = torch.optim.Adam(model.parameters(), lr=0.05)
        made = Trainer(model, adam, nn.CrossEntropyLoss(), callbacks=[freeze, saving(folder), *more], seed=2)
        made.fit(loader(), loader(), epochs=4, resume="auto")
        return made

    whole = train(tmp_path / "whole")
    with pytest.raises(Oops):
        train(tmp_path / "other", Break(*breaks))
    assert first_difference(values(whole), values(train(tmp_path / "other"))) is None


# Which optimizer, and which parameter ---------------------------------------------------------------------------------


def square(order: Callable[[list[Any]], list[Any]] = list, make: Any = torch.optim.Adam) -> tuple[nn.Module, Any]:
    """Two layers of equal shape, so that exchanged moments would fit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    return model, make(order(list(model.parameters())), lr=0.01)


def fitted(folder: Path, made: tuple[nn.Module, Any], epochs: int) -> Trainer:
    trainer = Trainer(*made, nn.CrossEntropyLoss(), callbacks=[saving(folder)], device="cpu", seed=2)
    trainer.fit(loader(), epochs=epochs, resume="auto")
    return trainer


def test_parameters_in_another_order_keep_their_moments(tmp_path: Path) -> None:
    whole = fitted(tmp_path / "whole", square(), EPOCHS)
    fitted(tmp_path / "other", square(), 1)
    other = fitted(tmp_path / "other", square(lambda all_: all_[::-1]), EPOCHS)
    assert first_difference(values(whole), values(other)) is None


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (torch.optim.Adam, torch.optim.AdamW),
        (torch.optim.AdamW, torch.optim.Adam),
        (torch.optim.Adam, torch.optim.NAdam),
        (torch.optim.SGD, torch.optim.Adam),
        (torch.optim.Adagrad, torch.optim.SGD),
    ],
)
def test_another_kind_of_optimizer_is_an_error(saved: Any, now: Any, tmp_path: Path) -> None:
    fitted(tmp_path, square(make=saved), 1)
    with pytest.raises(ValueError, match=rf"saved with {saved.__name__}.* has {now.__name__}.*Load\("):
        fitted(tmp_path, square(make=now), 2)


@pytest.mark.parametrize(
    ("saved", "now", "lacks"),
    [
        (torch.optim.SGD, torch.optim.Adam, "betas, eps"),
        (torch.optim.Adam, torch.optim.NAdam, "mu_product, momentum_decay"),
    ],
)
def test_a_checkpoint_that_does_not_name_its_optimizer_is_compared_by_what_it_holds(
    saved: Any, now: Any, lacks: str, tmp_path: Path
) -> None:
    fitted(tmp_path / "new", square(make=saved), 1)
    newest = Shelf(tmp_path / "new").read("last")
    state = {name: value for name, value in newest.state.items() if name != "groups"}
    Shelf(tmp_path / "old").write("earlier", state, newest.meta)
    with pytest.raises(
        ValueError, match=rf"another kind of optimizer than {now.__name__}: it has no {lacks}\. .*Load\(path\)"
    ):
        fitted(tmp_path / "old", square(make=now), 2)


def regrouped(model: nn.Module) -> Any:
    return torch.optim.Adam([{"params": model[1:].parameters()}, {"params": model[0].parameters()}])  # type: ignore[index]


def fewer(model: nn.Module) -> Any:
    return torch.optim.Adam([model[0].weight, nn.Parameter(torch.zeros(4))])  # type: ignore[index]


@pytest.mark.parametrize("change", [regrouped, fewer])
def test_another_division_into_groups_is_an_error(change: Any, tmp_path: Path) -> None:
    fitted(tmp_path, square(), 1)
    model, _ = square()
    with pytest.raises(ValueError, match=r"group 0 .*parameter groups that it was saved with"):
        fitted(tmp_path, (model, change(model)), 2)


# A custom loop --------------------------------------------------------------------------------------------------------


def test_a_custom_loop_resumed_only_to_end_still_knows_the_samples_of_a_step(tmp_path: Path) -> None:
    def train(*callbacks: Callback) -> None:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        made = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
        with made.run(epochs=1, resume="auto") as run:
            for _ in run.epochs():
                for _batch in run.train(loader()):
                    run.train_step()

    with pytest.raises(Oops):
        train(saving(tmp_path), Break("after_run", 1))
    train(saving(tmp_path))
    assert Shelf(tmp_path).read("last").state["step"]["samples"] == 6


# A script with two fits of one trainer --------------------------------------------------------------------------------


def in_epochs(trainer: Trainer, until: int) -> None:
    trainer.fit(loader(), loader(), epochs=until, resume="auto")


def in_steps(trainer: Trainer, until: int) -> None:
    trainer.fit(loader(), steps=5 * until, resume="auto")


def in_a_custom_loop(trainer: Trainer, until: int) -> None:
    with trainer.run(epochs=until, resume="auto") as run:
        for _ in run.epochs():
            for _batch in run.train(loader()):
                run.train_step()


@pytest.mark.parametrize("fit", [in_epochs, in_steps, in_a_custom_loop])
@pytest.mark.parametrize("breaks", [("after_step", 12), ("after_step", 7)])
def test_the_first_of_two_fits_does_nothing_if_the_second_was_killed(
    fit: Callable[[Trainer, int], None], breaks: tuple[str, int], tmp_path: Path
) -> None:
    def script(folder: Path, *callbacks: Callback) -> Trainer:
        model = network()
        adam = torch.optim.Adam(model.parameters(), lr=0.01)
        trainer = Trainer(model, adam, nn.CrossEntropyLoss(), callbacks=[saving(folder), *callbacks], seed=2)
        fit(trainer, 2)
        fit(trainer, 3)
        return trainer

    whole = script(tmp_path / "whole")
    with pytest.raises(Oops):
        script(tmp_path / "other", Break(*breaks))
    other = script(tmp_path / "other")
    assert first_difference(values(whole), values(other)) is None
    assert other.history["train/loss"] == whole.history["train/loss"]
    assert other.clock.steps == whole.clock.steps == 15


# What was asked before an evaluation ----------------------------------------------------------------------------------


class SkipsOneValidation(Callback):
    """Asks in the second epoch for no validation; its test is made all the same."""

    def after_train_iter(self, run: Any) -> None:
        if run.epoch == 1:
            run.skip_validation()


class Terminated(Callback):
    """Gets a SIGTERM in the test of the second epoch."""

    def before_test_iter(self, run: Any) -> None:
        if run.epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_validation_that_was_skipped_stays_skipped_after_a_resume(tmp_path: Path) -> None:
    def fitted(folder: Path, *more: Callback) -> Trainer:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        callbacks = [saving(folder), SkipsOneValidation(), *more]
        trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", seed=2)
        trainer.fit(loader(), loader(), test_loaders=loader(), epochs=EPOCHS, resume="auto")
        return trainer

    whole = fitted(tmp_path / "whole")
    with pytest.raises(Preempted):
        fitted(tmp_path / "resumed", Terminated())
    resumed = fitted(tmp_path / "resumed")
    assert first_difference(values(whole), values(resumed)) is None
    assert resumed.history.to_rows() == whole.history.to_rows()
    assert len(resumed.history["val/loss"]) == EPOCHS - 1


def test_an_optimizer_that_learns_settings_by_loading_can_be_resumed(tmp_path: Path) -> None:
    """Loading adds a default to LBFGS that its saved groups do not have."""

    def fit(folder: Path, *callbacks: Callback) -> Trainer:
        model = network()
        lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        trainer = Trainer(model, lbfgs, nn.CrossEntropyLoss(), callbacks=[saving(folder), *callbacks], seed=2)
        for epochs in (1, 2):  # the second fit loads into an optimizer that has learned it already
            trainer.fit(loader(), epochs=epochs, resume="auto")
        return trainer

    whole = fit(tmp_path / "whole")
    with pytest.raises(Oops):
        fit(tmp_path / "other", Break("after_step", 7))
    assert first_difference(values(whole), values(fit(tmp_path / "other"))) is None


# Parameters outside of the model --------------------------------------------------------------------------------------


class Tempered(nn.Module):
    """A criterion with a parameter of its own, and a buffer that belongs to its state dict."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(output * self.temperature, target) / self.calls


class SavesAt(Callback):
    """Asks for a save after a batch, wherever the step stands."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def after_train_iter(self, run: Any) -> None:
        if run.clock.batches == self.batch:
            run.save()


def scaled(folder: Path, *callbacks: Callback, kind: Any = torch.optim.Adam) -> tuple[Trainer, Tensor]:
    """A training of a model, of its criterion, and of a factor that is in neither of them."""
    model, criterion, factor = network(), Tempered(), torch.ones((), requires_grad=True)
    model[0].register_forward_hook(lambda module, inputs, output: output * factor)  # type: ignore[index]
    optimizer = kind([*model.parameters(), *criterion.parameters(), factor], lr=0.05)
    saver = Checkpoint(None, to=folder, background=False, final=False)
    trainer = Trainer(model, optimizer, criterion, callbacks=[saver, *callbacks], device="cpu", seed=2)
    return trainer, factor


def of_all(trainer: Trainer, factor: Tensor) -> dict[str, Any]:
    criterion: Any = trainer._training.criterion
    return {"model": trainer.model.state_dict(), "criterion": criterion.state_dict(), "factor": factor.detach()}


@pytest.mark.parametrize("batch", [4, 5, 10], ids=["in a window", "at a step", "between two epochs"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_parameters_outside_of_the_model_and_their_gradients_are_restored(
    kind: Any, batch: int, tmp_path: Path
) -> None:
    def train(folder: Path, *callbacks: Callback) -> dict[str, Any]:
        made, factor = scaled(folder, Accumulate(3), SavesAt(batch), *callbacks, kind=kind)
        made.fit(loader(), epochs=EPOCHS, resume="auto")
        return dict(leaves(of_all(made, factor)))

    whole = train(tmp_path / "whole")
    with pytest.raises(Oops):
        train(tmp_path / "other", Break("before_train_iter", batch + 2))
    assert first_difference(whole, train(tmp_path / "other")) is None


def test_a_run_that_had_ended_restores_parameters_outside_of_the_model(tmp_path: Path) -> None:
    made, factor = scaled(tmp_path, SavesAt(15))
    made.fit(loader(), epochs=EPOCHS)
    again, restored = scaled(tmp_path)
    again.fit(loader(), epochs=EPOCHS, resume="auto")
    assert first_difference(dict(leaves(of_all(made, factor))), dict(leaves(of_all(again, restored)))) is None


class Sums(nn.Module):
    """A criterion of another form than ``Tempered``, with a buffer that changes."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.total += output.detach().mean(0)
        return nn.functional.cross_entropy(output + self.total, target)


REPLACED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "by one without a state": (Tempered, nn.CrossEntropyLoss),
    "by one of another form": (Tempered, Sums),
    "by a function": (Tempered, lambda: nn.functional.cross_entropy),
    "of a function": (lambda: nn.functional.cross_entropy, Sums),
}


@pytest.mark.parametrize("breaks", [("after_step", 3), ("after_step", 7), ("after_epoch", 2), ("after_run", 1)])
@pytest.mark.parametrize("kind", REPLACED)
def test_a_criterion_that_is_replaced_during_training_is_resumed(
    kind: str, breaks: tuple[str, int], tmp_path: Path
) -> None:
    first, second = REPLACED[kind]

    def train(folder: Path, *callbacks: Callback) -> dict[str, Any]:
        model, criterion = network(), first()
        own = criterion.parameters() if isinstance(criterion, nn.Module) else ()
        adam = torch.optim.Adam([*model.parameters(), *own], lr=0.05, weight_decay=0.1)

        def replace(run: Any) -> None:
            run.criterion = second()

        switch = StageSwitch("5 steps", replace)
        made = Trainer(model, adam, criterion, callbacks=[saving(folder), switch, *callbacks], device="cpu", seed=2)
        made.fit(loader(), epochs=EPOCHS, resume="auto")
        return dict(leaves({"model": model.state_dict(), "own": list(own), "adam": adam.state_dict()}))

    whole = train(tmp_path / "whole")
    with pytest.raises(Oops):
        train(tmp_path / "other", Break(*breaks))
    assert first_difference(whole, train(tmp_path / "other")) is None
    assert first_difference(whole, train(tmp_path / "other")) is None, "it had ended"


# Which scheduler ------------------------------------------------------------------------------------------------------


def warmed(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1), make(optimizer)], milestones=[1]
    )


def stepped(optimizer: Any) -> Any:
    return lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def cosine(optimizer: Any) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 4)


def exponential(optimizer: Any) -> Any:
    return lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(
    ("saved", "now", "said"),
    [
        (stepped, cosine, "saved with StepLR, and this trainer has CosineAnnealingLR"),
        (stepped, exponential, "saved with StepLR, and this trainer has ExponentialLR"),
        (
            warmed(stepped),
            warmed(cosine),
            r"SequentialLR of LinearLR and StepLR, .* SequentialLR of LinearLR and CosineAnnealingLR",
        ),
    ],
)
def test_another_kind_of_scheduler_is_an_error(saved: Any, now: Any, said: str, tmp_path: Path) -> None:
    def train(make: Any, epochs: int) -> None:
        model, sgd = square(make=torch.optim.SGD)
        made = Trainer(model, sgd, nn.CrossEntropyLoss(), scheduler=make(sgd), callbacks=[saving(tmp_path)])
        made.fit(loader(), epochs=epochs, resume="auto")

    train(saved, 2)
    train(saved, 3)
    with pytest.raises(ValueError, match=said):
        train(now, 4)
