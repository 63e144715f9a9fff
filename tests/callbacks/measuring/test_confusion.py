"""ConfusionMatrix: counts against those of the whole set at once, and the figure."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from sklearn.metrics import confusion_matrix as by_sklearn
from tests.callbacks.drawn import Act, Oops, assert_nothing_is_cut, fitted, oops, size_of, texts, trainer_with
from torch import nn
from torch.utils.data import DataLoader

from cadenza import Trainer
from cadenza.callbacks.measuring.confusion import ConfusionMatrix, confusion_matrix, plot_confusion
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.testing import tiny_data, tiny_loader

STORED = "val/confusion_matrix"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def at_once(model, data):
    """The matrix over the whole set in one go."""
    inputs, targets = data.tensors
    with torch.no_grad():
        predicted = model.eval()(inputs).argmax(1)
    return torch.as_tensor(by_sklearn(targets, predicted, labels=range(3)))


# Counting -------------------------------------------------------------------------------------------------------------


def test_over_ragged_batches_it_is_that_of_the_whole_set_at_once():
    data = tiny_data(50, seed=3)
    trainer = trainer_with(ConfusionMatrix())
    trainer.fit(tiny_loader(), DataLoader(data, batch_size=7), epochs=3)
    matrix = trainer.store[STORED]
    assert torch.equal(matrix, at_once(trainer.model, data))
    assert (matrix.dtype, matrix.device.type, int(matrix.sum())) == (torch.int64, "cpu", 50)


@pytest.mark.parametrize(
    ("output", "targets", "classes", "expected"),
    [
        (torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 1]), None, [[1, 0], [1, 1]]),
        (torch.tensor([2, 0]), torch.tensor([1, 0]), 3, [[1, 0, 0], [0, 0, 1], [0, 0, 0]]),
        (torch.tensor([0.3, -0.3, 2.0]), torch.tensor([1, 1, 0]), None, [[0, 1], [1, 1]]),
        (torch.tensor([[0.3], [-0.3]]), torch.tensor([[1.0], [0.0]]), None, [[1, 0], [0, 1]]),
        (torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[0.3, 0.7], [0.1, 0.9]]), None, [[0, 0], [1, 1]]),
        (torch.tensor([0, 1, 1]), torch.tensor([0, -100, 1]), 2, [[1, 0], [0, 1]]),
        (torch.tensor([True, False]), torch.tensor([1, 1]), 2, [[0, 0], [1, 1]]),
    ],
)
def test_what_is_counted(output, targets, classes, expected):
    assert confusion_matrix(output, targets, classes).tolist() == expected


def test_pixels_are_counted():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 4, 5, 6, generator=generator)
    targets = torch.randint(0, 4, (2, 5, 6), generator=generator)
    targets[0, 0, 0] = 255
    counted = targets.flatten() != 255
    expected = by_sklearn(targets.flatten()[counted], scores.argmax(1).flatten()[counted], labels=range(4))
    assert confusion_matrix(scores, targets, ignore=255).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("output", "targets", "classes", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), None, "1 targets or predictions are no class from 0 to 2"),
        (torch.tensor([5, 0]), torch.tensor([0, 0]), 2, "are no class from 0 to 1"),
        (torch.tensor([0, 0]), torch.tensor([0, 0]), None, "give classes="),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.long), None, "2 predictions do not go with 3 targets"),
        ({"logits": 1}, torch.zeros(3), None, "give prepare="),
    ],
)
def test_what_cannot_be_counted_is_said(output, targets, classes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        confusion_matrix(output, targets, classes)


def test_a_target_that_is_no_class_ends_the_run_with_the_name_of_the_callback():
    broken = [(torch.zeros(2, 4), torch.tensor([0, 9]))]
    trainer = trainer_with(ConfusionMatrix(["a", "b"], prepare=lambda run: (run.output[:, :2], run.targets)))
    trainer._training.criterion = lambda output, targets: output.mean()
    with pytest.raises(ValueError, match="no class from 0 to 1") as caught:
        trainer.fit(tiny_loader(), broken, epochs=1)
    assert any("ConfusionMatrix at after_val_epoch" in note for note in caught.value.__notes__)


def test_prepare_is_for_outputs_of_another_form():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, inputs):
            return {"scores": self.inner(inputs)}

    model = Wrapped()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda output, targets: nn.functional.cross_entropy(output["scores"], targets),
        callbacks=[ConfusionMatrix(prepare=lambda run: (run.output["scores"], run.targets))],
        device="cpu",
    )
    trainer.fit(tiny_loader(), tiny_loader(20, seed=1), epochs=1)
    assert torch.equal(trainer.store[STORED], at_once(model.inner, tiny_data(20, seed=1)))


# Passes ---------------------------------------------------------------------------------------------------------------


def test_each_loader_and_each_stage_has_its_own():
    trainer = trainer_with(ConfusionMatrix(stages={"val", "test"}))
    loaders = {"day": tiny_loader(10), "night": tiny_loader(14, seed=2)}
    trainer.fit(tiny_loader(), loaders, test_loaders=tiny_loader(6), epochs=1)
    names = ["val/day/confusion_matrix", "val/night/confusion_matrix", "test/confusion_matrix"]
    sums = {name: int(trainer.store[name].sum()) for name in names}
    assert list(sums.values()) == [10, 14, 6]
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "confusion-test.png",
        "confusion-val-day.png",
        "confusion-val-night.png",
    ]


def test_only_the_chosen_stages_count_and_each_pass_begins_anew():
    trainer = trainer_with(ConfusionMatrix())
    trainer.fit(tiny_loader(), tiny_loader(10), test_loaders=tiny_loader(6), epochs=3)
    assert int(trainer.store[STORED].sum()) == 10
    assert "test/confusion_matrix" not in trainer.store


def test_validate_counts_too():
    trainer = trainer_with(ConfusionMatrix())
    trainer.validate(tiny_loader(9))
    assert int(trainer.store[STORED].sum()) == 9


def test_skipped_batches_are_left_out_and_a_pass_that_was_cut_has_no_result():
    trainer = fitted(ConfusionMatrix(), Act("before_val_iter", lambda run: run.skip_batch()), epochs=1)
    assert int(trainer.store[STORED].sum()) == 20 - 8
    trainer = fitted(ConfusionMatrix(), Act("after_val_iter", lambda run: run.stop("enough")))
    assert STORED not in trainer.store
    trainer = fitted(ConfusionMatrix(), Act("after_val_iter", lambda run: run.end_epoch()), epochs=1)
    assert int(trainer.store[STORED].sum()) == 8


def test_accumulation_changes_nothing_in_it():
    one, other = fitted(Accumulate(2), ConfusionMatrix()), fitted(Accumulate(2))
    assert int(one.store[STORED].sum()) == 20
    assert one.history.to_rows() == other.history.to_rows()


def test_after_an_error_the_next_fit_begins_anew():
    trainer = trainer_with(ConfusionMatrix(), Act("after_val_iter", oops))
    with pytest.raises(Oops):
        trainer.fit(tiny_loader(), tiny_loader(20), epochs=1)
    assert STORED not in trainer.store
    trainer.fit(tiny_loader(), tiny_loader(20), epochs=1)
    assert int(trainer.store[STORED].sum()) == 20


def test_the_training_is_not_changed():
    one, other = fitted(ConfusionMatrix()), fitted()
    for mine, plain in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, plain)
    assert one.history.to_rows() == other.history.to_rows()


def in_one_process(rank, rendezvous, results):
    """Validates as one of two processes, which divide each batch between them."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    trainer = trainer_with(ConfusionMatrix(["a", "b", "c"]))
    trainer.validate(DataLoader(tiny_data(30), batch_size=7))
    results.put((rank, trainer.store[STORED].tolist(), Path("runs").exists()))
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_over_processes_it_is_the_sum(tmp_path, monkeypatch):
    context = multiprocessing.get_context("spawn")
    results, workers = context.Queue(), []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        monkeypatch.chdir(tmp_path / str(rank))
        arguments = (rank, f"file://{tmp_path}/meet", results)
        workers.append(context.Process(target=in_one_process, args=arguments))
        workers[-1].start()
    found = sorted(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    expected = at_once(trainer_with().model, tiny_data(30)).tolist()
    assert [matrix for _, matrix, _ in found] == [expected, expected]
    assert [drew for _, _, drew in found] == [True, False]


# The figure -----------------------------------------------------------------------------------------------------------

MATRIX = torch.tensor([[6, 2, 0], [1, 9, 0], [0, 0, 2]])


def cells(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_figure_shows_counts_with_names_and_labels(tmp_path):
    figure = plot_confusion(MATRIX, ["cat", "dog", "a bird with a very long name"], tmp_path / "c.png", title="val")
    axes, bar = figure.axes
    assert cells(figure) == ["6", "2", "0", "1", "9", "0", "0", "0", "2"]
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("predicted", "true", "samples")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "a bird with…ng name"]
    assert axes.get_title() == "val: 85.0% right"
    assert axes.images[0].get_array().tolist() == MATRIX.tolist()
    assert_nothing_is_cut(figure)
    assert size_of(tmp_path / "c.png") > (300, 300)


@pytest.mark.parametrize(
    ("normalise", "first_row", "unit"),
    [
        ("true", ["75.0", "25.0", "0"], "% of the true class"),
        ("predicted", ["85.7", "18.2", "0"], "% of the predictions"),
        ("all", ["30.0", "10.0", "0"], "% of all"),
    ],
)
def test_shares_are_of_what_normalise_says_and_the_unit_tells(normalise, first_row, unit):
    figure = plot_confusion(MATRIX, normalise=normalise)
    assert cells(figure)[:3] == first_row
    assert unit in texts(figure)


def test_a_class_without_samples_has_shares_of_nothing():
    figure = plot_confusion(torch.tensor([[0, 0], [1, 3]]), normalise="true")
    assert cells(figure) == ["0", "0", "25.0", "75.0"]


def test_many_classes_have_no_numbers_and_fewer_names():
    figure = plot_confusion(torch.eye(100, dtype=torch.long))
    assert cells(figure) == []
    assert len(figure.axes[0].get_xticks()) == 34
    assert_nothing_is_cut(figure)


def test_a_picture_for_each_epoch_if_the_path_says_so():
    trainer = fitted(ConfusionMatrix(path="c-{epoch}.svg"))
    assert Path("c-000.svg").exists()
    assert Path("c-001.svg").exists()
    assert trainer.store["plots"] == {"ConfusionMatrix val": "c-001.svg"}


# Around it ------------------------------------------------------------------------------------------------------------


def test_a_failure_is_a_warning_if_asked():
    bad = ConfusionMatrix(["only one"], on_error="warn")
    with pytest.warns(UserWarning, match="ConfusionMatrix is switched off, the run goes on: ValueError"):
        assert fitted(bad, epochs=3).clock.epochs == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "abc"}, "name of each class"),
        ({"normalise": "rows"}, '"true", "predicted", "all" or None'),
        ({"stages": {"train"}}, "some of val, test"),
        ({"stages": ()}, "some of val, test"),
        ({"prepare": 3}, "function of the run"),
        ({"path": "c.png", "stages": ("val", "test")}, "write {stage} in the path"),
        ({"format": "jpg"}, "png, pdf, svg"),
        ({"on_error": "no"}, '"raise" or "warn"'),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ConfusionMatrix(**options)
