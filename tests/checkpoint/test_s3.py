"""A real server of S3, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza.callbacks import Checkpoint
from cadenza.certify.compare import first_difference
from cadenza.checkpoint import Shelf, Writer, load_weights, save_weights

from ..callbacks.saving import Break, End, Oops, loader, trainer
from .states import difference, small_state, value_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def test_saving_keeping_and_reading(bucket: str, tmp_path: Path) -> None:
    shelf = Shelf(f"s3://{bucket}/runs/one")
    writer = Writer(shelf, keep_last=1, keep_best=1, spill=tmp_path)
    for value, loss in ((1.0, 0.1), (2.0, 0.3), (3.0, 0.2)):
        writer.save(f"v{value:g}", small_state(value), {"monitor": "val/loss", "mode": "min", "value": loss})
    assert [outcome.problem for outcome in writer.close()] == [None] * 3
    fresh = Shelf(f"s3://{bucket}/runs/one")
    assert fresh.names() == ["000001-v1", "000003-v3"]
    assert value_of(fresh.read("last").state) == 3.0
    assert value_of(fresh.read("best").state) == 1.0
    assert not list(tmp_path.iterdir())


def test_more_than_one_part_of_an_upload(bucket: str) -> None:
    """Larger than the block in which an upload is cut."""
    state = {"model": {"w": torch.arange(5 * 2**20, dtype=torch.float32)}}
    shelf = Shelf(f"s3://{bucket}/large")
    shelf.write("v1", state)
    assert difference(shelf.read("last").state, state) is None


def test_what_is_torn_or_damaged_is_passed_over(bucket: str, tmp_path: Path, caplog: Any) -> None:
    shelf = Shelf(f"s3://{bucket}/runs/two")
    for value in (1.0, 2.0):
        shelf.write(f"v{value:g}", small_state(value))
    torn = shelf.draft("v3")
    shelf.store.write(torn.folder, "state.json", [b"{"])
    damaged = f"{bucket}/runs/two/000002-v2/model.safetensors"
    filesystem: Any = shelf.store.filesystem  # type: ignore[attr-defined]
    content = bytearray(filesystem.cat_file(damaged))
    content[-1] ^= 1
    filesystem.pipe_file(damaged, bytes(content))
    writer = Writer(Shelf(f"s3://{bucket}/runs/two"), keep_last=1, spill=tmp_path)
    saved = writer.recover()
    assert saved is not None
    assert value_of(saved.state) == 1.0
    assert sorted(saved.passed_over) == ["000002-v2", "000003-v3"]
    assert "000003-v3" in caplog.text
    writer.save("v4", small_state(4.0))
    assert writer.close()[0].name == "000004-v4"
    assert writer.shelf.names() == ["000004-v4"]
    assert writer.shelf.torn() == []


def test_a_bucket_that_is_not_there_is_not_made(bucket: str, tmp_path: Path) -> None:
    writer = Writer(Shelf(f"s3://{bucket}-misspelt/run"), retries=0, spill=tmp_path)
    writer.save("v1", small_state(1.0))
    (outcome,) = writer.close()
    assert "misspelt" in (outcome.problem or "")
    assert value_of(Shelf(tmp_path).read("last").state) == 1.0


def test_weights_alone_go_to_a_bucket_and_come_back(bucket: str) -> None:
    model = torch.nn.Linear(3, 2)
    save_weights(f"s3://{bucket}/models/linear.safetensors", model)
    back = load_weights(f"s3://{bucket}/models/linear.safetensors")
    assert torch.equal(back["weight"], model.weight)
    Shelf(f"s3://{bucket}/runs/three").write("v1", {"model": model.state_dict()})
    for source in (f"s3://{bucket}/runs/three", f"s3://{bucket}/runs/three/000001-v1"):
        assert torch.equal(load_weights(source)["weight"], model.weight)


# Through fit --------------------------------------------------------------------------------------------------------


def test_a_fit_saves_there_and_goes_on_from_there(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = f"s3://{bucket}/runs/fit"
    whole, again = End(), End()
    trainer(Checkpoint("2 steps", to=tmp_path / "whole"), whole).fit(loader(), loader(2), epochs=2)
    saving = Checkpoint("2 steps", to=place)
    with pytest.raises(Oops):
        trainer(saving, Break("after_step", 8)).fit(loader(), loader(2), epochs=2)
    assert Shelf(place).read("last").meta["step"] == 6
    made = trainer(Checkpoint("2 steps", to=place), again)
    made.fit(loader(), loader(2), epochs=2, resume="auto")
    assert first_difference(whole.state, again.state) is None
    assert [meta["step"] for meta in Shelf(place).metas().values()] == [10, 10]
    assert not Path("unsent-checkpoints").exists()
