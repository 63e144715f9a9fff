"""The document of SuperGradients: its code runs, does what the text says, and its listings are true."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from cadenza.dialects import installed, supergradients
from cadenza.dialects.supergradients import PhaseContext, register_dataloader, register_model
from cadenza.dialects.supergradients.registry import REGISTRIES
from cadenza.dialects.supergradients.table import HOOKS

from ..processes import run
from .documents import Repair, fenced, repaired, text_of
from .supergradients_names import TinyNet, image_loader, modules

SEED = "supergradients-callbacks.txt"
METHODS, ORDER, DOCSTRING, CLASS, TRAIN, REGISTERED, SCRIPT = fenced(SEED, "python")
YOLOX, HYPERPARAMS = fenced(SEED, "yaml")

FOLDER = Repair(
    "        outputs_path = os.path.join",
    "        self.outputs_path = outputs_path = os.path.join",
    "the folder is kept in a local variable, and self.outputs_path stays None",
)
OPEN_PARAMS = Repair(
    '    ...\n    "loss": "cross_entropy",\n    "criterion_params": {}\n    ...\n',
    '    **others,\n    "loss": "cross_entropy",\n    "criterion_params": {},\n',
    "dots for the other parameters, and a comma that is missing",
)
MODEL = Repair(
    "trainer.train(training_params=", "trainer.train(model=model, training_params=", "train is called without the model"
)
OPEN_NAMES = [
    Repair("train_dataloader = ...", "train_dataloader = image_loader()", "dots for the reader's loader"),
    Repair("valid_dataloader = ...", "valid_dataloader = image_loader()", "dots for the reader's loader"),
    Repair("model = ...", "model = TinyNet()", "dots for the reader's model"),
    Repair(
        'Trainer("my_experiment")',
        'Trainer("my_experiment", ckpt_root_dir=root)',
        "so that files go to a test's folder",
    ),
]
OPEN_TOP = Repair("...\n", "", "dots for the imports and what else stands above")
OPEN_YAML = Repair("...\n", "", "dots for the other parameters")
EPOCHS = Repair("max_epochs: 250", "max_epochs: 2", "so that a test need not train for 250 epochs")

OTHERS = {
    "max_epochs": 2,
    "initial_lr": 0.1,
    "lr_mode": "cosine",
    "valid_metrics_list": ["Accuracy"],
    "metric_to_watch": "Accuracy",
    "silent_mode": True,
}
PICTURES = ["first_train_batch_epoch_0.png", "first_train_batch_epoch_1.png", "first_validation_batch_epoch_0.png"]


@pytest.fixture(autouse=True)
def original_paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    before = {kind: dict(registry._entries) for kind, registry in REGISTRIES.items()}
    with installed("supergradients"):
        yield
    for kind, registry in REGISTRIES.items():
        registry._entries = before[kind]


def executed(code: str, **names: Any) -> dict[str, Any]:
    found = {"__name__": "example", **names}
    exec(compile(code, SEED, "exec"), found)
    return found


def pictures(root: Path, experiment: str = "my_experiment") -> list[str]:
    return sorted(path.name for path in root.glob(f"{experiment}/RUN_*/batch_images/*.png"))


# The worked example --------------------------------------------------------------------------------------------------


def test_the_callback_saves_the_first_batches_from_code(tmp_path: Path) -> None:
    names = executed(repaired(CLASS, FOLDER))
    code = repaired(TRAIN, OPEN_PARAMS, MODEL, *OPEN_NAMES, OPEN_TOP)
    from super_gradients import Trainer  # type: ignore[import-not-found]

    torch.manual_seed(0)
    given = {"Trainer": Trainer, "TinyNet": TinyNet, "image_loader": image_loader, "root": str(tmp_path)}
    executed(code, others=OTHERS, SaveFirstBatchCallback=names["SaveFirstBatchCallback"], **given)
    assert pictures(tmp_path) == PICTURES
    with Image.open(next(tmp_path.rglob(PICTURES[0]))) as picture:
        assert picture.size == (8 * 4, 4)


def test_the_callback_saves_the_first_batches_from_yaml(tmp_path: Path) -> None:
    executed(repaired(REGISTERED, FOLDER))
    params = yaml.safe_load(repaired(HYPERPARAMS, OPEN_YAML, EPOCHS))
    assert params.pop("defaults") == ["default_train_params"]  # Hydra's own key; the next test starts from there
    register_model("tiny_net")(TinyNet)
    register_dataloader("tiny_images")(image_loader)
    recipe = {
        "experiment_name": "my_experiment",
        "ckpt_root_dir": str(tmp_path),
        "architecture": "tiny_net",
        "train_dataloader": "tiny_images",
        "val_dataloader": "tiny_images",
        "training_hyperparams": {**OTHERS, "loss": "cross_entropy", **params},
    }
    from omegaconf import OmegaConf

    model, results = supergradients.Trainer.train_from_config(OmegaConf.create(recipe))
    assert isinstance(model, TinyNet)
    assert set(results["valid"]) >= {"loss", "Accuracy"}
    assert pictures(tmp_path) == PICTURES


def test_the_script_of_the_document_runs_with_hydra(tmp_path: Path) -> None:
    """``my_train_from_recipe_script.py`` as it stands, in a process of its own, with recipes of the reader's."""
    here = Path(__file__).parent
    (tmp_path / "my_callbacks.py").write_text(repaired(REGISTERED, FOLDER))
    (tmp_path / "my_train_from_recipe_script.py").write_text(SCRIPT)
    (tmp_path / "start.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(here)!r})\n"
        "import supergradients_names as names\n"
        "from cadenza.dialects import run_script\n"
        "from cadenza.dialects.supergradients import register_dataloader, register_model\n"
        "register_model('tiny_net')(names.TinyNet)\n"
        "register_dataloader('tiny_images')(names.image_loader)\n"
        "run_script('supergradients', 'my_train_from_recipe_script.py', sys.argv[1:])\n"
    )
    recipes = tmp_path / "recipes" / "training_hyperparams"
    recipes.mkdir(parents=True)
    (recipes / "my_training_hyperparams.yaml").write_text(repaired(HYPERPARAMS, OPEN_YAML, EPOCHS))
    (recipes.parent / "my_recipe.yaml").write_text(
        "defaults:\n  - training_hyperparams: my_training_hyperparams\n"
        "  - checkpoint_params: default_checkpoint_params\n  - _self_\n"
        "experiment_name: my_experiment\nckpt_root_dir: out\narchitecture: tiny_net\n"
        "train_dataloader: tiny_images\nval_dataloader: tiny_images\n"
        "training_hyperparams:\n  loss: cross_entropy\n  initial_lr: 0.1\n  silent_mode: true\n"
        "  metric_to_watch: CrossEntropyLoss\n  greater_metric_to_watch_is_better: false\n"
    )
    words = ["--config-dir=recipes", "--config-name=my_recipe", "hydra.run.dir=.", "hydra/job_logging=none"]
    done = run(tmp_path / "start.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert pictures(tmp_path / "out") == PICTURES


def test_unrepaired_the_document_fails_where_it_errs(tmp_path: Path) -> None:
    callback = executed(CLASS)["SaveFirstBatchCallback"]()
    callback.on_training_start(PhaseContext(ckpt_dir=str(tmp_path)))
    with pytest.raises(TypeError):
        callback.on_train_batch_start(PhaseContext(batch_idx=0, epoch=0, inputs=torch.zeros(1, 3, 2, 2)))


# Listings -------------------------------------------------------------------------------------------------------------


def test_the_classes_that_the_document_lists_are_there() -> None:
    text = text_of(SEED)
    listed = re.findall(r"^    (\w+(?:Callback|CallbackBase|Base))$", text, flags=re.MULTILINE)
    assert len(listed) == 14
    module = importlib.import_module("super_gradients.training.utils.callbacks")
    for name in listed:
        assert isinstance(getattr(module, name), type)


def test_the_methods_that_the_document_lists_are_there() -> None:
    listed = re.findall(r"^\s*(on_\w+)\(self, context: PhaseContext\)", METHODS, flags=re.MULTILINE)
    ours = [row.name for row in HOOKS]
    assert len(listed) == 19
    assert set(listed) <= set(ours)
    assert len(ours) == 23  # with the two other names of one list
    from super_gradients.training.utils.callbacks.base_callbacks import Callback  # type: ignore[import-not-found]

    assert all(callable(getattr(Callback, name)) for name in listed)


def test_the_order_that_the_document_shows_is_ours() -> None:
    shown = re.findall(r"(on_\w+)\(context\)", ORDER)
    renamed = {"on_test_start": "on_test_loader_start", "on_test_end": "on_test_loader_end"}
    names = [renamed.get(name, name) for name in shown]
    ours = [row.name for row in HOOKS if row.name in names]
    tests_last = [name for name in names if "best_epoch" not in name]  # the best epoch comes after the tests
    assert [name for name in ours if "best_epoch" not in name] == tests_last


def test_the_attributes_that_the_document_promises_exist() -> None:
    promised = re.findall(r"^\s*- (\w+)$", DOCSTRING, flags=re.MULTILINE)
    assert len(promised) == 14
    context = PhaseContext(ckpt_dir="here")
    assert all(hasattr(context, name) for name in promised)
    assert context.checkpoints_dir_path == context.ckpt_dir == "here"


def test_the_yolox_recipe_names_a_callback_that_acts() -> None:
    entry = yaml.safe_load(repaired(YOLOX, OPEN_YAML))["phase_callbacks"][0]
    from cadenza.dialects.supergradients.registry import build

    switch = build("callback", entry)
    assert switch.next_stage_start_epoch == 285


def test_the_document_names_the_default_parameters_and_they_are_ours() -> None:
    folder = Path(str(importlib.import_module("super_gradients.recipes").__file__)).parent
    found = yaml.safe_load((folder / "training_hyperparams" / "default_train_params.yaml").read_text())
    from cadenza.dialects.supergradients.parameters import DEFAULT_TRAINING_PARAMS

    assert {name: DEFAULT_TRAINING_PARAMS[name] for name in found if name != "phase_callbacks"} == {
        name: value for name, value in found.items() if name != "phase_callbacks"
    }


def test_hydra_finds_the_recipes_as_a_package() -> None:
    from importlib.resources import files

    assert (files("super_gradients.recipes") / "training_hyperparams" / "default_train_params.yaml").is_file()
