"""CutMix: the box, the share of the sample that is left, the loss of both targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import cadenza
from cadenza.callbacks.training.cutmix import CutMix, cut, cutmix
from cadenza.foundation.host_draws import Draws

SEED = 5


def images(batches: int = 3, size: int = 4, *shape: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shape = shape or (1, 6, 8)
    return [
        (torch.randn(size, *shape, generator=generator), torch.randint(3, (size,), generator=generator))
        for _ in range(batches)
    ]


def network(pixels: int = 48) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 3))


def made(*callbacks: cadenza.Callback, pixels: int = 48) -> cadenza.Trainer:
    model = network(pixels)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def test_it_equals_a_loop_by_hand() -> None:
    trainer = made(CutMix(seed=SEED))
    history = trainer.fit(images(), epochs=2)

    model, draws, means = network(), Draws(SEED), []
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        losses = []
        for inputs, targets in images():
            permutation, lam = draws.permutation(4, inputs.device), draws.beta(1.0)
            centre = draws.uniform(), draws.uniform()
            height, width = (round(side * (1 - lam) ** 0.5) for side in (6, 8))
            top, left = (round(a * b - c / 2) for a, b, c in ((6, centre[0], height), (8, centre[1], width)))
            pasted, inside = inputs.clone(), 0
            for row in range(max(top, 0), min(top + height, 6)):
                for column in range(max(left, 0), min(left + width, 8)):
                    pasted[:, :, row, column] = inputs[permutation, :, row, column]
                    inside += 1
            kept = 1 - inside / 48
            output = model(pasted)
            loss = cross_entropy(output, targets) * kept + cross_entropy(output, targets[permutation]) * (1 - kept)
            loss.backward()
            sgd.step()
            sgd.zero_grad()
            losses.append(loss.detach().double())
        means.append(float(torch.stack(losses).mean()))

    assert torch.equal(trainer.model[1].weight, model[1].weight)
    assert history["train/loss"] == pytest.approx(means, rel=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.1, 0.5, 0.93, 1.0])
@pytest.mark.parametrize("centre", [(0.0, 0.0), (0.5, 0.5), (0.999, 0.2)])
def test_the_share_that_is_left_is_counted(lam: float, centre: tuple[float, float]) -> None:
    inputs = torch.stack([torch.full((2, 9, 5), float(index)) for index in range(3)])
    pasted, partners, left = cutmix(inputs, torch.arange(3), lam, torch.tensor([1, 2, 0]), centre)
    assert partners.tolist() == [1, 2, 0]
    for index in range(3):
        assert (pasted[index] == index).float().mean().item() == pytest.approx(left)
        assert set(pasted[index].unique().tolist()) <= {index, partners[index].item()}
    assert left >= lam - 0.15


def test_the_box_lies_inside_and_has_the_asked_share() -> None:
    assert cut((10, 10), 0.0, (0.5, 0.5)) == (slice(0, 10), slice(0, 10))
    rows, columns = cut((10, 10), 1.0, (0.999, 0.999))
    assert rows.start == rows.stop == columns.start == columns.stop == 10
    assert cut((8,), 0.5, (0.5,)) == (slice(2, 6),)


@pytest.mark.parametrize("shape", [(8,), (2, 6), (1, 4, 4), (1, 2, 4, 3)], ids=["flat", "signal", "image", "volume"])
def test_signals_and_volumes_are_cut_along_their_last_dimensions(shape: tuple[int, ...]) -> None:
    batches = images(2, 4, *shape)
    seen: list[tuple[Tensor, Tensor]] = []
    trainer = made(CutMix(seed=3), pixels=torch.Size(shape).numel())
    trainer.on("before_forward")(lambda run: seen.append((run.inputs, batches[run.batch_idx][0])))
    trainer.fit(batches, epochs=4)
    assert any(not torch.equal(cut, whole) for cut, whole in seen)
    for pasted, whole in seen:
        from_any = (pasted.unsqueeze(1) == whole.unsqueeze(0)).any(1)
        assert from_any.all()


def test_soft_targets_are_weighted_by_what_is_left() -> None:
    seen: list[Any] = []
    batches = [(torch.arange(2.0).reshape(2, 1, 1, 1).expand(2, 1, 6, 8), torch.tensor([0, 1]))] * 4
    trainer = made(CutMix(seed=2, soft=3))
    trainer.on("before_forward")(lambda run: seen.append((run.inputs, run.targets)))
    trainer.fit(batches, epochs=3)
    for inputs, targets in seen:
        assert targets[:, 1].tolist() == pytest.approx(inputs.mean((1, 2, 3)).tolist(), abs=1e-6)


def test_inputs_without_a_dimension_to_cut_are_refused() -> None:
    with pytest.raises(TypeError, match=r"CutMix cuts inputs of two dimensions or more, not of shape \(4,\)"):
        made(CutMix()).fit([(torch.zeros(4), torch.zeros(4, dtype=torch.long))], epochs=1)
