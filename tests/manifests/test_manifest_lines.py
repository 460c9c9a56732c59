"""YAML as plain values that know their lines, and nothing that a hostile file could do with it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.engine.manifests.render import to_yaml
from perdure.engine.manifests.yaml_lines import MOST_CHARACTERS, Unreadable, read_documents

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)
TRICKY = st.sampled_from(
    ["0o17", "1e3", "yes", "~", "", "<<", "2026-01-01", "1:30", "*", "@daily", "a: b", "- a", "#"]
)


def read(text: str) -> list[Any]:
    return [document.value for document in read_documents(text, "file.yaml")]


def refusal(text: str) -> tuple[int, str]:
    with pytest.raises(Unreadable) as refused:
        read(text)
    return refused.value.line, refused.value.problem


@given(st.dictionaries(TRICKY | st.text(max_size=5), JSON | TRICKY, min_size=1))
def test_whatever_is_written_is_read_again(value: dict[str, Any]) -> None:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return  # a lone surrogate is no text, and is refused at the door

    assert repr(read(to_yaml(value))) == repr([value])


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *(("null", None), ("~", None), ("", None), ("true", True), ("False", False)),
        *(("7", 7), ("-7", -7), ("+7", 7), ("007", 7), ("0x1F", 31), ("0o17", 15)),
        *((".5", 0.5), ("1e3", 1000.0), ("-1.", -1.0), (".inf", float("inf"))),
        *(("on", "on"), ("no", "no"), ("1:30", "1:30"), ("2026-06-01", "2026-06-01")),
        *(("0 9 * * *", "0 9 * * *"), ("'7'", "7"), ('"null"', "null"), ("!!str 7", "7")),
    ],
)
def test_a_word_means_what_yaml_1_2_says(word: str, value: Any) -> None:
    [found] = read(f"a: {word}\n")

    assert found == {"a": value}
    assert type(found["a"]) is type(value)


def test_every_part_knows_its_line() -> None:
    text = "# one\na: 1\nb:\n  c: [1,\n      2]\n---\n\nd: 3\n"

    first, second = read_documents(text, "file.yaml")

    assert first.line_of((), "a") == 2
    assert first.line_of((), "b.c[1]") == 5
    assert first.line_of(("b",), "c[7].x") == 4
    assert first.line_of((), "nowhere") == 2
    assert second.line_of((), "d") == 8


def test_empty_documents_are_passed_over() -> None:
    assert read("---\n# nothing\n---\na: 1\n---\n") == [{"a": 1}]
    assert read("") == []


def test_anchors_and_merges_are_understood() -> None:
    text = (
        "base: &base {tz: UTC, queue: mail}\nmore: &more {queue: slow}\n"
        "one: {<<: [*more, *base], tz: Europe/Berlin}\ntwo: *more\n"
    )

    [found] = read(text)

    assert found["one"] == {"queue": "slow", "tz": "Europe/Berlin"}
    assert found["two"] == {"queue": "slow"}


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcde", "bcdef", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a: is given twice, first in line 1"),
        ("a: 1\n7: 2\n", 2, "a key must be text, not '7'; put it in quotes"),
        ("? [1]\n: 2\n", 1, "a key must be text"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "a manifest is plain data"),
        ("a: !thing {}\n", 1, "the tag '!thing' is refused"),
        ("a: &a [*a]\n", 1, "*a stands for nothing that is known"),
        ("<<: 5\n", 1, "<< takes mappings, not 5"),
        ("x: 1\ncron: * * * * *\n", 2, "needs quotes"),
        ("cron: @daily\n", 1, "needs quotes"),
        ("a: 1\n  b: 2\n", 2, "is not YAML"),
        ("a: b\n\nc: \x01\n", 3, "is not YAML"),
        (f"a: {'9' * 5000}\n", 1, "is no number"),
        (BOMB, 5, "more than 100000 values"),
        ("[" * 5000, 1, "nested deeper than 64 levels"),
        ("a" * (MOST_CHARACTERS + 1), 1, "divide it"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, line: int, problem: str) -> None:
    found_line, found = refusal(text)

    assert found_line == line
    assert problem in found
