"""On a CUDA device: host waits are counted and put down to those who cause them, and measuring causes none."""

from __future__ import annotations

import io
import json
import warnings

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.measuring.activation_stats import ActivationStats
from cadenza.callbacks.measuring.extreme_batches import ExtremeBatches
from cadenza.callbacks.measuring.gradient_stats import GradientStats
from cadenza.callbacks.measuring.model_summary import summarize
from cadenza.callbacks.profiling.cost_ledger import CostLedger
from cadenza.callbacks.profiling.profile import Profile
from cadenza.testing import tiny_classifier, tiny_loader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def made(*callbacks):
    model = tiny_classifier().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cuda")


def ready(samples=48):
    return [(inputs.cuda(), targets.cuda()) for inputs, targets in tiny_loader(samples)]


def ledger_of(every=1):
    return CostLedger(every, budget=None, stream=io.StringIO())


def waits(ledger, stage="train"):
    """Waits of each callback in a batch, or with stage None in all."""
    found = {}
    for row in ledger.costs.rows():
        if row["stage"] == stage:
            name = row["callback"]
            found[name] = found.get(name, 0) + row["waits"] / (row["batches"] or 1)
    return found


class At(Callback):
    """Does something at one point."""

    def __init__(self, name, point, act):
        self.name, self.point, self.act = name, point, act

    def plays(self):
        return {self.point: self.act}


def test_waits_belong_to_those_who_wait():
    event, stream = torch.cuda.Event(), torch.cuda.Stream()
    event.record()
    acts = {
        "item": lambda run: run.loss.item(),
        "two": lambda run: (run.loss.detach().tolist(), bool(run.loss > 0)),
        "cpu": lambda run: run.output.cpu(),
        "nonzero": lambda run: run.targets.nonzero(),
        "synchronize": lambda run: torch.cuda.synchronize(),
        "accelerator": lambda run: torch.accelerator.synchronize(),
        "stream": lambda run: stream.synchronize(),
        "event": lambda run: event.synchronize(),
        "none": lambda run: run.log("mine", run.loss * 2),
    }
    ledger = ledger_of()
    others = [At(name, "after_loss", act) for name, act in acts.items()]
    made(*others, At("epoch", "after_epoch", lambda run: run.metrics["train/loss"]), ledger).fit(ready(), epochs=1)
    expected = {name: 2 if name == "two" else 0 if name == "none" else 1 for name in acts}
    found = waits(ledger)
    assert {name: found[name] for name in acts} == expected
    assert found["the step and the loop"] == 0
    assert waits(ledger, None)["epoch"] == 1
    assert "waits a batch" in ledger.stream.getvalue()


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before_afterwards(fails):
    places = ((torch.cuda, "synchronize"), (torch.cuda.Event, "synchronize"), (warnings, "showwarning"))
    before, filters = [getattr(*place) for place in places], warnings.filters[:]
    inside = []

    def look(run):
        inside.append(torch.cuda.get_sync_debug_mode())
        run.loss.item()
        if fails and run.batch_idx == 3:
            raise ZeroDivisionError("on purpose")

    trainer = made(At("look", "after_loss", look), ledger_of(2))
    if fails:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(ready(), epochs=1)
    else:
        trainer.fit(ready(), epochs=1)
    assert {0, 1} == set(inside), "on in the batches that are measured, and off in the others"
    assert torch.cuda.get_sync_debug_mode() == 0
    assert [getattr(*place) for place in places] == before
    assert warnings.filters == filters


def test_other_warnings_still_arrive():
    def warn(run):
        run.loss.item()
        warnings.warn("of mine", stacklevel=1)

    ledger = ledger_of()
    with pytest.warns(UserWarning, match="of mine") as caught:
        made(At("warns", "after_loss", warn), ledger).fit(ready(), epochs=1)
    assert {str(one.message) for one in caught} == {"of mine"}
    assert waits(ledger)["warns"] == 1


def test_measuring_causes_no_waits():
    ledger, extremes = ledger_of(), ExtremeBatches(keep="both", read_every=16)
    stats = [GradientStats("1 step"), GradientStats("1 step", at="after_backward"), ActivationStats("1 step")]
    stats[1].name = "GradientStats after backward"
    trainer = made(*stats, extremes, ledger)
    trainer.fit(ready(), ready(24), epochs=2)
    for stage in ("train", "val"):
        assert set(waits(ledger, stage).values()) == {0.0}
    outside = waits(ledger, None)
    assert outside.pop("ExtremeBatches") > 0
    assert set(outside.values()) <= {0}
    inside = [row for row in trainer.history.iters if "train/gradients/all/norm" in row]
    assert (len(inside), len(trainer.history["train/gradients/all/norm"])) == (12, 2)


@pytest.mark.parametrize("read_every", [1, 2, 4, 16])
def test_the_extremes_are_the_same_however_often_they_are_read(read_every):
    ledger, batches = ledger_of(), ready()
    extremes = ExtremeBatches(keep="both", read_every=read_every, outputs=True)
    losses = []
    trainer = made(At("losses", "after_loss", lambda run: losses.append(run.loss.item())), extremes, ledger)
    trainer.fit(batches, epochs=1)
    found = extremes.found["train"]
    for kind, choose in (("best", min), ("worst", max)):
        index = losses.index(choose(losses))
        assert (found[kind].value, found[kind].batch_idx) == (losses[index], index)
        assert found[kind].batch[0].device.type == found[kind].output.device.type == "cpu"
        assert torch.equal(found[kind].batch[0], batches[index][0].cpu())
    reads = waits(ledger)["ExtremeBatches"] * 5  # of the batches 1 to 5
    assert reads == {1: 5, 2: 3, 4: 1, 16: 0}[read_every]


def test_profile_sees_the_device(tmp_path):
    look = Profile("2 steps", 2, path=tmp_path / "trace.json")
    made(look).fit(ready(), epochs=1)
    events = json.loads(look.trace.read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert {"train batch 3", "train batch 4"} <= {event["name"] for event in events}
    assert "CUDA" in look.table.read_text()


def test_a_summary_is_that_of_the_cpu():
    model, batch = tiny_classifier(), next(iter(tiny_loader()))
    on_cpu = summarize(model, batch)
    generator = torch.cuda.get_rng_state()
    on_gpu = summarize(model.cuda(), batch)
    assert on_gpu == on_cpu
    assert torch.equal(torch.cuda.get_rng_state(), generator)
    attention = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    flops = summarize(attention, torch.ones(3, 5, 8)).flops
    assert summarize(attention.cuda(), torch.ones(3, 5, 8)).flops == flops
