"""JSON values: what goes in comes out byte for byte, and what cannot is refused at the door."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.json_text import (
    DEFAULT_LIMIT,
    MAX_DEPTH,
    NULL,
    check_label,
    check_text,
    decode_value,
    encode_value,
)
from perdure.errors import InvalidInput, InvalidValue, PayloadTooLarge


def nested(depth: int) -> Any:
    value: Any = []
    for level in range(depth - 1):
        value = [value] if level % 2 else {"x": value}
    return value


KEPT: list[Any] = [
    None, True, 0, -1, 1.5, 1e300, "", [], {}, "naïve 你好 🎉", "a\x00b", {"\x00": "\x00"},
    10**30, -(10**4000), 2**63, 2**64, {"": ""}, [[[]]], "\u2028", "\\\"/\b", {"[": "{[{["},
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=lambda value: repr(value)[:20])
def test_a_value_comes_back_as_it_went_in(value: Any) -> None:
    raw = encode_value(value)

    assert decode_value(raw) == value
    assert type(decode_value(raw)) is type(value)
    assert check_text(bytes(raw)) == raw


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_every_json_value_round_trips(value: Any) -> None:
    raw = encode_value(value)

    assert decode_value(raw) == value
    assert bytes(check_text(bytes(raw))) == bytes(raw)


def test_text_is_compact_utf8() -> None:
    assert bytes(encode_value({"a": ["é", 1]})) == '{"a":["é",1]}'.encode()
    assert encode_value(None) == NULL


def test_a_tuple_is_a_list() -> None:
    assert decode_value(encode_value((1, (2,)))) == [1, [2]]


REFUSED: list[tuple[Any, str]] = [
    (float("nan"), "cannot be kept as JSON"),
    ([float("inf")], "cannot be kept as JSON"),
    ({"x": float("-inf")}, "cannot be kept as JSON"),
    ("\ud800", "lone surrogate"),
    ({"\udfff": 1}, "lone surrogate"),
    ({"x": ["\ud800"]}, "lone surrogate"),
    ({1: 2}, "object key that is not text"),
    ([{None: 2}], "object key that is not text"),
    ({("a",): 2}, "object key that is not text"),
    ({1, 2}, "cannot be kept as JSON"),
    (b"bytes", "cannot be kept as JSON"),
    (object(), "cannot be kept as JSON"),
    (10**5000, "cannot be kept as JSON"),
]


@pytest.mark.parametrize(("value", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_a_value_that_cannot_be_kept_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem) as caught:
        encode_value(value, field="result")

    assert caught.value.field == "result"


def test_sixty_four_levels_are_kept() -> None:
    deepest = bytes(encode_value(nested(MAX_DEPTH)))
    check_text(deepest)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, MAX_DEPTH + 2, 5000])
def test_deeper_values_and_texts_are_refused(depth: int) -> None:
    with pytest.raises(InvalidValue, match="nested deeper than 64 levels"):
        encode_value(nested(depth))
    with pytest.raises(InvalidValue, match="nested deeper than 64 levels"):
        check_text(b"[" * depth + b"]" * depth)


def test_a_value_within_itself_is_refused_without_exhausting_anything() -> None:
    value: list[Any] = []
    value += [value, value]

    with pytest.raises(InvalidValue, match="nested deeper"):
        encode_value(value)


def test_brackets_within_strings_are_not_nesting() -> None:
    text = b'{"k[[[": ["' + b"[{" * 500 + b'", "\\"[[", "\\\\", []]}'

    assert check_text(text) == msgspec.Raw(text)


def test_a_text_too_deep_to_parse_is_too_deep() -> None:
    with pytest.raises(InvalidValue, match="nested deeper"):
        check_text(b"[" * 100_000 + b"]" * 100_000)


def test_a_mebibyte_is_kept_and_one_byte_more_is_not() -> None:
    fits = "x" * (DEFAULT_LIMIT - 2)
    assert len(bytes(encode_value(fits))) == DEFAULT_LIMIT
    check_text(bytes(encode_value(fits)))

    with pytest.raises(PayloadTooLarge) as caught:
        encode_value(fits + "x")
    assert (caught.value.size, caught.value.limit) == (DEFAULT_LIMIT + 1, DEFAULT_LIMIT)
    assert "pass a reference" in str(caught.value)
    with pytest.raises(PayloadTooLarge):
        check_text(b'"' + fits.encode() + b'x"')


def test_the_limit_counts_bytes_not_characters() -> None:
    assert encode_value("é", limit=4)
    with pytest.raises(PayloadTooLarge):
        encode_value("éé", limit=4)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a" : 1.10,  "a":1e2 }',
        b'"\\u00e9\\/"',
        b"12345678901234567890.123456789012345678901",
        b"-0",
        b"[1e15,1E+15]",
        b'"a\\u0000b"',
        b'"\\ud83c\\udf89"',
    ],
)
def test_text_from_outside_is_kept_unchanged(text: bytes) -> None:
    assert bytes(check_text(text)) == text


def test_white_space_around_a_text_is_not_part_of_its_value() -> None:
    assert bytes(check_text(b' \r\n\t{"a": 1} \n')) == b'{"a": 1}'


def test_short_text_is_kept_even_if_python_would_write_it_longer() -> None:
    text = b"[" + b",".join([b"1e15"] * 100) + b"]"

    assert bytes(check_text(text, limit=len(text))) == text


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"{", b"[1,]", b"nul", b"{'a':1}", b"NaN", b"[Infinity]", b"-Infinity", b"1e999",
        b'"\\ud800"', b'{"\\udfff":1}', b"\xff", b'"\xed\xa0\x80"', b'"a\x00b"', b"1 2",
        b"\xef\xbb\xbf1", '"ü"'.encode("utf-16"), b"9" * 5000, b'"unclosed [[[',
    ],
)  # fmt: skip
def test_text_that_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_text(text, field="body")

    assert caught.value.field == "body"


@pytest.mark.parametrize("label", ["a", "x" * 256, "with space", "naïve 🎉", "a/b:c"])
def test_a_good_label_is_kept(label: str) -> None:
    assert check_label(label, "queue") == label


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("", "1 to 256 bytes"),
        ("x" * 257, "1 to 256 bytes, not 257"),
        ("a\x00", "control characters"),
        ("a\n", "control characters"),
        ("\x7f", "control characters"),
        ("\ud800", "lone surrogates"),
        (3, "must be text, not 3"),
        (None, "must be text, not None"),
    ],
)
def test_a_bad_label_is_refused(label: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        check_label(label, "queue")


def test_a_label_may_have_another_limit() -> None:
    assert check_label("x" * 512, "occurrence_key", limit=512)
    with pytest.raises(InvalidValue, match="1 to 512"):
        check_label("x" * 513, "occurrence_key", limit=512)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b'"\\u0041\\u0042\\u0043"', b'"ABC"'),
        (b"[ 1 ,\n\t 2 ]", b"[1,2]"),
        (b'"\\/\\/\\/"', b'"///"'),
        (b'"\\ud83d\\ude00"', '"\U0001f600"'.encode()),
    ],
)
def test_the_limit_of_a_text_counts_the_bytes_of_its_value(text: bytes, kept: bytes) -> None:
    assert len(text) > len(kept)
    assert check_text(text, limit=len(text)) == msgspec.Raw(text)
    assert check_text(text, limit=len(kept)) == msgspec.Raw(kept)
    with pytest.raises(PayloadTooLarge) as caught:
        check_text(text, limit=len(kept) - 1)
    assert caught.value.size <= len(kept)


def test_a_long_text_of_white_space_within_a_string_is_too_large() -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        check_text(b'"' + b" " * 100 + b'"', limit=50)

    assert caught.value.size == 102


@given(json_values)
def test_escapes_and_white_space_never_make_a_value_too_large(value: Any) -> None:
    compact = encode_value(value)
    padded = json.dumps(value, indent=4, ensure_ascii=True).encode()

    assert decode_value(check_text(padded, limit=len(bytes(compact)))) == value
