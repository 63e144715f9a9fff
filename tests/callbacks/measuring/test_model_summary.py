"""ModelSummary: shapes, parameters and FLOPs computed by hand, and a training that does not notice it."""

from __future__ import annotations

import io
import sys
import warnings

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.measuring.model_summary import ModelSummary, summarize
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.foundation.text_table import tell, text_table
from cadenza.testing import check_callback, tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def restless():
    """A model with everything that a forward could disturb."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    model[1].eval()  # frozen by its owner
    return model


def made(*callbacks, model=None):
    model = tiny_classifier() if model is None else model
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), LOSS, callbacks=callbacks, device="cpu")


def rows(summary):
    return {layer.name: (layer.kind, layer.output, layer.parameters, layer.flops) for layer in summary.layers}


# What it says -------------------------------------------------------------------------------------------------------


def test_a_convolutional_model_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(512, 5))
    summary = summarize(model, (torch.ones(2, 3, 8, 8), torch.zeros(2)))
    conv, linear = 2 * (2 * 8 * 8 * 8) * (3 * 3 * 3), 2 * 2 * 512 * 5
    assert rows(summary) == {
        "0": ("Conv2d", "2 x 8 x 8 x 8", 3 * 8 * 9, conv),
        "1": ("BatchNorm2d", "2 x 8 x 8 x 8", 16, 0),
        "2": ("Flatten", "2 x 512", 0, 0),
        "3": ("Linear", "2 x 5", 512 * 5 + 5, linear),
    }
    assert (summary.flops, summary.parameters) == (conv + linear, 216 + 16 + 2565)
    assert summary.bytes == 4 * summary.parameters


class Odd(nn.Module):
    """Parameters and products of its own, a layer that is used twice, one that is never used, and a tied weight."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 4))
        self.twice, self.never, self.tied = nn.Linear(4, 4), nn.Linear(4, 9), nn.Linear(4, 4)
        self.tied.weight = self.twice.weight

    def forward(self, inputs):
        return {"out": self.tied(self.twice(self.twice(inputs @ self.scale)))}


def test_each_thing_counts_once():
    model = Odd()
    model.never.requires_grad_(False)
    summary = summarize(model, torch.ones(2, 4))
    one = 2 * 2 * 4 * 4
    assert rows(summary) == {
        "model": ("Odd", "2 x 4", 16, one),
        "twice": ("Linear", "2 x 4", 20, 2 * one),
        "never": ("Linear", "", 45, 0),
        "tied": ("Linear", "2 x 4", 4, one),
    }
    assert summary.parameters == sum(layer.parameters for layer in summary.layers) == 85
    assert summary.flops == sum(layer.flops for layer in summary.layers) == 4 * one
    assert "85 parameters, 45 of them frozen, 340 B" in str(summary)


def test_attention_has_flops_in_eval_mode_too():
    model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    summary = summarize(model, torch.ones(3, 5, 8))
    tokens = 3 * 5
    projections = 2 * tokens * 8 * 24 + 2 * tokens * 8 * 8
    scores = 2 * (2 * 3 * 5 * 5 * 8)
    forward = 2 * (2 * tokens * 8 * 16)
    assert summary.flops == projections + scores + forward
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_batch_of_names_without_its_targets():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x, more):
            return self.layer(x) * more

    batch = {"x": torch.ones(2, 4), "more": torch.ones(1), "label": torch.zeros(2)}
    assert summarize(Named(), batch).flops == 2 * 2 * 4 * 2


# That nobody notices it -----------------------------------------------------------------------------------------------


def test_training_is_bit_equal_with_it():
    states = []
    for callbacks in ([], [ModelSummary(stream=io.StringIO())]):
        trainer = made(*callbacks, model=restless())
        torch.manual_seed(3)
        trainer.fit(tiny_loader(), tiny_loader(), epochs=2)
        states.append((trainer.model.state_dict(), torch.get_rng_state(), trainer.history.to_rows()))
    assert all(torch.equal(one, states[1][0][name]) for name, one in states[0][0].items())
    assert torch.equal(states[0][1], states[1][1])
    assert states[0][2] == states[1][2]


@pytest.mark.parametrize("fails", [False, True])
def test_modes_buffers_hooks_and_random_numbers_are_as_before(fails):
    class Counting(nn.Module):
        """Changes its buffers in every forward, eval mode or not."""

        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("last", torch.zeros(1))

        def forward(self, inputs):
            self.count += 1
            self.last = inputs[0, :1]
            torch.rand(3)
            if fails:
                raise RuntimeError("on purpose")
            return inputs

    model = nn.Sequential(restless(), Counting())
    flags = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator, last = torch.get_rng_state(), model[1].last
    if fails:
        with pytest.raises(RuntimeError, match="on purpose"):
            summarize(model, torch.ones(2, 4))
    else:
        summarize(model, torch.ones(2, 4))
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[1].last is last
    assert torch.equal(torch.get_rng_state(), generator)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


# When it speaks -------------------------------------------------------------------------------------------------------


def test_it_prints_once_and_keeps_the_result():
    stream = io.StringIO()
    callback = ModelSummary(stream=stream)
    trainer = made(Accumulate(2), callback)
    trainer.fit(tiny_loader(), epochs=2)
    trainer.fit(tiny_loader(), epochs=1)
    assert stream.getvalue() == f"{callback.summary}\n"
    assert trainer.store["model_summary"] is callback.summary
    assert callback.summary.flops == 2 * 8 * (4 * 8 + 8 * 3)


class SkipFirst(Callback):
    asks = frozenset({"skip_batch"})

    def before_train_iter(self, run):
        if run.batch_idx == 0:
            run.skip_batch()


def test_it_speaks_also_if_the_first_batch_is_skipped_or_only_validated():
    for play in (lambda t: t.fit(tiny_loader(), epochs=1), lambda t: t.validate(tiny_loader())):
        stream = io.StringIO()
        play(made(SkipFirst(), ModelSummary(stream=stream)))
        assert stream.getvalue().startswith("layer  type    output")


def test_a_closed_stdout_does_not_stop_a_training(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    trainer = made(ModelSummary())
    with pytest.warns(UserWarning, match="ModelSummary could not show its table"):
        trainer.fit(tiny_loader(), epochs=1)
    monkeypatch.setattr(sys, "stdout", None)
    trainer.fit(tiny_loader(), epochs=1)
    assert trainer.clock.steps == 6


def test_a_closed_stderr_does_not_stop_a_training_either(monkeypatch, caplog):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "stderr", closed)
    trainer = made(ModelSummary())
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as in a plain script: shown on standard error
        monkeypatch.setattr(warnings, "showwarning", shown_by_python)
        trainer.fit(tiny_loader(), epochs=1)
    assert trainer.clock.steps == 3
    assert "ModelSummary could not show its table" in caplog.text


def shown_by_python(message, category, filename, lineno, file=None, line=None):
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


class Refuses(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        if not self.training:
            raise RuntimeError("only for training")
        return self.layer(inputs)


def test_a_model_that_cannot_be_summarized():
    with pytest.raises(RuntimeError, match="only for training") as caught:
        made(ModelSummary(), model=Refuses()).fit(tiny_loader(), epochs=1)
    assert any("ModelSummary at before_iter" in note for note in caught.value.__notes__)
    trainer = made(ModelSummary(on_error="warn"), model=Refuses())
    with pytest.warns(UserWarning, match="ModelSummary is switched off") as warned:
        trainer.fit(tiny_loader(), epochs=1)
    assert (len(warned), trainer.clock.steps) == (1, 3)
    with pytest.raises(ValueError, match='"raise" or "warn"'):
        ModelSummary(on_error="ignore")


def test_columns_are_aligned_and_a_closed_stream_is_no_error():
    lines = text_table(["a", "b"], [["left", "1"], ["x", "1,000"]]).splitlines()
    assert lines == ["a         b", "-----------", "left      1", "x     1,000"]
    tell("nobody", "gone", stream=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))


def test_it_survives_what_can_happen_to_a_callback():
    check_callback(lambda: ModelSummary(stream=io.StringIO()))
