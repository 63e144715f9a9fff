from __future__ import annotations

import pytest

from cadenza import CallbackError
from cadenza.cli.commands.check import check_file
from cadenza.points import POINTS
from cadenza.registration.checks import check_callback
from cadenza.registration.suggestions import FOREIGN

from .checked import build, messages


def refusals(source: str) -> list[str]:
    """What registration says to an instance of the class."""
    try:
        check_callback(build(source))
    except CallbackError as error:
        return [str(error)]
    return []


REFUSED = {
    "misspelt": "class Mine(Callback):\n    def before_stpe(self, run): ...",
    "from another library": "class Mine(Callback):\n    def on_epoch_end(self, run): ...",
    "near to nothing": "class Mine(Callback):\n    def on_xyzzy_quux_plugh(self, run): ...",
    "misspelt in a base": "class A(Callback):\n    def after_epohc(self, run): ...\nclass Mine(A): ...",
    "misspelt static": "class Mine(Callback):\n    @staticmethod\n    def after_epohc(run): ...",
    "misspelt under no_grad": "import torch\nclass Mine(Callback):\n    @torch.no_grad()\n"
    "    def after_epohc(self, run): ...",
    "behaviour": "class Mine(Callback):\n    def on_iter_loss(self, run): ...",
    "behaviour further down": "class A(Callback): ...\nclass Mine(A):\n    def on_lr_adjust(self, run): ...",
    "too many": "class Mine(Callback):\n    def after_epoch(self, run, logs): ...",
    "too few": "class Mine(Callback):\n    def after_epoch(self): ...",
    "needs a keyword": "class Mine(Callback):\n    def after_epoch(self, run, *, logs): ...",
    "static with two": "class Mine(Callback):\n    @staticmethod\n    def after_epoch(run, logs): ...",
    "class method without": "class Mine(Callback):\n    @classmethod\n    def after_epoch(cls): ...",
    "behaviour with two": "class Mine(MainCallback):\n    def on_iter_loss(self, run, batch): ...",
    "asynchronous": "class Mine(Callback):\n    async def after_epoch(self, run): ...",
    "asynchronous around": "class Mine(Callback):\n    async def around_epoch(self, run): ...",
    "asynchronous generator": "class Mine(Callback):\n    async def around_epoch(self, run): yield",
    "yields before": "class Mine(Callback):\n    def before_epoch(self, run): yield",
    "yields after": "class Mine(Callback):\n    def after_epoch(self, run):\n        x = [(yield)]",
    "yields in a behaviour": "class Mine(MainCallback):\n    def on_iter_step(self, run): yield from ()",
    "stages": 'class Mine(Callback):\n    stages = {"training"}',
    "owns": 'class Mine(Callback):\n    owns = "lr"',
    "order": 'class Mine(Callback):\n    order: int = "last"',
    "ranks": 'class Mine(Callback):\n    ranks = "first"',
    "asks": 'class Mine(Callback):\n    asks = {"skip_stpe"}',
    "agree": 'class Mine(Callback):\n    agree = "most"',
    "lr_every": 'class Mine(MainCallback):\n    lr_every = "batch"',
}


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
def test_what_registration_refuses_is_found_in_the_same_words(source: str) -> None:
    assert len(refusals(source)) == 1
    assert messages(source) == refusals(source)


TAKEN = {
    "every point": "class Mine(MainCallback):\n" + "".join(f"    def {point}(self, run): ...\n" for point in POINTS),
    "marked helper": "class Mine(Callback):\n    @cadenza.not_a_point\n    def on_hit(self, target): ...",
    "other helpers": "class Mine(Callback):\n    def _before_step(self): ...\n    def once(self): ...\n"
    "    def on(self): ...",
    "a property": "class Mine(Callback):\n    @property\n    def on_fire(self): return True",
    "a value": "class Mine(Callback):\n    after_all = 3\n    on_gpu: bool = True",
    "a nested function": "class Mine(Callback):\n    def after_run(self, run):\n        def on_click(event): ...",
    "a nested class": "class Mine(Callback):\n    class Window:\n        def on_click(self, event): ...",
    "replaced later": "class Mine(Callback):\n    def on_hit(self): ...\n    on_hit = cadenza.not_a_point(on_hit)",
    "another argument's default": "class Mine(Callback):\n"
    "    def after_epoch(self, run, logs=None, *, x=1, **more): ...",
    "any arguments": "class Mine(Callback):\n    def after_epoch(*args): ...",
    "positional only": "class Mine(Callback):\n    def after_epoch(self, run, /): ...",
    "static": "class Mine(Callback):\n    @staticmethod\n    def after_epoch(run): ...",
    "class method": "class Mine(Callback):\n    @classmethod\n    def after_epoch(cls, run): ...",
    "a generator around": "class Mine(Callback):\n    def around_epoch(self, run): yield",
    "a context manager around": "from contextlib import contextmanager\nclass Mine(Callback):\n"
    "    @contextmanager\n    def around_epoch(self, run): yield",
    "yields further inside": "class Mine(Callback):\n    def after_epoch(self, run):\n        def numbers(): yield 1",
    "what the rest of the class decides": 'class Mine(Callback):\n    owns = {"save"}\n    def save(self, run): ...',
    "behaviour": "class A(MainCallback): ...\nclass Mine(A):\n    def on_iter_loss(self, run): ...",
    "behaviour of a part": "class Part(Callback):\n    def on_iter_loss(self, run): ...\n"
    "class Mine(Part, MainCallback): ...",
    "declarations": 'class Mine(MainCallback):\n    stages = {"train"}\n    owns = frozenset({"lr"})\n    order = -3\n'
    '    ranks = {0, 1}\n    asks = {"skip_step"}\n    agree = "same"\n    lr_every = "iter"',
}


@pytest.mark.parametrize("source", TAKEN.values(), ids=TAKEN)
def test_what_registration_takes_is_not_found(source: str) -> None:
    assert refusals(source) == []
    assert messages(source) == []


@pytest.mark.parametrize("name", ["after_epohc", "after_epoch", "on_iter_loss", "on_hit"])
def test_a_mixin_is_judged_as_registration_judges_it(name: str) -> None:
    source = f"class Mixin:\n    def {name}(self, run): ...\nclass Mine(Mixin, Callback): ..."
    assert messages(source) == refusals(source)


@pytest.mark.parametrize(("name", "meant"), FOREIGN.items())
def test_names_of_other_libraries_are_known(name: str, meant: str) -> None:
    (message,) = messages(f"class Mine(Callback):\n    def {name}(self, run): ...")
    assert f"did you mean {meant}?" in message


@pytest.mark.parametrize("name", ["befor_step", "afer_epoch", "arround_iter", "befroe_train_iter"])
def test_a_misspelt_beginning_is_found(name: str) -> None:
    (message,) = messages(f"class Mine(Callback):\n    def {name}(self, run): ...")
    assert message.startswith(f"Mine.{name} looks like a point and is none; did you mean ")


# What a trainer is given --------------------------------------------------------------------------------------------

GIVEN_WRONGLY = {
    "misspelt": ('trainer.on("after_epcoh")', "'after_epcoh' is no point; did you mean 'after_epoch'?"),
    "foreign": ('trainer.on("on_epoch_end")', "'on_epoch_end' is no point; did you mean 'after_epoch'?"),
    "by keyword": ('trainer.on(point="epoch")', "'epoch' is no point"),
    "too many": (
        '@trainer.on("after_epoch")\ndef f(run, logs): ...',
        "the function f(run, logs) must be callable with the run",
    ),
    "too few": ('trainer.on("after_epoch")(lambda: 3)', "the function <lambda>() must be callable with the run alone"),
    "by name": ('def f(): ...\ntrainer.on("after_epoch")(f)', "the function f() must be callable with the run alone"),
    "asynchronous": ('@trainer.on("after_epoch")\nasync def f(run): ...', "the function f is asynchronous"),
    "yields": ('@trainer.on("after_epoch")\ndef f(run): yield', "the function f yields, so it would never run"),
    "behaviour": ('trainer.on("on_iter_loss")(f)', "on_iter_loss is a behaviour, which only the MainCallback owns"),
    "several": (
        '@trainer.on("after_iter")\n@trainer.on("after_epoch")\ndef f(run): run.loss',
        "the function f at after_epoch reads",
    ),
    "a class": ("class A(Callback): ...\ntrainer.add(A)", "A is a class; put an instance into callbacks: A()"),
    "a class in a list": ("Trainer(m, callbacks=[cadenza.Watch])", "Watch is a class; put an instance into"),
    "two mains": (
        "class A(MainCallback): ...\nTrainer(m, callbacks=[A(), MainCallback()])",
        "A and MainCallback both own the behaviours; a run has exactly one MainCallback",
    ),
}


@pytest.mark.parametrize(("source", "text"), GIVEN_WRONGLY.values(), ids=GIVEN_WRONGLY)
def test_what_is_given_wrongly_is_found(source: str, text: str) -> None:
    (message,) = messages("trainer = Trainer(m)\n" + source)
    assert message.startswith(text)


GIVEN_RIGHTLY = {
    "decorator": 'trainer = Trainer(m)\n@trainer.on("after_epoch")\ndef f(run): print(run.metrics)',
    "around": 'trainer = Trainer(m)\n@trainer.on("around_epoch")\ndef f(run): yield',
    "computed": "trainer = Trainer(m)\ntrainer.on(name)(f)",
    "unknown function": 'trainer = Trainer(m)\ntrainer.on("after_epoch")(self.show)',
    "changed function": 'trainer = Trainer(m)\n@trainer.on("after_epoch")\n@bind(3)\ndef f(run, x): run.loss',
    "instances": "class A(MainCallback): ...\nTrainer(m, callbacks=[A(), cadenza.Watch('val/loss'), *more])",
    "a server": 'app = Server()\n@app.on("message")\ndef f(a, b): ...',
    "an event of others": "from ignite.engine import Engine\ntrainer = Engine(x)\ntrainer.on('started')(f)",
    "a trainer of others": "from lightning import Trainer\ntrainer = Trainer()\ntrainer.on('started')(f)",
    "a trainer of others by annotation": "import lightning\n"
    "def f(trainer: lightning.Trainer): trainer.on('started')(f)",
    "a set": "class A(Callback): ...\nknown = set()\nknown.add(A)",
}


@pytest.mark.parametrize("source", GIVEN_RIGHTLY.values(), ids=GIVEN_RIGHTLY)
def test_what_is_given_rightly_or_to_others_is_not_reported(source: str) -> None:
    assert messages(source) == []


@pytest.mark.parametrize(
    "trainer", ["cadenza.Trainer(m)", "make_trainer()", "cadenza.trainer.Trainer(m)"], ids=["made", "unknown", "inner"]
)
def test_a_trainer_is_recognised(trainer: str) -> None:
    assert len(messages(f'trainer = {trainer}\ntrainer.on("epoch")')) == 1
    assert len(messages('def use(trainer): trainer.on("epoch")')) == 1
    assert len(messages('def use(self): self.trainer.on("epoch")')) == 1
    assert len(messages('def use(t: Trainer): t.on("epoch")')) == 1
    assert check_file('trainer.on("epoch")', "other.py") == []
