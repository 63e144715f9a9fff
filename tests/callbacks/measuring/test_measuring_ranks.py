"""Metrics and Evaluate over two processes: the results are those of all samples, and a failure is one for both."""

from __future__ import annotations

import json

import pytest
from sklearn import metrics as sk
from tests.processes import Program

from cadenza.testing import tiny_classifier, tiny_data

pytestmark = pytest.mark.timeout(300)
SIZES = [5, 3, 1, 7]
PROGRAM = """
import json, sys, warnings, weakref
import torch
from torch import nn
from torchmetrics.classification import MulticlassF1Score
from cadenza import Callback, Order, Trainer
from cadenza.callbacks.measuring.evaluate import Evaluate
from cadenza.callbacks.measuring.per_sample import accuracy
from cadenza.callbacks.measuring.metrics import Metrics
from cadenza.callbacks.measuring.result_packages import ClassificationResults, ResultPackage
from cadenza.testing import tiny_classifier, tiny_data

torch.set_num_threads(1)
rank, meeting, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)

class World(Callback):
    order = Order.PREPARE
    def after_register(self, run):
        run.rank, run.world_size = rank, 2

def fails_on_one(output, targets):
    if rank == 1:
        raise ValueError("not here")
    return output[:, 0]

class PrepareFails:
    def __call__(self, run):
        if rank == 0:
            raise ValueError("not here")
        return run.output, run.targets

def named(callback, name):
    callback.name = name
    return callback

sizes = [5, 3, 1, 7]
inputs, targets = tiny_data(16, seed=3).tensors
batches = list(zip(inputs.split(sizes), targets.split(sizes)))
class Mine(list):
    divides_over_ranks = True

mine = Mine(batches[:3] if rank == 0 else batches[3:])
skip_all = rank == 1

class SkipOnOne(Callback):
    def before_test_iter(self, run):
        if skip_all:
            run.skip_batch()

callbacks = [
    World(),
    SkipOnOne(),
    Metrics(
        {"accuracy": accuracy, "f1": MulticlassF1Score(3), "half": fails_on_one},
        stages={"val", "test"},
        on_error="warn",
    ),
    named(Evaluate(ClassificationResults(prefix="whole_"), stages={"val", "test"}), "whole"),
    named(Evaluate(ClassificationResults(prefix="broken_"), prepare=PrepareFails(), on_error="warn"), "broken"),
]
trainer = Trainer(tiny_classifier(), criterion=nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    found = {**trainer.validate(mine), **trainer.test(mine)}
said = [str(one.message) for one in warned if "goes on without" in str(one.message)]
group = weakref.ref(torch.distributed.group.WORLD)
torch.distributed.destroy_process_group()
with open(f"{out}/{rank}.json", "w") as file:
    json.dump({"found": found, "said": said, "group ended": group() is None}, file)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    started = [Program(PROGRAM, rank, folder / "meeting", folder) for rank in range(2)]
    ended = [program.wait() for program in started]
    assert [one.returncode for one in ended] == [0, 0], ended
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def whole(samples=16):
    inputs, targets = tiny_data(16, seed=3).tensors
    return tiny_classifier()(inputs[:samples]).argmax(1), targets[:samples]


def test_both_ranks_have_the_results_of_all_samples(answers):
    predicted, targets = whole()
    for answer in answers:
        assert answer["found"]["val/accuracy"] == float((predicted == targets).double().mean())
        assert answer["found"]["val/whole_accuracy"] == answer["found"]["val/accuracy"]
        f1 = sk.f1_score(targets, predicted, average="macro")
        assert answer["found"]["val/whole_f1"] == pytest.approx(f1, abs=1e-12)
        assert answer["found"]["val/f1"] == pytest.approx(f1, abs=1e-6)


def test_a_rank_without_a_batch_takes_part(answers):
    predicted, targets = whole(sum(SIZES[:3]))
    for answer in answers:
        assert answer["found"]["test/accuracy"] == float((predicted == targets).double().mean())
        f1 = sk.f1_score(targets, predicted, average="macro")
        assert answer["found"]["test/whole_f1"] == pytest.approx(f1, abs=1e-12)
        assert answer["found"]["test/f1"] == pytest.approx(f1, abs=1e-6)


def test_what_fails_on_one_rank_is_left_out_on_both(answers):
    for answer, other in zip(answers, ("it failed in another process", "not here"), strict=True):
        assert not [name for name in answer["found"] if name == "val/half" or "broken" in name]
        assert any("the metric 'half'" in said and other in said for said in answer["said"])
    assert any("ClassificationResults" in said and "not here" in said for said in answers[0]["said"])
    assert any("ClassificationResults" in said and "another process" in said for said in answers[1]["said"])


def test_the_trainer_does_not_keep_a_process_group_that_its_owner_destroyed(answers):
    assert [one["group ended"] for one in answers] == [True, True]
