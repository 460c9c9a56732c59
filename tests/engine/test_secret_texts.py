"""Over a hundred texts with a secret each, of which nothing is shown; and texts that stay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from perdure import Redaction
from perdure.telemetry.redactor import OVERLAP_CHARS, Mask, Redactor
from perdure.telemetry.secret_texts import PrivateKeyLines
from secret_texts import HARMLESS, HOSTILE, KEY_BODY, LEAKS

REDACTION = Redaction()
REDACTOR = Redactor(REDACTION)
LIMIT = 2000
LONG_CHARS = 600_000


class Leak(NamedTuple):
    """A text, and the secret in it."""

    text: str
    secret: str


def parse_leak(marked: str) -> Leak:
    before, _, rest = marked.partition("«")
    secret, _, after = rest.partition("»")
    return Leak(f"{before}{secret}{after}", secret)


each_leak = pytest.mark.parametrize(
    "leak", [parse_leak(it) for it in LEAKS], ids=lambda leak: leak.text[:50]
)


def shown_pieces(secret: str, text: str) -> list[str]:
    """Every piece of six characters of the secret that the text shows."""
    pieces = {secret[start : start + 6] for start in range(max(len(secret) - 5, 1))}
    return sorted(piece for piece in pieces if piece in text)


@each_leak
def test_no_piece_of_a_secret_is_shown(leak: Leak) -> None:
    assert leak.secret in leak.text

    redacted = REDACTION.text(leak.text)

    assert shown_pieces(leak.secret, redacted) == []
    assert REDACTION.text(redacted) == redacted


@each_leak
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_text_that_is_cut_within_its_secret_shows_no_piece_of_it(
    leak: Leak, share: float
) -> None:
    """The cut stands within the secret, and more text follows than is read."""
    place = leak.text.index(leak.secret) + int(len(leak.secret) * share)
    before = "harmless words " * (LIMIT // 15 + 1)
    text = f"{before[-(LIMIT - place) :]}{leak.text}\n{'more words ' * 3 * OVERLAP_CHARS}"

    assert shown_pieces(leak.secret, REDACTOR.shorten(text, LIMIT)) == []
    assert shown_pieces(leak.secret, REDACTOR.shorten_middle(text, 2 * LIMIT + 100)) == []


@each_leak
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_the_end_of_a_text_that_begins_within_a_secret_shows_no_piece_of_it(
    leak: Leak, share: float
) -> None:
    place = leak.text.index(leak.secret) + int(len(leak.secret) * share)
    rest = len(leak.text) - place
    after = "\n" + "harmless words " * (LIMIT // 15 + 1)
    text = f"{'more words ' * 3 * OVERLAP_CHARS}\n{leak.text}{after[: LIMIT - rest]}"

    shortened = REDACTOR.shorten_middle(text, 2 * LIMIT + 100)

    assert shown_pieces(leak.secret, shortened) == []
    assert len(shortened) < 2 * LIMIT + 200


@pytest.mark.parametrize("text", HARMLESS, ids=lambda text: text[:50])
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert REDACTION.text(text) == text
    assert REDACTOR.shorten(text, 16_000) == text


def test_there_are_enough_texts() -> None:
    assert len(set(LEAKS)) >= 100
    assert len(set(HARMLESS)) >= 40


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ({"argv": ["backup", "--password", "hunter2-argv"]}, "hunter2-argv"),
        ({"argv": ["curl", "-u", "ada:hunter2-user"]}, "hunter2-user"),
        ({"argv": ["curl", "-su", "ada:hunter2 user"]}, "hunter2 user"),
        ({"argv": ["curl", "--user", "ada:hunter2-long"]}, "hunter2-long"),
        ({"argv": ["curl", "-H", "Authorization: Bearer hunter2.header"]}, "hunter2.header"),
        ({"argv": ["curl", "-d", '{"password": "hunter2-body"}']}, "hunter2-body"),
        ({"argv": ["psql", "-d", "postgres://ada:hunter2-url@db/x"]}, "hunter2-url"),
        ({"argv": ["docker", "run", "-e", "DB_PASSWORD=hunter2-env"]}, "hunter2-env"),
        ({"argv": ["sshpass", "-p", "hunter2 ssh", "ssh"]}, "hunter2 ssh"),
        ({"argv": ["/usr/bin/mysql", "-h", "db", "-phunter2-mysql"]}, "hunter2-mysql"),
        ({"argv": ["docker", "login", "-u", "ada", "-p", "hunter2-login"]}, "hunter2-login"),
        ({"headers": [["authorization", "Token hunter2-pair"]]}, "hunter2-pair"),
        ({"env": [{"name": "DB_PASSWORD", "value": "hunter2-env"}]}, "hunter2-env"),
        ({"https://hunter2-key@host/": 1}, "hunter2-key"),
        ({"DB_PASSWORD_PROD": {"a": "hunter2-deep"}}, "hunter2-deep"),
        ({"db_pass": "hunter2-weak"}, "hunter2-weak"),
        ({"accounts": ({"secretAccessKey": "hunter2-aws"},)}, "hunter2-aws"),
    ],
)
def test_a_secret_in_data_is_hidden_by_where_it_stands(value: Any, secret: str) -> None:
    assert shown_pieces(secret, json.dumps(REDACTION.value(value))) == []


def test_every_line_of_a_block_in_yaml_is_hidden() -> None:
    text = "db:\n  password: |\n    hunter2-first\n    hunter2-second\n  user: ada\n"

    assert REDACTION.text(text) == "db:\n  password: [redacted]\n  user: ada\n"


def test_data_without_secrets_stays_as_it_is() -> None:
    value = {
        "argv": ["sleep", "-u", "5"],
        "command": ["docker", "run", "-p", "80:80", "-u", "1000:1000", "-it", "image"],
        "counts": {"pass": 12, "fail": 0},
        "token_count": 7,
        "secret_name": "API_TOKEN",
        "pairs": [["a", "b"], ["c", 1]],
        "params": [{"name": "size", "value": "L"}],
        "pwd": "/home/ada",
    }

    assert REDACTION.value(value) == value


def test_a_known_secret_is_hidden_in_every_spelling() -> None:
    secret = 'pa"ss w/ö\\rd-9'
    redactor = Redactor(REDACTION, [secret])
    spelled = [
        *(secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)),
        *(repr(secret.encode()), "pa%22ss%20w%2F%C3%B6%5Crd-9", "cGEic3Mgdy/DtlxyZC05"),
    ]

    for text in spelled:
        assert shown_pieces(secret, redactor.text(f"echo: {text}.")) == []
        assert "cGEic3" not in redactor.text(text)
    assert redactor.value({"a": [secret, {secret: 1}]}) == {"a": ["[redacted]", {"[redacted]": 1}]}


@pytest.mark.parametrize("place", range(LIMIT - 30, LIMIT + 30, 7))
def test_a_known_secret_is_hidden_wherever_the_cut_falls(place: int) -> None:
    secret = "known phrase with 30 letters!"
    redactor, mask = Redactor(REDACTION, [secret]), Mask([secret])
    text = f"{'word ' * 1000}"[:place] + secret + " word" * 5000

    for shown in (
        redactor.shorten(text, LIMIT),
        redactor.shorten_middle(text, 2 * LIMIT + 100),
        redactor.shorten_middle(" word" * 5000 + secret + text[:place], 2 * LIMIT + 100),
        redactor.head(text[: place + 15]),
        redactor.tail(text[place + 15 :]),
        mask.head(text[: place + 15]),
        mask.tail(text[place + 15 :]),
    ):
        assert shown_pieces(secret, shown) == []


def test_the_lines_of_a_private_key_are_known_one_by_one() -> None:
    lines = ["before", "-----BEGIN PRIVATE KEY-----", *KEY_BODY.splitlines()]
    keys = PrivateKeyLines()

    inside = [keys.is_inside(it) for it in [*lines, "-----END PRIVATE KEY-----", "after"]]

    assert inside == [False, False, True, True, True, True, False]


# The work


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_long_hostile_text_is_redacted(piece: str) -> None:
    """Quadratic work would take hours, and the test would run into its timeout."""
    assert REDACTION.text(piece * (LONG_CHARS // len(piece)))


@pytest.mark.timed
@pytest.mark.parametrize("piece", HOSTILE)
def test_work_grows_no_faster_than_the_text(piece: str) -> None:
    """CPU time of a text and of one four times as long: quadratic work would be sixteen times as
    much. One measurement of five is enough, since other processes only ever add to it."""
    short, long = (piece * (size // len(piece)) for size in (LONG_CHARS // 4, LONG_CHARS))

    assert any(_growth(short, long) < 9 for _ in range(5))


def _growth(short: str, long: str) -> float:
    return _cpu_time(REDACTION.text, long) / _cpu_time(REDACTION.text, short)


def _cpu_time(redact: Callable[[str], str], text: str) -> float:
    began = time.process_time()
    redact(text)
    return max(time.process_time() - began, 1e-4)


def test_of_a_long_text_only_what_is_kept_is_read() -> None:
    read: list[int] = []

    def count(message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        read.append(len(message))
        return message, fields

    redactor = Redactor(count)
    text = "a word " * 2_000_000
    redactor.shorten(text, 16_384)
    redactor.shorten_middle(text, 16_384)

    assert sum(read) <= 2 * (16_384 + 2 * OVERLAP_CHARS)
