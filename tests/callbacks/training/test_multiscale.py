"""Multiscale: sizes, masks, when they change, and that a restored training goes on with the same ones."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

import cadenza
from cadenza.callbacks.training.multiscale import Multiscale, rescale_images, rescale_masks
from cadenza.foundation.host_draws import Draws
from cadenza.testing import check_callback


def images(batches: int = 4, side: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(4, 1, side, side, generator=generator), torch.randint(2, (4,), generator=generator))
        for _ in range(batches)
    ]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))


def made(*callbacks: cadenza.Callback) -> cadenza.Trainer:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def sizes(callback: cadenza.Callback, epochs: int = 3, **more: Any) -> list[int]:
    seen: list[int] = []
    trainer = made(callback)
    trainer.on("before_forward")(lambda run: seen.append(run.inputs.shape[-1]) if run.training else None)
    trainer.fit(images(), epochs=epochs, **more)
    return seen


def test_it_equals_a_loop_by_hand() -> None:
    scales = (0.5, 1.0, 1.75)
    trainer = made(Multiscale(scales, every="2 batches", seed=3))
    history = trainer.fit(images(), images(2), epochs=3)

    model, draws, batch, means = network(), Draws(3), 0, []
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        losses = []
        for inputs, targets in images():
            if batch % 2 == 0:
                scale = scales[draws.below(3)]
            batch += 1
            side = round(8 * scale)
            resized = inputs if side == 8 else interpolate(inputs, (side, side), mode="bilinear")
            loss = nn.functional.cross_entropy(model(resized), targets)
            loss.backward()
            sgd.step()
            sgd.zero_grad()
            losses.append(loss.detach().double())
        means.append(float(torch.stack(losses).mean()))

    for one, other in zip(trainer.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert history["train/loss"] == pytest.approx(means, rel=1e-12)
    assert history["val/loss"][-1] == trainer.validate(images(2))["val/loss"]


def test_a_new_size_is_drawn_when_the_interval_has_passed() -> None:
    seen = sizes(Multiscale(between=(0.5, 2.0), every="3 batches", seed=1), epochs=6)
    windows = [seen[start : start + 3] for start in range(0, len(seen), 3)]
    assert all(len(set(window)) == 1 for window in windows)
    assert len({window[0] for window in windows}) > 3
    assert all(4 <= side <= 16 for side in seen)


def test_per_epoch_and_held_steps() -> None:
    class Hold(cadenza.Callback):
        def before_train_iter(self, run: cadenza.Run) -> None:
            if run.batch_idx % 2 == 0:
                run.hold_step()

    seen = sizes(Multiscale(between=(0.5, 2.0), every="1 epoch", seed=1))
    assert all(len(set(seen[start : start + 4])) == 1 for start in range(0, 12, 4))
    assert len(set(seen)) > 1
    trainer, steps = made(Hold(), Multiscale(between=(0.5, 2.0), every="1 step", seed=1)), []
    trainer.on("before_forward")(lambda run: steps.append(run.inputs.shape[-1]))
    trainer.fit(images(), epochs=3)
    assert all(steps[start] == steps[start + 1] for start in range(0, 12, 2))
    assert len(set(steps)) > 2


def test_sizes_are_rounded_to_a_multiple() -> None:
    assert rescale_images(torch.zeros(1, 1, 100, 40), 0.9, multiple_of=32).shape[-2:] == (96, 32)
    assert rescale_images(torch.zeros(1, 1, 8, 8), 0.01, multiple_of=4).shape[-2:] == (4, 4)
    assert set(sizes(Multiscale(between=(0.5, 2.0), every="1 batch", multiple_of=4))) <= {4, 8, 12, 16}


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8, torch.float32, torch.bool])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_masks_take_the_value_of_the_nearest_pixel(dtype: torch.dtype, scale: float) -> None:
    masks = torch.randint(2, (2, 6, 4)).to(dtype)
    side = int(1 / scale) if scale < 1 else int(scale)
    wanted = masks[:, ::side, ::side] if scale < 1 else masks.repeat_interleave(side, 1).repeat_interleave(side, 2)
    assert torch.equal(rescale_masks(masks, scale), wanted)
    assert torch.equal(rescale_masks(masks.unsqueeze(1), scale), wanted.unsqueeze(1))


def test_masks_keep_the_size_of_the_images() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(1, 3, 3, padding=1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = Multiscale(between=(0.5, 1.5), every="1 batch", masks=True, seed=1)
    trainer = cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[callback], device="cpu")
    shapes: list[tuple[torch.Size, torch.Size]] = []
    trainer.on("before_forward")(lambda run: shapes.append((run.inputs.shape[-2:], run.targets.shape[-2:])))
    batches = [(inputs, inputs.squeeze(1).long().clamp(0, 2)) for inputs, _ in images()]
    trainer.fit(batches, epochs=2)
    assert all(image == mask for image, mask in shapes)
    assert len(set(shapes)) > 2
    assert batches[0][0].shape[-1] == 8


def test_a_training_that_is_restored_within_an_interval_keeps_its_size() -> None:
    torch.manual_seed(0)
    first = made(Multiscale(between=(0.5, 2.0), every="3 batches"))
    first.fit(images(), epochs=1)
    second = made(Multiscale(between=(0.5, 2.0), every="3 batches"))
    second.model.load_state_dict(first.model.state_dict())
    second.clock.load_state_dict(first.clock.state_dict())
    second.callbacks[0].load_state_dict(copy.deepcopy(first.callbacks[0].state_dict()))
    seen: list[list[int]] = [[], []]
    for trainer, sides in zip((first, second), seen, strict=True):
        trainer.on("before_forward")(lambda run, sides=sides: sides.append(run.inputs.shape[-1]))
        trainer.fit(images(), epochs=3)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 2
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_waits_for_the_gpu() -> None:
    batches = [(inputs.cuda(), targets.cuda()) for inputs, targets in images()]
    model = network().cuda()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = Multiscale((0.5, 1.5), every="1 batch", seed=3)
    trainer = cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[callback], device="cuda")
    trainer.fit(batches, epochs=2)
    with warnings.catch_warnings():  # the mode says of itself that it is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            with trainer.run(epochs=2) as run:
                for _ in run.epochs():
                    for _ in run.train(batches):
                        run.train_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert trainer.clock.steps == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of the two"),
        ({"scales": (1.0,), "between": (0.5, 1.0)}, "one of the two"),
        ({"scales": ()}, "at least one"),
        ({"scales": (0.0,)}, "above 0"),
        ({"between": (1.5, 0.5)}, r"a lowest and a highest factor, not \(1.5, 0.5\)"),
        ({"scales": (1.0,), "multiple_of": 0}, "at least 1, not 0"),
        ({"scales": (1.0,), "interpolation": "cubic"}, "one of nearest"),
        ({"scales": (1.0,), "every": "10 minutes"}, "batches, steps, samples, tokens or epochs"),
        ({"scales": (1.0,), "every": "0 batches"}, "more than 0"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Multiscale(**arguments)


def test_what_is_no_image_or_mask_is_named() -> None:
    flat = [(torch.zeros(4, 8), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(TypeError, match=r"resizes images \(N, C, H, W\); the batch is tuple\(tensor\[4, 8\]"):
        made(Multiscale((0.5,))).fit(flat, epochs=1)
    with pytest.raises(TypeError, match=r"resizes masks \(N, H, W\)"):
        made(Multiscale((0.5,), masks=True)).fit(images(), epochs=1)


def test_explain_says_what_is_drawn() -> None:
    assert Multiscale((0.5, 1.0)).explain() == "one of 0.5, 1, drawn every 10 batches"
    assert Multiscale(between=(0.5, 1.5), every="1 epoch").explain() == "between 0.5 and 1.5, drawn every 1 epoch"


class _OfImages(cadenza.Trainer):
    """Trains on images, whatever loader it is given."""

    def fit(self, *_: Any, **more: Any) -> Any:
        batches = images(2)
        return super().fit(batches, batches, **{**more, "test_loaders": batches})


def test_it_behaves_as_a_callback_should() -> None:

    def trainer(callbacks: list[cadenza.Callback]) -> cadenza.Trainer:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return _OfImages(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")

    check_callback(Multiscale((0.5, 1.5), every="1 batch"), trainer)
