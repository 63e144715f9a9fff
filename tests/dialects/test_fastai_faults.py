"""Where the dialect failed or differed in ways that a recording of the original does not show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import CallbackError
from cadenza.dialects import install, installed, run_script, uninstall
from cadenza.dialects.fastai.blog import adapted, train
from cadenza.testing import tiny_classifier, tiny_loader

from .rooms import same, trainer_with, weights
from .test_fastai_learner import learner


def test_a_callback_may_set_its_learner() -> None:
    from cadenza.dialects.fastai import LearnerCallback

    class Keeps(LearnerCallback):
        def __init__(self, learn: Any) -> None:
            super().__init__(learn)
            self.learn = learn

    learn = learner(callback_fns=[Keeps])
    learn.fit(1)
    assert learn.keeps.learn is learn


def test_a_name_that_is_not_carried_says_so_however_it_is_asked_for() -> None:
    with installed("fastai"):
        import fastai.layers

        assert not hasattr(fastai.layers, "SelfAttentionn")
        with pytest.raises(ImportError, match="fastai: there is no name 'accuracyy' here; the nearest is 'accuracy'"):
            from fastai.metrics import accuracyy  # noqa: F401
        space: dict[str, Any] = {}
        exec("from fastai.vision import *", space)
        for use in ("cnn_learner(1)", "ImageDataBunch.from_folder", "models.resnet18", "imagenet_stats[0]"):
            with pytest.raises(ImportError, match="is not carried: models, transforms and datasets"):
                exec(use, space)
        with pytest.raises(ImportError, match="ImageList is not carried"):
            exec("class Mine(ImageList): pass", space)


def test_names_of_the_library_that_are_absent_may_stand_in_annotations() -> None:
    """A file that names an image class beside its callback runs; using the class says that it is not carried."""
    code = """
from fastai.basic_train import LearnerCallback, Any, Tensor, ifnone
from fastai.callbacks import Callback, TrackerCallback
from fastai.distributed import *
from fastai.utils.mem import *
from fastai.vision.gan import GANLearner
from fastai.vision.models.unet import DynamicUnet
from fastai.vision.data import SegmentationProcessor
from fastai.basic_train import BasicLearner
from fastai.layers import NormType
from typing import List, Optional

class Watch(LearnerCallback):
    def __init__(self, learn: GANLearner, parts: Optional[List[DynamicUnet]] = None, norm=NormType.Batch) -> None:
        super().__init__(learn)
        self.unet = isinstance(learn, (DynamicUnet, BasicLearner))
"""
    space: dict[str, Any] = {}
    with installed("fastai"):
        exec(code, space)
        assert not space["Watch"](learner()).unet
        with pytest.raises(ImportError, match="GANLearner is not carried"):
            exec("GANLearner(1)", space)
        with pytest.raises(ImportError, match="SegmentationProcessor is not carried"):
            exec("SegmentationProcessor([])", space)
        with pytest.raises(ImportError, match="setup_distrib is not carried"):
            exec("from fastai.distributed import setup_distrib; setup_distrib(0)", space)
        with pytest.raises(ImportError, match="DistributedTrainer is not carried: processes are started"):
            exec("from fastai.distributed import DistributedTrainer", space)


def test_a_star_import_brings_what_that_of_the_original_brings() -> None:
    space: dict[str, Any] = {"Config": 1, "resnet18": 2}
    with installed("fastai"):
        exec(
            "from fastai.layers import *\nfrom fastai.callbacks.hooks import *\nfrom fastai.distributed import *", space
        )
        assert {"Config", "resnet18", "CrossEntropyFlat", "hook_output", "setup_distrib"} <= set(space)
        assert (space["Config"], space["resnet18"]) == (1, 2)
        exec("from fastai.vision.models import *", space)
        with pytest.raises(ImportError, match="resnet18 is not carried"):
            exec("resnet18()", space)


def test_a_star_import_brings_the_package_of_callbacks() -> None:
    from cadenza.dialects.fastai.callbacks.tracker import SaveModelCallback

    for path in ("basics", "vision", "tabular"):
        space: dict[str, Any] = {}
        with installed("fastai"):
            exec(f"from fastai.{path} import *", space)
            assert space["callbacks"].SaveModelCallback is space["callbacks"].tracker.SaveModelCallback
            assert space["callbacks"].SaveModelCallback is SaveModelCallback


def test_a_model_is_taken_out_of_data_parallel() -> None:
    from cadenza.dialects.fastai.torch_core import get_model

    model = tiny_classifier()
    assert get_model(nn.DataParallel(model)) is get_model(model) is model


def test_a_folder_of_that_name_beside_the_script_is_no_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fastai").mkdir()
    script = tmp_path / "script.py"
    script.write_text("from fastai.basic_train import Learner\nimport fastai\nversion = fastai.__version__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_script("fastai", script)["version"] == "1.0.61"
    (tmp_path / "fastai" / "__init__.py").write_text("")
    with pytest.raises(ImportError, match="fastai is installed here"):
        install("fastai")
    assert "fastai" not in sys.modules


def test_a_real_module_under_the_same_top_is_still_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bigdl" / "other").mkdir(parents=True)
    (tmp_path / "bigdl" / "__init__.py").write_text("")
    (tmp_path / "bigdl" / "other" / "__init__.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    install("orca")
    try:
        from bigdl.other import value

        assert value == 3
    finally:
        uninstall("orca")
        for name in [name for name in sys.modules if name.split(".")[0] == "bigdl"]:
            del sys.modules[name]


class Interface:
    """The interface of the blog, written out by its reader: no class of ours above it."""

    def on_train_begin(self) -> None: ...
    def on_batch_begin(self, iteration: int) -> Any: ...
    def on_epoch_end(self) -> Any: ...


class Rates(Interface):
    def on_batch_begin(self, iteration: int) -> Any:
        self.optimizer.lr = 0.1 / (1 + iteration)  # type: ignore[attr-defined]


class EveryOther(Interface):
    def on_batch_begin(self, iteration: int) -> Any:
        return iteration % 2 == 1


def test_callbacks_of_the_blog_need_no_base_class() -> None:
    model, plain = tiny_classifier(), tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(tiny_loader(), model, 2, optimizer, nn.CrossEntropyLoss(), [Rates(), EveryOther()])
    stepper = torch.optim.SGD(plain.parameters(), lr=0.1)
    number = 0
    for _ in range(2):
        for inputs, targets in tiny_loader():
            stepper.param_groups[0]["lr"] = 0.1 / (1 + number)
            if number % 2 == 0:
                nn.functional.cross_entropy(plain(inputs), targets).backward()
                stepper.step()
                stepper.zero_grad()
            number += 1
    assert same(weights(model), weights(plain))


def test_a_plain_callback_also_goes_into_a_trainer_and_keeps_its_own_model() -> None:
    own = EveryOther()
    own.model = "mine"  # type: ignore[attr-defined]
    trainer = trainer_with(adapted(own))
    trainer.fit(tiny_loader(), epochs=1)
    assert (trainer.clock.batches, trainer.clock.steps) == (3, 2)
    assert own.model == "mine"  # type: ignore[attr-defined]


def test_a_plain_object_that_is_no_callback_is_refused() -> None:
    class Typo:
        def on_batch_beginn(self) -> None: ...

    with pytest.raises(CallbackError, match="there is no hook 'on_batch_beginn' here; the nearest is 'on_batch_begin'"):
        adapted(Typo())
    with pytest.raises(CallbackError, match="no hooks"):
        adapted(object())
