"""What a callback of AIToolbox reaches through ``train_loop_obj``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cadenza
from cadenza.dialects import installed
from cadenza.dialects.aitoolbox import (
    AbstractCallback,
    AbstractExperimentCallback,
    AbstractModelFeedDefinition,
    MessageHandling,
    MessageService,
    ModelTrainHistoryPlot,
    ModelWrap,
    MultiLoss,
    MultiOptimizer,
    TrainLoop,
    TTModel,
)
from cadenza.dialects.aitoolbox.table import ATTRIBUTES
from cadenza.experiment import Experiment
from cadenza.testing import tiny_classifier, tiny_loader

OF_EXPERIMENTS = {"project_name", "experiment_name", "local_model_result_folder_path"}


def new_loop(model: Any = None, **options: Any) -> TrainLoop:
    torch.manual_seed(0)
    model = tiny_classifier() if model is None else model
    module = model.model if isinstance(model, ModelWrap) else model
    loaders = [tiny_loader(24, batch_size=8) for _ in range(3)]
    return TrainLoop(model, *loaders, torch.optim.SGD(module.parameters(), lr=0.1), nn.CrossEntropyLoss(), **options)


def new_trainer(*callbacks: Any, **options: Any) -> cadenza.Trainer:
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu", **options)


class At(AbstractCallback):
    """Calls a function with the loop at chosen hooks."""

    def __init__(self, **acts: Any) -> None:
        super().__init__("at")
        self.acts = acts

    def on_train_begin(self) -> None:
        self.acts.get("train_begin", lambda loop: None)(self.train_loop_obj)

    def on_batch_end(self) -> None:
        self.acts.get("batch_end", lambda loop: None)(self.train_loop_obj)

    def on_epoch_end(self) -> None:
        self.acts.get("epoch_end", lambda loop: None)(self.train_loop_obj)

    def on_train_end(self) -> None:
        self.acts.get("train_end", lambda loop: None)(self.train_loop_obj)


def test_every_attribute_of_the_table_is_there() -> None:
    names = [row.name for row in ATTRIBUTES if row.name not in OF_EXPERIMENTS]
    missing: list[list[str]] = []
    at = At(batch_end=lambda loop: missing.append([name for name in names if not hasattr(loop, name)]))
    new_loop().fit(num_epochs=1, callbacks=[at])
    new_trainer(at).fit(tiny_loader(24, batch_size=8), tiny_loader(), epochs=1)
    assert missing == [[]] * 6


def test_counters_are_those_of_the_batch() -> None:
    seen: list[tuple[int, int, int, int]] = []

    def look(loop: Any) -> None:
        seen.append((loop.epoch, loop.iteration, loop.total_iteration_idx, len(loop.loss_batch_accum)))

    new_loop().fit(num_epochs=2, callbacks=[At(batch_end=look)])
    assert seen == [(0, 0, 0, 1), (0, 1, 1, 2), (0, 2, 2, 3), (1, 0, 3, 1), (1, 1, 4, 2), (1, 2, 5, 3)]


def test_predictions_are_kept_until_the_training_goes_on() -> None:
    asked: list[str] = []

    class Counted(AbstractCallback):
        def on_after_batch_prediction(self, y_pred_batch: Any, y_test_batch: Any, metadata: Any, info: Any) -> None:
            asked.append(info["type"])
            assert len(y_pred_batch) == len(y_test_batch) == 8

    def predict(loop: Any) -> None:
        first = loop.predict_on_validation_set(execute_callbacks=True)
        assert loop.predict_on_validation_set(execute_callbacks=True) is first
        assert loop.predict_on_validation_set(force_prediction=True) is not first
        assert first[0].shape == (24, 3)
        assert first[1].shape == (24,)

    new_loop().fit(num_epochs=2, callbacks=[Counted("counted"), At(epoch_end=predict)])
    assert asked == ["validation"] * 6


def test_a_prediction_leaves_the_training_as_it_is() -> None:
    plain, watched = new_loop(), new_loop()
    plain.fit(num_epochs=2)
    watched.fit(num_epochs=2, callbacks=[At(batch_end=lambda loop: loop.predict_on_test_set())])
    for mine, theirs in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_losses_over_whole_sets() -> None:
    seen: list[float] = []

    def look(loop: Any) -> None:
        seen.append(float(loop.evaluate_loss_on_validation_set()))
        assert loop.evaluate_loss_on_test_set(float_dict_format=True) == pytest.approx(float(seen[-1]))
        images, targets = tiny_loader(24, batch_size=24).dataset.tensors  # type: ignore[attr-defined]
        assert seen[-1] == pytest.approx(nn.functional.cross_entropy(loop.model(images), targets).item())

    loop = new_loop()
    loop.fit(num_epochs=2, callbacks=[At(epoch_end=look)])
    assert loop.train_history["val_loss"] == seen
    assert loop.train_history["loss"] == pytest.approx(seen)  # the same data in this test
    assert loop.train_history["train_end_test_loss"] == pytest.approx(seen[-1:])


def test_evaluation_every_second_epoch_or_never() -> None:
    second, never = new_loop(end_auto_eval=2), new_loop(end_auto_eval=False)
    second.fit(num_epochs=4)
    never.fit(num_epochs=2)
    assert len(second.train_history["val_loss"]) == len(second.train_history["loss"]) == 2
    assert never.train_history["val_loss"] == []
    assert len(never.train_history["accumulated_loss"]) == 2
    with pytest.raises(ValueError, match="end_auto_eval"):
        new_loop(end_auto_eval=0)


def test_a_metric_in_the_history_is_logged_in_the_run() -> None:
    loop = new_loop()
    loop.fit(
        num_epochs=2,
        callbacks=[At(epoch_end=lambda loop: loop.insert_metric_result_into_history("bleu", loop.epoch / 2))],
    )
    assert loop.train_history["bleu"] == loop._trainer.history["bleu"] == [0.0, 0.5]


def test_loaders_optimizer_and_criterion_may_be_replaced() -> None:
    batches: list[int] = []
    replaced: list[Any] = []

    def change(loop: Any) -> None:
        batches.append(loop.iteration + 1)
        loop.train_loader = tiny_loader(8, batch_size=8)
        loop.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        loop.optimizer = replaced[0]

    loop = new_loop()
    replaced.append(torch.optim.SGD(loop.model.parameters(), lr=0.0))
    before: list[Tensor] = []
    loop.fit(num_epochs=1, callbacks=[At(epoch_end=change)])
    before.extend(p.detach().clone() for p in loop.model.parameters())
    loop.fit(num_epochs=1)
    assert batches == [3, 1]
    assert all(torch.equal(a, b) for a, b in zip(before, loop.model.parameters(), strict=True))


def test_what_is_not_there_is_refused_with_the_nearest() -> None:
    def read(loop: Any) -> None:
        loop.train_histori

    with pytest.raises(AttributeError, match=r"aitoolbox: there is no attribute 'train_histori'.*'train_history'"):
        new_loop().fit(num_epochs=1, callbacks=[At(train_begin=read)])

    with pytest.raises(AttributeError, match="fit_distributed is not carried: it is of a version before"):
        new_loop().fit_distributed()
    with pytest.raises(ValueError, match=r"opt_level is of versions before 1\.8: write use_amp=True\), not opt_level"):
        new_loop(use_amp={"opt_level": "O1"})
    with installed("aitoolbox"), pytest.raises(ModuleNotFoundError, match="not carried: give the model to TrainLoop"):
        importlib.import_module("aitoolbox.experiment.local_experiment_saver")

    def write(loop: Any) -> None:
        loop.early_stops = 3  # the user's own

    loop = new_loop()
    loop.fit(num_epochs=2, callbacks=[At(train_begin=write)])
    assert (loop.early_stops, loop.early_stop, loop.epoch) == (3, False, 1)


# Messages -------------------------------------------------------------------------------------------------------------


def test_the_four_ways_in_which_messages_are_kept() -> None:
    service = MessageService()
    for handling in (MessageHandling.KEEP_FOREVER, MessageHandling.UNTIL_END_OF_EPOCH, MessageHandling.UNTIL_READ):
        service.write_message("key", handling.name, handling)
    assert service.read_messages("key") == ["KEEP_FOREVER", "UNTIL_END_OF_EPOCH", "UNTIL_READ"]
    assert service.read_messages("key") == ["KEEP_FOREVER", "UNTIL_END_OF_EPOCH"]
    service.end_of_epoch_trigger()
    assert service.read_messages("key") == ["KEEP_FOREVER"]
    service.write_message("key", "new", [MessageHandling.OVERWRITE, MessageHandling.UNTIL_READ])
    assert service.read_messages("key") == ["new"]
    assert service.read_messages("key") == []
    with pytest.raises(ValueError, match="only OVERWRITE goes together"):
        service.write_message("key", 1, [MessageHandling.UNTIL_READ, MessageHandling.KEEP_FOREVER])


def test_messages_go_from_callback_to_callback_and_end_with_the_epoch() -> None:
    read: list[Any] = []

    class Writer(AbstractCallback):
        def on_epoch_end(self) -> None:
            self.message_service.write_message("epoch", self.train_loop_obj.epoch)

    class Reader(AbstractCallback):
        def on_epoch_begin(self) -> None:
            read.append(self.message_service.read_messages("epoch"))

        def on_epoch_end(self) -> None:
            read.append(self.message_service.read_messages("epoch"))

        def on_train_end(self) -> None:
            read.append(self.message_service.read_messages("epoch"))

    new_loop().fit(num_epochs=2, callbacks=[Reader("reader", execution_order=1), Writer("writer")])
    assert read == [None, [0], None, [1], None]


# Models ---------------------------------------------------------------------------------------------------------------


class Feed(AbstractModelFeedDefinition):
    def get_loss(self, model: Any, batch_data: Any, criterion: Any, device: Any) -> Any:
        return criterion(model(batch_data[0]), batch_data[1])

    def get_predictions(self, model: Any, batch_data: Any, device: Any) -> Any:
        return model(batch_data[0]).argmax(1), batch_data[1], {"row": list(range(len(batch_data[0])))}


def test_a_wrapped_model_is_fed_as_its_definition_says() -> None:
    wrapped, plain = new_loop(ModelWrap(tiny_classifier(), Feed())), new_loop()
    assert wrapped.fit(num_epochs=1) is wrapped.model
    plain.fit(num_epochs=1)
    for mine, theirs in zip(wrapped.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    predictions, _, metadata = wrapped.predict_on_test_set()
    assert predictions.shape == (24,)
    assert metadata["row"] == [*range(8)] * 3


class TwoHeads(TTModel):
    """Two losses over two disjoint halves; the second is worth 100, to tell the labels apart."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

    def get_loss(self, batch_data: Any, criterion: Any, device: Any) -> MultiLoss:
        inputs, targets = batch_data
        return MultiLoss({"zeta": criterion(self.one(inputs), targets), "alpha": self.two(inputs).sum() * 0 + 100.0})

    def get_predictions(self, batch_data: Any, device: Any) -> Any:
        return self.one(batch_data[0]).argmax(1), batch_data[1], {}


def test_several_losses_and_optimizers_keep_their_names_and_parameters() -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    halves = MultiOptimizer([torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.one, model.two)])
    loaders = [tiny_loader(24, batch_size=8), tiny_loader(24, batch_size=8), None]
    loop = TrainLoop(model, *loaders, halves, nn.CrossEntropyLoss())
    before = model.one.weight.detach().clone(), model.two.weight.detach().clone()
    loop.fit(num_epochs=1)
    assert not torch.equal(model.one.weight, before[0])
    assert torch.equal(model.two.weight, before[1])
    assert loop.train_history["loss_alpha"] == [100.0]
    assert loop.train_history["loss_zeta"][0] < 3


# The experiment -------------------------------------------------------------------------------------------------------


class Details(AbstractExperimentCallback):
    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details(infer_cloud_details=False)


def test_details_are_inferred_from_the_experiment_of_the_run(tmp_path: Path) -> None:
    details, plot = Details("details"), ModelTrainHistoryPlot()
    experiment = Experiment("digits", "first", tmp_path, report=False)
    new_trainer(details, plot, experiment=experiment).fit(tiny_loader(), epochs=2)
    assert (details.project_name, details.experiment_name) == ("digits", "first")
    assert details.local_model_result_folder_path == str(tmp_path)
    assert (experiment.folder / "results" / "plots_epoch_1" / "loss.png").is_file()


def test_without_an_experiment_there_is_nothing_to_infer() -> None:
    with pytest.raises(
        AttributeError, match="aitoolbox: project_name is not known: this loop belongs to no experiment"
    ):
        new_loop().fit(num_epochs=1, callbacks=[Details("details")])
