"""Secrets are not written down: what a key, an option or an address gives away is replaced before it is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
_SECRET = {
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "credential",
    "auth",
    "apikey",
    "authorization",
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SHAPES = re.compile(
    r"\b(?:sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|"
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|eyJ[\w+/-]{60,}=*|LS0tLS1CRUdJTi[\w+/-]+=*)"
)
"""Tokens that are known by how they look, and keys that were encoded in base64: a JSON object, a PEM block."""
_BLOCK = re.compile(
    r"-{4,5} ?BEGIN (?P<what>[A-Z0-9 ]+?) ?-{4,5}"
    r"(?:.{0,20000}?-{4,5} ?END (?P=what) ?-{4,5}|(?:(?:\\+[rn]|\s)+[-+ ]?[\w+/=:,. -]*)*)"
    r"|PuTTY-User-Key-File-\d.*?(?:Private-(?:MAC|Hash): *\w+|\Z)",
    re.DOTALL,
)
"""Keys that go over several lines: PEM, OpenSSH, PGP, PuTTY. One without an end goes as far as lines look like it."""
_PUBLIC = re.compile(r"PUBLIC KEY|CERTIFICATE|CRL|PARAMETERS|PKCS7|CMS|SIGNATURE|SIGNED MESSAGE")
_INDENTED = re.compile(
    r"^(?P<head>(?P<indent>[ \t]*)(?P<key>[\w.-]+)[ \t]*:[ \t]*[|>][-+\d]*[ \t]*\n)"
    r"(?:(?P=indent)[ \t]+.*(?:\n|\Z))+",
    re.MULTILINE,
)
"""A text of several lines in YAML."""
_NETRC = re.compile(r"(?P<login>\bmachine\s+\S+\s+login\s+\S+\s+password\s+)\S+")
_ADDRESS = re.compile(r"(?P<scheme>[a-zA-Z][\w+.-]*://)[^/\s@:'\"]*:[^/\s@'\"]+@")
_QUERY = re.compile(r"(?P<key>[?&][\w.-]+)=(?P<value>[^&\s'\"#]+)")
_PAIR = re.compile(
    r"(?P<quote>[\"']?)(?P<key>[A-Za-z_][\w.-]*)(?P=quote)(?P<equals>\s*[=:]\s*)"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;&\"'(){}\[\]<>]+)"
)


def is_secret(key: str, value: Any = "") -> bool:
    """Whether ``key`` names something that ``value`` would give away.

    >>> is_secret("notify.password"), is_secret("apiKey"), is_secret("max_tokens", 512), is_secret("tokenizer")
    (True, True, False, False)
    """
    if value is None or isinstance(value, bool):
        return False
    words = [word.lower() for word in _WORD.findall(str(key))]
    if any(word in _SECRET or word.removesuffix("s") in _SECRET - {"token"} for word in words):
        return not isinstance(value, int | float) or any(word in _SECRET for word in words[-1:])
    looks_like_one = {"key", "keys", "tokens"} & set(words)
    return bool(looks_like_one) and not isinstance(value, int | float)


def masked(tree: Any, key: str = "") -> Any:
    """``tree`` with every secret in it masked, whatever its depth; dicts, lists and plain values are copied.

    >>> masked({"lr": 0.1, "mail": {"password": "x", "to": "a@b.c"}})
    {'lr': 0.1, 'mail': {'password': '***', 'to': 'a@b.c'}}
    """
    if isinstance(tree, Mapping):
        return {str(name): masked(value, str(name) if not _hides(key) else key) for name, value in tree.items()}
    if isinstance(tree, list | tuple | set | frozenset):
        return _masked_list(list(tree), key)
    if key and is_secret(key, tree):
        return MASK
    return masked_text(tree) if isinstance(tree, str) else tree


def _masked_list(values: list[Any], key: str) -> list[Any]:
    """The values one by one, or, if they are the lines of one text, as that text."""
    if all(isinstance(value, str) for value in values):
        lines = masked_text("\n".join(values))
        if lines.count("\n") < sum(value.count("\n") + 1 for value in values) - 1:  # a key of several lines was in it
            return lines.split("\n")
    return [masked(value, key) for value in values]


def _hides(key: str) -> bool:
    """Whether everything below ``key`` is secret: ``secrets: {a: b}``, and not ``keys: {train: ...}``."""
    words = {word.lower().removesuffix("s") for word in _WORD.findall(key)}
    return bool(words & {"password", "secret", "credential", "auth"})


def masked_text(text: str) -> str:
    """``text`` with addresses that hold a password, known tokens, private keys and ``secret=value`` masked.

    >>> masked_text("cannot reach https://me:hunter2@example.org with token=abc")
    'cannot reach https://***@example.org with token=***'
    """
    text = _masked_blocks(text)
    text = _ADDRESS.sub(rf"\g<scheme>{MASK}@", text)
    text = _SHAPES.sub(MASK, text)
    text = _QUERY.sub(_masked_query, text)
    return _PAIR.sub(_masked_pair, text)


def _masked_blocks(text: str) -> str:
    """``text`` without keys and secrets of several lines."""
    if "BEGIN " in text or "PuTTY-User" in text:
        text = _BLOCK.sub(_masked_block, text)
    if "\n" in text:
        text = _INDENTED.sub(_masked_indented, text)
    return _NETRC.sub(rf"\g<login>{MASK}", text) if "machine" in text else text


def _masked_block(found: re.Match[str]) -> str:
    return found[0] if _PUBLIC.search(found["what"] or "") else MASK


def _masked_indented(found: re.Match[str]) -> str:
    if not is_secret(found["key"]):
        return found[0]
    return f"{found['head']}{found['indent']}  {MASK}\n"


def masked_diff(diff: str) -> str:
    """A difference of sources in which every line of a private key is masked; it has as many lines as before."""
    return _BLOCK.sub(lambda found: _masked_lines(found[0], _masked_block(found)), diff) if "BEGIN " in diff else diff


def _masked_lines(block: str, shown: str) -> str:
    if shown == block:
        return block
    _, *others = block.split("\n")
    return "\n".join([MASK, *(f"{line[:1]}{MASK}" if line[:1] in tuple("+- ") else MASK for line in others)])


def _masked_query(found: re.Match[str]) -> str:
    return f"{found['key']}={MASK}" if is_secret(found["key"], found["value"]) else found[0]


def _masked_pair(found: re.Match[str]) -> str:
    value = found["value"].strip("\"'")
    if not is_secret(found["key"], _number(value)) or value in ("", "None", "null", "True", "False", "true", "false"):
        return found[0]
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['quote']}{found['key']}{found['quote']}{found['equals']}{quote}{MASK}{quote}"


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def masked_command(words: Sequence[str]) -> list[str]:
    """A command line with the values of secret options masked.

    >>> masked_command(["train", "--api-key", "abc", "notify.password=x", "lr=0.1"])
    ['train', '--api-key', '***', 'notify.password=***', 'lr=0.1']
    """
    shown: list[str] = []
    hidden = False
    for word in words:
        if hidden and not word.startswith("-"):
            shown.append(MASK)
        else:
            shown.append(_masked_word(word))
        hidden = word.startswith("-") and "=" not in word and is_secret(word)
    return shown


def _masked_word(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and re.fullmatch(r"[-+~]*[\w.@/-]+", name) and is_secret(name, _number(value)) and value:
        return f"{name}={MASK}"
    return masked_text(word)
