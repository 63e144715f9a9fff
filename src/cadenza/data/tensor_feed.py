"""Tensors that lie in memory, read a batch at a time: no sample is taken out and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from cadenza.data.index_walk import Walk
from cadenza.data.map_feed import MapFeed
from cadenza.data.row_picker import moved_if_they_fit, read
from cadenza.data.sample_order import Order
from cadenza.foundation.torch_private import collates_tensors_plainly

_SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def plain(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Marks ``loader`` to be iterated as it is, also over a ``TensorDataset``; returns it.

    >>> loader = plain(DataLoader(TensorDataset(torch.arange(4)), batch_size=2))
    >>> why_not_in_memory(loader)
    'plain() was asked for'
    """
    loader.stays_plain = True
    return loader


def why_not_in_memory(loader: Any) -> str | None:
    """What keeps a loader from being read by batched indexing with the same result; None if nothing does.

    >>> why_not_in_memory(DataLoader(TensorDataset(torch.arange(4)), batch_size=2, shuffle=True)) is None
    True
    """
    if type(loader) is not DataLoader:
        return f"it is a {type(loader).__name__}, not a DataLoader"
    if getattr(loader, "stays_plain", False):
        return "plain() was asked for"
    if type(loader.dataset) is not TensorDataset:
        return f"its data set is a {type(loader.dataset).__name__}, not a TensorDataset"
    if loader.num_workers or loader.worker_init_fn is not None:
        return "it has workers"
    if loader.batch_sampler is None:
        return "it makes no batches: batch_size=None"
    if loader.collate_fn is not default_collate:
        return "it has a collate_fn of its own"
    if not collates_tensors_plainly():
        return "default_collate was told to put tensors together in another way"
    if type(loader.batch_sampler) is not BatchSampler or type(loader.batch_sampler.sampler) not in _SAMPLERS:
        return "its order is made by a sampler that is not one of torch's own"
    if loader.pin_memory and not torch.cuda.is_available():
        return "it asks for pinned memory, which needs a CUDA device"
    return _why_not_tensors(loader.dataset.tensors)


def _why_not_tensors(tensors: tuple[Any, ...]) -> str | None:
    for tensor in tensors:
        if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            return "one of its tensors is of a special kind"
        if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
            return "one of its tensors carries a gradient or is a lazy view"
        if tensor.device != tensors[0].device:
            return "its tensors lie on different devices"
    return None if tensors else "it has no tensors"


# The order as tensors -------------------------------------------------------------------------------------------------


class Permuted:
    """What ``RandomSampler`` gives, with the same draws at the same moments, as slices of one tensor."""

    def __init__(self, sampler: RandomSampler, device: torch.device) -> None:
        self.size = len(sampler.data_source)
        self.generator = sampler.generator
        self.device = device
        self.order: Tensor | None = None
        self.at = 0

    def take(self, size: int) -> Tensor:
        if self.order is None:
            generator = self.generator
            if generator is None:
                generator = torch.Generator()
                generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
            self.order = torch.randperm(self.size, generator=generator).to(self.device)
        begin, self.at = self.at, self.at + size
        if self.at > self.size >= begin and self.generator is not None:
            torch.randperm(self.size, generator=self.generator)  # RandomSampler draws once more at its end
        return self.order[begin : self.at]


class Counted:
    """What ``SequentialSampler`` gives, as ranges."""

    def __init__(self, size: int) -> None:
        self.left = range(size)

    def take(self, size: int) -> range:
        taken, self.left = self.left[:size], self.left[size:]
        return taken


class TensorWalk(Walk):
    """Index batches as tensors and ranges rather than lists, where the sampler is a simple one."""

    order: TensorOrder

    def open(self) -> Any:
        source: Any = super().open()
        sampler = self.order.source
        if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(sampler.data_source):
            return Permuted(sampler, self.order.device)
        return Counted(len(sampler.data_source)) if type(sampler) is SequentialSampler else source

    def skip(self, source: Any, cursor: int) -> None:
        if not hasattr(source, "take"):
            super().skip(source, cursor)
        elif cursor:
            source.take(cursor)

    def chunks(self, source: Any) -> Iterator[Any]:
        if not hasattr(source, "take"):
            yield from super().chunks(source)
            return
        size, drop_last, take = self.order.stride, self.order.drop_last, source.take
        while count := len(chunk := take(size)):
            if drop_last and count < size:
                return
            yield chunk

    def parts(self, chunks: Any) -> Iterator[Any]:
        return iter(chunks) if self.order.world_size == 1 else super().parts(chunks)


class TensorOrder(Order):
    """An ``Order`` whose index batches can be used for indexing at once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.walk_type = TensorWalk
        self.device = torch.device("cpu")


class TensorFeed(MapFeed):
    """The batches of ``DataLoader(TensorDataset(...))``: same order, same batches, same draws, read by indexing."""

    order: TensorOrder
    order_type = TensorOrder

    def __init__(
        self, loader: DataLoader[Any], *, share: Callable[[Any], Any], keep_on: torch.device | None = None, **how: Any
    ) -> None:
        super().__init__(loader, share=share, **how)
        self.reads_here = False
        self.keep_on = keep_on
        self.kept: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None = None

    def _iterate(self, watched: DataLoader[Any]) -> Iterator[Any]:
        self.reads_here = why_not_in_memory(self.loader) is not None
        self.order.walk_type = Walk if self.reads_here else TensorWalk
        if self.reads_here:  # the loader was changed since it was prepared
            return super()._iterate(watched)
        tensors = self._tensors()
        self.order.device = tensors[0].device
        walk = iter(self.order)
        # DataLoader draws a seed for workers, also where there are none
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        return read(tensors, walk, bool(self.loader.pin_memory and tensors[0].device.type == "cpu"))

    def _tensors(self) -> tuple[Tensor, ...]:
        tensors: tuple[Tensor, ...] = self.loader.dataset.tensors
        if self.keep_on is None or tensors[0].device == self.keep_on:
            return tensors
        if self.kept is None or any(mine is not theirs for mine, theirs in zip(self.kept[0], tensors, strict=True)):
            self.kept = tensors, moved_if_they_fit(tensors, self.keep_on)
        return self.kept[1]


class TensorLoader:
    """Batches of tensors or arrays that lie in memory: a drop-in for ``DataLoader(TensorDataset(...))``, and faster.

    With ``device``, the data are kept there if they fit, and the batches come from there.

    >>> loader = TensorLoader(torch.arange(6), torch.arange(6) * 10, batch_size=4)
    >>> [[part.tolist() for part in batch] for batch in loader], len(loader)
    ([[[0, 1, 2, 3], [0, 10, 20, 30]], [[4, 5], [40, 50]]], 2)
    """

    def __init__(
        self,
        *tensors: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
    ) -> None:
        data = tuple(_tensor_of(given, place) for place, given in enumerate(tensors))
        problem = _why_not_tensors(data) or (
            "one of them is a single number" if any(not t.dim() for t in data) else None
        )
        if problem is not None:
            raise TypeError(f"TensorLoader takes plain tensors or arrays: {problem}")
        if len({len(tensor) for tensor in data}) > 1:
            raise ValueError(f"the tensors have different numbers of samples: {[len(tensor) for tensor in data]}")
        self.loader: DataLoader[Any] = DataLoader(
            TensorDataset(*data), batch_size, shuffle, drop_last=drop_last, generator=generator, pin_memory=pin_memory
        )
        self.device = None if device is None else torch.device(device)
        self._feed = self._new_feed()

    def _new_feed(self) -> TensorFeed:
        return TensorFeed(self.loader, share=_alone, keep_on=self.device, watch=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"loader": self.loader, "device": self.device}  # a pass that is under way stays here

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._feed = self._new_feed()

    @property
    def dataset(self) -> TensorDataset:
        return self._feed.loader.dataset  # type: ignore[no-any-return]

    @property
    def batch_size(self) -> int | None:
        return self.loader.batch_size

    @property
    def pin_memory(self) -> bool:
        return self.loader.pin_memory

    def __iter__(self) -> Iterator[list[Tensor]]:
        return iter(self._feed)

    def __len__(self) -> int:
        return len(self.loader)


def _tensor_of(given: Any, place: int) -> Tensor:
    if isinstance(given, Tensor):
        return given
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        hint = "give its values one by one" if isinstance(given, Mapping) else "make a tensor of it first"
        said = f"TensorLoader takes tensors or arrays of numbers; argument {place} is a {type(given).__name__}: {hint}"
        raise TypeError(f"{said} ({error})") from None


def _alone(value: Any) -> Any:
    return value
