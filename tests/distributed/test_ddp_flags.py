"""The flags of DDP reach torch's class under the names that its version has."""

from __future__ import annotations

import inspect

import pytest
from torch.nn.parallel import DistributedDataParallel

from cadenza.distributed.strategies import ddp
from cadenza.distributed.strategies.ddp import DDP, as_torch_names


def test_this_torch_takes_all_of_them():
    assert set(as_torch_names(DDP().flags)) <= set(inspect.signature(DistributedDataParallel).parameters)


def older(module, broadcast_buffers=True, static_graph=False): ...


def newer(module, broadcast_buffers=None, static_graph=False, forward_sync_buffers=None): ...


@pytest.mark.parametrize(("version", "name"), [(older, "broadcast_buffers"), (newer, "forward_sync_buffers")])
def test_broadcasting_buffers_has_two_names(monkeypatch, version, name):
    monkeypatch.setattr(ddp, "DistributedDataParallel", version)
    assert as_torch_names({"static_graph": True, "broadcast_buffers": False}) == {"static_graph": True, name: False}


def test_it_shows_what_was_chosen():
    assert repr(DDP(broadcast_buffers=False)) == "DDP(broadcast_buffers=False)"
