"""Two and four processes train as one does on the same global batches: weights, history, clock and predictions."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch import nn

from cadenza import Trainer
from cadenza.callbacks import EMA, Accumulate, GradientClip, Metrics
from cadenza.callbacks.measuring.per_sample import accuracy

from ..processes import ranks

pytestmark = pytest.mark.timeout(300)
SIZES = (6, 6, 6, 2)
"""Global batches; with four processes the last one leaves two of them without a sample."""
CASES = {
    "plain": (None, None),
    "accumulation": (2, None),
    "ragged accumulation and clipping": (3, 0.5),
}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 3)])
        self.double()

    def forward(self, inputs):
        return self.layers[1](torch.tanh(self.layers[0](inputs)))


class Mine(list):
    """Batches of this rank alone."""

    divides_over_ranks = True


def batches(rank, world_size):
    """This rank's part of each global batch, as even as can be; none where there is nothing left."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(sum(SIZES), 8, generator=draw, dtype=torch.float64)
    targets = torch.randint(0, 3, (sum(SIZES),), generator=draw)
    cut = [list(whole.tensor_split(world_size)) for whole in (*inputs.split(SIZES), *targets.split(SIZES))]
    mine = [parts[rank] for parts in cut]
    return Mine(pair for pair in zip(mine[: len(SIZES)], mine[len(SIZES) :], strict=True) if len(pair[0]))


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def train(strategy, accumulate, clip):
    torch.set_num_threads(1)
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model, ema = Classifier(), EMA(0.5)
    adam = torch.optim.AdamW(model.parameters(), lr=0.05)
    callbacks = [ema, Metrics({"accuracy": accuracy}, stages={"train", "val"})]
    callbacks += [Accumulate(accumulate)] if accumulate else []
    callbacks += [GradientClip(norm=clip, log=True)] if clip else []
    trainer = Trainer(model, adam, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", strategy=strategy)
    mine = batches(rank, size)
    trainer.fit(mine, mine, epochs=3)
    clock = {name: getattr(trainer.clock, name) for name in ("batches", "steps", "samples", "epochs")}
    found = {"clock": clock, "epochs": trainer.history.epochs, "iters": trainer.history.iters}
    found["tested"] = trainer.test(mine)
    found["predicted"] = trainer.predict(Mine(inputs for inputs, _ in mine))
    found["weights"] = [whole(parameter) for parameter in model.parameters()]
    found["average"] = [whole(tensor) for tensor in ema.average.values()]
    return found


def train_all(cases):
    return [train(*case) for case in cases]


ORDER = [(strategy, name) for strategy in ("ddp", "fsdp") for name in reversed(CASES)]
SETUPS = {"2": (2, [*ORDER, ORDER[0]]), "4": (4, [ORDER[0], ORDER[3], ORDER[0]]), "4 all": (4, [*ORDER, ORDER[0]])}
"""The number of processes and what they train, one after the other; the first setup is trained twice."""


@pytest.fixture(
    scope="module", params=["2", "4", pytest.param("4 all", marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def together(request):
    """For each setup its name and the answers of all ranks."""
    workers, order = SETUPS[request.param]
    answers = ranks(train_all, [(s, *CASES[n]) for s, n in order], workers=workers, results="all", timeout=280)
    return [(name, [one[place] for one in answers]) for place, (_, name) in enumerate(order)]


@pytest.fixture(scope="module")
def alone():
    return {name: train("single", *case) for name, case in CASES.items()}


def near(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_as_one_process_on_the_same_global_batches(together, alone):
    for name, answers in together:
        expected = alone[name]
        for found in answers:
            near(found["weights"], expected["weights"])
            near(found["average"], expected["average"])
            near([found["predicted"]], [expected["predicted"]])
            assert found["clock"] == expected["clock"]
            assert found["tested"] == pytest.approx(expected["tested"], abs=1e-9)
            for row, other in zip(found["epochs"], expected["epochs"], strict=True):
                assert row == pytest.approx(other, abs=1e-9)
            assert norms(found) == pytest.approx(norms(expected), abs=1e-9)


def norms(found):
    return [row["train/grad_norm"] for row in found["iters"] if "train/grad_norm" in row]


def test_two_runs_of_the_same_setup_are_bit_equal(together):
    for one, other in zip(together[0][1], together[-1][1], strict=True):
        assert all(map(torch.equal, one["weights"], other["weights"]))
        assert one["epochs"] == other["epochs"]


def test_all_ranks_have_the_same_weights_to_the_last_bit(together):
    for _, answers in together:
        for other in answers[1:]:
            assert all(map(torch.equal, answers[0]["weights"], other["weights"]))
