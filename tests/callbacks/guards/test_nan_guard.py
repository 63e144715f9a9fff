"""NaNGuard: when it notices, what it says, what a skip leaves, and that looking costs no wait for the device."""

from __future__ import annotations

import math
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cadenza import Callback, Trainer, When
from cadenza.callbacks.guards import nan_guard
from cadenza.callbacks.guards.nan_guard import NaNGuard, NonFinite, largest
from cadenza.testing import check_callback

pytestmark = pytest.mark.filterwarnings("ignore:.*The run is stopped:UserWarning")

BATCHES = 12


def make_data(count=BATCHES, bad=(), value=math.inf):
    """Batches of six samples; those numbered ``bad`` hold one ``value`` that makes the loss NaN or infinite."""
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(6, 4, generator=generator), torch.arange(6) % 3) for _ in range(count)]
    for index in bad:
        data[index][0][2, 1] = value
    return data


def make_model(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *more, nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 3))


def make_trainer(*callbacks, model=None, criterion=None, **more):
    model = model if model is not None else make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Trainer(model, sgd, criterion or nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu", **more)


class Reason(Callback):
    said = None

    def after_run(self, run):
        self.said = run.stop_reason


# Noticing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "check_every", "snapshot_every", "stopped_after"),
    [
        (4, 1, None, 5),  # in that very batch
        (4, 3, None, 6),  # read after batches 3, 6, 9, ...
        (5, 3, None, 6),
        (10, 5, None, 12),  # the end of the epoch is read too
        (13, 5, None, 17),  # epoch 1: counted anew from its beginning
        (4, 10, 5, 5),  # a snapshot is taken only after what came before was read
        (0, 10, 50, 10),
    ],
)
def test_it_stops_at_the_next_reading_and_names_the_step(tmp_path, bad, check_every, snapshot_every, stopped_after):
    class Poison(Callback):
        def before_train_iter(self, run):
            if run.clock.batches == bad:
                run.inputs = run.inputs * math.inf

    guard = NaNGuard(check_every=check_every, snapshot_every=snapshot_every, folder=tmp_path)
    trainer = make_trainer(guard, Poison(), reason := Reason())
    history = trainer.fit(make_data(), make_data(2), epochs=2)
    assert trainer.clock.batches == stopped_after
    epoch, batch = divmod(bad, BATCHES)
    assert re.search(rf"the loss is (nan|inf) at step {bad} \(epoch {epoch + 1}, batch {batch + 1}\)", reason.said)
    assert not math.isfinite(history["train/loss"][-1])  # nothing is hidden
    assert all(math.isfinite(loss) for loss in history["train/loss"][:-1])
    assert sum("val/loss" in row for row in history.epochs) == epoch  # no validation after the hit
    assert guard.hits == 1


def test_raise_ends_the_run_with_an_error_that_names_the_place(tmp_path):
    trainer = make_trainer(NaNGuard("raise", check_every=2, folder=tmp_path))
    with pytest.raises(NonFinite, match=r"at step 4 \(epoch 1, batch 5\); trainer.replay\('") as caught:
        trainer.fit(make_data(bad=[4]), epochs=1)
    assert trainer.clock.batches == 6
    assert "NaNGuard at after_train_iter" in "".join(caught.value.__notes__)


def test_the_step_is_not_the_batch_when_steps_are_held(tmp_path):
    trainer = make_trainer(NaNGuard(check_every=1, folder=tmp_path), Hold(3), reason := Reason())
    trainer.fit(make_data(bad=[7]), epochs=1)
    assert "at step 2 (epoch 1, batch 8)" in reason.said


class Hold(Callback):
    """Accumulates the gradients of ``window`` batches."""

    asks = {"hold_step"}

    def __init__(self, window):
        self.window = window

    def before_train_iter(self, run):
        run.loss_weight = 1 / self.window
        if (run.batch_idx + 1) % self.window:
            run.hold_step()


def zeroed(index):
    """A criterion that is fine but for call ``index``, where its gradient is infinite and its value is not."""
    calls = []

    def criterion(output, targets):
        calls.append(1)
        root = (output * (0.0 if len(calls) == index + 1 else 1.0)).abs().sqrt()
        return root.mean() + nn.functional.cross_entropy(output, targets)

    return criterion


@pytest.mark.parametrize(("watch", "step", "what"), [("gradients", 4, "the largest gradient is nan"), ("both", 4, "")])
def test_gradients_are_noticed_in_the_step_that_uses_them(tmp_path, watch, step, what):
    guard = NaNGuard(watch=watch, check_every=3, folder=tmp_path)
    trainer = make_trainer(guard, reason := Reason(), criterion=zeroed(4))
    trainer.fit(make_data(), epochs=1)
    assert f"at step {step} (" in reason.said
    assert what in reason.said
    assert trainer.clock.batches == 6


def test_a_loss_comes_before_its_own_gradients(tmp_path):
    trainer = make_trainer(NaNGuard(watch="both", folder=tmp_path), reason := Reason())
    trainer.fit(make_data(bad=[4]), epochs=1)
    assert "the loss is nan at step 4 (" in reason.said


def test_the_loss_alone_is_one_step_late(tmp_path):
    trainer = make_trainer(NaNGuard(check_every=3, folder=tmp_path), reason := Reason(), criterion=zeroed(4))
    trainer.fit(make_data(), epochs=1)
    assert "the loss is nan at step 5 (epoch 1, batch 6)" in reason.said


class Scaled(Callback):
    """Trains with an fp16 scaler whose scale is ``scale`` at the beginning."""

    def __init__(self, scale):
        self.scale = scale

    def before_run(self, run):
        run.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale)


@pytest.mark.parametrize("action", ["stop", "skip"])
def test_what_an_fp16_scaler_withholds_is_no_hit(tmp_path, action):
    """With a scale near the largest number the first scaled losses overflow; the scaler halves it until they do not."""
    guard = NaNGuard(action, watch="gradients", check_every=1, folder=tmp_path)
    loss = nn.CrossEntropyLoss()
    trainer = make_trainer(guard, Scaled(2.0**127), reason := Reason(), criterion=lambda *given: 50 * loss(*given))
    trainer.fit(make_data(), epochs=2)
    assert 0 < trainer.clock.steps < trainer.clock.batches == 24  # some were withheld
    assert (guard.hits, reason.said) == (0, None)
    assert all(bool(parameter.isfinite().all()) for parameter in trainer.model.parameters())


def test_validation_in_mid_epoch_reads_what_came_before(tmp_path):
    seen = []

    class Look(Callback):
        def before_val_iter(self, run):
            seen.append(run.clock.batches)

    guard = NaNGuard(check_every=100, folder=tmp_path)
    trainer = make_trainer(guard, Look())
    trainer.fit(make_data(bad=[5]), make_data(1), epochs=1, validate_every="4 steps")
    assert seen == [3]  # after step 4; at step 8 the hit was noticed before the pass began
    assert trainer.clock.batches == 8


def test_a_batch_that_somebody_else_skipped_is_no_hit(tmp_path):
    class Skipper(Callback):
        asks = {"skip_backward"}

        def after_loss(self, run):
            if not run.loss.isfinite():
                run.skip_backward()

    guard = NaNGuard(check_every=1, folder=tmp_path)
    make_trainer(guard, Skipper()).fit(make_data(bad=[3, 7]), epochs=1)
    assert guard.hits == 0


def test_when_somebody_else_raises_a_hit_before_it_is_told(tmp_path):
    class Oops(Exception):
        pass

    class Fails(Callback):
        def after_train_iter(self, run):
            if run.batch_idx == 6:
                raise Oops

    guard = NaNGuard("raise", check_every=100, folder=tmp_path)
    said = r"at step 4 \(epoch 1, batch 5\).*This was before the run failed"
    with pytest.warns(UserWarning, match=said), pytest.raises(Oops):
        make_trainer(guard, Fails()).fit(make_data(bad=[4]), epochs=1)
    assert guard.file.exists()


def test_a_second_fit_is_guarded_as_well(tmp_path):
    guard = NaNGuard(check_every=1, folder=tmp_path)
    trainer = make_trainer(guard)
    trainer.fit(make_data(bad=[4]), epochs=1)
    first = guard.file
    trainer.model.load_state_dict(make_model().state_dict())
    for state in trainer._training.optimizers[0].state.values():
        state["momentum_buffer"].zero_()
    trainer.fit(make_data(bad=[2]), epochs=1)
    assert guard.hits == 2
    assert guard.file != first
    assert first.exists()
    assert guard.file.exists()


# Skipping -----------------------------------------------------------------------------------------------------------


def by_hand(model, data, criterion, epochs=1, on_gradients=False, weight=1.0):
    """The loop that one writes oneself: a batch that is not finite makes no step."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for inputs, targets in data:
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            loss = criterion(model(inputs), targets)
            if not on_gradients and not torch.isfinite(loss):
                for name, buffer in model.named_buffers():
                    if buffer.is_floating_point() and not torch.isfinite(buffer).all():
                        buffer.copy_(buffers[name])
                continue
            loss.backward()
            if not on_gradients or all(torch.isfinite(p.grad).all() for p in model.parameters()):
                sgd.step()
            sgd.zero_grad()
    return model


def same_state(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("layers", [(), (nn.BatchNorm1d(8),)], ids=["plain", "batch norm"])
def test_skip_equals_a_loop_that_skips_these_batches(tmp_path, layers):
    data = make_data(bad=[2, 3, 9], value=math.nan)
    trainer = make_trainer(guard := NaNGuard("skip", folder=tmp_path), model=make_model(*layers))
    torch.manual_seed(5)
    with pytest.warns(UserWarning, match=r"the loss is nan at step 2 \(epoch 1, batch 3\)") as caught:
        history = trainer.fit(data, epochs=2)
    assert len(caught) == 1  # the others are logged
    expected = make_model(*(nn.BatchNorm1d(8) for _ in layers))
    torch.manual_seed(5)
    by_hand(expected, data, nn.CrossEntropyLoss(), epochs=2)
    assert same_state(trainer.model, expected)
    assert all(bool(tensor.isfinite().all()) for tensor in trainer.model.state_dict().values())
    assert (guard.hits, trainer.clock.steps, trainer.clock.batches) == (6, 18, 24)
    assert all(math.isnan(loss) for loss in history["train/loss"])  # nothing is hidden


def test_skip_of_gradients_equals_a_loop_that_does_not_step_on_them(tmp_path):
    trainer = make_trainer(guard := NaNGuard("skip", watch="gradients", folder=tmp_path), criterion=zeroed(4))
    torch.manual_seed(5)
    with pytest.warns(UserWarning, match=r"the largest gradient is nan at step 4"):
        trainer.fit(make_data(), epochs=1)
    expected = make_model()
    torch.manual_seed(5)
    by_hand(expected, make_data(), zeroed(4), on_gradients=True)
    assert same_state(trainer.model, expected)
    assert (guard.hits, trainer.clock.steps) == (1, 11)


def test_skip_under_accumulation_adds_nothing_of_that_batch(tmp_path):
    data = make_data(bad=[4], value=math.nan)
    trainer = make_trainer(NaNGuard("skip", folder=tmp_path), Hold(3), model=nn.Linear(4, 3))
    expected = nn.Linear(4, 3)
    expected.load_state_dict(trainer.model.state_dict())
    with pytest.warns(UserWarning, match="batch 5"):
        trainer.fit(data, epochs=1)
    sgd = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9)
    for index, (inputs, targets) in enumerate(data):
        if index != 4:
            (nn.functional.cross_entropy(expected(inputs), targets) * (1 / 3)).backward()
        if index % 3 == 2:
            sgd.step()
            sgd.zero_grad()
    assert same_state(trainer.model, expected)


def test_too_many_in_a_row_stop_the_run(tmp_path):
    guard = NaNGuard("skip", max_in_row=3, folder=tmp_path)
    trainer = make_trainer(guard, reason := Reason())
    with pytest.warns(UserWarning, match="batch 2"):
        trainer.fit(make_data(bad=[1, 2, 5, 6, 7, 8]), epochs=1)
    assert trainer.clock.batches == 8
    assert "at step 3 (epoch 1, batch 8), 3 batches in a row" in reason.said


@pytest.mark.parametrize(
    "options",
    [{}, {"watch": "both", "check_every": 2}, {"action": "skip", "watch": "both"}, {"snapshot_every": 2}],
)
def test_without_a_hit_training_is_the_same_to_the_last_bit(options):
    models = []
    for callbacks in ([], [NaNGuard(**options)]):
        torch.manual_seed(3)
        trainer = make_trainer(*callbacks, model=make_model(nn.BatchNorm1d(8)))
        torch.manual_seed(4)
        history = trainer.fit(make_data(), make_data(2), epochs=2)
        models.append((trainer.model, history["train/loss"], torch.rand(1)))
    assert same_state(models[0][0], models[1][0])
    assert models[0][1:] == models[1][1:]


# Cost ---------------------------------------------------------------------------------------------------------------


class HostReads(TorchDispatchMode):
    """Counts the times that a value is asked for on the host."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("watch", "check_every", "readings"), [("loss", 4, 3), ("both", 4, 3), ("loss", 100, 1)])
def test_stop_waits_for_the_device_only_when_it_reads(monkeypatch, watch, check_every, readings):
    calls = []

    def counted(values):
        values = list(values)
        calls.append(len(values))
        return real(values)

    real = nan_guard.read
    monkeypatch.setattr(nan_guard, "read", counted)
    counts = []
    for callbacks in ([], [NaNGuard(watch=watch, check_every=check_every)]):
        with HostReads() as reads:
            make_trainer(*callbacks).fit(make_data(), epochs=1)
        counts.append(reads.count)
    assert counts[0] == counts[1]
    assert len([count for count in calls if count]) == readings
    assert sum(calls) == BATCHES * (2 if watch == "both" else 1)


@pytest.mark.parametrize(
    ("options", "inside"),
    [
        ({}, set()),
        ({"watch": "both"}, {"after_step"}),
        ({"action": "skip"}, {"before_backward"}),
        ({"action": "skip", "watch": "gradients"}, {"before_step"}),
    ],
)
def test_it_opens_the_step_only_where_it_must(options, inside):
    spans = ("forward", "loss", "backward", "step", "zero_grad")
    points = {f"{kind}_{span}" for span in spans for kind in ("before", "around", "after")}
    assert set(NaNGuard(**options).plays()) & points == inside


@pytest.mark.parametrize(("snapshot_every", "memory", "longest"), [(5, 1 << 30, 5), (50, 6 * (16 + 8) * 3, 3)])
def test_what_is_kept_is_bounded(snapshot_every, memory, longest):
    lengths = []

    class Look(Callback):
        def before_train_iter(self, run):
            lengths.append(len(guard._tape.batches))

    guard = NaNGuard(snapshot_every=snapshot_every, batch_memory=memory)
    make_trainer(guard, Look()).fit(make_data(), epochs=2)
    assert max(lengths) == longest
    assert lengths[BATCHES] == 1  # a new tape for each epoch
    assert guard._tape.batches == []  # and nothing is kept after the run


# Files, messages, arguments -----------------------------------------------------------------------------------------


def test_the_file_goes_to_the_folder_or_to_the_experiment_or_to_a_temporary_one(tmp_path, monkeypatch):
    def file_of(experiment=None, **options):
        guard = NaNGuard(check_every=1, **options)
        make_trainer(guard, experiment=experiment).fit(make_data(bad=[2]), epochs=1)
        assert torch.load(guard.file, weights_only=True)["hit"]["batch_idx"] == 2
        return guard.file

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert file_of(folder=tmp_path / "here").parent == tmp_path / "here"
    assert file_of(experiment=SimpleNamespace(folder=tmp_path / "run")).parent == tmp_path / "run" / "nan"
    temporary = file_of()
    assert temporary.is_relative_to(tmp_path / "tmp")
    assert temporary.parent.name == "nan"


def test_a_batch_that_cannot_be_kept_is_told_and_training_goes_on(tmp_path):
    class Odd:
        pass

    data = [(inputs, targets, Odd()) for inputs, targets in make_data(bad=[4])]

    class Main(Callback):
        def after_fetch(self, run):
            if hasattr(run, "batch"):
                run.batch = run.batch[:2]

    guard = NaNGuard(check_every=1, folder=tmp_path)
    trainer = make_trainer(guard, Main(), reason := Reason())
    with pytest.warns(UserWarning, match="keeps nothing for a replay") as told:
        trainer.fit(data, epochs=1)
    assert ["The run is stopped" in str(one.message) for one in told] == [False, True]
    assert "at step 4 (epoch 1, batch 5); nothing was kept for a replay: the batch[2] is a Odd" in reason.said
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_told(tmp_path):
    (tmp_path / "file").write_text("in the way")
    trainer = make_trainer(NaNGuard(check_every=1, folder=tmp_path / "file"), reason := Reason())
    trainer.fit(make_data(bad=[4]), epochs=1)
    assert "at step 4 (epoch 1, batch 5); the replay file could not be written" in reason.said


def test_without_snapshots_nothing_is_written(tmp_path):
    trainer = make_trainer(NaNGuard(check_every=1, snapshot_every=None, folder=tmp_path), reason := Reason())
    trainer.fit(make_data(bad=[4]), epochs=1)
    assert "nothing was kept for a replay: snapshot_every is None" in reason.said
    assert list(tmp_path.iterdir()) == []


def test_under_when_the_batches_of_the_window_are_guarded(tmp_path):
    guard = NaNGuard(check_every=1, folder=tmp_path)
    trainer = make_trainer(When(guard, start="6 batches"), reason := Reason())
    trainer.fit(make_data(bad=[8]), epochs=1)
    assert "at step 8 (epoch 1, batch 9)" in reason.said
    unguarded = make_trainer(When(NaNGuard(check_every=1), stop="6 batches"))
    unguarded.fit(make_data(bad=[8]), epochs=1)
    assert unguarded.clock.batches == BATCHES


def test_asks_says_what_it_may_ask():
    assert NaNGuard("skip").asks == {"skip_backward"}
    assert NaNGuard("skip", watch="both").asks == {"skip_backward", "skip_step"}
    assert NaNGuard("stop", watch="both").asks == frozenset()


def test_explain_says_what_it_watches_and_what_it_then_does():
    said = make_trainer(NaNGuard(watch="both")).explain()
    assert "watches loss and gradients, read every 10 batches, then: stop; a copy on the host every 50 batches" in said


def test_largest_is_the_largest_magnitude_or_what_is_not_finite():
    assert float(largest([torch.tensor([1.0, -4.0]), torch.empty(0), torch.tensor([2.0])])) == 4.0
    assert float(largest([torch.tensor([1e30, 1e30])])) == pytest.approx(1e30)  # no overflow as in a sum of squares
    assert math.isnan(float(largest([torch.tensor([1.0, math.nan]), torch.tensor([math.inf])])))
    assert float(largest([torch.eye(2).to_sparse() * 3])) == 3.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "ignore"}, '"stop", "skip" or "raise"'),
        ({"watch": "weights"}, '"loss", "gradients" or "both"'),
        ({"check_every": 0}, "check_every must be a whole number of at least 1"),
        ({"snapshot_every": 0}, "snapshot_every must be a whole number"),
        ({"max_in_row": 1.5}, "max_in_row must be a whole number"),
        ({"batch_memory": True}, "batch_memory must be a whole number"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        NaNGuard(**arguments)


@pytest.mark.parametrize("guard", [NaNGuard("skip", watch="both")])
def test_it_survives_what_can_happen_to_a_callback(guard):
    check_callback(guard)


# Who hears of it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"action": "skip", "max_in_row": 2}], ids=["stop", "too many skips"])
def test_a_stop_is_warned_of_where_nobody_shows_it(options, tmp_path):
    trainer = make_trainer(NaNGuard(check_every=1, folder=tmp_path, **options))
    with warnings.catch_warnings(record=True, action="always") as told:
        trainer.fit(make_data(bad=[2, 3]), epochs=1)
    stops = [one for one in told if "The run is stopped" in str(one.message)]
    assert re.match("NaNGuard: the loss is (nan|inf) at ", str(stops[0].message))
    assert [one.filename for one in stops] == [__file__]
    assert str(stops[0].message) == f"{trainer.stop_reason}. The run is stopped"
