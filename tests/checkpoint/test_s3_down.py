"""A store that goes away or falls silent holds up neither the training nor the end of it, and loses nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadenza import Callback
from cadenza.callbacks import Checkpoint
from cadenza.checkpoint import Shelf, Writer
from cadenza.checkpoint.backends import remote, watchdog

from ..callbacks.saving import End, difference, loader, trainer
from .proxy import Proxy
from .states import small_state, value_of

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore:.*It is in:UserWarning"
    ),
]
BOUNDED = 30.0
"""Seconds. Without limits each of these takes minutes."""


class Between(Proxy):
    """The limits are short while nothing is answered in any case; else a busy machine might reach them."""

    def hush(self) -> None:
        super().hush()
        remote.ANSWER, remote.TRANSFER = 1.0, 1.0

    def come_back(self) -> None:
        remote.ANSWER, remote.TRANSFER = LIMITS
        super().come_back()


LIMITS = remote.ANSWER, remote.TRANSFER


@pytest.fixture
def proxy(endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """``s3://`` leads through it."""
    import s3fs

    standing = Between(endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", standing.url)
    s3fs.S3FileSystem.clear_instance_cache()
    yield standing
    remote.ANSWER, remote.TRANSFER = LIMITS
    standing.silent.clear()
    standing.leave()


class At(Callback):
    """Does something before a training batch, and keeps how long each step took."""

    def __init__(self, **acts: Any) -> None:
        self.acts = {int(name[1:]): act for name, act in acts.items()}
        self.longest, self.last = 0.0, time.monotonic()

    def before_forward(self, run: Any) -> None:
        if run.training:
            now = time.monotonic()
            self.longest, self.last = max(self.longest, now - self.last), now
            self.acts.get(run.clock.batches, lambda: None)()


def unsent(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.rglob("COMMITTED"))


@pytest.mark.parametrize("failure", ["leave", "hush"])
def test_a_store_that_is_lost_in_mid_run_is_not_waited_for(
    failure: str, proxy: Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each later save is due at once. The newest is on this machine, and a resume finds it there."""
    monkeypatch.chdir(tmp_path)
    place = f"s3://{bucket}/lost"
    lost, whole, again = At(b2=getattr(proxy, failure)), End(), End()
    trainer(Checkpoint(None, to=tmp_path / "whole"), whole).fit(loader(), epochs=2)
    spill = tmp_path / "unsent-checkpoints"
    start = time.monotonic()
    trainer(Checkpoint("1 step", to=place), lost).fit(loader(), epochs=1)
    assert time.monotonic() - start < BOUNDED
    assert [name[7:] for name in unsent(spill)] == ["epoch=1-step=5"]
    proxy.come_back()
    trainer(Checkpoint(None, to=place), again).fit(loader(), epochs=2, resume="auto")
    assert difference(whole, again) is None
    assert unsent(spill) == [], "it was moved when the store was back"
    assert Shelf(place).read("last").meta["step"] == 10


def test_saves_after_the_first_that_failed_do_not_touch_the_store(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    writer = Writer(Shelf(f"s3://{bucket}/many"), keep_last=2, spill=tmp_path, retries=1, backoff=0.0)
    writer.save("v1", small_state(1.0))
    writer.wait()
    proxy.hush()
    writer.save("v2", small_state(2.0))
    writer.wait()
    connections, start = proxy.connections, time.monotonic()
    for value in range(3, 20):
        writer.save(f"v{value}", small_state(float(value)))
    writer.wait()
    assert time.monotonic() - start < BOUNDED
    assert proxy.connections == connections
    assert value_of(Shelf(tmp_path).read("last").state) == 19.0
    proxy.come_back()
    writer.close()
    assert [name[7:] for name in writer.shelf.names()] == ["v1", "v19"]
    assert value_of(writer.shelf.read("last").state) == 19.0
    assert unsent(tmp_path) == []


def test_what_waits_moves_over_while_the_training_goes_on(
    proxy: Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "FIRST", 0.0)
    writer = Writer(Shelf(f"s3://{bucket}/back"), keep_last=3, keep_best=1, spill=tmp_path, retries=0)

    def save(value: float, loss: float) -> None:
        writer.save(f"v{value:g}", small_state(value), {"monitor": "loss", "mode": "min", "value": loss})
        writer.wait()

    save(1.0, 0.5)
    proxy.leave()
    for value, loss in ((2.0, 0.1), (3.0, 0.2), (4.0, 0.3)):
        save(value, loss)
    assert len(unsent(tmp_path)) == 2, "the newest and the best"
    proxy.come_back()
    until = time.monotonic() + BOUNDED
    while writer.attempts.outage.is_on and time.monotonic() < until:
        save(5.0, 0.4)
    assert unsent(tmp_path) == []
    save(6.0, 0.4)
    assert unsent(tmp_path) == []
    writer.close()
    assert value_of(Shelf(f"s3://{bucket}/back").read("last").state) == 6.0
    assert value_of(Shelf(f"s3://{bucket}/back").read("best").state) == 2.0


def test_what_another_run_left_here_is_neither_moved_nor_deleted(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    first = Writer(Shelf(f"s3://{bucket}/runs"), spill=tmp_path, retries=0, runs={"first"})
    proxy.leave()
    first.save("v1", small_state(1.0), {"run": "first"})
    first.close()
    second = Writer(Shelf(f"s3://{bucket}/runs"), spill=tmp_path, retries=0, runs={"second"})
    second.save("v2", small_state(2.0), {"run": "second"})
    second.wait()
    assert unsent(tmp_path) == ["000001-v1", "000002-v2"]
    proxy.come_back()
    second.close()
    assert unsent(tmp_path) == ["000001-v1"]
    assert second.shelf.names() == ["000002-v2"]


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_store_that_is_silent_from_the_start_is_said(resume: Any, proxy: Proxy, bucket: str) -> None:
    proxy.hush()
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=rf"s3://{bucket}/silent did not answer within 1 s"):
        trainer(Checkpoint(to=f"s3://{bucket}/silent")).fit(loader(), epochs=1, resume=resume)
    assert time.monotonic() - start < BOUNDED


def test_one_that_refuses_connections_from_the_start_is_said(proxy: Proxy, bucket: str) -> None:
    proxy.leave()
    start = time.monotonic()
    with pytest.raises(Exception, match="onnect"):
        trainer(Checkpoint(to=f"s3://{bucket}/gone")).fit(loader(), epochs=1)
    assert time.monotonic() - start < BOUNDED


def test_a_store_that_falls_silent_while_it_is_read_is_said(proxy: Proxy, bucket: str) -> None:
    shelf = Shelf(f"s3://{bucket}/reading")
    name = shelf.write("v1", small_state(1.0))
    with shelf.store.open(name, "model.safetensors") as file:
        proxy.hush()
        with pytest.raises(TimeoutError, match="did not answer"):
            file.read(10)


def test_a_server_that_accepts_and_never_answers_is_silent_for_any_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/run"
        with pytest.raises(TimeoutError, match="did not answer within"):
            Shelf(url).names()


@pytest.mark.long
def test_a_server_that_is_stopped_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process under SIGSTOP, with the real limits."""
    import boto3
    import s3fs

    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for name, value in {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        s3fs.S3FileSystem.clear_instance_cache()
        _until_it_listens(port)
        boto3.client("s3").create_bucket(Bucket="stopped")
        stop = At(b7=lambda: os.kill(server.pid, signal.SIGSTOP))
        start = time.monotonic()
        trainer(Checkpoint("1 step", to="s3://stopped/run"), stop).fit(loader(), epochs=6)
        assert time.monotonic() - start < 90
        assert stop.longest < 45
        os.kill(server.pid, signal.SIGCONT)
        again = End()
        trainer(Checkpoint("1 step", to="s3://stopped/run"), again).fit(loader(), epochs=6, resume="auto")
        assert Shelf("s3://stopped/run").read("last").meta["step"] == 30
    finally:
        server.kill()
        server.wait()


def _until_it_listens(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
