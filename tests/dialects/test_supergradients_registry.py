"""Registries, devices, and what an import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cadenza
from cadenza.dialects.supergradients import (
    Callback,
    register_callback,
    setup_device,
)
from cadenza.dialects.supergradients.checkpoints import folder_to_resume, new_run_folder
from cadenza.dialects.supergradients.registry import REGISTRIES, find

# Registries and devices -----------------------------------------------------------------------------------------------


def test_every_kind_has_a_registry_and_a_decorator() -> None:
    from cadenza.dialects import supergradients

    assert len(REGISTRIES) == 20
    for kind in REGISTRIES:
        assert callable(getattr(supergradients, f"register_{kind}"))


def test_names_are_found_whatever_their_case() -> None:
    before = dict(REGISTRIES["callback"]._entries)
    try:

        @register_callback("MyThing", deprecated_name="OldThing")
        class Thing(Callback): ...

        assert find("callback", "my_thing") is find("callback", "oldthing") is Thing
        with pytest.raises(ValueError, match="'MyThing' is taken"):
            register_callback("MyThing")(type("Other", (Callback,), {}))
        with pytest.raises(KeyError, match=r"no callback is registered as 'MyThong'; did you mean 'MyThing'"):
            find("callback", "MyThong")
        with pytest.raises(TypeError, match="register_callback is called: write @register_callback"):
            register_callback(Thing)
    finally:
        REGISTRIES["callback"]._entries = before


def test_runs_of_one_second_are_in_their_order(tmp_path: Path) -> None:
    made = []
    for _ in range(30):
        folder = new_run_folder(tmp_path, "mine")
        folder.mkdir(parents=True)  # which takes longer than a microsecond
        (folder / "ckpt_latest.pth").touch()
        made.append(folder)
    assert sorted(made) == made
    assert folder_to_resume(tmp_path, "mine", None, "ckpt_latest.pth") == made[-1]


def test_setup_device_refuses_what_is_not_carried() -> None:
    with pytest.raises(ValueError, match="multi_gpu='DP' is not carried"):
        setup_device("DP")
    with pytest.raises(ValueError, match="num_gpus=2, but this is one process"):
        setup_device("DDP", 2)
    setup_device("Off")


def test_importing_the_dialect_does_nothing_and_needs_torch_alone() -> None:
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import cadenza.dialects.supergradients, cadenza.dialects.aitoolbox\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new & {'hydra', 'omegaconf', 'yaml', 'matplotlib', 'tensorboard', 'PIL', 'onnx', 'wandb'}))"
    )
    source = str(Path(cadenza.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
    )
    assert done.stdout.strip() == "[]"
