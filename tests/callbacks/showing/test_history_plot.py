"""HistoryPlot: what is in the figure, against the history it was made from."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from matplotlib import rc_context
from tests.callbacks.drawn import Act, Oops, assert_nothing_is_cut, fitted, oops, rendered, size_of, texts, trainer_with
from tests.processes import run

from cadenza import Callback, Watch, When
from cadenza.callbacks.showing.history_plot import HistoryPlot, plot_history
from cadenza.callbacks.showing.plot_series import Series, families, family_of
from cadenza.callbacks.showing.plot_series import banded as thinned
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.history import History
from cadenza.testing import tiny_loader


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def history_of(*epochs):
    history = History()
    for epoch, values in enumerate(epochs):
        history.add("epoch", epoch=epoch, step=10 * (epoch + 1), batch=10 * (epoch + 1)).update(values)
    return history


def lines(axes):
    """The drawn series by name: places and values."""
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
        if not line.get_label().startswith("_")
    }


# Series and families --------------------------------------------------------------------------------------------------


def test_train_and_val_of_a_metric_are_one_family_and_losses_come_first():
    history = history_of({"val/accuracy": 0.1, "lr": 0.5, "train/loss": 3.0, "val/loss": 4.0})
    found = [(family.name, [series.name for series in family.series]) for family in families(history)]
    assert found == [("loss", ["train/loss", "val/loss"]), ("accuracy", ["val/accuracy"]), ("lr", ["lr"])]


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("val/loss", "loss"),
        ("val/night/loss", "loss"),
        ("val/night/accuracy", "accuracy"),
        ("train/layer1/norm", "layer1/norm"),
        ("lr", "lr"),
        ("speed/batches", "speed/batches"),
    ],
)
def test_the_family_of_a_metric_is_its_name_without_stage_and_loader(name, family):
    assert family_of(name, {"night"}) == family


def test_times_share_a_panel_and_rates_one_with_a_logarithmic_axis():
    row = {"train/forward_ms": 1.0, "train/samples_per_second": 9e4, "val/forward_ms": 2.0, "train/steps_per_second": 9}
    history = history_of(row, row)
    found = {family.name: [series.name for series in family.series] for family in families(history)}
    assert found == {
        "ms": ["train/forward_ms", "val/forward_ms"],
        "per second": ["train/samples_per_second", "train/steps_per_second"],
    }
    assert [axes.get_yscale() for axes in plot_history(history).axes] == ["linear", "log"]


def test_what_is_measured_within_an_epoch_lies_at_its_fraction():
    history = History()
    for epoch in range(2):
        for part in (2, 4):
            history.add("iter", stage="val", epoch=epoch, step=8 * epoch + part)["val/loss"] = epoch + part / 10
        history.add("epoch", epoch=epoch, step=8 * epoch + 8)["train/loss"] = 1.0
    (loss,) = families(history)
    assert loss.unit == "epochs"
    by_name = {series.name: series for series in loss.series}
    assert by_name["val/loss"].x == [0.25, 0.5, 1.25, 1.5]
    assert by_name["train/loss"].x == [1.0, 2.0]


def test_what_is_only_logged_in_iterations_lies_over_steps_and_equal_places_are_averaged():
    history = History()
    for step, value in ((1, 4.0), (1, 2.0), (2, 1.0)):
        history.add("iter", epoch=0, step=step)["train/norm"] = value
    (family,) = families(history)
    assert (family.unit, family.series) == ("steps", [Series("train/norm", [1.0, 2.0], [3.0, 1.0])])


def test_patterns_choose_metrics():
    history = history_of({"val/accuracy": 0.1, "lr": 0.5, "train/loss": 3.0, "val/loss": 4.0})
    assert [family.name for family in families(history, ["val/*"])] == ["loss", "accuracy"]


def test_long_series_are_thinned_to_means_in_a_band():
    series = Series("x", list(range(10_000)), [float(value % 10) for value in range(10_000)])
    means, low, high = thinned(series, most=1000)
    assert len(means.x) == 1000
    assert means.y == [4.5] * 1000
    assert (set(low), set(high)) == ({0.0}, {9.0})
    broken, _, _ = thinned(Series("x", [1, 2, 3, 4], [math.nan, 2.0, math.nan, math.inf]), most=2)
    assert broken.y[0] == 2.0
    assert math.isnan(broken.y[1])


# The figure -----------------------------------------------------------------------------------------------------------


def test_the_figure_shows_the_values_of_the_history_with_labels_legend_and_grid():
    history = fitted(epochs=4).history
    figure = plot_history(history)
    (axes,) = figure.axes
    shown = lines(axes)
    assert shown["train/loss"] == ([1, 2, 3, 4], history["train/loss"])
    assert shown["val/loss"] == ([1, 2, 3, 4], history["val/loss"])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epochs done", "loss")
    assert [text.get_text() for text in axes.get_legend().get_texts()][:2] == ["train/loss", "val/loss"]
    rendered(figure)
    assert all(line.get_visible() for line in axes.get_xgridlines())
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    assert_nothing_is_cut(figure)


def test_each_family_has_a_panel_and_the_best_epoch_is_marked_in_all_of_them():
    values = [(0.9, 0.5), (0.4, 0.7), (0.6, 0.8)]
    history = history_of(*({"val/loss": loss, "val/accuracy": good} for loss, good in values))
    figure = plot_history(history)
    loss, accuracy = figure.axes[:2]
    assert lines(loss)["best val/loss 0.4 after 2 epochs"] == ([2], [0.4])
    assert [line.get_xdata() for line in accuracy.lines if line.get_label().startswith("_")] == [[2.0, 2.0]]
    figure = plot_history(history, mark="val/accuracy")
    assert lines(figure.axes[1])["best val/accuracy 0.8 after 3 epochs"] == ([3], [0.8])
    assert lines(plot_history(history, mark="val/accuracy", mode="min").axes[1])[
        "best val/accuracy 0.5 after 1 epochs"
    ] == ([1], [0.5])


def test_what_is_not_finite_is_shown_on_the_axis():
    history = history_of({"train/loss": 1.0}, {"train/loss": math.nan}, {"train/loss": math.inf}, {"train/loss": 2.0})
    figure = plot_history(history)
    shown = lines(figure.axes[0])
    assert shown["train/loss not finite"][0] == [2.0, 3.0]
    assert [math.isnan(value) for value in shown["train/loss"][1]] == [False, True, True, False]
    rendered(figure)


def test_a_logarithmic_axis_has_plain_numbers():
    figure = plot_history(history_of({"val/loss": 1.0}, {"val/loss": 0.01}), log_scale=["loss"])
    assert figure.axes[0].get_yscale() == "log"
    assert "0.1" in texts(figure)


def test_panels_in_excess_are_not_drawn_and_this_is_said():
    figure = plot_history(history_of({f"metric{index}": float(index) for index in range(30)}))
    assert len([axes for axes in figure.axes if axes.axison]) == 24
    assert "6 more are not drawn; metrics=[...] chooses" in texts(figure)


def test_odd_names_and_a_missing_font_are_drawn_all_the_same(tmp_path):
    odd = {"price in $ and $": 1.0, "損失": 2.0, "a name that is " + "very " * 30 + "long": 3.0}
    with rc_context({"font.family": "No Such Font"}):
        figure = plot_history(history_of(odd, odd), tmp_path / "odd.png")
    assert size_of(tmp_path / "odd.png")[0] > 500
    assert [axes.get_ylabel() for axes in figure.axes[:2]] == [r"price in \$ and \$", "損失"]


@pytest.mark.parametrize("length", [26, 27, 60])
def test_no_word_is_cut_whether_places_are_fixed_or_worked_out(length):
    values = (1e-7, -0.0055250, 123456.789, 1e12, 0.0)
    names = [f"val/{str(index) * (length - 4)}" for index in range(len(values))]
    epochs = [{name: value * (1 + epoch / 1000) for name, value in zip(names, values, strict=True)} for epoch in (0, 1)]
    figure = plot_history(history_of(*epochs), mark=names[0], mode="min")
    assert (figure.get_layout_engine() is None) == (length == 26)
    assert_nothing_is_cut(figure)


def test_an_empty_history_draws_nothing(tmp_path):
    assert plot_history(History(), tmp_path / "none.png") is None
    assert not list(tmp_path.iterdir())


# The callback ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_format_follows_from_path_or_argument(tmp_path, format, begins):
    fitted(HistoryPlot(tmp_path / "deep" / f"curves.{format}", every="end"))
    assert (tmp_path / "deep" / f"curves.{format}").read_bytes().startswith(begins)
    trainer = fitted(HistoryPlot(format=format, every="end"), epochs=1)
    assert Path(f"runs/history.{format}").read_bytes().startswith(begins)
    assert trainer.store["plots"] == {"HistoryPlot": str(Path("runs") / f"history.{format}")}


def test_it_draws_after_each_epoch_or_once_at_the_end():
    times = {"epoch": [], "end": []}

    for every, seen in times.items():
        path = Path(f"{every}.png")

        class Look(Callback):
            order = 10_000

            def after_epoch(self, run, path=path, seen=seen):
                seen.append(path.exists())

        fitted(HistoryPlot(path, every=every), Look(), epochs=2)
        assert path.exists()
    assert times == {"epoch": [True, True], "end": [False, False]}


def test_files_go_to_the_experiment_if_there_is_one(tmp_path):
    fitted(HistoryPlot(every="end"), experiment=SimpleNamespace(folder=tmp_path / "one"), epochs=1)
    assert (tmp_path / "one" / "plots" / "history.png").exists()
    elsewhere = SimpleNamespace(folder=tmp_path / "two", plots=tmp_path / "pictures")
    fitted(HistoryPlot(every="end"), experiment=elsewhere, epochs=1)
    assert (tmp_path / "pictures" / "history.png").exists()
    assert not Path("runs").exists()


def test_the_watched_metric_is_marked_with_its_own_mode():
    trainer = fitted(Watch("val/loss", mode="max"), HistoryPlot("h.svg"), epochs=3)
    best = max(trainer.history["val/loss"])
    place = trainer.history["val/loss"].index(best) + 1
    assert f"best val/loss {best:.4g} after {place} epochs" in Path("h.svg").read_text()


def test_a_fit_that_fails_or_is_stopped_is_drawn_up_to_there():
    with pytest.raises(Oops):
        fitted(HistoryPlot(every="end"), Act("after_val_epoch", oops))
    assert Path("runs/history.png").exists()
    Path("runs/history.png").unlink()
    fitted(HistoryPlot(every="end"), Act("after_train_epoch", lambda run: run.stop("enough")))
    assert Path("runs/history.png").exists()


def test_a_second_fit_goes_on_with_the_same_curves():
    trainer = fitted(HistoryPlot(), epochs=1)
    first = Path("runs/history.png").read_bytes()
    trainer.fit(tiny_loader(), tiny_loader(20, seed=1), epochs=1)
    assert Path("runs/history.png").read_bytes() != first
    (axes,) = plot_history(trainer.history).axes
    assert lines(axes)["train/loss"][0] == [1, 2]


def test_it_changes_nothing_also_under_accumulation_and_skips():
    def model(*callbacks):
        trainer = trainer_with(Accumulate(2), Act("before_train_iter", lambda run: run.skip_step()), *callbacks)
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
        return trainer

    with_plot, without = model(HistoryPlot()), model()
    assert with_plot.history.to_rows() == without.history.to_rows()
    for one, other in zip(with_plot.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_failure_ends_the_run_with_its_name_or_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file") as caught:
        fitted(HistoryPlot(tmp_path / "file" / "x.png"))
    assert any("HistoryPlot at after_epoch" in note for note in caught.value.__notes__)
    assert not any("then" in note for note in caught.value.__notes__)
    with pytest.warns(UserWarning, match="HistoryPlot is switched off, the run goes on") as warned:
        trainer = fitted(HistoryPlot(tmp_path / "file" / "x.png", on_error="warn"), epochs=3)
    assert len(warned) == 1
    assert trainer.clock.epochs == 3


def test_names_that_were_never_measured_are_told_at_the_end():
    with pytest.warns(UserWarning, match="no metric 'val/los'; did you mean 'val/loss'"):
        fitted(HistoryPlot(metrics=["train/*", "val/los"]))


def test_when_limits_the_drawing():
    trainer = trainer_with(When(HistoryPlot(), every="2 epochs"))
    seen = []
    trainer.on("after_log")(lambda run: seen.append(Path("runs/history.png").exists()))
    trainer.fit(tiny_loader(), epochs=3)
    assert seen == [False, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "curves.jpg"}, "png, pdf, svg"),
        ({"path": "curves.png", "format": "pdf"}, "leave one of them out"),
        ({"format": "gif"}, "png, pdf, svg"),
        ({"every": "step"}, '"epoch" or "end"'),
        ({"on_error": "ignore"}, '"raise" or "warn"'),
        ({"mark": ""}, "name of a metric"),
        ({"metrics": "val/loss"}, "list of names"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        HistoryPlot(**options)


WITHOUT_DISPLAY = """
import sys, torch
import cadenza
from cadenza.callbacks.showing.history_plot import HistoryPlot
from cadenza.testing import tiny_classifier, tiny_loader
assert "matplotlib" not in sys.modules
model = tiny_classifier()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[HistoryPlot("x.png")], device="cpu")
sys.stdout.close()
trainer.fit(tiny_loader(), epochs=1)
assert "matplotlib.pyplot" not in sys.modules
"""


def test_neither_display_nor_stdout_are_needed(tmp_path):
    environment = {key: value for key, value in os.environ.items() if "DISPLAY" not in key}
    done = run(WITHOUT_DISPLAY, cwd=tmp_path, env={**environment, "MPLBACKEND": "tkagg"})
    assert done.returncode == 0, done.stderr
    assert size_of(tmp_path / "x.png") > (400, 200)
