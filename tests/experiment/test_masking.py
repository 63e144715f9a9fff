"""Secrets are not written down."""

from __future__ import annotations

import pytest

from cadenza.experiment.masking import is_secret, masked, masked_command, masked_text


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
