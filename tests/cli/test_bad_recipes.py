"""Whatever is wrong with a recipe is said in one message with what would be right, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.cli.main import main
from cadenza.recipes import load

HEAD = "defaults: [digits, _self_]\n"

BAD = {
    "unknown key": (
        HEAD + "optimiser: sgd\n",
        [],
        "my.yaml:2: optimiser: a recipe has no such key; did you mean 'optimizer'?",
    ),
    "a key without its section": (
        HEAD + "epochs: 3\n",
        [],
        "my.yaml:2: epochs: a recipe has no such key; did you mean 'fit.epochs'?",
    ),
    "a key of several sections": (
        HEAD,
        ["batch_size=8"],
        "a recipe has no such key; did you mean 'loaders.train.batch_size' or 'loaders.val.batch_size'?",
    ),
    "unknown key in fit": (
        HEAD + "fit: {epoch: 3}\n",
        [],
        "my.yaml:2: fit.epoch: fit has no 'epoch'; did you mean 'epochs'?",
    ),
    "wrong type": (
        HEAD + "callbacks:\n  early_stopping:\n    patience: five\n",
        [],
        "my.yaml:4: callbacks.early_stopping.patience: 'five' is not a whole number or null",
    ),
    "a number for a text": (
        HEAD + "callbacks: {early_stopping: {monitor: 3}}\n",
        [],
        "my.yaml:2: callbacks.early_stopping.monitor: 3 is not a text; to give the text, put it in quotes",
    ),
    "a text for a list": (
        HEAD + "callbacks: {metrics: {stages: val}}\n",
        [],
        "callbacks.metrics.stages: 'val' is not a list (each a text); write [val]",
    ),
    "missing file": (None, [], "there is no file missing.yaml"),
    "missing default": (
        "defaults: [digts]\n",
        [],
        "my.yaml:1: defaults: there is no recipe 'digts'; did you mean 'digits'?",
    ),
    "cycle in defaults": ("defaults: [other]\n", [], "the defaults go in a circle: my.yaml -> other.yaml -> my.yaml"),
    "itself in defaults": ("defaults: [my]\n", [], "the defaults go in a circle: my.yaml -> my.yaml"),
    "defaults that are no list": ("defaults: digits\n", [], "my.yaml: defaults: this is a list"),
    "two owners of the learning rate": (
        HEAD + "callbacks: {cosine_schedule: }\n",
        [],
        "OneCycleSchedule and CosineSchedule both own 'lr'; only one of them can set it",
    ),
    "a schedule beside a scheduler": (
        HEAD + "scheduler: {_target_: step_lr, step_size: 1}\n",
        [],
        "the scheduler (my.yaml:2) and OneCycleSchedule both own 'lr'",
    ),
    "a scheduler that is stepped every batch": (
        HEAD + "scheduler: {_target_: step_lr, step_size: 1}\nscheduler_every: batch\n",
        [],
        "my.yaml:3: scheduler_every: 'batch' is neither epoch nor step",
    ),
    "how often no scheduler is stepped": (
        HEAD + "scheduler_every: step\n",
        [],
        "my.yaml:2: scheduler_every: there is no scheduler that it could be about",
    ),
    "unknown metric to watch": (
        HEAD + "callbacks: {early_stopping: {monitor: val/acuracy}}\n",
        [],
        "my.yaml:2: callbacks.early_stopping.monitor: it watches 'val/acuracy', which nothing in this fit logs; "
        "did you mean 'val/accuracy'?",
    ),
    "a metric without its data": (
        HEAD + "callbacks: {early_stopping: {monitor: test/loss}}\n",
        [],
        "it watches 'test/loss', but the recipe has no data.test",
    ),
    "unknown measure": (
        HEAD + "callbacks: {metrics: {metrics: {acc: acuracy}}}\n",
        [],
        "there is no metric 'acuracy'; did you mean 'accuracy'?",
    ),
    "a variable that is not in the environment": (
        HEAD + "seed: ${oc.env:NOT_THERE_AT_ALL}\n",
        [],
        "my.yaml:2: seed: Environment variable 'NOT_THERE_AT_ALL' not found",
    ),
    "an override without a value": (
        HEAD,
        ["fit.epochs=???"],
        "the override 'fit.epochs=???' gives no value: ??? marks what is still to be given",
    ),
    "negative epochs": (
        HEAD + "fit: {epochs: -1}\n",
        [],
        "my.yaml:2: fit.epochs: -1 is not a whole number of at least 1",
    ),
    "negative epochs in an override": (
        HEAD,
        ["fit.epochs=-1"],
        "the override 'fit.epochs=-1': fit.epochs: -1 is not a whole",
    ),
    "half an epoch": (HEAD + "fit: {epochs: 1.5}\n", [], "my.yaml:2: fit.epochs: 1.5 is not a whole number or null"),
    "no length": ("defaults: [digits, _self_]\nfit: {epochs: null}\n", [], "say how far to train: fit: {epochs: 10}"),
    "a target that is not allowed": (
        HEAD + "model: {_target_: os.system, command: ls}\n",
        [],
        "my.yaml:2: model._target_: _target_ 'os.system' is neither registered nor in a package you allow (--allow os)",
    ),
    "a target that an allowed package only imported": (
        HEAD + "model: {_target_: cadenza.cli.commands.check.ast.parse, source: x}\n",
        ["--allow", "cadenza"],
        "is of ast, which is not allowed",
    ),
    "a target that is not in an allowed package": (
        HEAD + "model: {_target_: torch.nn.Linaer, in_features: 1}\n",
        ["--allow", "torch.nn"],
        "there is no 'Linaer'; did you mean 'Linear'?",
    ),
    "a key twice": (HEAD + "seed: 1\nseed: 2\n", [], "my.yaml:3: 'seed' stands here a second time; first in line 2"),
    "a callback twice": (
        HEAD + "callbacks: {ema: {decay: 0.9}, EMA: {decay: 0.8}}\n",
        [],
        "my.yaml:2: the callback 'ema' stands here twice",
    ),
    "bad duration": (
        HEAD + "callbacks: {lr_monitor: {every: 10 stepps}}\n",
        [],
        "my.yaml:2: callbacks.lr_monitor.every: '10 stepps': the unit 'stepps' is unknown",
    ),
    "a duration without a unit": (
        HEAD + "callbacks: {lr_monitor: {every: 10}}\n",
        [],
        "callbacks.lr_monitor.every: 10 is not a duration such as '100 steps'",
    ),
    "bad interval of validation": (
        HEAD + "fit: {validate_every: often}\n",
        [],
        "fit.validate_every: 'often' is not a duration",
    ),
    "validation by batches": (
        HEAD + "fit: {validate_every: 3 batches}\n",
        [],
        "fit.validate_every: it counts epochs, steps or time, not batches",
    ),
    "both limits": (
        HEAD + "fit: {steps: 30}\n",
        [],
        "fit.steps: give epochs or steps, not both: fit.epochs=null takes that out",
    ),
    "missing argument": (
        HEAD + "callbacks: {step_schedule: }\n",
        ["~callbacks.one_cycle_schedule"],
        "step_schedule needs 'size'",
    ),
    "bad syntax": (HEAD + "fit: {epochs: 3\n", [], "this is not YAML"),
    "tabs": (HEAD + "fit:\n\tepochs: 3\n", [], "my.yaml:3: YAML is indented with blanks; this line has a tab"),
    "unknown callback": (
        HEAD + "callbacks: {erly_stoping: }\n",
        [],
        "my.yaml:2: callbacks.erly_stoping: there is no callback 'erly_stoping'; did you mean 'early_stopping'?",
    ),
    "unknown callback in a list": (
        HEAD + "callbacks:\n- ErlyStopping\n",
        [],
        "my.yaml:3: callbacks.erly_stopping: there is no callback",
    ),
    "a list of what is no callback": (HEAD + "callbacks: [3]\n", [], "my.yaml:2: 3 is no callback; write '- Name'"),
    "unknown optimizer": (
        HEAD + "optimizer: adamm\n",
        [],
        "my.yaml:2: optimizer._target_: there is no optimizer 'adamm'; did you mean 'adam'?",
    ),
    "unknown argument": (
        HEAD + "optimizer: {_target_: adamw, larning_rate: 1}\n",
        [],
        "my.yaml:2: optimizer.larning_rate: adamw takes no 'larning_rate'",
    ),
    "argument that is like none": (
        HEAD + "callbacks: {accumulate: {batches: 3}}\n",
        [],
        "accumulate takes no 'batches'; it takes n, weight, drop_last",
    ),
    "override with wrong syntax": (HEAD, ["fit.epochs"], "the override 'fit.epochs' has no value"),
    "override with several values": (HEAD, ["fit.epochs=1,2"], "the override 'fit.epochs=1,2' gives several values"),
    "override of Hydra": (HEAD, ["hydra.run.dir=x"], "is about Hydra itself"),
    "taking out what is not there": (HEAD, ["~callbacks.emma"], "callbacks has no 'emma'"),
    "no such default to a reference": (HEAD + "seed: ${nothing}\n", [], "seed"),
    "something to be given": (HEAD + "device: ???\n", [], "my.yaml:2: device: this has to be given: device=..."),
    "seed below zero": (HEAD + "seed: -1\n", [], "my.yaml:2: seed: -1 is not a whole number from 0"),
    "no mapping": ("- digits\n", [], "my.yaml: a recipe is a mapping of keys to values"),
    "no model": (HEAD + "model: null\n", [], "the recipe has no model"),
    "no data": (HEAD + "data: {train: null}\n", [], "there is no data to train on"),
    "unknown part of the model": (
        HEAD + "optimizer: {_target_: sgd, params: head, lr: 1}\n",
        [],
        "optimizer.params: the model has no part 'head'",
    ),
    "unknown stage": (
        HEAD + "loaders: {valid: {batch_size: 3}}\n",
        [],
        "loaders.valid: loaders has no 'valid'; did you mean 'val'?",
    ),
    "wrong execution": (HEAD + "execution: fast\n", [], "my.yaml:2: execution: "),
    "experiment argument": (
        HEAD + "experiment: {projct: x}\n",
        [],
        "my.yaml:2: experiment.projct: experiment takes no 'projct'; did you mean 'project'?",
    ),
    "experiment name": (HEAD + "experiment: {name: ../../x}\n", [], "my.yaml:2: experiment: "),
    "a module that is not there": (
        HEAD + "imports: [no_such.py]\n",
        [],
        "there is no file no_such.py beside the recipe",
    ),
    "a module that fails": (HEAD + "imports: [broken.py]\n", [], "broken.py cannot be imported: ZeroDivisionError"),
    "refused by a constructor": (HEAD + "callbacks: {ema: {decay: 2}}\n", [], "my.yaml:2: callbacks.ema: "),
}
USAGE = {
    "override with wrong syntax",
    "an override without a value",
    "override with several values",
    "override of Hydra",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.yaml").write_text("defaults: [my]\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    return tmp_path


@pytest.mark.parametrize("name", BAD)
def test_a_bad_recipe_is_one_message_and_nothing_is_left(name, folder, capsys):
    text, words, says = BAD[name]
    if text is not None:
        (folder / "my.yaml").write_text(text)
    before = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")
    code = main(["train", "my.yaml" if text is not None else "missing.yaml", *words])
    told = capsys.readouterr()
    assert code == (2 if name in USAGE else 1), told.err
    assert says in told.err, told.err
    assert told.err.startswith("cadenza: ")
    assert told.err.count("\n") == 1
    assert "Traceback" not in told.err
    assert told.out == ""
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before


def test_the_traceback_is_there_if_it_is_wanted(folder, capsys):
    (folder / "my.yaml").write_text(BAD["refused by a constructor"][0])
    assert main(["train", "my.yaml", "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err


UNREADABLE = {
    "": "is empty",
    "=3": "has no key",
    "++=3": "has no key",
    "~": "has no key",
    "fit.epochs": "has no value",
    "++fit.epochs": "has no value",
    "fit.epochs = 3": "has a space before its value",
    "fit..epochs=3": "has the key 'fit..epochs'; a key is made of names with dots",
    "fit.epochs=[1,2": "has a value in which a [ is alone",
    "fit.epochs=3}": "has a value in which a } is alone",
    "fit.epochs='3": "has a value in which a quote is not closed",
    "project=a=b": "has a value with a = in it",
    "project=a(b)": "has a value that cannot be read; put a text with special characters into quotes",
}


@pytest.mark.parametrize(("override", "wrong"), UNREADABLE.items(), ids=repr)
def test_an_override_that_cannot_be_read_is_wrong_usage_in_our_words(override, wrong, capsys):
    assert main(["train", "digits", override]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"cadenza: the override {override!r} {wrong}")
    assert said.endswith(". Write key=value, such as fit.epochs=3, or ~key to take a key out\n")


@pytest.mark.parametrize("overrides", ["fit.epochs=3", [3], [None]], ids=repr)
def test_overrides_are_a_list_of_texts(overrides):
    with pytest.raises(
        TypeError, match=r"overrides is a list of texts: \['fit.epochs=3'\]|an override is a text such as"
    ):
        load("digits", overrides)
