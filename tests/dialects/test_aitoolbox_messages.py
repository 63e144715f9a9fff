"""How long the messages of AIToolbox callbacks live in a training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cadenza.dialects.aitoolbox import AbstractCallback, MessageHandling, TrainLoop
from cadenza.testing import tiny_classifier, tiny_loader


class Writes(AbstractCallback):
    """Writes one message for each mode at each of some hooks."""

    def __init__(self) -> None:
        super().__init__("writes")

    def write(self, where: str) -> None:
        for mode in MessageHandling:
            self.message_service.write_message(mode.name, where, mode)

    def on_train_begin(self) -> None:
        self.write("train_begin")

    def on_epoch_end(self) -> None:
        self.write(f"epoch_end {self.train_loop_obj.epoch}")


class Reads(AbstractCallback):
    def __init__(self) -> None:
        super().__init__("reads", execution_order=1)
        self.seen: list[tuple[str, Any]] = []

    def read(self, where: str) -> None:
        self.seen += [(where, (mode.name, self.message_service.read_messages(mode.name))) for mode in MessageHandling]

    def on_epoch_begin(self) -> None:
        self.read(f"epoch_begin {self.train_loop_obj.epoch}")

    def on_epoch_end(self) -> None:
        self.read(f"epoch_end {self.train_loop_obj.epoch}")

    def on_train_end(self) -> None:
        self.read("train_end")


def test_the_four_modes_over_two_epochs() -> None:
    model, reads = tiny_classifier(), Reads()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = TrainLoop(model, tiny_loader(), tiny_loader(), None, sgd, nn.CrossEntropyLoss())
    loop.fit(num_epochs=2, callbacks=[Writes(), reads])
    found: dict[str, dict[str, Any]] = {}
    for where, (mode, messages) in reads.seen:
        found.setdefault(where, {})[mode] = messages
    begin, first, second = "train_begin", "epoch_end 0", "epoch_end 1"

    def kept(forever: list[str], epoch: Any, until_read: Any, overwrite: list[str]) -> dict[str, Any]:
        return {"KEEP_FOREVER": forever, "UNTIL_END_OF_EPOCH": epoch, "UNTIL_READ": until_read, "OVERWRITE": overwrite}

    assert found["epoch_begin 0"] == kept([begin], [begin], [begin], [begin])  # from before the first epoch
    assert found["epoch_end 0"] == kept([begin, first], [begin, first], [first], [first])
    assert found["epoch_begin 1"] == kept([begin, first], None, None, [first])  # purged when the epoch had ended
    assert found["epoch_end 1"] == kept([begin, first, second], [second], [second], [second])
    assert found["train_end"] == kept([begin, first, second], None, None, [second])
