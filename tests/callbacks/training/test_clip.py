"""GradientClip and clip_gradients: the gradients that are stepped on, and that nothing waits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cadenza import Callback, CallbackError, MainCallback, Trainer
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.clip import GradientClip, clip_gradients, gradient_norm, trained_parameters
from cadenza.testing import tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def sgd(parameters, lr=0.5):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def trained(*callbacks, optimizer=sgd, epochs=2, loader=None, model=None):
    model = tiny_classifier() if model is None else model
    trainer = Trainer(model, optimizer(model.parameters()), LOSS, callbacks=callbacks, device="cpu")
    trainer.fit(loader or tiny_loader(), epochs=epochs)
    return trainer


def by_hand(clip, epochs=2):
    """The same training in a loop of one's own, with ``clip(parameters)`` before each step."""
    model = tiny_classifier()
    optimizer = sgd(model.parameters())
    seen = []
    for _ in range(epochs):
        for inputs, targets in tiny_loader():
            LOSS(model(inputs), targets).backward()
            seen.append(clip(list(model.parameters())))
            optimizer.step()
            optimizer.zero_grad()
    return model, seen


def logged(trainer, name="train/grad_norm"):
    """What was logged in the iterations."""
    return [row[name] for row in trainer.history.iters if name in row]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_clipping_by_norm_is_bit_equal_to_a_loop_with_the_function_of_torch(norm_type):
    model, norms = by_hand(lambda p: nn.utils.clip_grad_norm_(p, 0.3, norm_type))
    trainer = trained(GradientClip(norm=0.3, norm_type=norm_type, log=True))
    assert same(trainer.model, model)
    assert logged(trainer) == [float(norm) for norm in norms]
    assert not same(model, by_hand(lambda p: None)[0])


def test_clipping_by_value_is_bit_equal_to_a_loop_with_the_function_of_torch():
    model, _ = by_hand(lambda p: nn.utils.clip_grad_value_(p, 0.02))
    assert same(trained(GradientClip(value=0.02)).model, model)


def test_by_value_the_norm_before_clipping_is_logged():
    _, norms = by_hand(lambda p: (gradient_norm(p), nn.utils.clip_grad_value_(p, 0.02))[0])
    trainer = trained(GradientClip(value=0.02, log="grads"))
    assert logged(trainer, "grads") == [float(norm) for norm in norms]


def test_all_parameters_of_all_optimizers_are_clipped_together_and_each_once():
    seen = []

    class Look(Callback):
        order = 10_000

        def before_step(self, run):
            seen.append([p.grad.clone() for p in run.module.parameters()])

    model = tiny_classifier()
    first, last = list(model[0].parameters()), list(model[2].parameters())
    optimizers = [torch.optim.SGD([{"params": first[:1]}, {"params": first[1:]}], 0.1), torch.optim.SGD(last, 0.1)]
    Trainer(model, optimizers, LOSS, callbacks=[GradientClip(norm=0.01), Look()], device="cpu").fit(
        tiny_loader(8), epochs=1
    )
    norm = torch.stack([gradient.norm() for gradient in seen[0]]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-4)
    assert [id(p) for p in trained_parameters(optimizers)] == [id(p) for p in model.parameters()]
    assert len(trained_parameters([*optimizers, *optimizers])) == 4


def test_what_no_optimizer_trains_is_left_alone():
    model = tiny_classifier()
    model[0].weight.grad = torch.full_like(model[0].weight, 100.0)
    weight, grads = model[0].weight, []

    class Look(Callback):
        def before_step(self, run):
            grads.append(weight.grad.clone())

    class KeepFirst(MainCallback):
        """Clears only what its optimizer has."""

    trainer = Trainer(
        model, sgd(model[2].parameters()), LOSS, callbacks=[KeepFirst(), GradientClip(1e-3), Look()], device="cpu"
    )
    trainer.fit(tiny_loader(16), epochs=1)
    assert all(gradient.norm() > 1e-2 for gradient in grads)


def test_under_accumulation_the_complete_gradient_is_clipped_once_a_step_whatever_the_order_of_the_list():
    clip, accumulate = GradientClip(norm=0.3, log=True), Accumulate(2)
    model = tiny_classifier()
    optimizer, (batches, norms) = sgd(model.parameters()), (list(tiny_loader(24, 6)), [])
    for a, b in zip(batches[::2], batches[1::2], strict=True):
        inputs, targets = (torch.cat(parts) for parts in zip(a, b, strict=True))
        LOSS(model(inputs), targets).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        optimizer.step()
        optimizer.zero_grad()
    trainer = trained(clip, accumulate, loader=batches, epochs=1)
    assert trainer.clock.steps == 2
    assert logged(trainer) == pytest.approx(norms, rel=1e-5)
    for one, other in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_skipped_step_is_not_clipped_and_not_logged():
    class Skip(Callback):
        def after_backward(self, run):
            if run.batch_idx == 1:
                run.skip_step()

    trainer = trained(GradientClip(norm=0.3, log=True), Skip(), epochs=1)
    assert len(logged(trainer)) == trainer.clock.steps == 2


def test_a_stop_and_a_second_fit():
    class Stop(Callback):
        def after_step(self, run):
            if run.clock.steps == 4:
                run.stop("enough")

    trainer = trained(GradientClip(norm=0.3), Stop())
    assert trainer.clock.steps == 4
    trainer = trained(GradientClip(norm=0.3), epochs=1)
    trainer.fit(tiny_loader(), epochs=1)
    assert same(trainer.model, by_hand(lambda p: nn.utils.clip_grad_norm_(p, 0.3))[0])


def test_nothing_is_read_from_the_device(monkeypatch):
    def read(*args):
        raise AssertionError("a tensor was read on the host")

    batches = list(tiny_loader())
    model = tiny_classifier()
    trainer = Trainer(model, sgd(model.parameters()), LOSS, callbacks=[GradientClip(1.0, log=True)], device="cpu")
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "__bool__", "__float__"):
            patch.setattr(torch.Tensor, name, read)
        trainer.fit(batches, epochs=1)
    assert trainer.clock.steps == 3


def test_an_infinite_norm_leaves_no_finite_step_but_does_not_raise():
    weight = torch.zeros(2, requires_grad=True)
    weight.grad = torch.tensor([math.inf, 1.0])
    norm = clip_gradients([weight], norm=1.0)
    assert norm is not None
    assert math.isinf(norm)
    assert weight.grad.isnan().tolist() == [True, False]


def test_parameters_without_gradients_do_not_matter():
    weight = torch.zeros(2, requires_grad=True)
    assert float(clip_gradients([weight], norm=1.0)) == 0.0
    assert clip_gradients([weight], value=1.0) is None
    assert float(gradient_norm([weight])) == 0.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "exactly one"),
        ({"norm": 1.0, "value": 1.0}, "exactly one"),
        ({"norm": 0.0}, "norm must be a number above 0, not 0.0"),
        ({"norm": -1}, "norm must be"),
        ({"norm": math.nan}, "norm must be"),
        ({"value": math.inf}, "value must be"),
        ({"norm": True}, "norm must be"),
        ({"norm": 1.0, "norm_type": 0}, "norm_type must be"),
    ],
)
def test_bad_arguments_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        GradientClip(**arguments)
    with pytest.raises(ValueError, match=says):
        clip_gradients([], **arguments)


def test_two_clips_and_a_step_of_ones_own_are_refused():
    with pytest.raises(CallbackError, match="both own 'gradients'"):
        trained(GradientClip(1.0), GradientClip(value=1.0))
    with pytest.raises(CallbackError, match=r"GradientClip .*LBFGS"):
        trained(GradientClip(1.0), optimizer=lambda p: torch.optim.LBFGS(p, max_iter=2))

    class Own(MainCallback):
        def on_iter_backward(self, run):
            run.loss.backward()
            run.optimizer.step()

    with pytest.raises(RuntimeError, match="GradientClip at before_step would come too late"):
        trained(GradientClip(1.0), Own())


def test_it_says_what_it_does():
    assert GradientClip(norm=0.5).explain() == "norm at most 0.5"
    assert GradientClip(value=0.5, log=True).explain() == "values at most 0.5, logged as train/grad_norm"
    assert GradientClip(0.5).capturable
    assert not GradientClip(0.5, log=True).capturable


NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])
MIXES = {
    "alike": [torch.float32] * 3,
    "half": [torch.bfloat16] * 3,
    "double": [torch.float64] * 3,
    "of two types": [torch.float32, torch.float64, torch.float32],
    "one missing": [torch.float32, None, torch.float32],
    "none": [None, None, None],
}


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("bound", [0.7, 1.0])
def test_whatever_the_gradients_are_they_are_clipped_to_the_bits_of_torch(bound, mix, norm_type, device):
    def parameters():
        generator = torch.Generator().manual_seed(3)
        kinds = MIXES[mix]
        made = [torch.zeros(4, 3, dtype=kind or torch.float32, device=device, requires_grad=True) for kind in kinds]
        for parameter, kind in zip(made, kinds, strict=True):
            if kind is not None:
                parameter.grad = torch.randn(4, 3, generator=generator).to(device, kind)
        return made

    ours, torchs = parameters(), parameters()
    norm = clip_gradients(ours, norm=bound, norm_type=norm_type)
    expected = torch.nn.utils.clip_grad_norm_(torchs, bound, norm_type)
    assert torch.equal(norm, expected)
    assert norm.dtype == expected.dtype
    for one, other in zip(ours, torchs, strict=True):
        assert (one.grad is None and other.grad is None) or torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("bound", [{"norm": 1.0}, {"value": 0.5}])
def test_one_tensor_is_clipped_as_a_list_of_it(bound):
    one, other = (torch.zeros(2, 3, requires_grad=True) for _ in range(2))
    one.grad, other.grad = torch.full((2, 3), 3.0), torch.full((2, 3), 3.0)
    assert clip_gradients(one, **bound) == clip_gradients([other], **bound)
    assert torch.equal(one.grad, other.grad)
    assert one.grad.max() < 1
