"""Under many processes the first one writes, and all of them know the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Trainer
from cadenza.experiment import CSV, Experiment, FolderError, list_runs
from cadenza.experiment.jsonl_file import read_lines
from cadenza.testing import tiny_classifier, tiny_loader

from ..processes import ranks


def train(root: str) -> list[float]:
    """Returns the losses; each rank leaves a file that says which folder it knows."""
    torch.set_num_threads(1)
    model = tiny_classifier()
    experiment = Experiment("tiny", "many", root, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        model, optimizer, nn.CrossEntropyLoss(), callbacks=[CSV()], experiment=experiment, device="cpu", strategy="ddp"
    )

    @trainer.on("after_epoch")
    def look(run: Any) -> None:
        (Path(root) / f"rank{run.rank}").write_text(str(run.experiment.checkpoints.parent))
        run.experiment.text("note", f"from rank {run.rank}")

    trainer.fit(tiny_loader(), epochs=2)
    return trainer.history["train/loss"]


def test_the_first_process_writes_and_all_know_the_folder(tmp_path: Path) -> None:
    losses = ranks(train, str(tmp_path), workers=2)
    (row,) = list_runs(tmp_path)
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == [row["folder"]] * 2
    assert row["state"] == "finished"
    folder = Path(row["folder"])
    rows = list(read_lines(folder / "metrics.jsonl"))
    assert [one["train/loss"] for one in rows] == losses
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3
    assert [one["value"] for one in read_lines(folder / "media.jsonl")] == ["from rank 0", "from rank 0"]


def test_a_folder_that_cannot_be_made_ends_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="folder for the run"):
        ranks(train, str(tmp_path / "file"), workers=2)
