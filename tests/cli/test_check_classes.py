from __future__ import annotations

import pytest

from cadenza.cli.commands.check import check_file

from .checked import check

BASES = {
    "imported": "from cadenza import Callback\nclass Mine(Callback):",
    "renamed": "from cadenza import Callback as C\nclass Mine(C):",
    "by module": "import cadenza\nclass Mine(cadenza.Callback):",
    "by renamed module": "import cadenza as cz\nclass Mine(cz.MainCallback):",
    "from the inner module": "import cadenza.callback\nclass Mine(cadenza.callback.Callback):",
    "by star": "from cadenza import *\nclass Mine(Callback):",
    "not imported": "class Mine(Callback):",
    "assigned": "import cadenza\nBase = cadenza.Callback\nclass Mine(Base):",
    "a callback of the library": "from cadenza import Watch\nclass Mine(Watch):",
    "one of its callbacks": "from cadenza.callbacks.training.ema import EMA\nclass Mine(EMA):",
    "by its ending": "from cadenza.extra import FancyCallback\nclass Mine(FancyCallback):",
    "by way of others": "from cadenza import Callback\nclass A(Callback): ...\nclass B(A): ...\nclass Mine(int, B):",
    "same name as its base": "from cadenza import Callback\nclass Callback(Callback):",
    "inside a function": "def test():\n  from cadenza import Callback\n  class Mine(Callback):",
    "with a metaclass": "from cadenza import Callback\nclass Mine(Callback, metaclass=M):",
}


@pytest.mark.parametrize("head", BASES.values(), ids=BASES)
def test_a_callback_is_recognised(head: str) -> None:
    assert len(check_file(f"{head}\n    def after_epohc(self, run): ...", "mine.py")) == 1


FOREIGN_BASES = {
    "lightning": "import cadenza\nfrom lightning.pytorch import Callback\nclass Mine(Callback):",
    "lightning by module": "import cadenza\nimport lightning.pytorch as pl\nclass Mine(pl.Callback):",
    "keras": "from keras.callbacks import Callback\nclass Mine(Callback):",
    "tensorflow": "import tensorflow as tf\nclass Mine(tf.keras.callbacks.Callback):",
    "transformers": "from transformers import TrainerCallback\nclass Mine(TrainerCallback):",
    "fastai": "from fastai.vision.all import *\nclass Mine(Callback):",
    "fastai beside": "from cadenza import *\nfrom fastai.vision.all import *\nclass Mine(Callback):",
    "composer": "from composer.core import Callback\nclass Mine(Callback):",
    "super_gradients": "from super_gradients.training.utils.callbacks import PhaseCallback\nclass Mine(PhaseCallback):",
    "aitoolbox": "from aitoolbox.torchtrain.callbacks.abstract import AbstractCallback\nclass Mine(AbstractCallback):",
    "bigdl": "from bigdl.orca.learn.pytorch.callbacks import Callback\nclass Mine(Callback):",
    "our dialect": "from cadenza.dialects.fastai import Callback\nclass Mine(Callback):",
    "a package of one's own": "from .base import Callback\nclass Mine(Callback):",
    "a class of one's own": "import cadenza\nclass Callback: ...\nclass Mine(Callback):",
    "a parameter": "from cadenza import Callback\ndef make(Callback):\n  class Mine(Callback):",
    "a fallback": "try:\n    from cadenza import Callback\nexcept ImportError:\n    Callback = object\n"
    "class Mine(Callback):",
    "either": "try:\n    from lightning import Callback\nexcept ImportError:\n    from cadenza import Callback\n"
    "class Mine(Callback):",
    "no base": "import cadenza\nclass Mine:",
    "no callback of ours": "from cadenza import Trainer\nclass Mine(Trainer):",
}


@pytest.mark.parametrize("head", FOREIGN_BASES.values(), ids=FOREIGN_BASES)
def test_callbacks_of_others_are_left_alone(head: str) -> None:
    body = "    def on_epoch_end(self, trainer, module): return self.loss\n    def after_epoch(self, run): run.loss"
    assert check_file(f"{head}\n{body}", "mine.py") == []


def test_a_class_written_twice_is_the_nearest_one_above() -> None:
    source = (
        "class A: ...\nclass Mine(A):\n  def on_x_y(self): ...\nclass A(Callback): ...\nclass Mine(A):\n"
        "  def on_x_y(self): ..."
    )
    assert [finding.line for finding in check(source)] == [8]
