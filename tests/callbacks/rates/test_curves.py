"""Every shape against its formula, written down a second time here."""

from __future__ import annotations

import math

import pytest

from cadenza.callbacks.rates.curves import (
    Constant,
    Cosine,
    Curve,
    Exponential,
    FlatCosine,
    Function,
    MultiStep,
    OneCycle,
    Polynomial,
    Step,
)
from cadenza.callbacks.rates.plateau import Plateau


def test_curves_over_counts_have_the_values_worked_out_by_hand() -> None:
    assert [Constant()(n) for n in range(3)] == [1, 1, 1]
    assert [Step(2, 0.5)(n) for n in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    assert [MultiStep([3, 1], 0.5)(n) for n in range(5)] == [1, 0.5, 0.5, 0.25, 0.25]
    assert [Exponential(0.5)(n) for n in range(4)] == [1, 0.5, 0.25, 0.125]
    assert [Function(lambda n: 1 / (1 + n), "count")(n) for n in range(3)] == [1, 1 / 2, 1 / 3]


@pytest.mark.parametrize("x", [0, 0.1, 0.25, 0.5, 0.8, 1])
def test_curves_of_the_progress(x: float) -> None:
    assert Polynomial(2, 0.1)(x) == pytest.approx(0.1 + 0.9 * (1 - x) ** 2, rel=1e-15)
    assert Polynomial()(x) == 1 - x
    assert Cosine(0.1)(x) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * x)) / 2, rel=1e-15)
    y = (x - 0.5) / 0.5
    flat = 1 if x < 0.5 else 0.2 + 0.8 * (1 + math.cos(math.pi * y)) / 2
    assert FlatCosine(0.5, 0.2)(x) == pytest.approx(flat, rel=1e-15)


def test_one_cycle_goes_up_and_down_and_the_momentum_the_other_way() -> None:
    cycle = OneCycle(pct_start=0.25, div_factor=10, final_div_factor=100, cycled=(0.9, 0.8))
    assert [cycle(0), cycle(0.25), cycle(1)] == pytest.approx([0.1, 1, 0.001], rel=1e-12)
    assert cycle(0.125) == pytest.approx((0.1 + 1) / 2)
    assert cycle(0.625) == pytest.approx((1 + 0.001) / 2)
    assert [cycle.momentum(x) for x in (0, 0.125, 0.25, 1)] == pytest.approx([0.9, 0.85, 0.8, 0.9])
    assert OneCycle(cycled=None).momentum(0.5) is None
    assert OneCycle(pct_start=0.0)(0) == 1


def test_a_plateau_is_lowered_at_the_last_bad_check_that_was_allowed() -> None:
    plateau = Plateau(factor=0.5, patience=2, mode="min")
    lowered = [plateau.check(value) for value in (1.0, 0.9, 0.9, 1.0, 0.95, float("nan"), 0.8, 0.8)]
    assert lowered == [False, False, False, True, False, True, False, False]
    assert plateau.scale == plateau(123) == 0.25


def test_a_plateau_takes_a_rest() -> None:
    plateau = Plateau(factor=0.1, patience=1, mode="max", rest=2)
    assert [plateau.check(1.0) for _ in range(6)] == [False, True, False, False, True, False]


def test_a_plateau_wants_more_than_min_delta() -> None:
    plateau = Plateau(patience=1, mode="max", min_delta=0.25)
    assert [plateau.check(value) for value in (1.0, 1.25, 1.3, 1.5)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Step(0), "size must be a whole number of at least 1, not 0"),
        (lambda: Step(1.5), "size must be a whole number"),
        (lambda: Step(3, gamma=0), "gamma must be a number above 0, not 0"),
        (lambda: MultiStep([]), "milestones is a list of whole numbers"),
        (lambda: MultiStep("30"), "milestones is a list of whole numbers"),
        (lambda: MultiStep([0.5]), "milestones are whole numbers of at least 1"),
        (lambda: Exponential(-1), "gamma must be a number above 0"),
        (lambda: Polynomial(power=0), "power must be a number above 0"),
        (lambda: Polynomial(final_ratio=1.1), "final_ratio must be a number from 0 to 1"),
        (lambda: Cosine(float("nan")), "final_ratio must be a number from 0 to 1"),
        (lambda: FlatCosine(start=1), "start must be a number from 0 up to, but not including, 1"),
        (lambda: OneCycle(pct_start=1.0), "pct_start"),
        (lambda: OneCycle(div_factor=0), "div_factor"),
        (lambda: OneCycle(cycled=0.9), "momentum is its outer and its inner value"),
        (lambda: OneCycle(cycled=(0.9, 1.0)), "each from 0 up to, but not including, 1"),
        (lambda: Function(lambda x: x, "steps"), '"progress" or "count"'),
        (lambda: Plateau(factor=1.0), "factor must be a number between 0 and 1"),
        (lambda: Plateau(patience=0), "patience must be a whole number of at least 1"),
        (lambda: Plateau(rest=-1), "rest must be a whole number of at least 0"),
        (lambda: Plateau(min_lr=-1), "min_lr must be a number of at least 0"),
        (lambda: Plateau(mode="up"), 'mode is "min" or "max"'),
    ],
)
def test_bad_arguments_are_refused_with_what_is_valid(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()  # type: ignore[operator]


def test_a_function_must_be_one_and_give_a_rate() -> None:
    with pytest.raises(TypeError, match="a function of one number"):
        Function(0.5)  # type: ignore[arg-type]
    for wrong in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be finite and at least 0"):
            Function(lambda x, wrong=wrong: wrong)(0.5)


def test_a_curve_of_ones_own() -> None:
    class Sawtooth(Curve):
        of = "count"

        def __call__(self, x: float) -> float:
            return 1 - (x % 4) / 4

    assert [Sawtooth()(n) for n in range(5)] == [1, 0.75, 0.5, 0.25, 1]
    assert Sawtooth().words() == "sawtooth"
    with pytest.raises(NotImplementedError):
        Curve()(0)
