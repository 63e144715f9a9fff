"""Ways to reach a person: a mail, a webhook, a command. What is secret in them is never shown and never stored."""

from __future__ import annotations

import json
import mimetypes
import smtplib
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import localtime
from typing import Any, NoReturn, Protocol, TypeAlias
from urllib.parse import urlsplit

from cadenza.foundation.arguments import check, function, is_whole, text, texts

Hidden: TypeAlias = str | Callable[[], str]
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"starttls": 587, "ssl": 465, None: 25}


@dataclass(frozen=True)
class Message:
    """What is told: the event ("end", "error" or "best"), a title of one line, the text, numbers and files."""

    event: str
    title: str
    text: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: tuple[tuple[str, bytes], ...] = ()


class Channel(Protocol):
    """Sends messages. ``where`` may be shown to anybody."""

    where: str

    def send(self, message: Message, timeout: float) -> None: ...

    def secrets(self) -> Iterable[str]: ...


class Secret:
    """A text, or a function that returns it when it is needed. It is not printed, and cannot be pickled.

    >>> Secret("swordfish"), Secret("swordfish").reveal()
    (***, 'swordfish')
    """

    def __init__(self, value: Hidden, name: str = "a secret") -> None:
        if not isinstance(value, str) and not callable(value):
            raise TypeError(f"{name} is a text or a function that returns one, not a {type(value).__name__}")
        self._value = value

    def reveal(self) -> str:
        return self._value if isinstance(self._value, str) else str(self._value())

    def __repr__(self) -> str:
        return "***"

    def __deepcopy__(self, memo: Any) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not stored: give a function that looks it up, and make the callback where it runs")


class Mail:
    """A mail over SMTP, with the plots attached.

    ``security`` is "starttls", "ssl" or None for a server on this machine. ``password`` is the text itself or, better,
    a function that returns it, such as ``lambda: os.environ["SMTP_PASSWORD"]``; it is never sent unencrypted to another
    machine. ``user`` is the name to log in with, by default ``sender``.

    >>> Mail("smtp.example.org", "me@example.org", "me@example.org", password=lambda: "swordfish")
    Mail(to me@example.org by smtp.example.org)
    """

    def __init__(
        self,
        host: str,
        sender: str,
        to: str | Iterable[str],
        *,
        port: int | None = None,
        user: str | None = None,
        password: Hidden | None = None,
        security: str | None = "starttls",
        context: ssl.SSLContext | None = None,
    ) -> None:
        text("host", host, "the name of a mail server")
        check(
            isinstance(security, str | None) and security in _PORTS, 'security is "starttls", "ssl" or None', security
        )
        if password is not None and security is None and host not in _LOOPBACK:
            raise ValueError(f'a password is not sent to {host} unencrypted: use security="starttls" or "ssl"')
        known = port is None or (is_whole(port, 1) and port < 1 << 16)
        check(known, "port is a whole number from 1 to 65535 or None", port)
        if user is not None:
            text("user", user, "the name to log in with, or None")
        check(isinstance(context, ssl.SSLContext | None), "context is an ssl.SSLContext or None", context, TypeError)
        self.host, self.port, self.security, self.context = host, port or _PORTS[security], security, context
        several = [to] if isinstance(to, str) else texts("to", to, "the address of a mail, or a list of them")
        self.sender, self.to = _address("sender", sender), [_address("to", one) for one in several]
        self.user = user or sender
        self.password = None if password is None else Secret(password, "password")
        self.where = f"to {', '.join(self.to)} by {host}"

    def __repr__(self) -> str:
        return f"Mail({self.where})"

    def secrets(self) -> Iterator[str]:
        if self.password is not None:
            yield self.password.reveal()

    def send(self, message: Message, timeout: float) -> None:
        context = self.context or ssl.create_default_context()
        if self.security == "ssl":
            server: smtplib.SMTP = smtplib.SMTP_SSL(self.host, self.port, timeout=timeout, context=context)
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=timeout)
        with server:
            if self.security == "starttls":
                server.starttls(context=context)
            if self.password is not None:
                server.login(self.user, self.password.reveal())
            server.send_message(self._mail(message))

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = message.title, self.sender, ", ".join(self.to)
        mail["Date"] = localtime()
        mail.set_content(message.text)
        for name, content in message.files:
            kind, _, detail = (mimetypes.guess_type(name)[0] or "application/octet-stream").partition("/")
            mail.add_attachment(content, maintype=kind, subtype=detail, filename=name)
        return mail


def _address(name: str, address: str) -> str:
    if not isinstance(address, str) or "@" not in address or "\n" in address or "\r" in address:
        raise ValueError(f"{name}: {address!r} is not the address of a mail")
    return address


class Webhook:
    """A POST of JSON to an address.

    ``url`` and the values of ``headers`` are texts or functions that return them; since an address often holds a token,
    only its host is ever shown. ``body`` is a function of the message that returns what is sent; by default it is a
    dict of ``text``, ``title``, ``event`` and ``metrics``. An answer that is not 2xx is a failure; redirections too.

    >>> Webhook("https://hooks.example.org/services/T0/swordfish")
    Webhook(to hooks.example.org)
    """

    def __init__(
        self,
        url: Hidden,
        *,
        headers: Mapping[str, Hidden] | None = None,
        body: Callable[[Message], Any] | None = None,
    ) -> None:
        if isinstance(url, str) and urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("the url of a webhook begins with https:// or http://")
        function("body", body, "a function of the message")
        if not isinstance(headers, Mapping | None):
            raise TypeError(f"headers is a dict from names to texts or None, not a {type(headers).__name__}")
        self.url, self.body = Secret(url, "url"), body
        self.headers = {name: Secret(value, f"{name} of headers") for name, value in (headers or {}).items()}
        self.where = f"to {urlsplit(url).hostname if isinstance(url, str) else 'an address that is looked up'}"

    def __repr__(self) -> str:
        return f"Webhook({self.where})"

    def secrets(self) -> Iterator[str]:
        address = urlsplit(self.url.reveal())
        yield from (address.path.strip("/"), address.query, address.password or "", address.username or "")
        yield from address.path.split("/")
        yield from (value.reveal() for value in self.headers.values())

    def send(self, message: Message, timeout: float) -> None:
        url = self.url.reveal()
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("the url of a webhook begins with https:// or http://")
        content = self.body(message) if self.body is not None else as_json(message)
        headers = {"Content-Type": "application/json"} | {name: one.reveal() for name, one in self.headers.items()}
        request = urllib.request.Request(url, json.dumps(content).encode(), headers, method="POST")
        with urllib.request.build_opener(_NoRedirection).open(request, timeout=timeout):
            pass


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its content, and the token at another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def as_json(message: Message) -> dict[str, Any]:
    """The content that a webhook gets; what is not finite is a text, since JSON has no number for it."""
    finite = {name: value if abs(value) < float("inf") else str(value) for name, value in message.metrics.items()}
    told = f"{message.title}\n{message.text}"
    return {"text": told, "title": message.title, "event": message.event, "metrics": finite}


class Command:
    """A program with its arguments, run without a shell: ``Command(["notify-send", "{title}", "{text}"])``.

    ``{title}``, ``{text}`` and ``{event}`` in the arguments are filled in; the text is also on its standard input. An
    exit status other than 0 is a failure.

    >>> Command(["notify-send", "{title}"])
    Command(notify-send)
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        several = isinstance(arguments, Sequence) and not isinstance(arguments, str) and len(arguments) > 0
        if not several or not all(isinstance(one, str) for one in arguments):
            raise TypeError(
                'arguments of a command are a list of texts, such as ["notify-send", "{title}"]; no shell splits a text'
            )
        self.arguments = list(arguments)
        self.where = self.arguments[0]

    def __repr__(self) -> str:
        return f"Command({self.where})"

    def secrets(self) -> Iterator[str]:
        yield from self.arguments[1:]

    def send(self, message: Message, timeout: float) -> None:
        filled = [self.arguments[0]]
        for argument in self.arguments[1:]:
            for place in ("title", "text", "event"):
                argument = argument.replace(f"{{{place}}}", getattr(message, place))
            filled.append(argument)
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        done = subprocess.run(filled, input=message.text.encode(), timeout=timeout, check=False, **quiet)
        if done.returncode:
            raise RuntimeError(f"it ended with status {done.returncode}")


def failure(channel: Channel, error: Exception) -> str:
    """Why a message was not sent; without the words of ``error`` if there is a secret among them."""
    kind, said = type(error).__name__, str(error)
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{kind}: it took more than {error.timeout:g} seconds"
    try:
        hidden = [secret for secret in channel.secrets() if secret]
    except Exception:
        return kind
    return kind if any(secret in said for secret in hidden) else f"{kind}: {said}"
