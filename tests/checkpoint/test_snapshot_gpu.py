"""Snapshots of what lies on a device: one wait, pinned memory, the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cadenza.checkpoint import Shelf, Snapshot, Writer

from .states import difference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def state_on(device: str) -> dict[str, dict[str, torch.Tensor]]:
    weight = torch.arange(12.0, device=device).view(3, 4)
    picture = torch.arange(48.0, device=device).view(2, 2, 3, 4).to(memory_format=torch.channels_last)
    model = {"weight": weight, "tied": weight, "view": weight.t(), "picture": picture}
    return {"model": model, "others": {"half": torch.ones(5, device=device).bfloat16(), "host": torch.arange(3)}}


def test_what_was_on_a_device_comes_back_in_main_memory(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for name, state in (("packed", Snapshot().take(state_on("cuda"))), ("at once", state_on("cuda"))):
        back = shelf.read(shelf.write(name.replace(" ", "-"), state)).state
        assert difference(back, state_on("cpu")) is None
        assert back["model"]["weight"].data_ptr() == back["model"]["tied"].data_ptr()


def test_training_may_go_on_as_soon_as_save_returns(tmp_path: Path) -> None:
    writer = Writer(Shelf(tmp_path), keep_last=1)
    weight = torch.zeros(2**24, device="cuda")
    for step in range(1, 6):
        weight.fill_(step)
        writer.save(f"step={step}", {"model": {"weight": weight}})
        weight.fill_(-1.0)
        writer.wait()
        assert bool((writer.shelf.read("last").state["model"]["weight"] == step).all())


def test_pinned_memory_is_used_again_and_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, state, waits = Snapshot(), state_on("cuda"), []
    wait = torch.cuda.Stream.synchronize
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", lambda stream: (waits.append(1), wait(stream))[1])
    first = snapshot.take(state)
    assert all(value.is_pinned() for value in first.values)
    places = [value.data_ptr() for value in first.values]
    assert [value.data_ptr() for value in snapshot.take(state).values] == places
    assert len(waits) == 2
