"""Visualize: which images are kept, how they are decoded, and what is drawn on them."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import numpy
import pytest
import torch
from matplotlib.colors import to_hex
from tests.callbacks.drawn import Act, Oops, assert_nothing_is_cut, oops, size_of, texts
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.showing import predictions
from cadenza.callbacks.showing.image_grid import FOUND, RIGHT, WRONG, Look, Sample, columns_for, draw_samples
from cadenza.callbacks.showing.predictions import Boxes, Label, Mask
from cadenza.callbacks.showing.visualize import Visualize
from cadenza.callbacks.training.accumulate import Accumulate

LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def data(*sizes, classes=2):
    """Batches of 4 by 4 images whose first pixel is their number in the pass."""
    batches, number = [], 0
    for size in sizes:
        images = torch.zeros(size, 1, 4, 4)
        images[:, 0, 0, 0] = torch.arange(number, number + size) / 100
        batches.append((images, torch.arange(number, number + size) % classes))
        number += size
    return batches


def classifier(classes=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))


def fit(*callbacks, model=None, loss=LOSS, train=None, val=None, epochs=1, **options):
    model = classifier() if model is None else model
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = Trainer(model, sgd, loss, callbacks=callbacks, device="cpu")
    trainer.fit(train or data(4, 4), val or data(3, 3, 2), epochs=epochs, **options)
    return trainer


class Kept(Visualize):
    """Also tells which samples were drawn."""

    name = "Visualize"

    def after_val_epoch(self, run):
        self.shown = [*getattr(self, "shown", []), list(self._samples)]
        super().after_val_epoch(run)


# Which images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "expected"), [(2, 2), (5, 5), (16, 8)])
def test_the_first_images_of_each_pass_are_kept_with_what_was_said_and_true(n, expected):
    show = Kept("classification", n)
    trainer = fit(show, epochs=2)
    assert [len(samples) for samples in show.shown] == [expected, expected]
    last = show.shown[-1]
    numbers = [round(float(sample.image[0, 0, 0]) * 100) for sample in last]
    assert numbers == list(range(expected))
    assert [int(sample.true.label) for sample in last] == [number % 2 for number in numbers]
    with torch.no_grad():
        scores = trainer.model(torch.stack([sample.image for sample in last])).softmax(1)
    assert [int(sample.predicted.label) for sample in last] == scores.argmax(1).tolist()
    torch.testing.assert_close(torch.stack([sample.predicted.score for sample in last]), scores.amax(1))


def test_skipped_batches_are_left_out_and_a_stop_shows_what_was_seen():
    show = Kept("classification", 4)
    fit(show, Act("before_val_iter", lambda run: run.skip_batch()), Accumulate(2))
    assert [round(float(sample.image[0, 0, 0]) * 100) for sample in show.shown[0]] == [3, 4, 5, 6]
    show = Kept("classification", 16)
    fit(show, Act("after_val_iter", lambda run: run.stop("enough")))
    assert len(show.shown[0]) == 3
    assert Path("runs/predictions-val-000.png").exists()


def test_an_error_in_the_middle_leaves_nothing_for_the_next_fit():
    show, fail = Kept("classification", 16), Act("after_val_iter", oops)
    model = classifier()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), LOSS, callbacks=[show, fail], device="cpu")
    with pytest.raises(Oops):
        trainer.fit(data(4), data(3, 3), epochs=1)
    trainer.fit(data(4), data(3, 3), epochs=1)
    assert [len(samples) for samples in show.shown] == [6]


def test_each_loader_and_each_stage_has_its_own_file():
    fit(
        Visualize("classification", 2, stages={"val", "test"}),
        val={"day": data(2), "night": data(2)},
        test_loaders=data(2),
        epochs=1,
    )
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "predictions-test-000.png",
        "predictions-val-000-day.png",
        "predictions-val-000-night.png",
    ]


def test_what_is_kept_is_a_copy():
    images = torch.zeros(2, 1, 4, 4)

    class Overwrite(Callback):
        order = 10_000

        def after_iter(self, run):
            if run.stage == "val":
                run.batch[0].fill_(9.0)

    show = Kept("classification", 2)
    fit(show, Overwrite(), val=[(images, torch.tensor([0, 1]))])
    assert all(not bool(sample.image.any()) for sample in show.shown[0])


def test_it_changes_nothing():
    def weights(*callbacks):
        torch.manual_seed(0)
        return list(fit(*callbacks, epochs=2).model.parameters())

    for one, other in zip(weights(Visualize("classification")), weights(), strict=True):
        assert torch.equal(one, other)


# Decoding -------------------------------------------------------------------------------------------------------------


def plainly(entries):
    return [{name: part if part is None else part.tolist() for name, part in vars(one).items()} for one in entries]


@pytest.mark.parametrize(
    ("output", "labels", "scores"),
    [
        (torch.tensor([[0.0, 2.0], [3.0, 3.0]]), [1, 0], [0.8808, 0.5]),
        ({"logits": torch.tensor([[0.0, 2.0]])}, [1], [0.8808]),
        ((torch.tensor([[0.0, 2.0]]), "more"), [1], [0.8808]),
        (namedtuple("Output", "logits")(torch.tensor([[0.0, 2.0]])), [1], [0.8808]),
        (torch.tensor([2.0, -2.0]), [1, 0], [0.8808, 0.8808]),
        (torch.tensor([[2.0], [-2.0]]), [1, 0], [0.8808, 0.8808]),
    ],
)
def test_labels_by_default(output, labels, scores):
    found = predictions.decode_labels(output)
    assert [int(one.label) for one in found] == labels
    assert [round(float(one.score), 4) for one in found] == scores


def test_labels_that_are_whole_numbers_have_no_score():
    assert plainly(predictions.decode_labels(torch.tensor([3, 1]))) == [
        {"label": 3, "score": None},
        {"label": 1, "score": None},
    ]
    assert [int(one.label) for one in predictions.true_labels(torch.tensor([[0.2, 0.8], [0.9, 0.1]]))] == [1, 0]


BOX = {"boxes": [[1.0, 2.0, 3.0, 4.0]], "labels": [2], "scores": [0.5]}


@pytest.mark.parametrize(
    "output",
    [
        [{name: torch.tensor(value) for name, value in BOX.items()}],
        {name: torch.tensor([value]) for name, value in BOX.items()},
        [torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.5, 2.0]])],
        torch.tensor([[[1.0, 2.0, 3.0, 4.0, 0.5, 2.0]]]),
    ],
)
def test_boxes_by_default(output):
    assert plainly(predictions.decode_boxes(output)) == [BOX]


def test_true_boxes_are_dicts_or_rows():
    rows = predictions.true_boxes([torch.tensor([[1.0, 2.0, 3.0, 4.0, 2.0]])])
    dicts = predictions.true_boxes([{"boxes": torch.tensor(BOX["boxes"]), "labels": torch.tensor(BOX["labels"])}])
    assert plainly(rows) == plainly(dicts) == [BOX | {"scores": None}]


@pytest.mark.parametrize(
    ("output", "mask"),
    [
        (torch.tensor([[[[0.0, 2.0]], [[1.0, 1.0]]]]), [[1, 0]]),
        ({"out": torch.tensor([[[[0.0, 2.0]], [[1.0, 1.0]]]])}, [[1, 0]]),
        (torch.tensor([[[[-1.0, 2.0]]]]), [[0, 1]]),
        (torch.tensor([[[4, 2]]]), [[4, 2]]),
    ],
)
def test_masks_by_default(output, mask):
    assert plainly(predictions.decode_masks(output)) == [{"mask": mask}]


def test_true_masks_are_understood_as_classes_with_a_channel_or_as_scores():
    assert plainly(predictions.true_masks(torch.tensor([[[4, 2]]]))) == [{"mask": [[4, 2]]}]
    assert plainly(predictions.true_masks(torch.tensor([[[[4, 2]]]]))) == [{"mask": [[4, 2]]}]
    assert plainly(predictions.true_masks(torch.tensor([[[[0.0, 2.0]], [[1.0, 1.0]]]]))) == [{"mask": [[1, 0]]}]


@pytest.mark.parametrize(
    "inputs",
    [
        torch.ones(2, 3, 4, 5),
        [torch.ones(3, 4, 5), torch.ones(3, 4, 5)],
        {"ids": torch.ones(2), "pixels": torch.ones(2, 3, 4, 5)},
        (torch.ones(2, 7), torch.ones(2, 3, 4, 5)),
    ],
)
def test_images_are_found(inputs):
    assert [tuple(image.shape) for image in predictions.find_images(inputs)] == [(3, 4, 5), (3, 4, 5)]


@pytest.mark.parametrize(
    ("decode", "value", "message"),
    [
        (predictions.find_images, torch.ones(2, 3), r"shape \(2, 3\).*images="),
        (predictions.decode_labels, "text", "no predictions are found in a str: give decode="),
        (predictions.decode_boxes, [torch.ones(3)], "no boxes are found in a tensor"),
        (predictions.decode_boxes, 3, "no boxes are found in a int"),
        (predictions.decode_masks, torch.ones(3, 2), r"masks have the shape"),
        (predictions.true_labels, [1], "give decode_targets="),
        (predictions.true_boxes, [3], "give decode_targets="),
        (predictions.true_boxes, 3, "give decode_targets="),
        (predictions.true_masks, torch.ones(3), "give decode_targets="),
    ],
)
def test_what_is_not_understood_says_which_argument_helps(decode, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        decode(value)


def test_functions_of_the_user_take_the_place_of_the_defaults():
    show = Kept(
        "classification",
        3,
        decode=lambda output: [(1, 0.25)] * len(output),
        decode_targets=lambda targets: targets + 5,
        images=lambda inputs: inputs[:, :, :2],
    )
    fit(show)
    sample = show.shown[0][2]
    assert (int(sample.predicted.label), float(sample.predicted.score), int(sample.true.label)) == (1, 0.25, 5)
    assert sample.image.shape == (1, 2, 4)
    with pytest.raises(ValueError, match="3 images have 1 predictions") as caught:
        fit(Visualize("classification", decode=lambda output: [0]))
    assert any("Visualize at after_iter" in note for note in caught.value.__notes__)


# Pictures -------------------------------------------------------------------------------------------------------------


def test_normalisation_is_undone():
    image = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.1, 0.2, 0.3])
    normalised = (image - mean[:, None, None]) / std[:, None, None]
    shown = Look(mean=mean.tolist(), std=std.tolist()).shown(normalised)
    torch.testing.assert_close(shown, image.permute(1, 2, 0))
    torch.testing.assert_close(Look(mean=0.5, std=0.25).shown((image - 0.5) / 0.25), image.permute(1, 2, 0))
    with pytest.raises(ValueError, match="2 numbers, but the images have 3 channels"):
        Look(mean=[0.1, 0.2]).shown(image)


def test_images_without_known_normalisation():
    grey = torch.tensor([[[0.25, 0.5]]])
    assert torch.equal(Look().shown(grey), grey[0])
    assert Look().shown(torch.tensor([[[-2.0, 0.0, 2.0]]])).tolist() == [[0.0, 0.5, 1.0]]
    assert Look().shown(torch.tensor([[[0, 51, 255]]], dtype=torch.uint8)).tolist()[0] == pytest.approx([0, 0.2, 1])
    assert Look().shown(torch.rand(7, 2, 3)).shape == (2, 3)
    assert Look().shown(torch.full((1, 2, 2), float("nan"))).tolist() == [[0, 0], [0, 0]]


def label(index, score=None):
    return Label(torch.tensor(index), None if score is None else torch.tensor(score))


def test_right_classes_are_green_and_wrong_ones_red_with_the_true_one():
    image = torch.rand(3, 6, 6)
    samples = [
        Sample(image, label(0, 0.934), label(0)),
        Sample(image, label(1, 0.5), label(0)),
        Sample(image, label(2)),
    ]
    figure = draw_samples(samples, Look(["cat", "dog", "hen"]), "val, epoch 3")
    titles = [(axes.get_title(), to_hex(axes.title.get_color())) for axes in figure.axes[:3]]
    assert titles[:2] == [("cat (93%)", RIGHT), ("dog (50%)\nis cat", WRONG)]
    assert titles[2][0] == "hen"
    numpy.testing.assert_allclose(figure.axes[0].images[0].get_array(), image.permute(1, 2, 0).numpy())
    assert "val, epoch 3" in texts(figure)
    assert_nothing_is_cut(figure)


def test_boxes_are_drawn_where_they_are_with_class_and_score():
    predicted = Boxes(torch.tensor([[1.0, 2.0, 5.0, 7.0], [0.0, 0.0, 9.0, 9.0]]), torch.tensor([1, 0]))
    scored = Boxes(predicted.boxes, predicted.labels, torch.tensor([0.91, 0.2]))
    true = Boxes(torch.tensor([[1.5, 2.0, 5.0, 8.0]]), torch.tensor([1]))
    figure = draw_samples([Sample(torch.rand(3, 10, 12), scored, true)], Look(["cat", "dog"]))
    (axes,) = figure.axes
    drawn = {(to_hex(box.get_edgecolor()), box.get_bbox().bounds) for box in axes.patches}
    assert drawn == {(FOUND, (1.0, 2.0, 4.0, 5.0)), (RIGHT, (1.5, 2.0, 3.5, 6.0))}
    assert [text.get_text() for text in axes.texts] == ["dog", "dog 0.91"]
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 12), (10, 0))
    assert axes.get_title() == "1 predicted, 1 true"
    assert {"predicted", "true"} <= set(texts(figure))
    assert_nothing_is_cut(figure)
    unscored = draw_samples([Sample(torch.rand(3, 10, 12), predicted)], Look(threshold=0.9))
    assert unscored.axes[0].get_title() == "2 predicted"


def test_masks_are_painted_over_the_image_beside_the_true_ones():
    predicted, true = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1], [1, 255]])
    figure = draw_samples([Sample(torch.zeros(3, 2, 2), Mask(predicted), Mask(true))], Look(["sky", "cat", "dog"]))
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("predicted, 66.7% right", "true")
    painted = left.images[1].get_array()
    assert painted[..., 3].tolist() == pytest.approx(numpy.array([[0, 0.55], [0.55, 0.55]]))
    assert right.images[1].get_array()[..., 3].tolist() == pytest.approx(numpy.array([[0, 0.55], [0.55, 0]]))
    assert painted[1, 0, :3].tolist() != painted[0, 1, :3].tolist()
    assert [text for text in texts(figure) if text in ("sky", "cat", "dog")] == ["cat", "dog"]
    assert_nothing_is_cut(figure)


def test_a_mask_of_another_size_is_stretched_over_the_image():
    figure = draw_samples([Sample(torch.zeros(3, 8, 8), Mask(torch.ones(2, 2)), Mask(torch.ones(8, 8)))], Look())
    assert figure.axes[0].get_title() == "predicted"
    assert figure.axes[0].images[1].get_extent() == [0, 8, 8, 0]


def test_the_grid_has_few_empty_places():
    assert [columns_for(count, most=8) for count in (1, 2, 3, 5, 9, 16, 100)] == [1, 2, 3, 5, 3, 4, 8]
    figure = draw_samples([Sample(torch.rand(1, 4, 4), label(0), label(0))] * 10, Look())
    assert sum(bool(axes.images) for axes in figure.axes) == 10


# The three tasks in a training ----------------------------------------------------------------------------------------


class Detector(nn.Module):
    """Finds the same two boxes everywhere; its loss is its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 4.0]]) * self.scale
        found = {"boxes": boxes, "labels": torch.tensor([0, 1]), "scores": torch.tensor([0.9, 0.1])}
        return [dict(found) for _ in images]


def test_detection_in_a_training():
    model = Detector()
    targets = [{"boxes": torch.tensor([[0.0, 0.0, 2.0, 3.0]]), "labels": torch.tensor([0])}] * 2
    batches = [([torch.rand(3, 6, 6), torch.rand(3, 6, 6)], targets)]
    show = Kept("detection", classes=["cat", "dog"])
    fit(show, model=model, loss=lambda output, _: output[0]["boxes"].sum(), train=batches, val=batches)
    assert [len(sample.predicted.boxes) for sample in show.shown[0]] == [2, 2]
    assert not show.shown[0][0].predicted.boxes.requires_grad
    assert size_of("runs/predictions-val-000.png") > (300, 200)


def test_segmentation_in_a_training():
    batches = [(torch.rand(2, 3, 6, 6), torch.randint(0, 4, (2, 6, 6)))]
    show = Kept("segmentation")
    fit(show, model=nn.Conv2d(3, 4, 1), train=batches, val=batches)
    assert [tuple(sample.predicted.mask.shape) for sample in show.shown[0]] == [(6, 6), (6, 6)]
    assert size_of("runs/predictions-val-000.png") > (300, 200)


def test_pictures_are_named_by_epoch_and_known_to_others():
    trainer = fit(Visualize("classification", path="p-{epoch}-{step}.svg"), epochs=2)
    assert sorted(path.name for path in Path().glob("*.svg")) == ["p-000-000002.svg", "p-001-000004.svg"]
    assert trainer.store["plots"] == {"Visualize val": "p-001-000004.svg"}


# Around it ------------------------------------------------------------------------------------------------------------


def test_a_failure_is_a_warning_if_asked():
    def broken(output):
        raise RuntimeError("no idea")

    with pytest.warns(UserWarning, match="Visualize is switched off, the run goes on: RuntimeError: no idea") as warned:
        assert fit(Visualize("classification", decode=broken, on_error="warn"), epochs=3).clock.epochs == 3
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("pose",), {}, "classification, detection, segmentation"),
        (("classification", 0), {}, "from 1 to 100"),
        (("classification",), {"classes": "cat"}, "name of each class"),
        (("classification",), {"decode": 3}, "decode is a function"),
        (("classification",), {"stages": {"train"}}, "some of val, test"),
        (("classification",), {"path": "x.gif"}, "png, pdf, svg"),
        (("classification",), {"on_error": "no"}, '"raise" or "warn"'),
    ],
)
def test_bad_arguments_are_refused(arguments, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Visualize(*arguments, **options)


@pytest.mark.parametrize("names", [["cat", "dog"], ["cat", "dog", "cow", "hen"]])
def test_as_many_names_as_the_model_tells_classes_apart(names):
    with pytest.raises(ValueError, match=f"3 classes apart, but classes has {len(names)}: cat, dog"):
        fit(Visualize("classification", classes=names), model=classifier(3))
    fit(Visualize("classification", classes=range(3)), model=classifier(3))
    assert len(list(Path("runs").iterdir())) == 1


def test_a_class_without_a_name_is_an_error_in_any_task():
    assert Look(["cat", "dog"]).name(1) == "dog"
    for label in (2, -1):
        with pytest.raises(ValueError, match=f"there is a class {label}, but classes has the names of 2: cat, dog"):
            Look(["cat", "dog"]).name(label)
