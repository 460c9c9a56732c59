"""Redact secrets in texts and JSON values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perdure.telemetry.secret_names import SecretNames
from perdure.telemetry.secret_texts import HIDDEN, make_rules, redact_user

Redact = Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]
"""From a line's message and fields to those that may be stored."""

_NAMING = ("name", "key", "Name", "Key")
_NAMED = ("value", "Value")
_MYSQL = ("mysql", "mysqldump", "mysqladmin", "mariadb")
_TOOL_FLAGS = {"sshpass": "-p", "redis-cli": "-a", **dict.fromkeys(_MYSQL, "-p")}
"""The option after which a well-known tool takes a password."""


def find_tool_flag(items: Sequence[Any]) -> str | None:
    """Return the option of a command line that is followed by a password, if it has one."""
    words = [item for item in items if isinstance(item, str)]
    names = (word.rpartition("/")[2] for word in words)
    found = next((_TOOL_FLAGS[name] for name in names if name in _TOOL_FLAGS), None)
    return "-p" if found is None and "login" in words else found


class Redaction:
    """The default, and how to add to it: `App(redact=Redaction(keys=["iban"]))`.

    A field is hidden if its name, taken apart into words, holds one of `keys` or names a secret.
    So is what is assigned to such a name in a text, what has the form of a secret, passwords and
    signatures in URLs, private keys, and whatever one of `patterns` matches.
    """

    def __init__(self, keys: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self._names = SecretNames(keys)
        self._rules = make_rules(self._names)
        self._patterns = tuple(re.compile(pattern) for pattern in patterns)

    def __call__(self, message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.text(message), self.value(fields)

    def text(self, text: str) -> str:
        lowered = text.lower()
        for rule in self._rules:
            if any(trigger in lowered for trigger in rule.triggers):
                text = rule.redact(text)
        for pattern in self._patterns:
            text = pattern.sub(HIDDEN, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value, without its secrets."""
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return self._items(value)
        return self.text(value) if isinstance(value, str) else value

    def is_secret(self, name: object, value: Any = "") -> bool:
        """Whether a field of this name holds a secret."""
        if not isinstance(name, str):
            return False
        return self._names.is_secret(name) or (
            isinstance(value, str) and self._names.is_weak(name) and not value.startswith("/")
        )

    def _mapping(self, fields: dict[Any, Any]) -> dict[Any, Any]:
        redacted = {
            self.value(name): HIDDEN if self.is_secret(name, value) else self.value(value)
            for name, value in fields.items()
        }
        if any(self.is_secret(fields.get(name)) for name in _NAMING):
            redacted |= {name: HIDDEN for name in _NAMED if name in fields}
        return redacted

    def _items(self, items: Sequence[Any]) -> list[Any]:
        """`["--password", "x"]`, `["authorization", "x"]` and `["-u", "ada:x"]` have a secret."""
        if len(items) == 2 and self.is_secret(items[0]) and isinstance(items[1], str):
            return [items[0], HIDDEN]
        tool_flag = find_tool_flag(items)
        previous = (None, *items)
        return [
            self._item(before, item, tool_flag)
            for before, item in zip(previous, items, strict=False)
        ]

    def _item(self, before: Any, item: Any, tool_flag: str | None) -> Any:
        if not isinstance(item, str):
            return self.value(item)
        if tool_flag and item.startswith(tool_flag) and item != tool_flag:
            return f"{tool_flag}{HIDDEN}"
        if not isinstance(before, str) or not before.startswith("-"):
            return self.text(item)
        if before == tool_flag:
            return HIDDEN
        if self.is_secret(before, item) and "=" not in before and not item.startswith("-"):
            return HIDDEN
        return redact_user(before, item) or self.text(item)
