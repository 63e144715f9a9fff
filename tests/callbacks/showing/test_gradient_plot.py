"""GradientPlot: the gradients that are drawn, against those of a loop by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest
import torch
from tests.callbacks.drawn import Act, Oops, assert_nothing_is_cut, fitted, oops, rendered, size_of, texts, trainer_with
from tests.callbacks.heard import hearing
from torch import nn

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks.measuring.gradient_spread import SHARES, measure_gradients, quantiles
from cadenza.callbacks.showing.gradient_plot import GradientPlot, plot_gradients, remark
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.clip import GradientClip
from cadenza.testing import tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Drawn(Callback):
    """Keeps what each picture was drawn from."""

    order = 10_000

    def __init__(self):
        self.pictures = []

    def after_train_epoch(self, run):
        if "gradient_plot" in run.store:
            self.pictures.append({spread.name: spread for spread in run.store.pop("gradient_plot")})


@pytest.fixture
def drawn():
    return Drawn()


def with_gradient(values):
    parameter = torch.zeros(len(values), requires_grad=True)
    parameter.grad = torch.tensor(values)
    return [("layer", parameter)]


# What is measured -----------------------------------------------------------------------------------------------------


def test_a_spread_is_what_numpy_finds():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1000, generator=generator)
    values[::7] = 0
    (spread,) = (one.read() for one in measure_gradients(with_gradient(values.tolist()), bins=20))
    array = values.numpy()
    sizes = numpy.abs(array[array != 0])
    assert (spread.count, spread.zeros, spread.not_finite) == (1000, 143, 0)
    assert (spread.least, spread.greatest) == (array.min(), array.max())
    assert spread.largest == numpy.abs(array).max()
    numpy.testing.assert_allclose(spread.quantiles, numpy.quantile(sizes, SHARES), rtol=1e-5)
    expected = numpy.histogram(array.astype("float64"), 20, (float(array.min()), float(array.max())))[0]
    assert sum(spread.bins) == 1000
    assert numpy.abs(numpy.array(spread.bins) - expected).sum() <= 2  # a value on an edge may fall to either side


def test_large_layers_are_thinned_evenly_for_the_quantiles_only():
    values = torch.arange(1, 2_500_001, dtype=torch.float32)
    numpy.testing.assert_allclose(quantiles(values).numpy(), numpy.array(SHARES) * 2_500_000, rtol=1e-4)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.0, 0.0], "all zero"),
        ([0.0, 1.0, 1.0, 1.0], "25% zero"),
        ([1.0, math.nan, math.inf], "2 not finite"),
        ([1.0, 2.0], ""),
    ],
)
def test_what_is_special_is_said(values, words):
    (spread,) = (one.read() for one in measure_gradients(with_gradient(values)))
    assert remark(spread) == words
    assert spread.count == len(values)


def test_what_is_not_finite_is_left_out_of_the_histogram():
    (spread,) = (one.read() for one in measure_gradients(with_gradient([1.0, 3.0, math.nan, -math.inf]), bins=2))
    assert (spread.least, spread.greatest, spread.bins) == (1.0, 3.0, (1, 1))


def test_sparse_gradients_and_parameters_without_any():
    embedding, other = nn.Embedding(10, 2, sparse=True), torch.zeros(3, requires_grad=True)
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    spreads = [one.read() for one in measure_gradients([("embedding", embedding.weight), ("other", other)])]
    assert [(one.name, one.count, one.largest) for one in spreads] == [("embedding", 4, 2.0)]


# When it is measured --------------------------------------------------------------------------------------------------


def by_hand(steps, lr=0.1):
    """The gradients before each of the first steps."""
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    seen = []
    for inputs, targets in list(tiny_loader()) * 2:
        LOSS(model(inputs), targets).backward()
        seen.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        sgd.step()
        sgd.zero_grad()
    return seen[:steps]


def assert_is(spreads, gradients):
    assert list(spreads) == list(gradients)
    for name, gradient in gradients.items():
        spread = spreads[name]
        assert (spread.least, spread.greatest) == (float(gradient.min()), float(gradient.max()))
        sizes = gradient.abs()[gradient != 0].numpy()
        numpy.testing.assert_allclose(spread.quantiles, numpy.quantile(sizes, SHARES), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("step", [0, 2])
def test_the_gradients_of_the_chosen_step_of_each_epoch_are_drawn(drawn, step):
    fitted(GradientPlot(step=step), drawn, val=False)
    gradients = by_hand(6)
    assert_is(drawn.pictures[0], gradients[step])
    assert_is(drawn.pictures[1], gradients[3 + step])
    assert sorted(path.name for path in Path("runs").iterdir()) == ["gradients-000.png", "gradients-001.png"]


def test_under_accumulation_it_is_the_gradient_of_the_whole_window(drawn):
    fitted(GradientPlot(), Accumulate(3), drawn, val=False, epochs=1)
    model = tiny_classifier()
    inputs, targets = (torch.cat(parts) for parts in zip(*tiny_loader(), strict=True))
    LOSS(model(inputs), targets).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(drawn.pictures[0][name].largest, float(parameter.grad.abs().max()))


def test_it_sees_what_the_optimizer_gets_and_changes_nothing(drawn):
    one = fitted(GradientPlot(), GradientClip(value=2**-10), drawn)
    other = fitted(GradientClip(value=2**-10))
    assert max(spread.largest for spreads in drawn.pictures for spread in spreads.values()) == 2**-10
    for mine, plain in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, plain)


def test_a_step_that_was_skipped_is_not_counted(drawn):
    skip = Act("before_train_iter", lambda run: run.skip_batch())
    trainer = fitted(GradientPlot(), skip, drawn, val=False, epochs=1)
    assert trainer.clock.steps == 2
    model = tiny_classifier()
    inputs, targets = list(tiny_loader())[1]
    LOSS(model(inputs), targets).backward()
    assert_is(drawn.pictures[0], {name: parameter.grad for name, parameter in model.named_parameters()})


def test_layers_are_chosen_by_patterns_and_frozen_ones_are_left_out(drawn):
    fitted(GradientPlot(layers=["*.weight"]), drawn, epochs=1)
    assert list(drawn.pictures[0]) == ["0.weight", "2.weight"]
    model = tiny_classifier()
    model[0].requires_grad_(False)
    fitted(GradientPlot(), drawn, epochs=1, model=model)
    assert list(drawn.pictures[1]) == ["2.weight", "2.bias"]
    with pytest.raises(ValueError, match=r"no parameter is called conv\*; there are 0.weight") as caught:
        fitted(GradientPlot(layers=["conv*"]))
    assert any("GradientPlot at before_step" in note for note in caught.value.__notes__)


def test_a_step_that_no_epoch_has_is_told_once():
    with hearing() as told:
        fitted(GradientPlot(step=7), epochs=3)
    assert told == ["GradientPlot: epoch 1 has no step 7 with gradients, it had 3 that could be looked into"]
    assert not Path("runs").exists()


def test_a_backward_that_steps_by_itself_is_told_too():
    class OwnSteps(MainCallback):
        def on_iter_backward(self, run):
            run.optimizer.zero_grad()
            run.loss.backward()
            run.optimizer.step()

    with pytest.warns(UserWarning, match="it had 0 that could be looked into"):
        fitted(GradientPlot(), OwnSteps(), val=False)


def test_it_works_with_lbfgs(drawn):
    model = tiny_classifier()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
    Trainer(model, lbfgs, LOSS, callbacks=[GradientPlot(), drawn], device="cpu").fit(tiny_loader(), epochs=1)
    assert_is(drawn.pictures[0], by_hand(1)[0])


def test_stop_and_error_in_the_middle_of_an_epoch(drawn):
    fitted(GradientPlot(), Act("after_train_iter", lambda run: run.stop("enough")), drawn)
    assert len(drawn.pictures) == 1
    with pytest.raises(Oops):
        fitted(GradientPlot(), Act("after_train_iter", oops), drawn)
    assert len(drawn.pictures) == 1


def test_a_second_fit_draws_its_own_epochs():
    trainer = fitted(GradientPlot(format="svg"), epochs=1)
    trainer.fit(tiny_loader(), epochs=1)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["gradients-000.svg", "gradients-001.svg"]


# The figure -----------------------------------------------------------------------------------------------------------


def model_with_gradients():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].bias.fill_(-1e6)
    LOSS(model(torch.ones(5, 4)), torch.zeros(5, dtype=torch.long)).backward()
    return model


def test_the_box_plot_has_a_row_for_each_layer_with_its_quantiles():
    model = model_with_gradients()
    figure = plot_gradients(model.named_parameters())
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("magnitude of the gradient", "layer", "log")
    sizes = model[2].bias.grad.abs().numpy()
    (box,) = axes.patches
    numpy.testing.assert_allclose([box.get_x(), box.get_x() + box.get_width()], numpy.quantile(sizes, [0.25, 0.75]))
    crosses = next(line for line in axes.lines if line.get_label() == "largest")
    assert list(crosses.get_ydata()) == [3]
    numpy.testing.assert_allclose(crosses.get_xdata(), [sizes.max()])
    assert texts(figure).count("all zero") == 3
    assert {"middle half", "nine tenths", "median", "largest"} <= set(texts(figure))
    assert_nothing_is_cut(figure)


@pytest.mark.parametrize("decades", [0.5, 3, 6, 20, 36])
def test_the_axis_has_numbers_however_far_it_reaches(decades):
    parameters = [("small", nn.Parameter(torch.ones(3))), ("large", nn.Parameter(torch.ones(3)))]
    for (_, parameter), scale in zip(parameters, (10**-decades, 1.0), strict=True):
        parameter.grad = scale * torch.tensor([0.5, 0.7, 1.0])
    figure = plot_gradients(parameters)
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_xlim()
    assert 2 <= len([place for place in figure.axes[0].get_xticks() if low <= place <= high]) <= 16


def test_the_histograms_have_a_panel_for_each_layer(tmp_path):
    model = model_with_gradients()
    figure = plot_gradients(model.named_parameters(), tmp_path / "h.png", kind="histogram")
    panels = {axes.get_title(): axes for axes in figure.axes if axes.axison}
    assert list(panels) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all((axes.get_xlabel(), axes.get_ylabel()) == ("gradient", "count") for axes in panels.values())
    assert sum(bar.get_height() for bar in panels["2.weight"].patches) == 24
    assert sum(bar.get_height() for bar in panels["2.bias"].patches) == 3
    assert_nothing_is_cut(figure)
    assert size_of(tmp_path / "h.png") > (500, 400)


def test_of_many_layers_an_even_choice_is_drawn():
    model = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(130)])
    model(torch.ones(1, 2)).sum().backward()
    figure = plot_gradients(model.named_parameters())
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert (len(names), names[0], names[-1]) == (60, "0.weight", "127.weight")
    assert "gradients, 60 of 130 layers" in texts(figure)


def test_nothing_but_nan_and_zeros_can_be_drawn():
    for kind in ("box", "histogram"):
        figure = plot_gradients([*with_gradient([math.nan]), *with_gradient([0.0, 0.0])], kind=kind)
        rendered(figure)
        assert {"1 not finite", "all zero"} <= set(texts(figure))


def test_without_gradients_the_function_says_where_it_belongs():
    with pytest.raises(ValueError, match=r"between backward\(\) and zero_grad\(\)"):
        plot_gradients(tiny_classifier().named_parameters())


# Around it ------------------------------------------------------------------------------------------------------------


def test_a_failure_is_a_warning_if_asked(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="GradientPlot is switched off"):
        assert fitted(GradientPlot(tmp_path / "file" / "x.png", on_error="warn"), epochs=3).clock.epochs == 3


def test_it_opens_the_step_and_says_so():
    class Looks(Callback):
        pass

    assert "GradientPlot" in str(trainer_with(GradientPlot(), Looks()).explain())
    assert "at step 0 of each epoch" in GradientPlot().explain()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": -1}, "at least 0"),
        ({"step": True}, "at least 0"),
        ({"kind": "violin"}, '"box" or "histogram"'),
        ({"layers": "*.weight"}, "a list"),
        ({"path": "x.bmp"}, "png, pdf, svg"),
        ({"on_error": "no"}, '"raise" or "warn"'),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        GradientPlot(**options)
