"""Secrets are not written down."""

from __future__ import annotations

import base64
import json

import pytest

from cadenza.experiment.secrets import is_secret, masked, masked_command, masked_diff, masked_text


@pytest.mark.parametrize(
    "key",
    [
        "password", "db_password", "PASSWORD", "smtp.passwd", "token", "hf_token", "apiKey", "api-key", "api_key",
        "key", "secret", "client_secret", "aws_secret_access_key", "credentials", "auth", "Authorization",
        "private_key",
    ],
)  # fmt: skip
def test_these_keys_hide_their_text(key: str) -> None:
    assert masked({key: "hunter2"}) == {key: "***"}
    assert masked_command([f"a.{key}=hunter2"]) == [f"a.{key}=***"]
    assert masked_command([f"--{key}", "hunter2"]) == [f"--{key}", "***"]
    assert "hunter2" not in masked_text(f"it said {key}=hunter2 and ended")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer", "bpe"), ("max_tokens", 512), ("key_dim", 64), ("keyboard", "qwerty"), ("monitor", "val/loss"),
        ("author", "me"), ("password", None), ("use_auth", True), ("lr", 0.1), ("num_keys", 3), ("secretary", "a"),
    ],
)  # fmt: skip
def test_these_do_not(key: str, value: object) -> None:
    assert masked({key: value}) == {key: value}
    assert not is_secret(key, value)


def test_a_number_is_a_secret_too() -> None:
    assert masked({"password": 1234, "token": 5}) == {"password": "***", "token": "***"}


def test_what_lies_below_a_secret_key_is_hidden_at_any_depth() -> None:
    tree = {"secrets": {"a": {"b": ["x", "y"]}}, "list": [{"token": "t"}, "plain"], "keys": {"train": "left"}}
    assert masked(tree) == {
        "secrets": {"a": {"b": ["***", "***"]}},
        "list": [{"token": "***"}, "plain"],
        "keys": {"train": "left"},
    }


def test_the_tree_itself_is_left_alone() -> None:
    tree = {"password": "x", "inner": {"token": "y"}}
    masked(tree)
    assert tree == {"password": "x", "inner": {"token": "y"}}


@pytest.mark.parametrize(
    "text",
    [
        "postgres://me:hunter2@host/db",
        "https://host/x?token=hunter2&a=1",
        '{"password": "hunter2"}',
        "password='hunter2'",
        "Authorization: hunter2",
        "key sk-abcdefghijklmnop12345 hunter2".replace(" hunter2", ""),
        "hf_abcdefghijklmnopqrst",
        "ghp_abcdefghijklmnopqrstuvwx",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_texts_are_searched(text: str) -> None:
    shown = masked_text(text)
    assert "***" in shown
    assert "hunter2" not in shown
    for shape in ("sk-abc", "hf_abc", "ghp_abc", "AKIAABC"):
        assert shape not in shown


def test_other_text_stays_as_it_is() -> None:
    text = "epoch 3  step 120  val/loss 0.2500: https://example.org/a?b=c, sorted(key=len) max_tokens=5"
    assert masked_text(text).replace("key=***", "key=len") == text


def test_a_command_line_keeps_everything_else() -> None:
    words = [
        "train",
        "digits",
        "--resume",
        "callbacks.ema.decay=0.9",
        "--api-key=abc",
        "--token",
        "-x",
        "+a.password=b=c",
    ]
    assert masked_command(words) == [
        "train", "digits", "--resume", "callbacks.ema.decay=0.9", "--api-key=***", "--token", "-x", "+a.password=***",
    ]  # fmt: skip
    assert masked_command(["mail={user: me, password: abc}"]) == ["mail={user: me, password: ***}"]


# Keys of several lines ----------------------------------------------------------------------------------------------

BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nhunter2hunter2hunter2hunter2hunt\nAgEAAoIBAQ=="


def block(what: str, body: str = BODY) -> str:
    return f"-----BEGIN {what}-----\n{body}\n-----END {what}-----\n"


SECRETS = {
    "pem": block("PRIVATE KEY"),
    "rsa": block("RSA PRIVATE KEY", f"Proc-Type: 4,ENCRYPTED\n\n{BODY}"),
    "encrypted": block("ENCRYPTED PRIVATE KEY"),
    "ssh": block("OPENSSH PRIVATE KEY"),
    "ssh2": f"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n{BODY}\n---- END SSH2 ENCRYPTED PRIVATE KEY ----",
    "pgp": block("PGP PRIVATE KEY BLOCK", f"Version: 1\n\n{BODY}"),
    "pgp message": block("PGP MESSAGE"),
    "certificate and its key": block("CERTIFICATE", "public") + block("EC PRIVATE KEY"),
    "cut off": block("PRIVATE KEY").partition("-----END")[0],
    "windows": block("PRIVATE KEY").replace("\n", "\r\n"),
    "in one line": block("PRIVATE KEY").replace("\n", "\\n"),
    "twice escaped": json.dumps(json.dumps({"type": "service_account", "private_key": block("PRIVATE KEY")})),
    "service account": json.dumps({"type": "service_account", "private_key": block("PRIVATE KEY")}, indent=1),
    "putty": f"PuTTY-User-Key-File-3: ssh-rsa\nComment: me\nPrivate-Lines: 3\n{BODY}\nPrivate-MAC: 0123abcd",
    "netrc": "machine example.org\n  login me\n  password hunter2",
    "yaml": "user: me\nsecret: |\n  hunter2\n  hunter2\nother: 1",
}


@pytest.mark.parametrize("what", SECRETS)
def test_keys_of_several_lines_are_masked_under_any_name(what: str) -> None:
    secret = SECRETS[what]
    shown = [
        masked_text(f"it read {secret} and ended"),
        str(masked({"cert": secret, "lr": 0.1, "inner": [{"file": secret}]})),
        str(masked({"lines": [*secret.split("\n"), "plain"]})),
        str(masked({"bytes": str(secret.encode())})),
        " ".join(masked_command(["train", f"cert={secret}", secret])),
    ]
    if what in ("netrc", "yaml"):  # in Python's own notation of bytes, or split into lines, there is no such file left
        shown = [shown[0], masked({"cert": secret})["cert"]]
    for text in shown:
        assert "***" in text
        assert "hunter2" not in text
        assert "AgEAAoIBAQ" not in text


@pytest.mark.parametrize("encoded", [block("PRIVATE KEY"), json.dumps({"private_key": "x" * 60})])
def test_a_key_in_base64_is_masked(encoded: str) -> None:
    assert masked({"cert": base64.b64encode(encoded.encode()).decode()}) == {"cert": "***"}


@pytest.mark.parametrize("what", ["CERTIFICATE", "PUBLIC KEY", "PGP PUBLIC KEY BLOCK", "DH PARAMETERS"])
def test_public_blocks_stay(what: str) -> None:
    assert masked({"cert": block(what)}) == {"cert": block(what)}
    assert "lr: 0.1" in masked_text(f"{block(what)} lr: 0.1")


def test_a_difference_of_sources_keeps_its_lines() -> None:
    added = "".join(f"+{line}\n" for line in block("PRIVATE KEY").splitlines())
    diff = f"--- a/key.py\n+++ b/key.py\n@@ -0,0 +1,6 @@\n{added}+lr = 0.1\n"
    assert masked_diff(diff).splitlines() == [*diff.splitlines()[:3], *["+***"] * 5, "+lr = 0.1"]
    code = '+    return "-----BEGIN PRIVATE KEY-----" in text\n+lr = 0.1\n'
    assert masked_diff(code) == '+    return "***" in text\n+lr = 0.1\n'
    assert masked_diff(diff.replace("PRIVATE KEY", "CERTIFICATE")) == diff.replace("PRIVATE KEY", "CERTIFICATE")
