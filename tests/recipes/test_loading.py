"""Recipes as a whole: defaults, groups, overrides, names, and what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.callbacks import EMA, EarlyStopping
from cadenza.recipes import RecipeError, load
from cadenza.recipes.compose.yaml_text import write_yaml
from cadenza.recipes.errors import fold


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(text: str, name: str = "my.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return make


def test_callbacks_are_addressed_by_name():
    recipe = load("digits", ["callbacks.early_stopping.patience=5", "callbacks.ema.decay=0.9", "~callbacks.progress"])
    assert recipe.tree["callbacks"]["early_stopping"]["patience"] == 5
    assert recipe.plan.callbacks["ema"].arguments == {"decay": 0.9}
    assert "progress" not in recipe.plan.callbacks


@pytest.mark.parametrize("name", ["EarlyStopping", "early-stopping", "earlystopping"])
def test_names_in_overrides_may_be_spelled_otherwise(name):
    recipe = load("digits", [f"callbacks.{name}.patience=7"])
    assert recipe.plan.callbacks["early_stopping"].arguments["patience"] == 7
    assert len([label for label in recipe.plan.callbacks if fold(label) == "earlystopping"]) == 1


def test_two_of_a_kind_keep_their_states_apart(write):
    recipe = load(write("defaults: [digits, _self_]\ncallbacks:\n  - EMA\n  - EMA: {decay: 0.5}\n"))
    built = recipe.build().callbacks
    assert (built["ema"].name, built["ema_2"].name, built["ema_2"].decay) == ("EMA", "ema_2", 0.5)


def test_the_list_form_says_the_same_as_the_mapping(write):
    head = "defaults: [digits, _self_]\ncallbacks:\n"
    listed = load(write(head + "  - EMA\n  - EarlyStopping: {patience: 3}\n", "listed.yaml"))
    mapped = load(write(head + "  ema:\n  early_stopping: {patience: 3}\n", "mapped.yaml"))
    assert listed.tree == mapped.tree
    assert (
        load("listed.yaml", ["callbacks.early_stopping.patience=9"]).tree["callbacks"]["early_stopping"]["patience"]
        == 9
    )


def test_a_callback_may_stand_twice_under_names(write):
    recipe = load(write("defaults: [digits]\ncallbacks:\n  - GradientPlot: {step: 0}\n  - GradientPlot: {step: 9}\n"))
    assert recipe.plan.callbacks["gradient_plot"].arguments["step"] == 0
    assert recipe.plan.callbacks["gradient_plot_2"].arguments["step"] == 9
    named = load(write("defaults: [digits]\ncallbacks:\n  late: {_target_: gradient_plot, step: 9}\n"))
    assert named.plan.callbacks["late"].arguments["step"] == 9


@pytest.mark.parametrize("nothing", ["null", "false"])
def test_all_callbacks_may_be_taken_out(nothing, write):
    assert load("digits", [f"callbacks={nothing}"]).plan.callbacks == {}
    assert load(write(f"defaults: [digits, _self_]\ncallbacks: {nothing}\n")).plan.callbacks == {}
    assert list(load("digits", ["callbacks=null", "callbacks.ema.decay=0.5"]).plan.callbacks) == ["ema"]


def test_a_file_may_take_a_callback_out(write):
    assert "progress" not in load(write("defaults: [digits]\ncallbacks: {progress: false}\n")).plan.callbacks


@pytest.mark.parametrize(
    "written",
    ["optimizer: sgd\n", "optimizer: {sgd: {lr: 0.1}}\n", "optimizer: {_target_: SGD, lr: 0.1}\n"],
    ids=["name", "one key", "target"],
)
def test_another_object_does_not_inherit_arguments(write, written):
    base = "defaults: [digits]\noptimizer: {_target_: adamw, lr: 0.003, betas: [0.8, 0.9]}\n"
    write(base, "base.yaml")
    recipe = load(write(f"defaults: [base, _self_]\n{written}"))
    assert fold(recipe.tree["optimizer"]["_target_"]) == "sgd"
    assert "betas" not in recipe.tree["optimizer"]


def test_an_override_chooses_another_object():
    recipe = load(
        "digits", ["optimizer=sgd", "optimizer.lr=0.5", "model=cnn", "model.channels=[4]", "model.outputs=10"]
    )
    assert recipe.tree["optimizer"] == {"_target_": "sgd", "lr": 0.5}
    assert recipe.tree["model"] == {"_target_": "cnn", "channels": [4], "outputs": 10}


def test_arguments_of_the_same_object_are_inherited(write):
    recipe = load(write("defaults: [digits, _self_]\noptimizer: {_target_: AdamW, weight_decay: 0.5}\n"))
    assert recipe.tree["optimizer"]["lr"] == 0.003
    assert recipe.tree["optimizer"]["weight_decay"] == 0.5


def test_groups_are_chosen_as_hydra_does(write):
    write("_target_: sgd\nlr: 0.2\n", "optimizer/plain.yaml")
    write("_target_: adam\nlr: 0.1\n", "optimizer/fancy.yaml")
    recipe = write("defaults: [digits, optimizer: plain, _self_]\n")
    assert load(recipe).tree["optimizer"] == {"_target_": "sgd", "lr": 0.2}
    assert load(recipe, ["optimizer=fancy", "optimizer.lr=0.3"]).tree["optimizer"] == {"_target_": "adam", "lr": 0.3}


def test_references_are_resolved(write):
    recipe = load(
        write(
            "defaults: [digits, _self_]\nfit: {epochs: 7}\ncallbacks: {early_stopping: {patience: '${fit.epochs}'}}\n"
        )
    )
    assert recipe.plan.callbacks["early_stopping"].arguments["patience"] == 7


def test_values_of_the_environment_are_not_written_down(write, monkeypatch):
    monkeypatch.setenv("MY_WIDTH", "hunter2")
    text = "defaults: [digits, _self_]\nabout: ${oc.env:MY_WIDTH}\n"
    recipe = load(write(text))
    assert recipe.tree["about"] == "hunter2"
    assert "hunter2" not in recipe.text
    assert "${oc.env:MY_WIDTH}" in recipe.text


def test_secrets_are_masked_in_what_is_printed(write):
    text = "defaults: [digits, _self_]\ncallbacks:\n  notify:\n    channels:\n    - {_target_: webhook, url: 'https://me:pw@example.org'}\n"
    printed = load(write(text)).text
    assert "pw@" not in printed
    assert "***@example.org" in printed


def test_a_bool_may_be_written_as_on(write):
    recipe = load(
        write("defaults: [digits, _self_]\ncallbacks: {ema: {keep: on}, early_stopping: {check_finite: no}}\n")
    )
    assert recipe.plan.callbacks["ema"].arguments["keep"] is True
    assert recipe.plan.callbacks["early_stopping"].arguments["check_finite"] is False


def test_whole_numbers_may_be_written_with_an_exponent():
    assert load("digits", ["fit.epochs=null", "fit.steps=1e3"]).plan.fit["steps"] == 1000


def test_what_is_printed_reads_as_the_same(tmp_path):
    recipe = load("digits_cnn", ["callbacks.ema.decay=0.9", "fit.validate_every='30 steps'"])
    (tmp_path / "printed.yaml").write_text(recipe.text)
    assert load(tmp_path / "printed.yaml").tree == recipe.tree


def test_nothing_is_built_by_loading():
    recipe = load("digits", ["callbacks.ema.decay=2"])  # the constructor refuses it
    with pytest.raises(RecipeError, match=r"callbacks\.ema: "):
        recipe.build()


def test_what_is_built_is_what_was_said():
    built = load("digits", ["~callbacks.progress", "~callbacks.checkpoint", "callbacks.ema.decay=0.5"]).build()
    kinds = [type(callback) for callback in built.trainer.callbacks]
    assert kinds[-2:] == [EarlyStopping, EMA]
    assert built.fit_arguments == {"epochs": 20}
    assert built.loaders["train"].batch_size == 32


def test_several_validation_sets(write):
    base = load("digits").tree
    base["data"]["val"] = {"one": {"_target_": "digits", "part": "val"}, "two": {"_target_": "digits", "part": "test"}}
    base["callbacks"] = {}
    recipe = load(write(write_yaml(base)), ["fit.epochs=1"])
    assert set(recipe.build().fit().names()) >= {"val/one/loss", "val/two/loss"}


def test_two_optimizers_take_the_parts_they_are_given():
    built = load("rivals", ["~callbacks.progress"]).build()
    critic, maker = built.trainer._training.optimizers
    own = {id(parameter) for parameter in built.trainer.model.critic.parameters()}
    assert {id(parameter) for parameter in critic.param_groups[0]["params"]} == own
    assert len(maker.param_groups[0]["params"]) == 4


def test_a_scheduler_of_torch():
    overrides = ["~callbacks.one_cycle_schedule", "scheduler={_target_:step_lr,step_size:1,gamma:0.5}", "fit.epochs=2"]
    built = load("digits", [*overrides, "~callbacks.progress", "~callbacks.checkpoint"]).build()
    built.fit()
    assert built.trainer._training.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.003 / 4)


def test_a_scheduler_that_is_stepped_after_each_step():
    overrides = ["~callbacks.one_cycle_schedule", "scheduler={_target_:step_lr,step_size:4,gamma:0.5}"]
    overrides += [
        "scheduler_every=step",
        "fit.epochs=null",
        "fit.steps=9",
        "~callbacks.progress",
        "~callbacks.checkpoint",
    ]
    built = load("digits", overrides).build()
    built.fit()
    assert built.trainer._training.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.003 / 4)
