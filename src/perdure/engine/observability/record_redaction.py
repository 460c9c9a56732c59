"""What may be shown of what is stored: all of it but secrets, whoever asks, by whatever door.

One table of the fields that people and their code fill as they like. A lease's token is nobody's
business but its holder's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from perdure.core.json_text import decode_value, encode_value
from perdure.engine.runtime.secret import Secret
from perdure.net.url import read_url
from perdure.telemetry.redactor import HIDDEN, Redactor

T = TypeVar("T")

_TEXTS = ("message", "traceback", "reason", "sentence", "why", "origin")
_VALUES = ("tags", "meta", "details", "output", "execution_trace", "argv")
_DOCUMENTS = ("payload_json", "result_json")
_REFERRING = ("headers", "env")
"""Texts by name, some of them secrets by reference, which may be shown."""


class Showing:
    """`shown(value)`: the same value, by one app's redaction. Shown twice is shown once."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._fields: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys(_TEXTS, self.text),
            **dict.fromkeys(_VALUES, self.value),
            **dict.fromkeys(_DOCUMENTS, self._document),
            **dict.fromkeys(_REFERRING, self._referring),
            "url": _without_query,
            "token": _hidden,
        }

    def shown(self, value: T) -> T:
        """Whatever structs there are in it, without their secrets."""
        shown: T = self._any(value)
        return shown

    def value(self, value: Any) -> Any:
        """A JSON value without what looks like a secret."""
        hidden = self._redactor.value(value)
        return type(value)(hidden) if isinstance(value, tuple) else hidden

    def text(self, text: Any) -> Any:
        """Words of an enumeration are nobody's secrets."""
        return self._redactor.text(text) if type(text) is str else text

    def _any(self, value: Any) -> Any:
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if type(value) in (list, tuple):
            return type(value)(map(self._any, value))
        if type(value) is dict:
            return {name: self._any(inner) for name, inner in value.items()}
        return value

    def _struct(self, struct: Any) -> Any:
        changed = {}
        for name in struct.__struct_fields__:
            before = getattr(struct, name)
            if before is None or before is msgspec.UNSET:
                continue
            after = self._fields.get(name, self._any)(before)
            if after is not before and after != before:
                changed[name] = after
        return replace(struct, **changed) if changed else struct

    def _document(self, document: msgspec.Raw) -> msgspec.Raw:
        """As it was spelled, unless there is something to hide."""
        value = decode_value(document)
        hidden = self.value(value)
        return document if hidden == value else encode_value(hidden, limit=sys.maxsize)

    def _referring(self, texts: Any) -> Any:
        hidden = self.value({k: v for k, v in texts.items() if not isinstance(v, Secret)})
        return {name: hidden.get(name, text) for name, text in texts.items()}


def _without_query(url: str) -> str:
    """What follows a question mark may be a secret by itself."""
    endpoint = read_url(url)
    return f"{endpoint.shown}?{HIDDEN}" if "?" in endpoint.path else endpoint.shown


def _hidden(value: Any) -> Any:
    return HIDDEN if type(value) is str else value
