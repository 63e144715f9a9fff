from __future__ import annotations

import pytest
import torch

from cadenza import Trainer
from cadenza.cli.checking.names import names_of_a_run
from cadenza.points import POINTS
from cadenza.testing import tiny_classifier

from .checked import messages, player


def test_the_names_are_those_of_a_run() -> None:
    model = tiny_classifier()
    run = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu").run(epochs=1)
    assert names_of_a_run() == {name for name in dir(run) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("run.stopp()", "calls run.stopp(), which a run does not have; did you mean run.stop?"),
        ("run.skip_bach()", "calls run.skip_bach(), which a run does not have; did you mean run.skip_batch?"),
        ("run.stop_training()", "calls run.stop_training(), which a run does not have; did you mean run.stop()?"),
        (
            'run.log_metric("a", 1)',
            'calls run.log_metric(), which a run does not have; did you mean run.log("name", value)?',
        ),
        ("run.frobnicate()", "calls run.frobnicate(), which a run does not have"),
        ("print(run.optimiser)", "reads run.optimiser, which a run does not have; did you mean run.optimizer?"),
        ("lr = run.lr", 'reads run.lr, which a run does not have; did you mean run.optimizer.param_groups[0]["lr"]?'),
        ("self.show(run)\nrun.sav()", "calls run.sav(), which a run does not have; did you mean run.save?"),
        ("r = run\nr.sav()", "calls run.sav(), which a run does not have; did you mean run.save?"),
        ("self.sav = 1\nrun.sav()", "calls run.sav(), which a run does not have; did you mean run.save?"),
    ],
)
def test_a_misspelt_name_is_found(body: str, told: str) -> None:
    assert messages(player("after_epoch", body)) == [f"Mine.after_epoch {told}"]


@pytest.mark.parametrize("point", POINTS)
def test_it_is_found_at_every_point(point: str) -> None:
    assert len(messages(player(point, "run.stopp()"))) == 1


def test_it_is_found_in_helpers_and_given_functions() -> None:
    helper = "class Mine(Callback):\n  def after_epoch(self, run): self.end(run)\n  def end(self, run): run.stopp()\n"
    assert messages(helper)[0].startswith("Mine.end, called from Mine.after_epoch, calls run.stopp()")
    given = 'trainer = Trainer(m)\ntrainer.on("after_epoch")(lambda run: run.stopp())'
    assert messages(given)[0].startswith("the function <lambda> at after_epoch calls run.stopp()")


@pytest.mark.parametrize(
    "body",
    [
        'run.store["x"] = run.store.get("y")',
        "run.mine = 1\nprint(run.mine)",
        "run.stopp = 1",
        "run.optimiser += 1",
        "print(run.teacher)",
        "if hasattr(run, 'sav'):\n    run.sav()",
        "x = getattr(run, 'optimiser', None)",
        "try:\n    run.sav()\nexcept AttributeError:\n    pass",
        "setattr(run, name, 1)\nprint(run.optimiser)",
        "prepare(run)\nprint(run.optimiser)",
        "run = other()\nrun.sav()",
        "self.run.sav()",
        "run._private()",
        "run.optimizer.sav()",
        "self.later = lambda: run.sav()",
    ],
)
def test_what_may_be_right_is_not_reported(body: str) -> None:
    assert messages(player("after_epoch", body)) == []


@pytest.mark.parametrize("elsewhere", ["run.sav = print", "setattr(run, 'sav', print)", "cadenza.Run.sav = print"])
def test_what_the_file_sets_elsewhere_is_not_reported(elsewhere: str) -> None:
    other = f"class Other(Callback):\n    def before_run(self, run):\n        {elsewhere}\n"
    assert messages(player("after_epoch", "run.sav()") + other) == []


LOOP = """
def helper(run):
    run.bakward()

trainer = Trainer(model, optimizer)
with trainer.run(epochs=3) as run:
    for _ in run.epochs():
        for batch in run.train(loader):
            BODY
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("run.tain_step()", "the loop calls run.tain_step(), which a run does not have; did you mean run.train_step?"),
        (
            "helper(run)",
            "helper, called from the loop, calls run.bakward(), which a run does not have; did you mean run.backward?",
        ),
        ("if run.forward() and run.optimiser: run.step()", "the loop reads run.optimiser, which a run does not have"),
    ],
)
def test_it_is_found_in_a_loop_of_ones_own(body: str, told: str) -> None:
    (found,) = messages(LOOP.replace("BODY", body))
    assert found.startswith(told)


@pytest.mark.parametrize(
    "source",
    [
        LOOP.replace("BODY", "run.train_step()"),
        LOOP.replace("BODY", "run.loss = run.model(batch).sum(); run.backward() and run.step()"),
        LOOP.replace("BODY", "run.teacher.predict(batch)"),
        LOOP.replace("trainer = Trainer(", "import other\ntrainer = other.Trainer(").replace("BODY", "run.tain_step()"),
        LOOP.replace("trainer.run(", "mlflow.run(").replace("BODY", "run.log_metric('a', 1)"),
    ],
)
def test_a_right_loop_is_not_reported(source: str) -> None:
    assert messages(source) == []
