"""Names for objects: looked up without case and separators, never given away twice."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tools.callbacks_page import ready_callbacks

import cadenza.callbacks
from cadenza import Callback
from cadenza.experiment import Experiment
from cadenza.recipes import RecipeError, Registry, register, registry
from cadenza.recipes.registry import KINDS


@pytest.mark.parametrize(
    "name", ["EarlyStopping", "early_stopping", "early-stopping", "EARLY STOPPING", "earlystopping"]
)
def test_case_and_separators_do_not_matter(name):
    assert registry("callback")[name].load() is cadenza.callbacks.EarlyStopping


def test_every_shipped_callback_has_a_name():
    known = {entry.load() for kind in ("callback", "tracker") for entry in registry(kind).entries()}
    assert set(ready_callbacks()) - known == {Experiment}  # a recipe has a section for it


@pytest.mark.parametrize("kind", KINDS)
def test_every_shipped_name_leads_to_a_class_or_function(kind):
    for entry in registry(kind).entries():
        assert callable(entry.load()), entry.name


def test_the_objects_of_torch_have_names():
    assert registry("optimizer")["AdamW"].load() is torch.optim.AdamW
    assert registry("scheduler")["cosine_annealing_lr"].load() is torch.optim.lr_scheduler.CosineAnnealingLR
    assert registry("loss")["cross_entropy"].load() is torch.nn.CrossEntropyLoss
    assert registry("loss")["CrossEntropyLoss"].load() is torch.nn.CrossEntropyLoss


@pytest.mark.parametrize(
    ("name", "near"), [("erly_stoping", "early_stopping"), ("EMAA", "ema"), ("gradclip", "gradient_clip")]
)
def test_a_miss_names_the_nearest(name, near):
    with pytest.raises(RecipeError, match=f"no callback '{name}'; did you mean '{near}'"):
        registry("callback")[name]


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'callback'"):
        register("calback")


def test_a_taken_name_is_refused_and_the_same_object_is_not():
    names = Registry("callback")

    class One(Callback): ...

    class Two(Callback): ...

    names.register(One)
    names.register(One)
    with pytest.raises(ValueError, match=r"'ONE' is taken by .*One; give .*Two another name"):
        names.register(Two, "ONE")
    assert names["one"].load() is One


def test_a_shipped_name_is_taken_too():
    class EMA(Callback): ...

    with pytest.raises(ValueError, match=r"taken by cadenza\.callbacks\.EMA"):
        register("callback")(EMA)
    assert register("callback")(cadenza.callbacks.EMA) is cadenza.callbacks.EMA


def test_a_definition_that_is_run_anew_replaces_the_old_one():
    names = Registry("callback")
    source = "from cadenza import Callback\nclass Mine(Callback): ...\n"
    first, second = {"__name__": "cell"}, {"__name__": "cell"}
    exec(source, first)
    exec(source, second)
    names.register(first["Mine"])
    names.register(second["Mine"])
    assert names["mine"].load() is second["Mine"]


def test_what_is_no_class_or_function_is_refused():
    with pytest.raises(TypeError, match="a class or a function, not int"):
        register("metric", name="three")(3)
    with pytest.raises(TypeError, match="write @register"):
        register("metric", lambda output, targets: 0)


def test_importing_the_registries_imports_nothing_optional():
    code = (
        "import sys, torch, cadenza.recipes.registries; "
        "print({'sklearn', 'hydra', 'omegaconf', 'yaml', 'matplotlib', 'mlflow', 'wandb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
