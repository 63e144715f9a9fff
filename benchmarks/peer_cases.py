"""The training of ``small.py`` in other libraries: as lean as each can be made, and as it comes.

Each function returns the seconds of its fit. Every one trains the same model with the same optimizer on the same
DataLoader, measures accuracy and has ten callbacks that do nothing, in the way its library offers.
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from measure import timed
from small import BATCH, CALLBACKS, loader, parts

Case = Callable[[Any, int], float]


def quiet(function: Callable[[], Any]) -> float:
    """Seconds of ``function``, whose output goes nowhere."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return timed(function)


def right(output: Any, targets: Any) -> Any:
    return (output.detach().argmax(1) == targets).sum()


def lightning(samples: Any, epochs: int, lean: bool) -> float:
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, optimizer, criterion = parts()

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> Any:
            output = self.model(batch[0])
            loss = criterion(output, batch[1])
            self.log("accuracy", right(output, batch[1]) / len(batch[1]), on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer

    class Nothing(pl.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any) -> None: ...

        def on_train_batch_end(self, *_: Any) -> None: ...

    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    more = dict.fromkeys(names, False) if lean else {}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[Nothing() for _ in range(CALLBACKS)],
            default_root_dir=folder,
            **more,
        )
        return quiet(lambda: trainer.fit(Module(), loader(samples)))


def transformers(samples: Any, epochs: int, lean: bool) -> float:
    import transformers as hf

    hf.logging.set_verbosity_error()
    model, optimizer, criterion = parts()
    correct = torch.tensor(0)

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: Any, labels: Any) -> Any:
            output = self.model(inputs)
            correct.add_(right(output, labels))
            return {"loss": criterion(output, labels), "logits": output}

    class Nothing(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None: ...

        def on_step_end(self, *_: Any, **__: Any) -> None: ...

    def collate(rows: Any) -> Any:
        inputs, labels = torch.utils.data.default_collate(rows)
        return {"inputs": inputs, "labels": labels}

    more: dict[str, Any] = {"logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True} if lean else {}
    with tempfile.TemporaryDirectory() as folder:
        arguments = hf.TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=BATCH, report_to=[], use_cpu=True, **more
        )
        trainer = hf.Trainer(
            Wrapped(),
            arguments,
            train_dataset=torch.utils.data.TensorDataset(*samples),
            data_collator=collate,
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
            callbacks=[Nothing() for _ in range(CALLBACKS)],
        )
        return quiet(trainer.train)


def ignite(samples: Any, epochs: int, lean: bool) -> float:
    from ignite.engine import Engine, Events, create_supervised_trainer
    from ignite.metrics import Accuracy, RunningAverage

    model, optimizer, criterion = parts()

    def step(_: Any, batch: Any) -> Any:
        output = model(batch[0])
        loss = criterion(output, batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return output, batch[1], loss

    def whole(x: Any, y: Any, output: Any, loss: Any) -> Any:
        return output, y, loss.item()

    engine = Engine(step) if lean else create_supervised_trainer(model, optimizer, criterion, output_transform=whole)
    Accuracy(output_transform=lambda output: output[:2]).attach(engine, "accuracy")
    if not lean:
        RunningAverage(output_transform=lambda output: output[2]).attach(engine, "loss")
    for _ in range(CALLBACKS):
        engine.add_event_handler(Events.ITERATION_STARTED, lambda _: None)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda _: None)
    return quiet(lambda: engine.run(loader(samples), max_epochs=epochs))


def fastai(samples: Any, epochs: int, lean: bool) -> float:
    from fastai.callback.core import Callback
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner, Recorder
    from fastai.metrics import accuracy
    from fastai.optimizer import OptimWrapper

    model, _, criterion = parts()

    class Nothing(Callback):  # type: ignore[misc]
        def before_batch(self) -> None: ...

        def after_batch(self) -> None: ...

    data = DataLoaders(loader(samples), loader((samples[0][:BATCH], samples[1][:BATCH])))
    learner = Learner(
        data,
        model,
        loss_func=criterion,
        opt_func=lambda params, **_: OptimWrapper(params, torch.optim.Adam),
        lr=1e-3,
        metrics=[] if lean else [accuracy],
        cbs=[Nothing() for _ in range(CALLBACKS)],
    )
    if lean:
        learner.remove_cbs(
            [cb for cb in learner.cbs if type(cb) is Recorder or type(cb).__name__ == "ProgressCallback"]
        )
    return quiet(lambda: learner.fit(epochs))


def keras(samples: Any, epochs: int, lean: bool) -> float:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras as k

    class Nothing(k.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, *_: Any, **__: Any) -> None: ...

        def on_train_batch_end(self, *_: Any, **__: Any) -> None: ...

    layers = [k.layers.Dense(256, "relu"), k.layers.Dense(256, "relu"), k.layers.Dense(10)]
    model = k.Sequential([k.Input((784,)), *layers])
    loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(k.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    nothing = [Nothing() for _ in range(CALLBACKS)]
    show = 0 if lean else "auto"
    return quiet(lambda: model.fit(loader(samples), epochs=epochs, verbose=show, callbacks=nothing))


def torchtnt(samples: Any, epochs: int, lean: bool) -> float:
    from torchtnt.framework.auto_unit import AutoUnit
    from torchtnt.framework.callback import Callback
    from torchtnt.framework.train import train
    from torchtnt.framework.unit import TrainUnit

    model, optimizer, criterion = parts()
    correct = torch.tensor(0)

    class Lean(TrainUnit):  # type: ignore[misc]
        def train_step(self, state: Any, data: Any) -> None:
            output = model(data[0])
            criterion(output, data[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            correct.add_(right(output, data[1]))

    class Default(AutoUnit):  # type: ignore[misc]
        def compute_loss(self, state: Any, data: Any) -> Any:
            output = self.module(data[0])
            correct.add_(right(output, data[1]))
            return criterion(output, data[1]), output

        def configure_optimizers_and_lr_scheduler(self, module: Any) -> Any:
            return optimizer, None

    class Nothing(Callback):  # type: ignore[misc]
        def on_train_step_start(self, *_: Any) -> None: ...

        def on_train_step_end(self, *_: Any) -> None: ...

    unit = Lean() if lean else Default(module=model)
    nothing = [Nothing() for _ in range(CALLBACKS)]
    return quiet(lambda: train(unit, loader(samples), max_epochs=epochs, callbacks=nothing))


def skorch(samples: Any, epochs: int, lean: bool) -> float:
    from skorch import NeuralNetClassifier
    from skorch.callbacks import Callback, EpochScoring

    model, _, _ = parts()

    class Nothing(Callback):  # type: ignore[misc]
        def on_batch_begin(self, *_: Any, **__: Any) -> None: ...

        def on_batch_end(self, *_: Any, **__: Any) -> None: ...

    nothing: list[Any] = [(f"nothing{i}", Nothing()) for i in range(CALLBACKS)]
    if not lean:
        nothing.append(("accuracy", EpochScoring("accuracy", on_train=True, name="train_accuracy")))
    net = NeuralNetClassifier(
        model,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=1e-3,
        max_epochs=epochs,
        batch_size=BATCH,
        iterator_train__shuffle=True,
        train_split=None,
        callbacks=nothing,
        verbose=0 if lean else 1,
    )
    return quiet(lambda: net.fit(*samples))


def accelerate(samples: Any, epochs: int, lean: bool) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, criterion = parts()
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(samples))

    def train() -> None:
        for _ in range(epochs):
            correct = torch.tensor(0)
            for inputs, targets in batches:
                if lean:
                    output = model(inputs)
                    accelerator.backward(criterion(output, targets))
                    optimizer.step()
                    optimizer.zero_grad()
                else:
                    with accelerator.accumulate(model):
                        output = model(inputs)
                        accelerator.backward(criterion(output, targets))
                        optimizer.step()
                        optimizer.zero_grad()
                correct += right(output, targets)
            float(correct)

    return quiet(train)


PEERS: dict[str, tuple[Callable[[Any, int, bool], float], list[str]]] = {
    "lightning": (lightning, ["lightning"]),
    "transformers": (transformers, ["transformers", "accelerate"]),
    "ignite": (ignite, ["pytorch-ignite"]),
    "fastai": (fastai, ["fastai"]),
    "keras": (keras, ["keras"]),
    "torchtnt": (torchtnt, ["torchtnt", "setuptools<81"]),
    "skorch": (skorch, ["skorch"]),
    "accelerate": (accelerate, ["accelerate"]),
}
"""The function of each, and what pip must install for it."""
