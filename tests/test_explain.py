"""``trainer.explain()``: who plays where, in which order, as text and as a table."""

from __future__ import annotations

import html.parser
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback, CallbackError, MainCallback, Order, Trainer, Watch, When
from cadenza.points import POINTS
from cadenza.testing import Recorder, tiny_classifier, tiny_loader


def made(*callbacks: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


class Clip(Callback):
    order = Order.UPDATE
    owns = {"gradients"}

    def before_step(self, run: Any) -> None: ...

    def explain(self) -> str:
        return "at norm 1.0"


class Early(Callback):
    order = Order.PREPARE
    ranks = "main"

    def before_step(self, run: Any) -> None: ...

    def after_epoch(self, run: Any) -> None: ...


class OnlyTraining(Callback):
    stages = {"train", "val"}

    def before_forward(self, run: Any) -> None: ...

    def after_run(self, run: Any) -> None: ...


def players(trainer: Trainer) -> dict[str, str]:
    return {point: who for point, who, _ in trainer.explain().rows if who}


def test_who_plays_where_and_in_which_order() -> None:
    assert players(made(Clip(), Early()))["before_step"] == "Early, Clip"
    assert players(made(Early(), Clip()))["before_step"] == "Early, Clip"
    text = str(made(Clip(), Early()).explain())
    line = next(line for line in text.splitlines() if line.strip().startswith("before_step"))
    assert line.split(maxsplit=1)[1].strip() == "Early, Clip"


def test_the_order_is_the_one_that_is_played() -> None:
    trainer, seen = made(), []
    for name, order in (("late", 500), ("early", 0), ("middle", 250)):
        callback = type(name, (Callback,), {"order": order, "after_epoch": lambda self, run: seen.append(self.name)})()
        trainer.add(callback)
    said = players(trainer)["after_epoch"].split(", ")
    trainer.fit(tiny_loader(), epochs=1)
    assert said == seen == ["early", "middle", "late"]


def test_what_each_callback_declares() -> None:
    text = str(made(Clip(), Early()).explain())
    assert "MainCallback: order 0; on all ranks" in text
    assert "Early: order 0; on main" in text
    assert "Clip: order 200; on all ranks; owns gradients; at norm 1.0" in text


def test_callbacks_of_other_ranks_are_shown_too() -> None:
    class Other(Callback):
        ranks = {1, 3}

        def after_epoch(self, run: Any) -> None: ...

    text = str(made(Other()).explain())
    assert "Other: order 200; on ranks 1, 3" in text


def test_points_that_nobody_plays_are_left_out_of_the_text() -> None:
    text = str(made(Clip()).explain())
    assert "before_step" in text
    assert "before_epoch" not in text
    assert [point for point, _, _ in made(Clip()).explain().rows] == list(POINTS)


def test_stages_are_said_where_they_matter() -> None:
    said = players(made(OnlyTraining()))
    assert said["before_forward"] == "OnlyTraining (train, val)"
    assert said["after_run"] == "OnlyTraining"


def test_the_owner_of_the_behaviours() -> None:
    class Mine(MainCallback):
        def on_iter_loss(self, run: Any) -> None: ...

    said = players(made(Mine()))
    assert all(said[name] == "Mine" for name in POINTS if name.startswith("on_"))


def test_the_watched_metric() -> None:
    assert "Watched: val/loss, lower is better (said by Watch)" in made(Watch("val/loss")).explain()
    assert "Watched: val/f1, higher is better (said by Watch)" in made(Watch("val/f1")).explain()
    assert "Watched" not in made().explain()


def test_functions_and_windows_have_names() -> None:
    trainer = made(When(Clip(), every="2 steps"))
    trainer.on("after_epoch")(lambda run: None)
    said = players(trainer)
    assert said["after_epoch"].endswith("<lambda>")
    assert said["before_step"] == "When(Clip, every 2 steps)"


class Cells(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data


def test_the_table_holds_the_same_and_is_well_formed() -> None:
    trainer = made(Clip(), OnlyTraining())
    trainer.on("after_epoch")(lambda run: None)
    score = trainer.explain()
    cells = Cells()
    cells.feed(score._repr_html_())
    assert cells.open == []
    assert cells.rows[0] == ["point", "who plays", "what is true there"]
    assert [tuple(row) for row in cells.rows[1:]] == score.rows
    assert "<lambda>" not in score._repr_html_()


def test_it_says_the_same_while_running_and_changes_nothing() -> None:
    trainer, said = made(Clip()), []
    trainer.on("after_epoch")(lambda run: said.append(str(trainer.explain())))
    before = [weight.clone() for weight in trainer.model.parameters()]
    expected = str(trainer.explain())
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert trainer.clock.steps == 0
    trainer.fit(tiny_loader(), epochs=1)
    assert said == [expected]


def test_what_cannot_play_together_cannot_be_explained() -> None:
    first, second = Recorder(points=["after_best"]), Recorder(points=[])
    first.monitor, second.monitor = "val/loss", "val/f1"
    with pytest.raises(CallbackError, match="several metrics"):
        made(first, second).explain()


def test_a_trainer_without_an_optimizer_can_be_explained() -> None:
    assert "MainCallback" in Trainer(nn.ReLU(), device="cpu").explain()


def test_a_trainer_says_in_a_line_what_it_trains_with_what() -> None:
    model = tiny_classifier()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[Recorder()], device="cpu")
    assert repr(trainer) == "<Trainer of Sequential with SGD on cpu; callbacks: Recorder>"
    assert repr(Trainer(model, device="cpu")) == "<Trainer of Sequential with no optimizer on cpu; callbacks: none>"
