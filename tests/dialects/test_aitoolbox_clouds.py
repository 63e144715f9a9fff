"""What leaves the machine: files for a cloud, mails, and a log."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.callbacks.showing.notify_channels import Mail
from cadenza.dialects.aitoolbox import EmailNotification, LogUpload, ModelTrainHistoryPlot, TrainLoopCheckpoint
from cadenza.testing import tiny_classifier, tiny_loader


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket of a server on this machine."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    told = {"ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()), "DEFAULT_REGION": "us-east-1"}
    for name, value in {**told, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    made = boto3.resource("s3").Bucket("results")
    made.create()
    yield made
    server.stop()


def new_loop(root: Path, **options: Any) -> TrainLoopCheckpoint:
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    details = ("digits", "cnn", str(root), {"lr": 0.1})
    loaders = [tiny_loader(), tiny_loader(), None]
    return TrainLoopCheckpoint(model, *loaders, sgd, nn.CrossEntropyLoss(), *details, **options)


def test_checkpoints_and_a_log_are_uploaded_as_they_are(tmp_path: Path, bucket: Any) -> None:
    log = tmp_path / "training.log"
    log.write_text("a line")
    loop = new_loop(tmp_path / "root", cloud_save_mode="s3", bucket_name="results", cloud_dir_prefix="all")
    loop.fit(num_epochs=1, callbacks=[LogUpload(str(log))])
    folder = f"all/digits/cnn_{loop.experiment_timestamp}"
    checkpoint = f"checkpoint_model/model_cnn_{loop.experiment_timestamp}_E0.pth"
    stored = {one.key.removeprefix(f"{folder}/"): one.get()["Body"].read() for one in bucket.objects.all()}
    assert {checkpoint, "hyperparams_list.txt", "training.log"} <= set(stored)
    here = tmp_path / "root" / "digits" / f"cnn_{loop.experiment_timestamp}"
    assert stored[checkpoint] == (here / checkpoint).read_bytes()
    assert stored["training.log"] == b"a line"


class Received:
    """Keeps the mails that an SMTP server receives."""

    def __init__(self) -> None:
        self.mails: list[Message] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(message_from_bytes(envelope.content))
        return "250 OK"


def test_mails_go_through_a_server_with_plots(tmp_path: Path) -> None:
    from tests.callbacks.showing.test_notify import OnAnyPort

    received = Received()
    server = OnAnyPort(received)
    server.start()
    try:
        mail = Mail("127.0.0.1", "me@example.org", "you@example.org", port=server.port, security=None)
        notify = EmailNotification("Me", "me@example.org", "you@example.org", channel=mail)
        new_loop(tmp_path, cloud_save_mode="local").fit(num_epochs=2, callbacks=[notify, ModelTrainHistoryPlot()])
    finally:
        server.stop()
    assert [mail["Subject"] for mail in received.mails] == [
        "End of epoch 0 report: digits: cnn",
        "End of epoch 1 report: digits: cnn",
        "End of training: digits: cnn",
    ]
    names = [part.get_filename() for part in received.mails[1].walk() if part.get_filename()]
    assert sorted(names) == ["accumulated_loss.png", "loss.png", "val_loss.png"]
    text = next(part for part in received.mails[0].walk() if part.get_content_type() == "text/plain")
    assert b"val_loss: " in (text.get_payload(decode=True) or b"")
