"""Real processes: the order is shared by torch.distributed, though the generators of the ranks differ."""

from __future__ import annotations

import json
from pathlib import Path

from ..processes import Program

RANK = """
import json, sys
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, TensorDataset
from cadenza.data import plain, prepare

rank, size, meeting, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
distributed.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=size)
torch.manual_seed(100 + rank)
seen = []
for change in (lambda loader: loader, plain):
    loader = change(DataLoader(TensorDataset(torch.arange(21)), batch_size=3, shuffle=True))
    feed = prepare(loader, rank=rank, world_size=size, resumable=True)
    for epoch in range(2):
        seen.append([batch[0].tolist() for batch in feed])
        torch.rand(rank + 1)
with open(out, "w") as file:
    json.dump(seen, file)
distributed.destroy_process_group()
"""


def test_two_processes_share_one_order(tmp_path: Path) -> None:
    files = [tmp_path / f"{rank}.json" for rank in range(2)]
    ranks = [Program(RANK, rank, 2, tmp_path / "meeting", out) for rank, out in enumerate(files)]
    assert [rank.wait().returncode for rank in ranks] == [0, 0]
    first, second = (json.loads(out.read_text()) for out in files)
    orders = []
    for one, other in zip(first, second, strict=True):
        assert sorted(index for batch in one + other for index in batch) == list(range(21))
        orders.append(one)
    assert orders[0] != orders[1], "each epoch has an order of its own"
