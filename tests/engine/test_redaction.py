"""What looks like a secret is not stored."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Redaction
from perdure.telemetry.redactor import HIDDEN, Redactor


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "DB_PASSWORD",
        "accessToken",
        "X-Api-Key",
        "apikey",
        "Authorization",
        "client_secret",
        "private_key",
        "Set-Cookie",
        "aws_credentials",
        "PGPASSWORD",
        "csrftoken",
        "passphrase",
        "SIGNING_KEY",
    ],
)
def test_a_field_named_like_a_secret_is_hidden(name: str) -> None:
    fields = {name: "hunter2", "nested": [{name: {"deep": 1}}], "user": "ada"}

    assert Redaction()("", fields)[1] == {name: HIDDEN, "nested": [{name: HIDDEN}], "user": "ada"}


@pytest.mark.parametrize("name", ["tokens_used", "passenger", "secretary", "cookies_sold", "key"])
def test_a_field_that_only_sounds_like_one_is_kept(name: str) -> None:
    assert Redaction()("", {name: "7"})[1] == {name: "7"}


@pytest.mark.parametrize(
    ("message", "stored"),
    [
        ("login with password=hunter2 ok", f"login with password={HIDDEN} ok"),
        ('{"api_key": "abc def", "n": 1}', f'{{"api_key": {HIDDEN}, "n": 1}}'),
        ("db at postgres://ada:s3cret@host/db", f"db at postgres://ada:{HIDDEN}@host/db"),
        ("Authorization: Bearer abcdef123456", f"Authorization: Bearer {HIDDEN}"),
        ("GET / Authorization: Token abcdef123456", f"GET / Authorization: {HIDDEN}"),
        ("Cookie: theme=dark; sid=abcdef\nHost: x", f"Cookie: {HIDDEN}\nHost: x"),
        ("tried pk_0123456789ab_" + "x" * 49, f"tried pk_0123456789ab_{HIDDEN}"),
        ("signed with whsec_MfKQ9r8GKYqrTwjUPD8I", f"signed with whsec_{HIDDEN}"),
        ("sent 3 tokens to ada", "sent 3 tokens to ada"),
        ("see https://host:8080/path", "see https://host:8080/path"),
    ],
)
def test_a_secret_within_a_message_is_hidden(message: str, stored: str) -> None:
    assert Redaction()(message, {})[0] == stored


def test_more_names_and_patterns_may_be_given() -> None:
    redact = Redaction(keys=["iban"], patterns=[r"\b\d{16}\b"])

    message, fields = redact("card 4111111111111111", {"IBAN": "DE00", "note": "4111111111111111"})

    assert message == f"card {HIDDEN}"
    assert fields == {"IBAN": HIDDEN, "note": HIDDEN}


@pytest.mark.parametrize("text", ["x", "a-", "password=", 'token="', "a://", "bearer "])
def test_a_megabyte_takes_no_minute(text: str) -> None:
    megabyte = text * (1_000_000 // len(text))

    assert len(Redaction().text(megabyte)) > 0


def test_what_cannot_be_redacted_is_not_told() -> None:
    def broken(message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        raise RuntimeError

    assert Redactor(Redaction()).text("token=hunter2") == "token=[redacted]"
    assert Redactor(broken).text("token=hunter2") == "[redacted] (RuntimeError in redact)"
    assert Redactor(lambda *_: None).text("hunter2") == "[redacted] (TypeError in redact)"  # type: ignore[arg-type]  # that is the point
    assert Redactor(broken).value(["hunter2"]) == ["[redacted] (RuntimeError in redact)"]
