"""Result packages: every number against scikit-learn, and what is refused."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from cadenza.callbacks.measuring.result_packages import (
    BinaryResults,
    ClassificationResults,
    MergedResults,
    RegressionResults,
    ResultPackage,
    average_precision,
    named_results,
    roc_auc,
)


def close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), abs=1e-12), name


def macro(actual, predicted):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision, recall, f1, _ = sk.precision_recall_fscore_support(
            actual, predicted, average="macro", zero_division=0
        )
    return {"accuracy": sk.accuracy_score(actual, predicted), "precision": precision, "recall": recall, "f1": f1}


# Classes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("samples", "classes"), [(50, 3), (7, 10), (1, 2), (400, 17)])
def test_classification_is_that_of_scikit_learn(samples, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(samples, classes, generator=generator)
    targets = torch.randint(classes, (samples,), generator=generator)
    expected = macro(targets.numpy(), scores.argmax(1).numpy())
    close(ClassificationResults().compute(scores, targets), expected)
    close(ClassificationResults().compute(scores.argmax(1), targets), expected)
    close(ClassificationResults().compute(scores, torch.eye(classes)[targets]), expected)


def test_each_class_is_that_of_scikit_learn():
    targets, predicted = torch.tensor([0, 0, 1, 1, 3, 3, 3]), torch.tensor([0, 1, 1, 1, 3, 0, 3])
    scores = torch.eye(5)[predicted]
    precision, recall, f1, _ = sk.precision_recall_fscore_support(
        targets.numpy(), predicted.numpy(), labels=range(5), zero_division=0
    )
    found = ClassificationResults(per_class=True).compute(scores, targets)
    for name, values in (("precision", precision), ("recall", recall), ("f1", f1)):
        assert [found[f"{name}/{i}"] for i in range(5)] == pytest.approx(list(values))
    named = ClassificationResults(class_names=["a", "b", "c", "d", "e"]).compute(scores, targets)
    assert named["recall/d"] == found["recall/3"] == pytest.approx(2 / 3)
    close({name: named[name] for name in ("accuracy", "precision", "recall", "f1")}, macro(targets, predicted))


def test_positions_count_one_by_one():
    scores, targets = torch.randn(3, 4, 5, 2), torch.randint(4, (3, 5, 2))
    found = ClassificationResults().compute(scores, targets)
    close(found, macro(targets.flatten(), scores.argmax(1).flatten()))


def test_scores_that_are_nan_give_nan():
    scores = torch.tensor([[0.1, 0.9], [float("nan"), 0.2]])
    assert all(math.isnan(value) for value in ClassificationResults().compute(scores, torch.tensor([1, 0])).values())
    assert all(math.isnan(value) for value in BinaryResults().compute(scores, torch.tensor([1, 0])).values())
    assert all(
        math.isnan(value) for value in RegressionResults().compute(scores[:, 0], torch.tensor([1.0, 0.0])).values()
    )


# Two classes ---------------------------------------------------------------------------------------------------------


def binary(actual, scores, threshold):
    predicted = (scores > threshold).int()
    expected = {
        "accuracy": sk.accuracy_score(actual, predicted),
        "precision": sk.precision_score(actual, predicted, zero_division=0),
        "recall": sk.recall_score(actual, predicted, zero_division=0),
        "f1": sk.f1_score(actual, predicted, zero_division=0),
    }
    return expected | {
        "roc_auc": sk.roc_auc_score(actual, scores),
        "average_precision": sk.average_precision_score(actual, scores),
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("samples", [4, 60, 1000])
def test_binary_is_that_of_scikit_learn(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(samples) % 3 % 2
    logits = torch.randn(samples, generator=generator) + targets
    close(BinaryResults().compute(logits, targets), binary(targets, logits, 0))
    close(BinaryResults().compute(logits.unsqueeze(1), targets.float()), binary(targets, logits, 0))
    close(BinaryResults(0.5).compute(logits.sigmoid(), targets.bool()), binary(targets, logits.sigmoid(), 0.5))
    both = torch.stack([-logits, logits], dim=1)
    close(BinaryResults().compute(both, targets), binary(targets, logits, 0))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40).filter(
        lambda rows: {positive for _, positive in rows} == {True, False}
    )
)
@settings(max_examples=60, deadline=None)
def test_areas_with_equal_scores_are_those_of_scikit_learn(rows):
    scores = torch.tensor([score for score, _ in rows], dtype=torch.float64)
    positive = torch.tensor([positive for _, positive in rows])
    assert roc_auc(scores, positive) == pytest.approx(sk.roc_auc_score(positive, scores), abs=1e-12)
    expected = sk.average_precision_score(positive, scores)
    assert average_precision(scores, positive) == pytest.approx(expected, abs=1e-12)


def test_with_one_class_there_is_no_area():
    scores, none, all_ = torch.tensor([0.1, 0.9]), torch.tensor([0, 0]), torch.tensor([1, 1])
    assert math.isnan(roc_auc(scores, none))
    assert math.isnan(roc_auc(scores, all_))
    assert math.isnan(average_precision(scores, none))
    assert average_precision(scores, all_) == 1.0
    found = BinaryResults(0.5).compute(scores, none)
    assert (found["accuracy"], found["precision"], found["recall"], found["f1"]) == (0.5, 0.0, 0.0, 0.0)


# Numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(30,), (30, 1), (30, 4)], ids=str)
def test_regression_is_that_of_scikit_learn(shape):
    generator = torch.Generator().manual_seed(1)
    targets = torch.randn(shape, generator=generator)
    predictions = targets + torch.randn(shape, generator=generator) / 3
    y, p = targets.double().numpy(), predictions.double().numpy()
    expected = {
        "mae": sk.mean_absolute_error(y, p),
        "mse": sk.mean_squared_error(y, p),
        "rmse": sk.root_mean_squared_error(y, p),
        "r2": sk.r2_score(y, p),
    }
    close(RegressionResults().compute(predictions, targets), expected)
    if len(shape) == 1:
        close(RegressionResults().compute(predictions.unsqueeze(1), targets), expected)
        close(RegressionResults().compute(predictions, targets.unsqueeze(1)), expected)


def test_r2_of_constant_targets_is_1_if_all_are_right_and_else_0():
    targets = torch.full((4,), 2.0)
    assert RegressionResults().compute(targets, targets)["r2"] == 1.0
    assert RegressionResults().compute(targets + 1, targets)["r2"] == 0.0


# Merging -------------------------------------------------------------------------------------------------------------


class Bias:
    """Not derived from anything of ours."""

    def compute(self, predictions, targets):
        return {"bias": float((predictions - targets).mean())}


class Late(ResultPackage):
    """Says its names only when it computes."""

    def compute(self, predictions, targets):
        return {"mae": 0.0}


def test_merged_packages_compute_all():
    predictions, targets = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])
    merged = RegressionResults() + Bias() + RegressionResults(prefix="again_")
    assert isinstance(merged, MergedResults)
    assert len(merged.packages) == 3
    found = merged.compute(predictions, targets)
    assert found["mae"] == found["again_mae"] == pytest.approx(1 / 3)
    assert found["bias"] == pytest.approx(1 / 3)
    assert str(RegressionResults() + Late()) == "RegressionResults + Late"
    assert named_results(RegressionResults(prefix="x_"), predictions, targets)["x_r2"] == 0.5


def test_a_name_of_two_packages_is_refused_as_early_as_it_is_known():
    with pytest.raises(ValueError, match=r"'accuracy' of BinaryResults is computed by another package.*prefix"):
        ClassificationResults() + BinaryResults()
    assert ClassificationResults() + BinaryResults(prefix="binary_")
    with pytest.raises(ValueError, match="'mae' of Late"):
        (RegressionResults() + Late()).compute(torch.ones(2), torch.ones(2))
    with pytest.raises(TypeError, match="unsupported operand"):
        RegressionResults() + 3


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "predictions", "targets", "said"),
    [
        (ClassificationResults(), torch.ones(3), torch.ones(3).long(), "for a single score use BinaryResults"),
        (ClassificationResults(), torch.ones(3, 2), torch.ones(4).long(), "do not match"),
        (ClassificationResults(), torch.ones(3, 2), torch.tensor([0, -100, 1]), "numbers from 0 on, but there is -100"),
        (ClassificationResults(), [torch.ones(3, 2)], torch.ones(3), "needs predictions as one tensor, not list"),
        (ClassificationResults(class_names=["a"]), torch.ones(1, 2), torch.zeros(1).long(), "2 classes, but 1 class"),
        (BinaryResults(), torch.ones(3, 3), torch.ones(3), "one score a sample, or two"),
        (BinaryResults(), torch.ones(3), torch.tensor([0, 1, 2]), "targets are 0 or 1"),
        (RegressionResults(), torch.ones(3, 2), torch.ones(3), "do not match"),
        (RegressionResults(), torch.ones(0), torch.ones(0), "there are no targets"),
        (ResultPackage(), torch.ones(3), torch.ones(3), "does not say how to compute"),
    ],
)
def test_what_does_not_fit_is_refused(package, predictions, targets, said):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=said):
        package.compute(predictions, targets)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="threshold is a number"):
        BinaryResults("high")
    with pytest.raises(TypeError, match="prefix is a text"):
        RegressionResults(prefix=3)
