"""ExportCheck: what onnxruntime computes against the model, and that the training does not notice."""

from __future__ import annotations

import os
import random
from pathlib import Path

import onnxruntime
import pytest
import torch
from tests.callbacks.drawn import Act, Oops, oops
from torch import nn

from cadenza import Trainer
from cadenza.callbacks.showing.export import Call, ExportError, call_of, check_export, in_eval_mode
from cadenza.callbacks.showing.export_check import ExportCheck
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.testing import tiny_loader

LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Counting(nn.Module):
    """Counts its calls in a buffer, also in eval mode, and has parts in different modes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("calls", torch.zeros(()))
        self.norm.eval()

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, inputs):
        self.calls += 1
        return self.last(self.drop(self.norm(self.first(inputs)).relu()))


class FixedBatch(nn.Module):
    """Only takes batches of eight."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.inner(inputs).reshape(8, 3)


class OtherAtEval(nn.Module):
    """Computes something else while it is traced, as code that asks for it may."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, inputs):
        shift = 0.5 if torch.compiler.is_exporting() else 0.0
        return self.inner(inputs) + shift


def fit(check, model=None, *callbacks, epochs=1, batch_size=8):
    model = Counting() if model is None else model
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, sgd, LOSS, callbacks=[*([check] if check else []), *callbacks], device="cpu")
    torch.manual_seed(1)
    trainer.fit(tiny_loader(batch_size=batch_size), tiny_loader(8), epochs=epochs)
    return trainer


def outputs_of(path, *inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})


# What is compared -----------------------------------------------------------------------------------------------------


def test_the_kept_file_computes_what_the_trained_model_computes_for_any_batch_size():
    trainer = fit(ExportCheck("both", keep=True, path="deep/m.onnx"))
    results = trainer.store["export_check"]
    assert list(results) == ["before", "after"]
    assert all(result.batch_sizes == (8, 4) and result.max_abs < 1e-4 for result in results.values())
    assert os.listdir("deep") == ["m.onnx"]
    for samples in (1, 5, 8):
        inputs = torch.randn(samples, 4)
        with torch.no_grad():
            expected = trainer.model.eval()(inputs)
        torch.testing.assert_close(torch.as_tensor(outputs_of("deep/m.onnx", inputs)[0]), expected)


def test_before_is_before_the_first_step_and_leaves_no_file(tmp_path):
    seen = []
    fit(ExportCheck("before"), None, Act("before_forward", lambda run: seen.append(sorted(run.store["export_check"]))))
    assert seen == [["before"]]
    assert not list(tmp_path.iterdir())


def test_several_inputs_names_and_outputs():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.scale = nn.Embedding(10, 4), nn.Linear(4, 2)

        def forward(self, ids, shift, unused=None):
            scores = self.scale(self.words(ids).mean(1) + shift)
            return {"scores": scores, "rest": [scores.argmax(1), scores.sum()]}

    model = Many()
    ids, shift = torch.randint(0, 10, (6, 5)), torch.randn(6, 4)
    result = check_export(model, Call((ids,), {"shift": shift}), "m.onnx")
    assert result.batch_sizes == (6, 3)
    with torch.no_grad():
        expected = model(ids, shift)
    scores, classes, total = (torch.as_tensor(one) for one in outputs_of("m.onnx", ids, shift))
    torch.testing.assert_close(scores, expected["scores"])
    assert torch.equal(classes, expected["rest"][0])
    torch.testing.assert_close(total, expected["rest"][1])


@pytest.mark.parametrize(
    ("inputs", "args", "names"),
    [
        (torch.ones(2, 4), 1, []),
        ((torch.ones(2), torch.ones(2)), 2, []),
        ({"inputs": torch.ones(2, 4)}, 0, ["inputs"]),
        ({"pixels": torch.ones(2, 4)}, 1, []),
    ],
)
def test_a_model_is_called_as_the_default_behaviour_calls_it(inputs, args, names):
    call = call_of(Counting(), inputs)
    assert (len(call.args), list(call.kwargs or {})) == (args, names)


def test_a_batch_of_one_is_doubled_so_that_its_size_is_not_taken_for_fixed():
    assert check_export(nn.Linear(3, 2), Call((torch.ones(1, 3),))).batch_sizes == (2, 1)


def test_inputs_is_for_models_that_are_called_in_another_way():
    def half(run):
        return (run.inputs[:2],)

    assert fit(ExportCheck("after", inputs=half)).store["export_check"]["after"].batch_sizes == (2, 1)


# Failures -------------------------------------------------------------------------------------------------------------


def test_another_result_ends_the_run_before_the_first_step_or_is_a_warning():
    seen = []
    with pytest.raises(ExportError, match=r"output .* differs between model and export: .* at element") as caught:
        fit(ExportCheck(), OtherAtEval(), Act("after_step", seen.append))
    assert any("ExportCheck at before_train_iter (epoch 1, train batch 1)" in note for note in caught.value.__notes__)
    assert not seen
    with pytest.warns(UserWarning, match="ExportCheck is switched off, the run goes on: ExportError: output"):
        trainer = fit(ExportCheck(on_error="warn"), OtherAtEval())
    assert trainer.clock.epochs == 1
    assert "export_check" not in trainer.store


def test_the_tolerances_decide():
    call = Call((torch.zeros(4, 4),))
    result = check_export(OtherAtEval(), call, atol=0.6, rtol=0)
    assert result.max_abs == pytest.approx(0.5)
    with pytest.raises(ExportError, match=r"rtol=0, atol=0\.4"):
        check_export(OtherAtEval(), call, atol=0.4, rtol=0)


def test_a_fixed_batch_size_is_refused_unless_it_is_meant():
    with pytest.raises(ExportError, match="the model cannot be exported: UserError"):
        fit(ExportCheck(), FixedBatch())
    assert fit(ExportCheck(dynamic_batch=False), FixedBatch()).store["export_check"]["before"].batch_sizes == (8,)


def test_what_cannot_be_traced_is_said_with_the_reason_and_leaves_the_model_as_it_was():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, inputs):
            return self.inner(inputs) if inputs.sum() > 0 else -self.inner(inputs)

    model = Branches()
    with pytest.raises(ExportError, match=r"the model cannot be exported: .*data-dependent"):
        fit(ExportCheck(keep=True), model)
    assert model.training
    assert not any(Path("runs").iterdir())


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="ExportCheck is switched off"):
        fit(ExportCheck(keep=True, path="file/m.onnx", on_error="warn"))


# The training does not notice -----------------------------------------------------------------------------------------


def test_weights_buffers_flags_and_random_numbers_are_as_without_it():
    one, other = fit(ExportCheck("both"), epochs=2), fit(None, epochs=2)
    for (name, mine), plain in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(mine, plain), name
    assert one.history.to_rows() == other.history.to_rows()
    assert [module.training for module in one.model.modules()] == [module.training for module in other.model.modules()]


def test_everything_is_put_back_also_after_an_exception():
    model = Counting().train()
    flags = [module.training for module in model.modules()]
    calls, drawn = model.calls, (torch.get_rng_state(), random.getstate())

    def disturb():
        with in_eval_mode(model):
            assert not model.training
            model.calls = model.calls + 5
            torch.rand(3)
            random.random()
            raise Oops

    with pytest.raises(Oops):
        disturb()
    assert [module.training for module in model.modules()] == flags
    assert model.calls is calls
    assert float(calls) == 0
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]


def test_accumulation_skips_and_a_stop_do_not_matter_and_an_error_is_not_checked():
    skip = Act("before_train_iter", lambda run: run.skip_batch())
    stop = Act("after_train_iter", lambda run: run.stop("enough"))
    trainer = fit(ExportCheck("after"), None, Accumulate(2), skip, stop)
    assert list(trainer.store["export_check"]) == ["after"]
    model = Counting()
    trainer = Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), LOSS,
        callbacks=[ExportCheck("after"), Act("after_epoch", oops)], device="cpu",
    )  # fmt: skip
    with pytest.raises(Oops):
        trainer.fit(tiny_loader(), epochs=1)
    assert "export_check" not in trainer.store


def test_a_second_fit_checks_again_and_validations_do_not():
    check = ExportCheck("after")
    trainer = fit(check)
    first = trainer.store.pop("export_check")["after"]
    trainer.validate(tiny_loader())
    assert "export_check" not in trainer.store
    trainer.fit(tiny_loader(), epochs=1)
    assert trainer.store["export_check"]["after"] is not first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"when": "during"}, '"before", "after" or "both"'),
        ({"rtol": -1}, "at least 0"),
        ({"inputs": 3}, "function of the run"),
        ({"path": "m.onnx"}, "keep=True"),
        ({"on_error": "no"}, '"raise" or "warn"'),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ExportCheck(**options)
