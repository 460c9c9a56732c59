"""YAML as plain values that know their lines.

Read from the parser's events, so that no tag ever constructs anything: a value is a mapping, a
list, or what the core schema of YAML 1.2 makes of a word. `on`, `no`, `1:30` and dates are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from perdure.core.json_text import MAX_DEPTH

MOST_CHARACTERS = 1024 * 1024
MOST_VALUES = 100_000
"""Counted after aliases are expanded: a few lines of them can stand for billions of values."""

Path = tuple[str | int, ...]

_PARSER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_TEXT_TAG = "tag:yaml.org,2002:str"
_MERGE = "<<"
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_QUOTE = "a text that begins with *, &, @, %, ! or {, or that holds ': ', needs quotes"


class Unreadable(Exception):
    """What is wrong with a text, and in which line."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line = line
        self.problem = problem


class Document(NamedTuple):
    """One document of a file: its value, and the line of each of its parts."""

    file: str
    value: Any
    lines: dict[Path, int]

    def line_of(self, path: Path, field: str = "") -> int:
        """Where `field` (`retry.delays[0]`) of what is at `path` stands; or what it would be in."""
        steps = (int(index) if index else name for index, name in _STEP.findall(field))
        sought = (*path, *steps)
        while sought not in self.lines and sought:
            sought = sought[:-1]
        return self.lines.get(sought, 1)


def read_documents(text: str, file: str) -> Iterator[Document]:
    """Those that are not empty. Raises Unreadable."""
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(1, f"has {len(text)} characters, more than {MOST_CHARACTERS}; divide it")
    try:
        yield from _Builder(text).documents(file)
    except yaml.YAMLError as error:
        raise _explained(error, text) from error


def plain(word: str) -> Any:
    """What a word without quotes means."""
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word):
        return int(word)
    if _BASED.fullmatch(word):
        return int(word, 0)
    if _FLOAT.fullmatch(word):
        return float(word.replace(".", "") if word[-1].isalpha() else word)
    return word


class _Builder:
    """Values from events; of one text."""

    def __init__(self, text: str) -> None:
        # Marks and flags of events are typed differently from one release of the stubs to the next.
        self._events: Iterator[Any] = yaml.parse(text, Loader=_PARSER)
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._lines: dict[Path, int] = {}
        self._size = 0

    def documents(self, file: str) -> Iterator[Document]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors, self._lines = {}, {}
                value = self._value(next(self._events), ())
                if value is not None:
                    yield Document(file, value, self._lines)

    def _value(self, event: Any, path: Path) -> Any:
        line = event.start_mark.line + 1
        self._lines.setdefault(path, line)
        self._grow(1, line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, line)
        if len(path) > MAX_DEPTH:
            raise Unreadable(line, f"is nested deeper than {MAX_DEPTH} levels")
        size = self._size
        made = self._made(event, path, line)
        if event.anchor is not None:
            self._anchors[event.anchor] = (made, self._size - size)
        return made

    def _grow(self, size: int, line: int) -> None:
        self._size += size
        if self._size > MOST_VALUES:
            raise Unreadable(line, f"holds more than {MOST_VALUES} values; divide it")

    def _alias(self, event: Any, line: int) -> Any:
        if event.anchor not in self._anchors:
            raise Unreadable(line, f"*{event.anchor} stands for nothing that is known; {_QUOTE}")
        value, size = self._anchors[event.anchor]
        self._grow(size, line)
        return value

    def _made(self, event: Any, path: Path, line: int) -> Any:
        if event.tag not in (None, "!", _TEXT_TAG):
            raise Unreadable(
                line, f"the tag {event.tag!r:.80} is refused: a manifest is plain data"
            )
        if isinstance(event, yaml.ScalarEvent):
            return self._word(event, line)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(path)
        return self._mapping(path)

    def _word(self, event: Any, line: int) -> Any:
        is_plain = event.implicit[0] and event.tag is None
        try:
            return plain(event.value) if is_plain else event.value
        except ValueError as error:
            raise Unreadable(line, f"{event.value!r:.80} is no number: {error}") from None

    def _list(self, path: Path) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._value(event, (*path, len(found))))
        return found

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            name = self._name(event, line)
            if name == _MERGE and event.implicit[0]:
                merged = {**self._merged(path, line), **merged}
                continue
            if name in found:
                again = f"is given twice, first in line {self._lines[*path, name]}; give it once"
                raise Unreadable(line, f"{name}: {again}")
            self._lines[*path, name] = line
            found[name] = self._value(next(self._events), (*path, name))
        return {**merged, **found}

    def _name(self, event: Any, line: int) -> str:
        name = self._word(event, line) if isinstance(event, yaml.ScalarEvent) else None
        if not isinstance(name, str):
            shown = getattr(event, "value", "a list or a mapping")
            raise Unreadable(line, f"a key must be text, not {shown!r:.80}; put it in quotes")
        return name

    def _merged(self, path: Path, line: int) -> dict[str, Any]:
        value = self._value(next(self._events), (*path, _MERGE))
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in parts):
            raise Unreadable(line, f"{_MERGE} takes mappings, not {value!r:.80}")
        return {name: inner for part in reversed(parts) for name, inner in part.items()}


def _explained(error: Any, text: str) -> Unreadable:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        problem = str(error).splitlines()[0]
    else:
        line = mark.line + 1
        problem = ", ".join(part for part in (error.context, error.problem) if part)
    return Unreadable(line, f"is not YAML: {problem}; {_QUOTE}")
