"""Values and bodies that no client of ours sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

MAX_BODY = 8 * 1024 * 1024
"""What a server takes."""
MEGABYTE = 1_000_000

TEXTS = (
    "", " ", "\0", "a\0b", "\u202e", "\uffff", "\ud800", "a\udfffb", "%00", "[", "{{7*7}}", "..",
    "a/b",
    "' OR 1=1 --", "$where", "x" * 257, "x" * 1001, "é" * 2001, "perdure.bulk", "NaN", "null",
    "true",
    "-1", "1e999", "0x10", "=", "=x", "x=", "\n", "\r\nx-evil: 1", "😀" * 100, "a" * 20_000,
    "password=hunter2 " * 50, "(" * 500, "a" * 200 + "!", "/".join("a" * 200), "../../etc/passwd",
    "0-59," * 4000 + "0 * * * *", "0 0 30 2 *", "*/1 * * * * *", "Etc/GMT+99",
    "1/" + "9" * 5000 + "s",
    "9" * 5000, "%" * 1000, "_%_%_%", "\\" * 999, "run_" + "f" * 32, "http://[", "whsec_x",
)  # fmt: skip
INSTANTS = (
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00", "2026-02-30T00:00:00Z", "2026-01-01",
    "1969-12-31T23:59:59Z", "2026-01-01T00:00:00+00:00:30", "2026-01-01T24:00:00Z", "now",
)  # fmt: skip
NUMBERS = (
    -1, 0, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 2**70, 10**400, -(2**63), 1.5,
    1e12, 1e18, 1e300, 1e308, 1e-9, -0.0, 86399999999999,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [{}], {"": ""}, ["\0"], {"\0": 1})
SMALL: tuple[Any, ...] = (*TEXTS, *INSTANTS, *NUMBERS, *OTHERS, "PT1S", "P99999999D", "run_x")


def strange_value(random: Random) -> Any:
    """A small value at an edge, of any type."""
    return random.choice(SMALL)


def strange_text(random: Random) -> str:
    return random.choice(TEXTS if random.random() < 0.8 else INSTANTS)


def mutate(random: Random, value: Any) -> Any:
    """The value with one to three places changed: replaced, removed, added or repeated."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _mutate_once(random, value)
    return value


def _mutate_once(random: Random, value: Any) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        change = random.random()
        if change < 0.15:
            return {name: each for name, each in value.items() if name != key}
        if change < 0.25:
            return {**value, random.choice(("unknown", "type", "__proto__", "\0", "")): 1}
        return {**value, key: _mutate_once(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        if random.random() < 0.2:
            return [*value, *[value[place]] * random.choice((1, 2, 50, 600))]
        return [*value[:place], _mutate_once(random, value[place]), *value[place + 1 :]]
    return strange_value(random)


# Bodies, as bytes


def encode(value: Any) -> bytes:
    """JSON, also of what is not JSON: NaN and lone surrogates."""
    return json.dumps(value).encode()


def raw_body(random: Random, usual: bytes) -> bytes:
    """Bytes that are not what a client meant to send."""
    return random.choice(_RAW)(random, usual)


def _deep(random: Random, usual: bytes) -> bytes:
    depth = random.choice((50, 200, 1500, 100_000))
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    nested = opening * depth + b"1" + closing * depth
    return random.choice(
        (nested, b'{"payload":' + nested + b"}", b'{"task":"double","meta":' + nested)
    )


def _cut(random: Random, usual: bytes) -> bytes:
    return usual[: random.randrange(len(usual) + 1)]


def _flip(random: Random, usual: bytes) -> bytes:
    if not usual:
        return b"\xff"
    place = random.randrange(len(usual))
    return usual[:place] + bytes([random.randrange(256)]) + usual[place + 1 :]


def _double_keys(random: Random, usual: bytes) -> bytes:
    inner = usual.strip()[1:-1]
    return b"{" + inner + b"," + inner + b"}" if inner else b'{"a":1,"a":2}'


def _literal(random: Random, usual: bytes) -> bytes:
    return random.choice(
        (b"", b"null", b"[]", b"0", b'"x"', b"NaN", b'{"payload":NaN}', b'{"payload":Infinity}',
         b'{"task":"\\ud800"}', b'{"a":' + b"9" * 5000 + b"}", b"\xef\xbb\xbf{}", b"{} {}",
         b"{'task': 1}", b"\x00", b"\x80\x04\x95", b"task=double", b"<a/>", b'{"task": "\xff"}',
         b'{"payload":{"number":1e400}}', b'{"payload":{"number":-0}}')
    )  # fmt: skip


_RAW: tuple[Callable[[Random, bytes], bytes], ...] = (
    _deep, _cut, _flip, _double_keys, _literal, _literal,
)  # fmt: skip


def large_value(random: Random) -> Any:
    """A JSON value of up to a megabyte or a bit more."""
    size = random.choice((100_000, 250_000, 900_000, 1_100_000))
    return random.choice(
        (
            lambda: "the quick brown fox: jumps over lazy=dogs; " * (size // 43),
            lambda: [1] * (size // 3),
            lambda: [{}] * (size // 4),
            lambda: {f"k{number}": number for number in range(size // 14)},
            lambda: "password=" * (size // 9),
            lambda: "https://a:b@c/" * (size // 14),
            lambda: "x" * size,
        )
    )()


def huge_body(random: Random) -> bytes:
    """About as large as a server takes, or larger."""
    size = random.choice((MAX_BODY - 100, MAX_BODY + 1))
    filler = random.choice((b"1,", b"{},", b'"x",', b"[],"))
    return (b'{"payload":[' + filler * (size // len(filler)))[: size - 3] + b"1]}"
