"""Foreign callbacks type-check for those who use them."""

from __future__ import annotations

from pathlib import Path

import pytest

CODE = """
import torch
from cadenza import Trainer
from cadenza.callbacks import Progress
from cadenza.dialects import aitoolbox, fastai, orca, supergradients


class Mine(orca.Callback):
    def before_run(self, runner: orca.Runner) -> None:
        print(runner.epochs)


callbacks = [Mine(), fastai.Callback(), aitoolbox.EarlyStopping(), supergradients.TimerCallback(), Progress()]
trainer = Trainer(torch.nn.Linear(2, 2), callbacks=[Mine(), fastai.Callback(), Progress()])
trainer.add(aitoolbox.EarlyStopping())
trainer.add(supergradients.TimerCallback())
trainer.remove(Mine())
trainer.add("no callback")
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_trainer_takes_foreign_callbacks(tmp_path: Path) -> None:
    from mypy import api

    (tmp_path / "script.py").write_text(CODE)
    said, _, _ = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "script.py")])
    errors = [line for line in said.splitlines() if ": error:" in line]
    assert len(errors) == 1, said
    assert 'has incompatible type "str"' in errors[0]
