"""Notify: what arrives at a real mail server, a real web server and a real program, and that nothing stops a run."""

from __future__ import annotations

import contextlib
import copy
import email
import json
import logging
import pickle
import socket
import sys
import threading
from email import policy
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from tests.callbacks.drawn import Act, Oops, fitted, oops, trainer_with
from tests.callbacks.heard import hearing

from cadenza import Watch
from cadenza.callbacks.guards.early_stopping import EarlyStopping
from cadenza.callbacks.showing.history_plot import HistoryPlot
from cadenza.callbacks.showing.notify import Notify
from cadenza.callbacks.showing.notify_channels import Command, Mail, Message, Secret, Webhook, failure
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.testing import tiny_loader

PASSWORD = "swordfish-7"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(Notify.__init__.__kwdefaults__, "timeout", 60.0)  # a busy machine may take its time


class OnAnyPort(Controller):
    """A server at a port that the system chose, held from the beginning; it may take its time to start."""

    def __init__(self, handler, **options):
        self.listening = socket.create_server(("127.0.0.1", 0))
        super().__init__(handler, hostname="127.0.0.1", port=self.listening.getsockname()[1], **options)
        self.ready_timeout = 60.0

    def _trigger_server(self):
        with socket.create_connection((self.hostname, self.port), 60.0) as first:
            first.recv(1024)

    def _create_server(self):
        return self.loop.create_server(self._factory_invoker, sock=self.listening)


class Inbox:
    """A mail server on this machine; with ``password`` it asks for it."""

    def __init__(self, password=None):
        self.mails, self.logins = [], []
        options = {}
        if password is not None:
            options = {"authenticator": self._check, "auth_require_tls": False}
        self.password = password
        self.controller = OnAnyPort(self, **options)

    def _check(self, server, session, envelope, mechanism, data):
        login, given = data.login.decode(), data.password.decode()
        self.logins.append((login, given))
        return AuthResult(success=given == self.password, handled=False)

    async def handle_DATA(self, server, session, envelope):
        self.mails.append(email.message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"

    @property
    def port(self):
        return self.controller.port

    def mail(self, **options):
        return Mail("127.0.0.1", "me@here.org", "you@there.org", port=self.port, security=None, **options)


@contextlib.contextmanager
def refusing_port():
    """A port that is taken, so that nobody else gets it, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def inbox(password=None):
    box = Inbox(password)
    box.controller.start()
    try:
        yield box
    finally:
        box.controller.stop()


@contextlib.contextmanager
def web_server(status=200, wait=None):
    """A web server on this machine; yields its address and the requests that it got."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers), json.loads(content)))
            if wait is not None:
                wait.wait(60)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self):
            requests.append((self.path, dict(self.headers), None))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        if wait is not None:
            wait.set()
        server.shutdown()
        server.server_close()
        thread.join()


def writes(path, *arguments):
    """A command that writes its standard input and arguments to a file."""
    program = "import sys, json; json.dump([sys.stdin.read(), sys.argv[2:]], open(sys.argv[1], 'w'))"
    return Command([sys.executable, "-c", program, str(path), *arguments])


# Mail -----------------------------------------------------------------------------------------------------------------


def test_a_mail_arrives_at_the_end_with_metrics_and_plots():
    with inbox() as box:
        trainer = fitted(HistoryPlot(), Watch("val/loss"), Notify(box.mail(), title="digits"))
        (mail,) = box.mails
    assert (mail["Subject"], mail["From"], mail["To"]) == (
        "digits: the training ended",
        "me@here.org",
        "you@there.org",
    )
    text = mail.get_body().get_content()
    assert text.startswith("2 epochs, 6 steps, 0:00:0")
    best = trainer.best
    assert f"best val/loss {best.value:#.4g} (epoch {best.epoch + 1}, step {best.step})" in text
    assert f"train/loss {trainer.history['train/loss'][-1]:#.4g}" in text
    (attached,) = mail.iter_attachments()
    assert (attached.get_filename(), attached.get_content_type()) == ("history.png", "image/png")
    assert attached.get_content() == Path("runs/history.png").read_bytes()


def test_a_password_is_given_to_the_server_and_to_nobody_else(caplog, capfd):
    asked = []
    with inbox(PASSWORD) as box, caplog.at_level(logging.DEBUG):
        for password in (PASSWORD, lambda: asked.append(1) or PASSWORD):
            notify = Notify(box.mail(user="me", password=password))
            trainer = fitted(notify, epochs=1)
            shown = f"{notify.explain()} {notify.channels} {vars(notify.channels[0])} {trainer.explain()}"
            assert PASSWORD not in shown
            assert PASSWORD not in json.dumps(notify.state_dict())
            assert PASSWORD not in repr(trainer.store)
    assert box.logins == [("me", PASSWORD), ("me", PASSWORD)]
    assert len(box.mails) == 2
    assert asked
    captured = capfd.readouterr()
    assert PASSWORD not in caplog.text + captured.out + captured.err
    assert all(PASSWORD not in str(mail) for mail in box.mails)


def test_a_wrong_password_is_a_warning_without_it(caplog):
    with inbox(PASSWORD) as box, caplog.at_level(logging.DEBUG, "cadenza"), hearing() as told:
        trainer = fitted(Notify(box.mail(password="guess-of-mine")), epochs=1)
    assert trainer.clock.epochs == 1
    assert not box.mails
    (warned,) = told
    assert "Mail(to you@there.org by 127.0.0.1) failed: SMTPAuthenticationError" in warned
    assert "guess-of-mine" not in caplog.text + warned


def test_without_encryption_on_the_server_nothing_is_sent():
    with inbox() as box, hearing() as told:
        mail = Mail("127.0.0.1", "me@here.org", ["you@there.org"], port=box.port, password=PASSWORD)
        fitted(Notify(mail), epochs=1)
        assert not box.mails
        assert not box.logins
    assert "STARTTLS" in told[0]
    with pytest.raises(ValueError, match=r"a password is not sent to smtp.example.org unencrypted"):
        Mail("smtp.example.org", "me@here.org", "you@there.org", password=PASSWORD, security=None)


def test_chosen_files_are_attached_and_missing_or_large_ones_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("cadenza.callbacks.showing.notify._LARGEST", 1000)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "large.bin").write_bytes(b"0" * 2000)
    with inbox() as box:
        fitted(HistoryPlot(), Notify(box.mail(), attach=["notes.txt", "large.bin", "gone.txt"]), epochs=1)
        fitted(HistoryPlot(), Notify(box.mail(), attach=False), epochs=1)
        first, second = box.mails
    assert [part.get_filename() for part in first.iter_attachments()] == ["notes.txt"]
    last_lines = first.get_body().get_content().splitlines()[-2:]
    assert last_lines == ["not attached: large.bin", "not attached: gone.txt"]
    assert not list(second.iter_attachments())


# Webhook --------------------------------------------------------------------------------------------------------------


def test_a_webhook_gets_json():
    with web_server() as (url, requests):
        trainer = fitted(Notify(Webhook(f"{url}/hook?token=t0k3n", headers={"X-Key": lambda: "k3y"}), title="digits"))
        ((path, headers, content),) = requests
    assert (path, headers["X-Key"], headers["Content-Type"]) == ("/hook?token=t0k3n", "k3y", "application/json")
    assert (content["event"], content["title"]) == ("end", "digits: the training ended")
    assert content["text"].startswith("digits: the training ended\n2 epochs, 6 steps")
    assert content["metrics"] == {name: trainer.history[name][-1] for name in ("train/loss", "val/loss")}


def test_a_webhook_gets_what_body_returns():
    with web_server() as (url, requests):
        fitted(Notify(Webhook(lambda: url, body=lambda message: {"content": message.title})), epochs=1)
        assert requests[0][2] == {"content": "Sequential: the training ended"}


@pytest.mark.parametrize(("status", "words"), [(403, "HTTPError: HTTP Error 403"), (302, "HTTPError: HTTP Error 302")])
def test_an_answer_that_is_no_success_is_a_warning_without_the_address(status, words, caplog):
    caplog.set_level(logging.DEBUG, "cadenza")
    with web_server(status) as (url, requests), hearing() as told:
        fitted(Notify(Webhook(f"{url}/services/s3cr3t-path", headers={"Authorization": "Bearer t0k3n"})), epochs=1)
        assert len(requests) == 1  # a redirection is not followed
    (warned,) = told
    assert words in warned
    assert "s3cr3t-path" not in caplog.text + warned
    assert "t0k3n" not in caplog.text + warned


def test_numbers_that_json_does_not_know_are_texts():
    def log_nan(run):
        run.log("odd", float("nan"))

    with web_server() as (url, requests):
        fitted(Notify(Webhook(url)), Act("after_epoch", log_nan), epochs=1)
        assert requests[0][2]["metrics"]["odd"] == "nan"


# Command --------------------------------------------------------------------------------------------------------------


def test_a_command_gets_the_message_without_a_shell(tmp_path):
    dangerous = "$(touch owned) `touch owned` ; touch owned"
    fitted(Notify(writes("said", "{event}", "{title}", "<{text}>", "$HOME"), title=dangerous), epochs=1)
    stdin, (event, title, text, home) = json.loads(Path("said").read_text())
    assert (event, title, home) == ("end", f"{dangerous}: the training ended", "$HOME")
    assert text == f"<{stdin}>"
    assert "1 epochs, 3 steps" in stdin
    assert not (tmp_path / "owned").exists()


def test_a_command_that_fails_or_does_not_exist_is_a_warning_without_its_arguments(caplog):
    caplog.set_level(logging.DEBUG, "cadenza")
    for command in ([sys.executable, "-c", "raise SystemExit(3)", "t0k3n"], ["no-such-program", "t0k3n"]):
        with hearing() as told:
            fitted(Notify(Command(command)), epochs=1)
        (warned,) = told
        assert ("FileNotFoundError" if command[0] == "no-such-program" else "it ended with status 3") in warned
        assert "t0k3n" not in caplog.text + warned


# Events ---------------------------------------------------------------------------------------------------------------


def test_an_error_is_told_with_its_words_and_where_it_was_raised():
    def fail(run):
        raise ValueError("the cat sat on it")

    with inbox() as box:
        with pytest.raises(ValueError, match="the cat sat on it"):
            fitted(Notify(box.mail()), Act("after_train_iter", fail))
        (mail,) = box.mails
    assert mail["Subject"] == "Sequential: the training failed: ValueError"
    text = mail.get_body().get_content()
    assert "ValueError: the cat sat on it" in text
    assert "raised in Act at after_train_iter (epoch 1, train batch 1)" in text


def test_the_interrupt_key_is_no_error_to_tell_of():
    def interrupt(run):
        raise KeyboardInterrupt

    with inbox() as box:
        with pytest.raises(KeyboardInterrupt):
            fitted(Notify(box.mail()), Act("after_train_iter", interrupt))
        assert not box.mails


def test_a_stop_is_an_end_with_its_reason():
    with web_server() as (url, requests):
        stopping = EarlyStopping("train/loss", patience=1, min_delta=100)
        fitted(Notify(Webhook(url)), stopping, Accumulate(2), epochs=9)
        (content,) = (content for _, _, content in requests)
    assert "2 epochs" in content["text"]
    assert "stopped: EarlyStopping: train/loss has not improved" in content["text"]


def test_each_new_best_value_is_told_at_the_end_of_its_epoch_with_the_plots_of_it():
    values = iter([3.0, 2.0, 2.5, 1.0])
    with inbox() as box:
        trainer = trainer_with(Watch("score", mode="min"), HistoryPlot(), Notify(box.mail(), on=["best"], title="x"))
        trainer.on("after_train_epoch")(lambda run: run.log("score", next(values)))
        trainer.fit(tiny_loader(), epochs=4)
        subjects = [mail["Subject"] for mail in box.mails]
        sizes = [len(list(mail.iter_attachments())) for mail in box.mails]
    assert subjects == ["x: new best score 3.000", "x: new best score 2.000", "x: new best score 1.000"]
    assert sizes == [1, 1, 1]


def test_what_is_best_must_be_known():
    with pytest.raises(ValueError, match=r'nobody says of what: add Watch\("val/loss"\)'):
        fitted(Notify(Command(["true"]), on="best"))
    several = [EarlyStopping("train/loss"), EarlyStopping("val/loss")]
    several[1].name = "second"
    assert fitted(*several, Notify(Command(["true"])), epochs=1).clock.epochs == 1


def test_nothing_is_told_of_validations_and_a_second_fit_tells_again():
    with web_server() as (url, requests):
        trainer = fitted(Notify(Webhook(url)), epochs=1)
        trainer.validate(tiny_loader())
        assert len(requests) == 1
        trainer.fit(tiny_loader(), epochs=1)
        assert len(requests) == 2


def test_only_the_chosen_events_are_told():
    with web_server() as (url, requests):
        fitted(Notify(Webhook(url), on="error"), epochs=1)
        assert not requests
        with pytest.raises(Oops):
            fitted(Notify(Webhook(url), on="end"), Act("after_epoch", oops))
        assert not requests


# Nothing stops a training ---------------------------------------------------------------------------------------------


def test_failures_are_one_warning_a_run(caplog):
    caplog.set_level(logging.DEBUG, "cadenza")
    with refusing_port() as port, hearing() as told:
        nobody = Mail("127.0.0.1", "me@here.org", "you@there.org", port=port, security=None)
        trainer = fitted(
            Watch("train/loss"), Notify(nobody, Command(["no-such-program"]), on=["best", "end"]), epochs=3
        )
    assert trainer.clock.epochs == 3
    (warned,) = told
    assert "ConnectionRefusedError" in warned
    assert "the run goes on" in warned
    assert sum("the run goes on" in message for message in caplog.messages) > 1  # all of them


def test_a_server_that_does_not_answer_is_given_up():
    wait = threading.Event()
    with web_server(wait=wait) as (url, requests), hearing() as told:
        trainer = fitted(Notify(Webhook(url), timeout=0.2), epochs=1)
    assert trainer.clock.epochs == 1
    assert len(requests) <= 1  # if there was time to send it, it has got no answer
    (warned,) = told
    assert "given up" in warned or "failed" in warned


def test_messages_are_sent_beside_the_training_and_in_order():
    wait, seen = threading.Event(), []
    with web_server(wait=wait) as (url, requests):
        trainer = trainer_with(Watch("train/loss"), Notify(Webhook(url), on=["best", "end"]))
        trainer.on("after_run")(lambda run: (seen.append(len(requests)), wait.set()))
        trainer.fit(tiny_loader(), epochs=3)
        assert seen[0] <= 1  # the first was not answered yet when the run had ended
        events = [content["event"] for _, _, content in requests]
    assert events == ["best", "best", "best", "end"]


def test_a_message_that_cannot_be_made_is_sent_without_its_text():
    class Broken:
        def __float__(self):
            raise RuntimeError("the device is gone")

    with web_server() as (url, requests):
        trainer = trainer_with(Notify(Webhook(url)))
        trainer.on("after_run")(lambda run: run.metrics._values.update(odd=Broken()))
        trainer.fit(tiny_loader(), epochs=1)
        (content,) = (content for _, _, content in requests)
    assert content["title"] == "Sequential: the training ended"


def test_the_training_is_not_changed():
    one, other = fitted(Notify(Command(["true"]))), fitted()
    assert one.history.to_rows() == other.history.to_rows()


# Secrets and arguments ------------------------------------------------------------------------------------------------


def test_a_secret_is_neither_shown_nor_stored():
    secret = Secret(PASSWORD)
    assert PASSWORD not in f"{secret} {secret!r} {[secret]}"
    assert copy.deepcopy(secret).reveal() == PASSWORD
    with pytest.raises(TypeError, match="a secret is not stored"):
        pickle.dumps(Notify(Mail("h", "a@b.c", "a@b.c", password=PASSWORD)).channels)
    assert "s3cr3t" not in repr(Webhook("https://user:s3cr3t@hooks.example.org/s3cr3t?x=s3cr3t"))


def test_the_words_of_an_error_are_left_out_if_a_secret_is_among_them():
    mail = Mail("h", "a@b.c", "a@b.c", password=PASSWORD)
    assert failure(mail, ValueError(f"{PASSWORD} is wrong")) == "ValueError"
    assert failure(mail, ValueError("no such host")) == "ValueError: no such host"
    hook = Webhook("https://hooks.example.org/T0/s3cr3t")
    assert failure(hook, OSError("cannot open /s3cr3t")) == "OSError"

    def missing():
        raise KeyError(PASSWORD)

    assert failure(Mail("h", "a@b.c", "a@b.c", password=missing), KeyError(PASSWORD)) == "KeyError"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Notify(), "channels are at least one of"),
        (lambda: Notify("mail"), "channels are at least one of"),
        (lambda: Notify(Command(["true"]), on=["epoch"]), "end, error, best"),
        (lambda: Notify(Command(["true"]), timeout=0), "above 0"),
        (lambda: Command("notify-send hello"), "list of texts"),
        (lambda: Command([]), "list of texts"),
        (lambda: Webhook("ftp://example.org"), "https:// or http://"),
        (lambda: Webhook("https://example.org", body=3), "function of the message"),
        (lambda: Webhook(3), "a text or a function"),
        (lambda: Mail("h", "me", "you@there.org"), "'me' is not the address of a mail"),
        (lambda: Mail("h", "me@here.org", "you@there.org\nBcc: all@there.org"), "not the address of a mail"),
        (lambda: Mail("h", "me@here.org", "you@there.org", security="tls"), '"starttls", "ssl" or None'),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_channel_of_your_own_needs_only_send():
    class Remember:
        where = "here"

        def __init__(self):
            self.messages = []

        def secrets(self):
            return ()

        def send(self, message, timeout):
            self.messages.append((message, timeout))

    channel = Remember()
    fitted(Notify(channel, timeout=60), epochs=1)
    ((message, timeout),) = channel.messages
    assert isinstance(message, Message)
    assert (message.event, timeout) == ("end", 60.0)
