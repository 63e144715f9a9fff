"""On a CUDA device: batches are copied on a stream of their own, whole and in order, and the count stays right."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from cadenza.data import TensorLoader, prefetch, prepare
from cadenza.data.prefetch import DeviceFeed

from .course import interrupted, plain, seed
from .loaders import Noisy, build, build_stream

CUDA = torch.device("cuda", 0)
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Pair(NamedTuple):
    inputs: torch.Tensor
    name: str


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    note: str


class Moves:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: Any) -> Moves:
        return Moves(self.x.to(device, non_blocking=True))

    def pin_memory(self) -> Moves:
        return Moves(self.x.pin_memory())


def test_on_the_cpu_nothing_is_put_in_between() -> None:
    batches = [torch.ones(2)]
    assert prepare(batches, device=torch.device("cpu")) is batches


class Fails(list[torch.Tensor]):
    """A loader whose fourth batch cannot be read."""

    def __iter__(self) -> Any:
        yield from (torch.tensor([float(number)]) for number in range(3))
        raise ValueError("the fourth is broken")


def read_until_it_fails(feed: DeviceFeed) -> list[float]:
    feed.ahead, got = True, []
    batches = iter(feed)
    for _ in range(3):
        got.append(next(batches).item())
    with pytest.raises(ValueError, match="the fourth is broken"):
        next(batches)
    return got


class NoCopies:
    """In the place of what copies to a device."""

    def __init__(self, device: torch.device) -> None: ...

    def send(self, batch: Any) -> Any:
        return batch

    receive = send


def test_an_error_comes_after_the_batches_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "Copier", NoCopies)
    assert read_until_it_fails(DeviceFeed(Fails(), torch.device("cpu"))) == [0.0, 1.0, 2.0]


class TestOnADevice:
    pytestmark = on_gpu

    def test_nested_batches_arrive(self) -> None:
        batch = {
            "a": [torch.ones(2), Pair(torch.zeros(1), "n")],
            "r": Record(torch.ones(1), "x"),
            "m": Moves(torch.ones(3)),
        }
        feed = prepare([batch] * 3, device=CUDA)
        assert isinstance(feed, DeviceFeed)
        for got in feed:
            assert got["a"][0].is_cuda
            assert isinstance(got["a"][1], Pair)
            assert got["a"][1].inputs.is_cuda
            assert got["a"][1].name == "n"
            assert got["r"].x.is_cuda
            assert got["m"].x.is_cuda

    @pytest.mark.parametrize("workers", [0, 2])
    def test_no_batch_is_overwritten_while_it_is_used(self, workers: int) -> None:
        """A long computation on each batch, with the host far ahead: each sum must be that of its own batch."""
        data = torch.arange(64.0).repeat_interleave(1 << 16).view(64, -1)
        for loader in (
            DataLoader(TensorDataset(data), batch_size=2, num_workers=workers),
            DataLoader(TensorDataset(data), batch_size=2, num_workers=workers, pin_memory=True),
        ):
            work = torch.randn(2048, 2048, device=CUDA)
            sums = []
            for (batch,) in prepare(loader, device=CUDA):
                for _ in range(4):
                    work = (work @ work).tanh()
                sums.append(batch[:, ::7].mean(dim=1) + 0 * work[0, 0])
                del batch
            assert torch.cat(sums).tolist() == list(map(float, range(64)))

    @pytest.mark.parametrize("opaque", [False, True])
    def test_memory_is_used_again_safely(self, opaque: bool) -> None:
        batches = [torch.full((1 << 20,), float(number)).pin_memory() for number in range(40)]
        given = [Moves(batch) for batch in batches] if opaque else batches
        feed = DeviceFeed(prepare(given, resumable=True), CUDA)
        feed.ahead = True
        work = torch.randn(2048, 2048, device=CUDA)
        sums = []
        for batch in feed:
            work = (work @ work).tanh()
            sums.append((batch.x if opaque else batch)[::1001].mean() + 0 * work[0, 0])
            del batch
        assert torch.stack(sums).tolist() == list(map(float, range(40)))

    def test_an_error_comes_after_the_batches_before_it(self) -> None:
        assert read_until_it_fails(DeviceFeed(Fails(), CUDA)) == [0.0, 1.0, 2.0]

    def test_the_host_does_not_wait(self) -> None:
        loader = TensorLoader(torch.randn(4096, 64), batch_size=64, shuffle=True, pin_memory=True)
        feed = prepare(loader, device=CUDA)
        list(feed)
        batches = iter(feed)
        next(batches)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode says of itself that it is a prototype
            try:
                torch.cuda.set_sync_debug_mode("error")
                for _ in batches:
                    pass
            finally:
                torch.cuda.set_sync_debug_mode("default")

    @pytest.mark.parametrize(
        "how",
        [
            {},
            {"num_workers": 2},
            {"num_workers": 2, "persistent_workers": True},
            {"num_workers": 1, "pin_memory": True},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("kind", ["shuffled", "generator", "collate"])
    def test_a_resumed_pass_is_the_same(self, kind: str, how: dict[str, Any]) -> None:
        def on_device(cuts: list[int]) -> list[Any]:
            return interrupted(lambda: build(kind, **how), cuts, device=CUDA)

        assert on_device([1, 2, 5, -2]) == on_device([])

    def test_a_resumed_stream_is_the_same(self) -> None:
        def on_device(cuts: list[int]) -> list[Any]:
            return interrupted(lambda: build_stream("buffered", num_workers=2), cuts, device=CUDA)

        assert on_device([2, 3]) == on_device([])

    def test_reading_keeps_its_place_among_the_draws(self) -> None:
        """Without workers a batch is read when it is asked for: the noise is that of the loop by hand."""
        seed()
        by_hand = []
        for batch in DataLoader(Noisy(), batch_size=4, shuffle=True):
            by_hand.append(plain(batch))
            torch.rand(3)
        seed()
        seen = []
        for batch in prepare(DataLoader(Noisy(), batch_size=4, shuffle=True), device=CUDA):
            seen.append(plain({key: value.cpu() for key, value in batch.items()}))
            torch.rand(3)
        assert seen == by_hand

    def test_tensors_kept_on_the_device(self) -> None:
        inputs, targets = torch.randn(23, 5), torch.arange(23)
        here = TensorLoader(inputs, targets, batch_size=4, shuffle=True)
        there = TensorLoader(inputs, targets, batch_size=4, shuffle=True, device=CUDA)
        seed(1)
        expected = [[part.tolist() for part in batch] for batch in here]
        seed(1)
        feed = prepare(there, device=CUDA)
        assert not isinstance(feed, DeviceFeed)
        got = list(feed)
        assert all(part.is_cuda for batch in got for part in batch)
        assert [[part.tolist() for part in batch] for batch in got] == expected

    def test_data_that_do_not_fit_stay_on_the_host(self, caplog: pytest.LogCaptureFixture) -> None:
        huge = torch.empty(1).expand(1 << 18, 1 << 20)  # takes no memory here; copied, it would take a terabyte
        loader = TensorLoader(huge, batch_size=1, device=CUDA)
        with caplog.at_level("WARNING", logger="cadenza"):
            batch = next(iter(loader))
        assert not batch[0].is_cuda
        assert "stay on the host" in caplog.text

    def test_pinned_batches_of_tensors(self) -> None:
        feed = prepare(DataLoader(TensorDataset(torch.arange(8)), batch_size=4, pin_memory=True))
        assert all(batch[0].is_pinned() for batch in feed)
