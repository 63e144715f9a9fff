"""The report: one file, complete, escaped, small."""

from __future__ import annotations

import json
import math
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza import Callback, Watch
from cadenza.callbacks import CostLedger, HistoryPlot, LRMonitor, Metrics, Throughput, accuracy
from cadenza.experiment import Experiment, FolderError, Report, write_report
from cadenza.experiment.report.pictures import ROOM
from cadenza.testing import tiny_loader

from .trained import At, EveryIteration, fitted, trainer_of


class Page(HTMLParser):
    """The texts, tags and scripts of a page; every tag that is opened is closed."""

    VOID = {"meta", "link", "br", "img", "input", "rect"}

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(self.source)
        assert not self.open
        self.text = " ".join(self.texts)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def data(self) -> dict[str, Any]:
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.source, re.DOTALL)
        assert found
        return json.loads(found[1])

    def ids(self) -> set[str | None]:
        return {attributes.get("id") for tag, attributes in self.tags if tag == "section"}


def test_everything_is_in_it(tmp_path: Path) -> None:
    class Show(Callback):
        def after_epoch(self, run: Any) -> None:
            run.experiment.image("sample", torch.rand(4, 4))
            run.experiment.text("note", "all is well")
            run.experiment.histogram("weights", run.module[0].weight)

    with open(tmp_path / "table", "w") as stream:
        ledger = CostLedger(every=2, budget=None, stream=stream)
        metrics = Metrics({"accuracy": accuracy}, stages={"train", "val"})
        callbacks = [
            EveryIteration(),
            metrics,
            Watch("val/loss"),
            LRMonitor(),
            Throughput(),
            Show(),
            HistoryPlot(every="end"),
        ]
        experiment = fitted(tmp_path, *callbacks, ledger, recipe={"lr": 0.1, "api_key": "hunter2"}, seed=3)
    page = Page(experiment.folder / "report.html")
    assert page.ids() == {
        "curves", "rate", "happened", "pictures", "score", "costs", "speed", "recipe", "environment",
    }  # fmt: skip
    assert re.search(r"val/loss 0\.\d+ in epoch 2, after 2 epochs, 6 steps, ", page.text)
    for wanted in ("val/loss is", "LRMonitor", "before_run", "on_iter_backward", "all is well", "torch", "fit began"):
        assert wanted in page.text
    assert "<i>Metrics (train, val)</i>" in page.source
    assert "hunter2" not in page.source
    panels = {panel["title"]: panel for panel in page.data["panels"]}
    assert [curve["name"] for curve in panels["loss"]["curves"]] == ["train/loss (batches)", "train/loss", "val/loss"]
    assert panels["loss"]["curves"][0]["x"] == [1, 2, 3, 4, 5, 6]
    assert panels["lr"]["section"] == "rate"
    assert panels["samples_per_second"]["section"] == "speed"
    images = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 3
    assert all(source.startswith("data:image/png;base64,") for source in images)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_the_score_is_in_the_order_of_play(tmp_path: Path) -> None:
    said = Page(fitted(tmp_path, epochs=1).report_file).text
    places = [said.index(point) for point in ("on_iter_forward", "on_iter_zero_grad", "on_lr_adjust", "after_epoch")]
    assert places == sorted(places)


def test_a_picture_of_few_pixels_is_drawn_larger(tmp_path: Path) -> None:
    class Shows(Callback):
        def after_run(self, run: Any) -> None:
            run.experiment.image("few", torch.rand(8, 8))
            run.experiment.image("many", torch.rand(200, 200))

    page = fitted(tmp_path, Shows(), epochs=1).report_file.read_text()
    drawn = dict(re.findall(r'<img( class="small")? src="[^"]*" alt="(few|many)', page))
    assert {name: bool(small) for small, name in drawn.items()} == {"few": True, "many": False}


def test_all_text_is_escaped(tmp_path: Path) -> None:
    class Hostile(Callback):
        name = f"a {HOSTILE}"

        def after_epoch(self, run: Any) -> None:
            run.log(f"x/{HOSTILE}", 1.0)
            run.experiment.text(HOSTILE, HOSTILE)
            run.stop(HOSTILE)

    experiment = Experiment("tiny", "first", tmp_path, recipe={HOSTILE: HOSTILE, "list": [HOSTILE]})

    def fail(run: Any) -> None:
        raise RuntimeError(HOSTILE)

    with pytest.raises(RuntimeError):
        trainer_of(Hostile(), At("after_run", fail), experiment=experiment).fit(tiny_loader(), epochs=1)
    page = Page(experiment.folder / "report.html")
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert [tag for tag, _ in page.tags].count("img") == 0
    assert "onerror" in page.text
    assert "<script>alert" not in page.source
    assert not any("onerror" in attributes for _, attributes in page.tags)
    other = fitted(tmp_path).folder
    page = Page(write_report([experiment.folder, other], tmp_path / "both.html"))
    assert [tag for tag, _ in page.tags].count("script") == 3


def test_nothing_in_it_leads_elsewhere(tmp_path: Path) -> None:
    page = Page(fitted(tmp_path).report_file)
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:"), (tag, value)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in str(policy)
    assert "unsafe-inline" not in str(policy).split("script-src")[1].split(";")[0]
    assert not re.search(r"url\((?!data:)|@import", page.source.split("<style>")[1].split("</style>")[0])


def test_several_runs_are_compared(tmp_path: Path) -> None:
    one, two = fitted(tmp_path, lr=0.1).folder, fitted(tmp_path, name="second", lr=0.3).folder
    page = Page(write_report([one, two], tmp_path / "both.html"))
    assert {"curves", "metrics", "recipe", "facts", "each"} <= page.ids()
    assert "optimizer.lr" in page.text
    loss = next(panel for panel in page.data["panels"] if panel["title"] == "loss")
    assert sorted({curve["run"] for curve in loss["curves"]}) == [0, 1]


def test_the_place_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = fitted(tmp_path, report=False).folder, fitted(tmp_path, report=False).folder
    assert not (one / "report.html").exists()
    assert write_report(one) == one / "report.html"
    assert write_report([str(one), two]).name == "comparison.html"
    with pytest.raises(ValueError, match="at least one"):
        write_report([])
    with pytest.raises(FolderError, match="not the folder of a run"):
        write_report(tmp_path)


def long_run(root: Path, steps: int = 100_000) -> Experiment:
    """The folder of a run with so many logged steps of three metrics, made by the journal's own file."""
    experiment = fitted(root, EveryIteration(), epochs=1)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(steps, generator=generator).tolist()
    with experiment.metrics_file.open("w") as file:
        for step in range(1, steps + 1):
            loss = 2 / math.sqrt(step) + 0.05 * abs(noise[step - 1])
            row = {"kind": "iter", "stage": "train", "epoch": step // 1000, "step": step, "batch": step}
            values = {
                "clock_seconds": step / 50,
                "train/loss": loss,
                "lr": 0.1 / step,
                "grad/norm": 1 + noise[step - 1],
            }
            file.write(json.dumps({**row, **values}) + "\n")
            if step % 1000 == 0:
                means = {"clock_seconds": step / 50, "train/loss": loss, "val/loss": loss + 0.1}
                file.write(json.dumps({**row, "kind": "epoch", **means}) + "\n")
    return experiment


def test_a_hundred_thousand_steps_stay_under_five_megabytes(tmp_path: Path) -> None:
    experiment = long_run(tmp_path)
    for number in range(60):
        (experiment.plots / f"predictions-val-{number:03d}.png").write_bytes(b"\x89PNG" + bytes(90_000))
    began = time.monotonic()
    write_report(experiment.folder)
    assert experiment.report_file.stat().st_size < 5_000_000, f"made in {time.monotonic() - began:.1f} s"
    page = Page(experiment.report_file)
    assert "There is no room here for" in page.text
    assert sum(len(curve["x"]) for panel in page.data["panels"] for curve in panel["curves"]) < 20_000
    assert ROOM < 2_000_000


def test_many_metrics_stay_small_too(tmp_path: Path) -> None:
    experiment = fitted(tmp_path, epochs=1)
    with experiment.metrics_file.open("a") as file:
        for step in range(300):
            values = {f"layer{number}/norm": step * number + 0.123456789 for number in range(400)}
            file.write(json.dumps({"kind": "iter", "stage": "train", "epoch": 0, "step": step, **values}) + "\n")
    assert write_report(experiment.folder).stat().st_size < 5_000_000


def test_a_run_without_any_row_has_a_report(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)

    def fail(run: Any) -> None:
        raise RuntimeError("at once")

    with pytest.raises(RuntimeError):
        trainer_of(At("before_run", fail), experiment=experiment).fit(tiny_loader(), epochs=1)
    assert "No metric yet; failed after 0 epochs" in Page(experiment.report_file).text


def test_a_validation_alone_has_no_epochs_and_no_learning_rate(tmp_path: Path) -> None:
    experiment = Experiment("tiny", "first", tmp_path)
    trainer = trainer_of(experiment=experiment)
    trainer.validate(tiny_loader())
    page = Page(experiment.report_file)
    assert re.search(r"val/loss [\d.]+, validate finished", page.text)
    assert not {"rate", "costs"} & page.ids()
    assert "epoch 1, step" not in page.text
    trainer.fit(tiny_loader(), epochs=1)
    page = Page(experiment.report_file)
    assert "in epoch 1, after 1 epoch, 3 steps" in page.text
    assert {"rate", "costs"} <= page.ids()


def test_values_that_are_not_finite_do_not_break_it(tmp_path: Path) -> None:
    class Odd(Callback):
        def after_epoch(self, run: Any) -> None:
            run.log("odd", [math.nan, math.inf, 1.0][run.epoch])

    page = Page(fitted(tmp_path, Odd(), epochs=3).report_file)
    odd = next(panel for panel in page.data["panels"] if panel["title"] == "odd")
    assert odd["curves"][0]["y"] == [None, None, 1.0]
    assert "odd is nan" in page.text


# The callback -------------------------------------------------------------------------------------------------------


def test_the_callback_writes_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadenza.experiment.report.live_report._SHARE", 1e9)
    path = tmp_path / "live.html"
    seen: list[str] = []
    look = At("before_epoch", lambda run: seen.append(Page(path).text), 2)
    fitted(tmp_path, Report(path=path), look)
    assert "1 epoch, 3 steps" in seen[0]
    assert "running" in seen[0]
    assert "after 2 epochs, 6 steps" in Page(path).text


def test_without_an_experiment_it_says_so() -> None:
    with pytest.warns(UserWarning, match="this run has none"):
        trainer_of(Report()).fit(tiny_loader(), epochs=1)


def test_a_report_that_cannot_be_written_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="could not write its report") as caught:
        experiment = fitted(tmp_path, Report(path=tmp_path / "file" / "report.html"), epochs=3)
    assert len(caught) == 1
    assert experiment.status == "finished"
