from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import cadenza
from cadenza import Trainer, Watch
from cadenza.callback import BEHAVIOUR_NAMES, Callback
from cadenza.main_callback import MainCallback
from cadenza.points import FIELDS, POINTS, REQUESTS, SPAN, Kind
from cadenza.testing import tiny_classifier, tiny_loader

from .checked import messages, player


def alive_by_the_table(point: str) -> set[str]:
    span = POINTS[point].span
    if POINTS[point].kind is Kind.AROUND:
        return {name for side in (f"before_{span}", point, f"after_{span}") for name in POINTS[side].fields}
    return set(POINTS[point].fields)


@pytest.mark.parametrize("point", POINTS)
def test_a_field_is_reported_exactly_where_the_table_has_it_not(point: str) -> None:
    for name in FIELDS:
        found = messages(player(point, f"print(run.{name})"))
        assert len(found) == (name not in alive_by_the_table(point)), name
        assert all(text.startswith(f"Mine.{point} reads run.{name}, which exists from ") for text in found)


@pytest.mark.parametrize("point", POINTS)
def test_a_request_is_reported_exactly_where_the_table_never_takes_it(point: str) -> None:
    taken = set().union(*POINTS[point].requests.values())
    for name in REQUESTS:
        found = messages(player(point, f"run.{name}()"))
        assert len(found) == (name not in taken), name
        assert all(text.startswith(f"Mine.{point} asks run.{name}() where it cannot be met") for text in found)


@pytest.mark.parametrize("point", [point for point in POINTS if POINTS[point].kind is not Kind.BEHAVIOUR])
def test_functions_given_to_a_trainer_are_judged_by_the_same_table(point: str) -> None:
    for name in FIELDS:
        by_decorator = messages(f'trainer = Trainer(m)\n@trainer.on("{point}")\ndef show(run):\n    print(run.{name})')
        by_call = messages(f'trainer = Trainer(m)\ntrainer.on("{point}")(lambda run: print(run.{name}))')
        assert len(by_decorator) == len(by_call) == (name not in alive_by_the_table(point)), name


def test_nothing_that_lives_in_a_real_run_is_reported() -> None:
    seen: dict[str, set[str]] = {}

    def look(point: str, run: cadenza.Run) -> None:
        seen.setdefault(point, set()).update(name for name in FIELDS if hasattr(run, name))

    class Looks(Callback):
        def plays(self) -> dict[str, object]:
            return {
                name: self.player(name) for name, point in POINTS.items() if point.span and name not in BEHAVIOUR_NAMES
            }

        def player(self, point: str) -> object:
            def held(run: cadenza.Run) -> Iterator[None]:
                look(point, run)
                yield
                look(point, run)

            return held if point.startswith("around_") else lambda run: look(point, run)

    def behaviour(point: str) -> object:
        def behave(self: MainCallback, run: cadenza.Run) -> None:
            look(point, run)
            getattr(MainCallback, point)(self, run)

        return behave

    main = type("Main", (MainCallback,), {name: behaviour(name) for name in BEHAVIOUR_NAMES})()
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        model, optimizer, nn.CrossEntropyLoss(), callbacks=[main, Looks(), Watch("val/loss")], device="cpu"
    )
    trainer.fit(tiny_loader(), tiny_loader(), epochs=1, validate_every="2 steps")
    trainer.predict(tiny_loader())
    trainer.test(tiny_loader())
    assert len(seen) == 3 * len(SPAN) + len(BEHAVIOUR_NAMES)
    for point, names in seen.items():
        for name in names:
            assert messages(player(point, f"print(run.{name})")) == [], (point, name)


READ_WRONGLY = {
    "plain": ("after_epoch", "print(run.loss)"),
    "under a condition": ("after_epoch", "if self.verbose:\n    print(run.loss)"),
    "in a comprehension": ("after_epoch", "x = [run.loss for _ in range(3)]"),
    "in an f-string": ("after_epoch", 'print(f"{run.loss:.2f}")'),
    "called": ("after_epoch", "run.output()"),
    "element": ("before_epoch", "x = run.batch[0]"),
    "attribute of it": ("after_epoch", "run.loss.item()"),
    "by getattr": ("after_epoch", 'getattr(run, "loss")'),
    "by another name": ("after_epoch", "r = run\ns = r\nprint(s.loss)"),
    "by an attribute": ("after_epoch", "self.run = run\nprint(self.run.loss)"),
    "by a walrus": ("after_epoch", "if (r := run):\n    print(r.loss)"),
    "in a with": ("after_epoch", "with open(x) as f:\n    f.write(run.loss)"),
    "under another try": ("after_epoch", "try:\n    print(run.loss)\nexcept (KeyError, RuntimeError):\n    pass"),
    "under a try without except": ("after_epoch", "try:\n    print(run.loss)\nfinally:\n    pass"),
    "in the handler": ("after_epoch", "try:\n    x()\nexcept AttributeError:\n    print(run.loss)"),
    "another is asked for": ("after_epoch", 'if hasattr(run, "output"):\n    print(run.loss)'),
    "set afterwards": ("on_iter_forward", "print(run.loss)\nrun.loss = 1"),
    "added to": ("on_iter_forward", "run.loss += 1"),
    "set from itself": ("on_iter_forward", "run.loss = run.loss + 1"),
    "set in the wrong place": ("before_epoch", "run.inputs = 3"),
    "after an unknown call": ("after_epoch", "self.log(run)\nprint(run.loss)"),
    "of the run, not of another": ("after_epoch", "self.run.loss = 1\nprint(run.loss)"),
    "a prediction's": ("after_pred_iter", "print(run.loss)"),
    "in an around": ("around_epoch", "yield\nprint(run.loss)"),
    "an early request": ("before_epoch", "run.skip_step()"),
    "a late request": ("after_step", "if x:\n    run.hold_step()"),
    "a request of another stage": ("after_val_iter", "run.skip_backward()"),
    "a request under another try": ("after_step", "try:\n    run.hold_step()\nexcept AttributeError:\n    pass"),
}


@pytest.mark.parametrize(("point", "body"), READ_WRONGLY.values(), ids=READ_WRONGLY)
def test_a_wrong_use_is_found(point: str, body: str) -> None:
    assert len(messages(player(point, body))) == 1


QUIET = {
    "hasattr": 'if hasattr(run, "loss"):\n    print(run.loss)',
    "hasattr and": 'x = hasattr(run, "loss") and run.loss',
    "hasattr or else": 'x = run.loss if hasattr(run, "loss") else 0',
    "hasattr by a name": 'has = hasattr(run, "loss")\nif has:\n    print(run.loss)',
    "hasattr and return": 'if not hasattr(run, "loss"):\n    return\nprint(run.loss)',
    "hasattr in a comprehension": 'x = [run.loss for _ in y if hasattr(run, "loss")]',
    "hasattr of any": "if all(hasattr(run, name) for name in names):\n    print(run.loss)",
    "a default": 'x = getattr(run, "loss", None)',
    "a default, then read": 'if getattr(run, "loss", None) is not None:\n    print(run.loss)',
    "vars": 'if "loss" in vars(run):\n    print(run.loss)',
    "try": "try:\n    print(run.loss)\nexcept AttributeError:\n    pass",
    "try for several": "try:\n    print(run.loss)\nexcept (KeyError, AttributeError):\n    pass",
    "try for all": "try:\n    print(run.loss)\nexcept:\n    pass",
    "try for exceptions": "try:\n    print(run.loss)\nexcept Exception:\n    pass",
    "try for one of ours": "try:\n    print(run.loss)\nexcept FieldError:\n    pass",
    "suppress": "with contextlib.suppress(KeyError, AttributeError):\n    print(run.loss)",
    "expected in a test": "with pytest.raises(AttributeError, match=x):\n    print(run.loss)",
    "lambda": "self.later = lambda: run.loss",
    "nested function": "def later():\n    return run.loss\nself.later = later",
    "set before": "run.loss = 1\nprint(run.loss)",
    "set by setattr": 'setattr(run, "loss", 1)\nprint(run.loss)',
    "set by any name": "setattr(run, name, 1)\nprint(run.loss)",
    "set as one of several": "(run.loss, x) = y\nprint(run.loss)",
    "set by a loop": "for run.loss in y:\n    print(run.loss)",
    "set in a branch": "if x:\n    run.loss = 1\nprint(run.loss)",
    "set in the last round": "while x:\n    if y:\n        print(run.loss)\n    run.loss = 1",
    "set by a closure": "def closure():\n    run.loss = 1\nself.optimizer.step(closure)\nprint(run.loss)",
    "another run": "run = self.tracker.start()\nprint(run.loss)\nrun.skip_step()",
    "another run by with": "with mlflow.start_run() as run:\n    print(run.loss)",
    "another run by for": "for run in runs:\n    print(run.loss)",
    "another run by except": "try:\n    x()\nexcept KeyError as run:\n    print(run.loss)",
    "another run by import": "import tracker as run\nprint(run.loss)",
    "another run by match": "match x:\n    case run:\n        print(run.loss)",
    "another object": "print(self.loss, run.history.loss, self.other.run.loss)",
    "a nested pass": "for batch in run.validate(loader):\n    run.eval_step()\n    print(run.loss)",
    "deleted": "del run.loss",
    "always there": "print(run.epoch, run.metrics, run.clock, run.store)",
    "a method, not asked": "self.ask = run.skip_step",
    "a request under try": "try:\n    run.skip_step()\nexcept RuntimeError:\n    pass",
    "a request for later": "self.later = lambda: run.skip_step()",
    "a request of somebody else": "self.other.skip_step()",
}


@pytest.mark.parametrize("body", QUIET.values(), ids=QUIET)
def test_what_may_be_right_is_not_reported(body: str) -> None:
    assert messages(player("after_epoch", body)) == []


@pytest.mark.parametrize(
    ("point", "body"),
    [
        ("on_iter_loss", "print(run.output)"),
        ("on_iter_forward", "run.output = run.model(run.inputs)\nrun.loss = run.output.sum()\nprint(run.loss)"),
        ("on_iter_forward", "run.batch = make()\nprint(run.inputs, run.targets)"),
        ("on_iter_forward", "compute(run)\nprint(run.loss)"),
        ("on_iter_loss", "super().on_iter_loss(run)\nrun.loss = run.loss * 2"),
        ("on_train_forward", "self.on_iter_forward(run)\nprint(run.output)"),
        ("on_iter_step", "run.recompute()\nprint(run.loss)"),
        ("before_fetch", "run.batch = 1\nrun.inputs = 2"),
        ("around_iter", "yield\nprint(run.loss)"),
        ("around_forward", "x = run.output"),
        ("around_run", "try:\n    yield\nexcept Exception:\n    print(run.batch)"),
        ("around_epoch", "try:\n    yield\nfinally:\n    print(run.loss)"),
        ("after_error", "print(run.batch, run.loss)"),
        ("after_iter", "print(run.loss, run.skipped)"),
    ],
)
def test_a_right_use_is_not_reported(point: str, body: str) -> None:
    assert messages(player(point, body)) == []


def test_a_loss_that_the_forward_sets_lives_from_there() -> None:
    reads = player("after_forward", "print(run.loss)")
    sets = "class Main(MainCallback):\n    def on_iter_forward(self, run):\n        run.output = run.loss = 1\n"
    assert len(messages(reads)) == 1
    assert messages(sets + reads) == []
    assert len(messages(sets + player("before_forward", "print(run.loss)"))) == 1


def test_a_learning_rate_that_is_set_in_each_iteration_may_read_its_fields() -> None:
    source = player("on_lr_adjust", "print(run.loss)")
    assert len(messages(source)) == len(messages(source + '    lr_every = "epoch"\n')) == 1
    assert messages(source + '    lr_every = "iter"\n') == []
    assert messages(source + 'main = Mine(lr_every="iter")\n') == []
