"""CostLedger: with a clock that only the test moves, every figure is exact; and nobody else notices it."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cadenza import Callback, CallbackError, MainCallback, Trainer, When
from cadenza.callbacks.profiling import cost_ledger, ledger_book
from cadenza.callbacks.profiling.cost_ledger import CostLedger
from cadenza.callbacks.profiling.ledger_book import Costs
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.experiment import Experiment
from cadenza.testing import Recorder, check_callback, tiny_classifier, tiny_loader


class Time:
    """Stands still unless somebody spends some of it."""

    def __init__(self):
        self.now = 1_000_000

    def spend(self, microseconds):
        self.now += 1000 * microseconds


@pytest.fixture
def time(monkeypatch):
    moved = Time()
    for module in (ledger_book, cost_ledger):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: moved.now)
    return moved


class Spends(Callback):
    """Spends so many microseconds at each of these points; an around spends a third each for making, entering and
    leaving."""

    def __init__(self, time, name="Spends", **points):
        self.time, self.name, self.points = time, name, points

    def plays(self):
        return {point: self._player(point, amount) for point, amount in self.points.items()}

    def _player(self, point, amount):
        if point.startswith("around"):
            return lambda run: Held(self.time, amount)
        return lambda run: self.time.spend(amount)


class Held:
    def __init__(self, time, amount):
        self.time, self.third = time, amount // 3
        self.time.spend(self.third)

    def __enter__(self):
        self.time.spend(self.third)

    def __exit__(self, *_):
        self.time.spend(self.third)


class Slow(MainCallback):
    """A forward and a validation that take their time."""

    def __init__(self, time, train=100, val=40):
        super().__init__()
        self.time, self.amounts = time, {"train": train, "val": val}

    def on_iter_forward(self, run):
        super().on_iter_forward(run)
        self.time.spend(self.amounts[run.stage])


class Loader:
    """Takes ten microseconds for each batch."""

    def __init__(self, time, batches=6):
        self.time, self.batches = time, list(tiny_loader(8 * batches))

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            self.time.spend(10)
            yield batch


def ledger_of(every=1, **more):
    return CostLedger(every, **{"budget": None, "stream": io.StringIO(), **more})


def made(*callbacks, experiment=None):
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss()
    return Trainer(model, optimizer, loss, callbacks=callbacks, device="cpu", experiment=experiment)


def found(ledger, stage="train"):
    """Callback and point with the number of calls and the microseconds of all of them."""
    rows = [row for row in ledger.costs.rows() if row["stage"] == stage]
    return {(row["callback"], row["point"]): (row["calls"], round(row["seconds"] * 1e6)) for row in rows}


STEP, DATA = ("the step and the loop", ""), ("waiting for data", "")


# What it measures -----------------------------------------------------------------------------------------------------


def test_every_figure_is_exact(time):
    points = {
        "before_fetch": 1,
        "around_fetch": 6,
        "after_fetch": 2,
        "before_iter": 3,
        "around_train_iter": 9,
        "before_step": 5,
        "around_forward": 12,
        "after_step": 7,
        "after_iter": 4,
    }
    spends, ledger = Spends(time, **points), ledger_of()
    made(Slow(time), spends, ledger).fit(Loader(time), Loader(time, 2), epochs=1)
    measured = 5  # all but the first
    expected = {("Spends", point): (measured, measured * amount) for point, amount in points.items()}
    assert found(ledger) == {STEP: (measured, measured * 100), DATA: (measured, measured * 10), **expected}
    book = ledger.costs.stages["train"]
    assert book.time == measured * 1000 * (100 + 10 + sum(points.values()))
    assert book.shares() == pytest.approx({"Spends": 49 / 159})
    assert found(ledger, "val")[STEP] == (2, 80)


def test_points_outside_of_batches_are_all_measured(time):
    points = {"before_run": 3, "around_run": 6, "before_epoch": 4, "after_train_epoch": 5, "after_epoch": 7}
    ledger = ledger_of(every=1000)
    made(Spends(time, **points, after_step=100), ledger).fit(tiny_loader(), tiny_loader(), epochs=3)
    per_run = ("before_run", "around_run")
    expected = {("Spends", point): (1, us) if point in per_run else (3, 3 * us) for point, us in points.items()}
    assert found(ledger, None) == expected
    assert found(ledger) == {}


def test_rows_are_measured_in_batches_and_outside(time):
    ledger = ledger_of()
    trainer = made(Spends(time, after_log=5), ledger)
    trainer.on("after_step")(lambda run: run.log("train/mine", 1.0))
    trainer.fit(tiny_loader(), epochs=2)
    assert found(ledger)["Spends", "after_log"] == (5, 25)
    assert found(ledger, None)["Spends", "after_log"] == (2, 10), "one row an epoch"
    rare = ledger_of(every=1000)
    trainer = made(Spends(time, after_log=5), rare)
    trainer.on("after_step")(lambda run: run.log("train/mine", 1.0))
    trainer.fit(tiny_loader(), epochs=2)
    assert found(rare, None)["Spends", "after_log"] == (2, 10)


def test_what_is_played_inside_a_callback_is_not_its_own(time):
    class Again(Callback):
        passive = True

        def before_step(self, run):
            time.spend(5)
            run.recompute()

    ledger = ledger_of()
    made(Slow(time), Again(), Spends(time, after_forward=3), ledger).fit(Loader(time), epochs=1)
    assert found(ledger)["Spends", "after_forward"] == (10, 30)
    assert found(ledger)["Again", "before_step"] == (5, 5 * (5 + 100)), "its own second forward is its cost"


def test_a_save_is_measured_wherever_it_comes(time):
    class Saver(Callback):
        owns = frozenset({"save"})

        def save(self, run):
            time.spend(50)

        def after_train_iter(self, run):
            if run.batch_idx in (1, 2):
                run.save()

    ledger = ledger_of()
    made(Slow(time), Saver(), ledger).fit(Loader(time), epochs=1)
    assert found(ledger, None) == {("Saver", "save"): (2, 100)}
    assert found(ledger)[STEP] == (5, 500)


def test_a_validation_inside_a_batch_does_not_count_in_it(time):
    ledger = ledger_of()
    trainer = made(Slow(time), Spends(time, before_val_epoch=1000), ledger)
    trainer.fit(Loader(time, 8), Loader(time, 3), epochs=2, validate_every="4 steps")
    batches, us = found(ledger)[STEP]
    assert us == 100 * batches
    assert 5 <= batches < 15
    assert "val" not in ledger.costs.stages


# Which batches are measured -------------------------------------------------------------------------------------------


class Watch(Callback):
    """Notes in which batches the players of a point are not the plain ones."""

    def __init__(self):
        self.timed = []

    def after_step(self, run):
        pass

    def after_train_iter(self, run):
        player = run.plan.players_at("after_step", "train")[0]
        if getattr(player, "__self__", None) is not self:
            self.timed.append(run.clock.batches - 1)


def test_one_batch_of_each_stretch_and_the_others_are_played_as_without_it():
    ledger, watch = ledger_of(10), Watch()
    trainer = made(watch, ledger)
    trainer.fit(tiny_loader(8 * 50), epochs=4)
    assert [batch // 10 for batch in watch.timed] == list(range(20)), "one in each stretch of ten"
    assert len({batch % 10 for batch in watch.timed}) > 4, "at changing places"
    assert ledger.costs.stages["train"].batches == 20
    assert "measured in 20 of 200 train batches" in ledger.stream.getvalue()


def test_weights_random_numbers_and_history_are_those_of_a_run_without_it():
    results = []
    for more in ([], [ledger_of(2)], [ledger_of(1)]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder = Recorder(arounds=True)
        callbacks = [recorder, Accumulate(2), *more]
        trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
        trainer.fit(tiny_loader(72), tiny_loader(), epochs=2, validate_every="3 steps", test_loaders=tiny_loader())
        results.append((model.state_dict(), torch.get_rng_state(), trainer.history.to_rows(), recorder.trace))
    for state, generator, rows, trace in results[1:]:
        assert all(torch.equal(value, results[0][0][name]) for name, value in state.items())
        assert torch.equal(generator, results[0][1])
        assert (rows, trace) == results[0][2:]


def test_the_callbacks_of_the_run_stay_the_same():
    seen, ledger = set(), ledger_of(2)
    trainer = made(Recorder(), ledger)
    trainer.on("after_iter")(lambda run: seen.add(run.callbacks))
    trainer.fit(tiny_loader(), epochs=2)
    assert len(seen) == 1


def test_each_fit_has_its_own_table_and_other_modes_none():
    ledger = ledger_of(2)
    trainer = made(Recorder(), ledger)
    trainer.fit(tiny_loader(48), epochs=1)
    first, printed = ledger.costs, ledger.stream.getvalue()
    trainer.validate(tiny_loader())
    trainer.predict(tiny_loader())
    assert ledger.stream.getvalue() == printed
    assert ledger.costs is first
    trainer.fit(tiny_loader(48), epochs=1)
    assert ledger.costs is not first
    assert ledger.costs.stages["train"].batches == first.stages["train"].batches == 3
    assert trainer.store["costs"] is ledger.costs


# Coming, going, failing -----------------------------------------------------------------------------------------------


def test_callbacks_that_come_and_go(time):
    late, ledger = Spends(time, "Late", after_step=7), ledger_of()
    trainer = made(Slow(time), ledger)

    @trainer.on("after_train_iter")
    def change(run):
        if run.batch_idx == 2:
            trainer.add(late)
        if run.batch_idx == 5:
            trainer.remove(late)

    trainer.fit(Loader(time, 8), epochs=1)
    assert found(ledger)["Late", "after_step"] == (2, 14), "batches 3 and 4; in 2 and 5 the callbacks changed"
    assert found(ledger)[STEP] == (5, 500)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_ledger_itself_can_go_and_come(at):
    ledger, seen = ledger_of(2), []
    trainer = made(Recorder(), ledger)
    trainer.on("after_train_iter")(lambda run: trainer.remove(ledger) if run.clock.batches == at + 1 else None)
    trainer.on("after_train_iter")(lambda run: seen.append(type(run.plan.players_at("after_step", "train")[0])))
    trainer.fit(tiny_loader(48), epochs=2)
    assert len(seen) == 12
    assert ledger._players is None
    other = made(Recorder())
    other.on("after_train_iter")(lambda run: other.add(ledger) if run.batch_idx == 1 else None)
    other.fit(tiny_loader(48), epochs=1)
    assert found(ledger)["Recorder", "after_step"][0] >= 1


class Fails(Callback):
    def __init__(self, point, batch):
        self.point, self.batch = point, batch

    def plays(self):
        return {self.point: self._play}

    def _play(self, run):
        if run.clock.batches >= self.batch:
            raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("point", ["before_fetch", "after_step", "around_train_iter", "after_log", "after_epoch"])
@pytest.mark.parametrize("every", [1, 1000])
def test_an_error_is_blamed_on_the_callback_that_raised_it(point, every):
    ledger = ledger_of(every)
    trainer = made(Fails(point, 2), ledger)
    trainer.on("after_loss")(lambda run: run.log("mine", 1.0))
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.fit(tiny_loader(), epochs=1)
    assert [note for note in caught.value.__notes__ if note.startswith(f"cadenza: raised in Fails at {point}")]
    assert ledger.stream.getvalue().startswith("CostLedger\n"), "what was measured until then is told"


def test_what_a_run_listens_to_is_released_in_any_case():
    class OwnStep(MainCallback):
        def on_iter_backward(self, run):
            run.loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()

    for fails in (False, True):
        trainer = made(OwnStep(), ledger_of(2), *([Fails("after_train_iter", 2)] if fails else []))
        if fails:
            with pytest.raises(ZeroDivisionError):
                trainer.fit(tiny_loader(48), epochs=1)
        else:
            trainer.fit(tiny_loader(48), epochs=1)
            assert trainer.clock.steps == 6
        optimizer = trainer._training.optimizers[0]
        assert len(optimizer._optimizer_step_pre_hooks) == 0


def test_two_ledgers_are_refused():
    with pytest.raises(CallbackError, match="both own 'plan'"):
        made(ledger_of(), ledger_of())


def test_a_window_limits_it(time):
    ledger = ledger_of()
    made(Slow(time), When(ledger, start="3 steps", stop="6 steps")).fit(Loader(time, 10), epochs=1)
    assert found(ledger)[STEP] == (3, 300), "asked for in batches 3 to 5, measured in 4 to 6"


# What it says ---------------------------------------------------------------------------------------------------------


def test_a_callback_above_the_budget_is_warned_of_once(time):
    ledger = ledger_of(budget=0.1)
    spends = Spends(time, "Greedy", after_step=30, after_iter=10)
    with pytest.warns(
        UserWarning, match="Greedy takes 26% of the time of a training batch, most of it at after_step"
    ) as w:
        made(Slow(time), spends, Spends(time, "Modest", after_step=1), ledger).fit(Loader(time, 30), epochs=1)
    assert len(w) == 1


def test_the_table_lists_who_took_how_long_at_which_point(time):
    ledger = ledger_of(4)
    spends = Spends(time, "Clip", before_step=20, after_epoch=2000)
    made(Slow(time), spends, Spends(time, "Small", after_iter=2), ledger).fit(Loader(time, 20), epochs=1)
    assert ledger.stream.getvalue().splitlines() == [
        "CostLedger",
        "train batches                       calls  us a call  us a batch  share",
        "-----------------------------------------------------------------------",
        "the step and the loop                                      100.0  75.8%",
        "waiting for data                                            10.0   7.6%",
        "Clip                   before_step      5       20.0        20.0  15.2%",
        "Small                  after_iter       5        2.0         2.0   1.5%",
        "132.0 us a batch, measured in 5 of 20 train batches",
        "",
        "outside of batches               calls  ms a call  seconds",
        "----------------------------------------------------------",
        "Clip                after_epoch      1      2.000    0.002",
    ]
    assert str(Costs()) == "no batch was measured, and nobody played outside of batches"


def test_many_that_took_next_to_nothing_are_one_line(time):
    ledger = ledger_of(4)
    many = [Spends(time, f"Small{number}", after_epoch=100) for number in range(30)]
    made(Slow(time), Spends(time, "Large", after_epoch=2000), *many, ledger).fit(Loader(time, 20), epochs=1)
    lines = ledger.stream.getvalue().splitlines()
    listed = lines[lines.index("") + 3 :]
    assert len(listed) == 11
    assert listed[0].split() == ["Large", "after_epoch", "1", "2.000", "0.002"]
    assert listed[-1] == "21 more, 0.002 seconds in all"
    assert len([row for row in ledger.costs.rows() if row["stage"] is None]) == 31


def test_an_experiment_is_called_so(tmp_path):
    ledger = ledger_of(4)
    made(ledger, experiment=Experiment("digits", "first", tmp_path, report=False)).fit(tiny_loader(48), epochs=1)
    assert {row["callback"] for row in ledger.costs.rows() if row["stage"] is None} == {"Experiment"}


def test_the_trace_holds_the_batches_and_the_players_in_order_of_time(time, tmp_path):
    ledger = ledger_of(2, path=tmp_path / "costs.json")
    made(Slow(time), Spends(time, "Clip", before_step=20, after_epoch=7), ledger).fit(Loader(time, 6), epochs=1)
    events = json.loads((tmp_path / "costs.json").read_text())["traceEvents"]
    assert events[0]["args"]["name"] == "cadenza, rank 0"
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["ts"] for event in slices] == sorted(event["ts"] for event in slices)
    batches = [event for event in slices if event["name"] == "train batch"]
    assert [event["dur"] for event in batches] == [130.0] * 3
    clips = [event for event in slices if event["name"] == "Clip at before_step"]
    for batch, clip in zip(batches, clips, strict=True):
        assert batch["ts"] <= clip["ts"]
        assert clip["ts"] + clip["dur"] <= batch["ts"] + batch["dur"]
    assert [event["dur"] for event in slices if event["name"] == "Clip at after_epoch"] == [7.0]
    assert list(tmp_path.iterdir()) == [tmp_path / "costs.json"]


def test_where_the_trace_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(ledger_of()).fit(tiny_loader(), epochs=1)
    assert list(tmp_path.iterdir()) == []
    made(ledger_of(), experiment=SimpleNamespace(folder=tmp_path / "mine")).fit(tiny_loader(), epochs=1)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["costs.json"]


def test_what_cannot_be_written_or_shown(tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(OSError, match="taken") as caught:
        made(ledger_of(path=tmp_path / "taken" / "costs.json")).fit(tiny_loader(), epochs=1)
    assert any("CostLedger at after_run" in note for note in caught.value.__notes__)
    trainer = made(ledger_of(path=tmp_path / "taken" / "costs.json", on_error="warn"))
    with pytest.warns(UserWarning, match="CostLedger is switched off"):
        trainer.fit(tiny_loader(), epochs=1)
    closed = io.StringIO()
    closed.close()
    with pytest.warns(UserWarning, match="CostLedger could not show its table"):
        made(ledger_of(stream=closed)).fit(tiny_loader(), epochs=1)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"every": 0}, ValueError, "at least 1"),
        ({"every": "100 steps"}, ValueError, "a whole number of batches"),
        ({"budget": 0}, ValueError, "above 0 and up to 1"),
        ({"budget": 5}, ValueError, "above 0 and up to 1"),
        ({"path": 3}, TypeError, "the name of a file"),
        ({"on_error": "ignore"}, ValueError, '"raise" or "warn"'),
    ],
)
def test_bad_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        CostLedger(**arguments)


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(100, marks=pytest.mark.long)]
)
def test_it_survives_what_can_happen_to_a_callback(every):
    check_callback(lambda: ledger_of(every))
