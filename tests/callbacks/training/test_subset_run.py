"""SubsetRun: how many batches are read and trained on, in every way to run, and the same ones again and again."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import cadenza
from cadenza.callbacks.training.oversample import Oversample
from cadenza.callbacks.training.subset_run import FirstBatches, SubsetRun
from cadenza.testing import Recorder, check_callback, tiny_classifier, tiny_data, tiny_loader


class Counted:
    """A loader that counts the batches that were taken out of it."""

    def __init__(self, batches: Any, *, knows_length: bool = True) -> None:
        self.batches, self.knows_length, self.taken = list(batches), knows_length, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.taken += 1
            yield batch

    def __len__(self) -> int:
        if not self.knows_length:
            raise TypeError("it has no length")
        return len(self.batches)


def made(*callbacks: cadenza.Callback) -> cadenza.Trainer:
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


@pytest.mark.parametrize("knows_length", [True, False])
def test_only_the_first_batches_of_each_loader_are_read(knows_length: bool) -> None:
    train, val, test = (Counted(tiny_loader(40), knows_length=knows_length) for _ in range(3))
    recorder = Recorder(["after_train_iter", "after_val_iter", "after_test_iter"])
    trainer = made(SubsetRun(train=2, val=1, test=3), recorder)
    trainer.fit(train, {"a": val, "b": val}, epochs=2, test_loaders=test)
    assert Counter(recorder.trace) == {"after_train_iter": 4, "after_val_iter": 4, "after_test_iter": 6}
    assert (train.taken, val.taken, test.taken) == (4, 4, 6)
    assert trainer.clock.epochs == 2


def test_it_equals_a_fit_over_loaders_that_are_cut_by_hand() -> None:
    batches = list(tiny_loader(40))
    cut, short = made(SubsetRun(train=2, val=1)), made()
    histories = [
        cut.fit(batches, batches, epochs=3).epochs,
        short.fit(batches[:2], batches[:1], epochs=3).epochs,
    ]
    assert histories[0] == histories[1]
    assert torch.equal(cut.model[0].weight, short.model[0].weight)


def test_none_is_all_and_more_than_there_are_is_all_too() -> None:
    trainer = made(SubsetRun(train=None, val=9))
    lengths: list[int] = []
    trainer.on("before_val_epoch")(lambda run: lengths.append(len(run.loader)))
    trainer.fit(tiny_loader(40), tiny_loader(16), epochs=1)
    assert trainer.clock.batches == 5
    assert lengths == [2]


def test_the_loaders_know_their_short_length_and_are_back_afterwards() -> None:
    loaders = {"train": tiny_loader(40), "val": tiny_loader(40), "test": tiny_loader(40)}
    lengths, after = [], []
    trainer = made(SubsetRun(train=2, val=1, test=3))
    trainer.on("before_train_epoch")(
        lambda run: lengths.extend(len(loader) for loader in (run.train_loader, run.val_loader, run.test_loaders))
    )
    trainer.on("after_epoch")(lambda run: after.append((run.train_loader, run.val_loader, run.test_loaders)))
    trainer.fit(loaders["train"], loaders["val"], epochs=1, test_loaders=loaders["test"])
    assert lengths == [2, 1, 3]
    assert after == [tuple(loaders.values())]


def test_validate_and_test_are_cut_too() -> None:
    trainer, loader = made(SubsetRun(val=1, test=2)), Counted(tiny_loader(40))
    whole = made()
    assert trainer.validate(loader) == whole.validate(loader.batches[:1])
    assert loader.taken == 1
    assert trainer.test({"a": loader}) == whole.test({"a": loader.batches[:2]})
    assert loader.taken == 3


def test_a_loop_of_ones_own_that_names_its_loaders_is_cut_too() -> None:
    train, val = Counted(tiny_loader(40)), Counted(tiny_loader(40))
    trainer = made(SubsetRun(train=2, val=1))
    with trainer.run(epochs=2) as run:
        for _ in run.epochs():
            for _ in run.train(train):
                run.train_step()
            for _ in run.validate(val):
                run.eval_step()
    assert (train.taken, val.taken) == (4, 2)
    assert trainer.clock.epochs == 2
    assert len(trainer.history["val/loss"]) == 2


def test_held_gradients_are_stepped_at_the_last_batch() -> None:
    class Hold(cadenza.Callback):
        def before_train_iter(self, run: cadenza.Run) -> None:
            run.hold_step()

    for loader in (tiny_loader(40), Counted(tiny_loader(40), knows_length=False)):
        trainer = made(SubsetRun(train=3), Hold())
        trainer.fit(loader, epochs=2)
        assert (trainer.clock.batches, trainer.clock.steps) == (6, 2)


def test_a_loader_that_another_callback_builds_is_cut_after_that() -> None:
    for callbacks in ([SubsetRun(), Oversample()], [Oversample(), SubsetRun()]):
        trainer = made(*callbacks)
        trainer.fit(tiny_loader(40), epochs=1)
        assert trainer.clock.batches == 2


# The same batches again and again -----------------------------------------------------------------------------------


def inputs_of(trainer: cadenza.Trainer, loader: Any, epochs: int) -> list[Tensor]:
    seen: list[Tensor] = []
    trainer.on("before_train_iter")(lambda run: seen.append(run.inputs))
    trainer.fit(loader, epochs=epochs)
    return seen


def test_the_same_batches_come_again_whatever_the_loader_would_give() -> None:
    seen = inputs_of(made(SubsetRun(2, repeat=True)), tiny_loader(40, shuffle=True), epochs=4)
    assert len(seen) == 8
    assert not torch.equal(seen[0], seen[1])
    for index, inputs in enumerate(seen):
        assert torch.equal(inputs, seen[index % 2])
    other = inputs_of(made(SubsetRun(2)), tiny_loader(40, shuffle=True), epochs=2)
    assert not torch.equal(other[0], other[2])


def test_they_are_read_once_in_a_fit_and_can_be_learned_by_heart() -> None:
    loader = Counted(tiny_loader(40))
    trainer = made(SubsetRun(2, repeat=True))
    history = trainer.fit(loader, epochs=150)
    assert loader.taken == 2
    assert history["train/loss"][-1] < 0.1 < history["train/loss"][0]


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_resumed_run_repeats_the_same_ones_and_goes_on_bit_equal(own_generator: bool) -> None:
    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(1) if own_generator else None
        return DataLoader(tiny_data(40), batch_size=8, shuffle=True, generator=generator)

    torch.manual_seed(3)
    first = made(SubsetRun(2, repeat=True))
    seen = inputs_of(first, loader(), epochs=2)
    second = made(SubsetRun(2, repeat=True))
    second.model.load_state_dict(first.model.state_dict())
    optimizers = [trainer._training.optimizers[0] for trainer in (first, second)]
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    second.callbacks[0].load_state_dict(copy.deepcopy(first.callbacks[0].state_dict()))
    state = torch.get_rng_state()
    again = inputs_of(second, loader(), epochs=2)
    assert all(torch.equal(one, other) for one, other in zip(seen, again, strict=True))
    assert torch.equal(state, torch.get_rng_state())
    first.fit(loader(), epochs=2)
    assert torch.equal(first.model[0].weight, second.model[0].weight)


@pytest.mark.parametrize("ending", ["stop", "error"])
def test_after_a_stop_or_an_error_the_loaders_are_back(ending: str) -> None:
    loader, seen = tiny_loader(40), []
    trainer = made(SubsetRun(2, repeat=True))

    @trainer.on("after_step")
    def end(run: cadenza.Run) -> None:
        if ending == "error":
            raise OSError("on purpose")
        run.stop()

    for point in ("after_epoch", "after_error"):
        trainer.on(point)(lambda run: seen.append(run.train_loader))
    if ending == "error":
        with pytest.raises(OSError, match="on purpose"):
            trainer.fit(loader, epochs=2)
    else:
        trainer.fit(loader, epochs=2)
    assert seen == [loader]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 0}, "train must be None or a whole number of batches of at least 1, not 0"),
        ({"val": True}, "val must be"),
        ({"test": 1.5}, "test must be"),
        ({"train": None, "repeat": True}, "say how many"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SubsetRun(**arguments)


def test_a_loop_without_a_loader_on_the_run_has_nothing_to_repeat() -> None:
    with (
        pytest.raises(ValueError, match=r"repeats batches of run\.train_loader, and there is none"),
        made(SubsetRun(repeat=True)).run(epochs=1) as run,
    ):
        for _ in run.epochs():
            pass


def test_a_loader_without_length_stays_one() -> None:
    with pytest.raises(TypeError, match="Counted does not know its length"):
        len(FirstBatches(Counted([], knows_length=False), 2))


def test_explain_says_how_many() -> None:
    assert SubsetRun(2, None, 3).explain() == "batches: train 2, val all, test 3"
    assert SubsetRun(repeat=True).explain().endswith("the same training batches again and again")


@pytest.mark.parametrize("callback", [SubsetRun(1, repeat=True)], ids=["repeated"])
def test_it_behaves_as_a_callback_should(callback: SubsetRun) -> None:
    check_callback(callback)
