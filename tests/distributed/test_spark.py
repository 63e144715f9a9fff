"""Trainings on a real Spark on this machine: beside the driver and as tasks of a barrier stage; DataFrames as data."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from cadenza import Callback, launch
from cadenza.distributed import ParquetData, World, spark_data
from cadenza.testing import tiny_classifier, tiny_loader

from ..processes import run
from .crew import trainer_with
from .engines import needs

pytestmark = [needs("spark"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark():
    """One Spark for all tests here, with two cores."""
    from cadenza.distributed.launchers.spark import make_session

    made = make_session(2)
    yield made
    made.stop()


class Notes(Callback):
    def after_epoch(self, run):
        run.store["epochs"] = run.store.get("epochs", 0) + 1


def trained(data):
    """Trains on what Spark wrote, in batches of four of each of two processes, or of eight of one."""
    torch.set_num_threads(1)
    world = World.detect()
    trainer = trainer_with([Notes()], strategy="auto", model=tiny_classifier().double())
    loader = DataLoader(data, batch_size=8 // world.world_size)
    torch.set_default_dtype(torch.float64)
    history = trainer.fit(loader, epochs=2)
    torch.set_default_dtype(torch.float32)
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return {"world": world, "weights": weights, "history": history, "store": trainer.store, "pid": os.getpid()}


@pytest.fixture(scope="module")
def data(spark, tmp_path_factory):
    inputs, targets = tiny_loader().dataset.tensors
    rows = [([float(value) for value in x], int(y)) for x, y in zip(inputs, targets, strict=True)]
    frame = spark.createDataFrame(rows, ["features", "label"])
    return spark_data(frame, tmp_path_factory.mktemp("spark") / "data", inputs="features", targets="label")


def test_a_data_frame_is_a_data_set(data):
    inputs, targets = tiny_loader().dataset.tensors
    assert len(data) == len(inputs)
    read = pickle.loads(pickle.dumps(data))
    found = [torch.stack(part) for part in zip(*read.__getitems__(range(len(data))), strict=True)]
    order = torch.argsort(found[0][:, 0])
    assert torch.equal(found[0][order], inputs[torch.argsort(inputs[:, 0])])
    assert torch.equal(found[1][order], targets[torch.argsort(inputs[:, 0])])


@pytest.mark.parametrize(
    "barrier", [True, pytest.param(False, marks=pytest.mark.long)], ids=["tasks of a stage", "beside the driver"]
)
def test_two_workers_give_the_weights_of_one_process(data, barrier):
    first, second = launch(trained, data, on="spark", barrier=barrier, results="all")
    assert [one["world"].world_size for one in (first, second)] == [2, 2]
    assert torch.equal(first["weights"], second["weights"])
    alone = trained(data)
    assert torch.allclose(first["weights"], alone["weights"], rtol=0, atol=1e-12)
    assert first["history"]["train/loss"] == pytest.approx(alone["history"]["train/loss"], abs=1e-12)
    assert first["store"] == {"epochs": 2}
    assert len({os.getpid(), first["pid"], second["pid"]}) == 3


class Odd(ValueError):
    def __init__(self, number):
        super().__init__(f"{number} is odd")
        self.number = number


class Fault(Callback):
    def after_step(self, run):
        if run.rank == 1:
            raise Odd(7)


def fail_on_one():
    trainer_with([Fault()]).fit(tiny_loader(), epochs=1)


def test_an_error_comes_back_whole_with_its_rank(spark):
    with pytest.raises(Odd, match="7 is odd") as caught:
        launch(fail_on_one, on="spark", barrier=False)
    assert caught.value.number == 7
    assert any("rank 1" in note for note in caught.value.__notes__)
    assert "raise Odd(7)" in str(caught.value.__cause__)


# Without a Spark ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (["a", "b"], "holds string, of which no tensor"),
        ([1.0, None], "1 values that are missing"),
        ([[1.0], [1.0, 2.0]], "lists of different lengths, from 1 to 2"),
    ],
)
def test_a_column_that_is_no_tensor_is_refused(tmp_path, column, said):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": column}), tmp_path / "one.parquet")
    with pytest.raises((TypeError, ValueError), match=said):
        ParquetData(tmp_path, inputs="x")[0]
    with pytest.raises(ValueError, match="has no column 'z'; it has x"):
        len(ParquetData(tmp_path, inputs="z"))


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("sys.modules['pyspark'] = None", "launching on 'spark' needs pyspark: pip install 'cadenza[spark]'"),
        ("os.environ.pop('JAVA_HOME', None); os.environ['PATH'] = ''", "launching on 'spark' needs Java"),
    ],
)
def test_what_is_missing_is_named(before, said):
    code = (
        f"import os, sys; {before}; import cadenza\n"
        "try: cadenza.launch(len, '', on='spark')\nexcept (ModuleNotFoundError, RuntimeError) as error: print(error)"
    )
    done = run(code)
    assert done.stdout.startswith(said), done.stderr
