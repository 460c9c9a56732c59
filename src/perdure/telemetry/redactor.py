"""The one place through which texts about runs pass before they are stored, sent or logged.

A `Redactor` removes the secrets it knows and what looks like a secret, and cuts texts only
afterwards, so that no half of a secret stays at a cut.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from perdure.telemetry.redaction import Redact, Redaction
from perdure.telemetry.secret_names import SecretNames
from perdure.telemetry.secret_texts import HIDDEN

__all__ = ["HIDDEN", "Mask", "Redact", "Redaction", "Redactor"]

MIN_MASKED_CHARS = 4
"""A shorter value is in many lines by chance: hiding it would hide everything."""
OVERLAP_CHARS = 4096
"""How much beyond a cut is read, to recognise a secret that the cut would divide."""

DEFAULT_NAMES = SecretNames()


class Cleaner(Protocol):
    """Removes secrets from a whole text, and from the beginning or the end of a longer one."""

    def text(self, text: str) -> str: ...

    def head(self, text: str) -> str: ...

    def tail(self, text: str) -> str: ...


class Mask:
    """Hides known values: as they are, as they are escaped or encoded, and line by line."""

    def __init__(self, values: Iterable[str]) -> None:
        spelled = {spelling for value in values for spelling in _spellings(value)}
        known = [value for value in spelled if len(value) >= MIN_MASKED_CHARS]
        self._values = sorted(known, key=len, reverse=True)

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    def head(self, text: str) -> str:
        """The beginning of a longer text, of which the cut may have left half a secret."""
        text = self.text(text)
        return text[: len(text) - max((_overlap(text, v) for v in self._values), default=0)]

    def tail(self, text: str) -> str:
        """The end of a longer text."""
        text = self.text(text)
        return text[max((_overlap(value, text) for value in self._values), default=0) :]

    def value(self, value: Any) -> Any:
        """The same for all texts of a JSON value."""
        if not self._values:
            return value
        if isinstance(value, dict):
            return {self.value(name): self.value(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value


class Redactor:
    """Removes secrets by an app's `redact`, and the values in `known`. Never raises: if `redact`
    does, nothing is shown."""

    def __init__(self, redact: Redact, known: Iterable[str] = ()) -> None:
        self._redact = redact
        self._mask = Mask(known)

    def knowing(self, values: Iterable[str]) -> Redactor:
        """Return one that hides these values, too."""
        return Redactor(self._redact, values)

    def text(self, text: str) -> str:
        return self.line(text, {})[0]

    def line(self, message: str, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """A log line's message and fields."""
        try:
            return self._call(self._mask.text(message), fields)
        except Exception as error:  # noqa: BLE001  # an app's own function
            return f"{HIDDEN} ({_fault(error)})", {}

    def _call(self, message: str, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Raises what the app's function raises, and TypeError if it returns anything else."""
        redacted: Any
        text: Any
        text, redacted = self._redact(message, self._mask.value(dict(fields)))
        if not isinstance(text, str) or not isinstance(redacted, dict):
            raise TypeError("redact must return a text and a dict")
        return text, redacted

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._call("", fields)[1]
        except Exception as error:  # noqa: BLE001  # an app's own function
            return {"left_out": _fault(error)}

    def value(self, value: Any) -> Any:
        """Any JSON value."""
        redacted = self.fields({"value": value})
        if "value" in redacted:
            return redacted["value"]
        if isinstance(value, dict):
            return redacted
        hidden = f"{HIDDEN} ({redacted['left_out']})"
        return [hidden] if isinstance(value, list | tuple) else hidden

    def head(self, text: str) -> str:
        """The beginning of a longer text, without the word at the cut."""
        return self.text(self._mask.head(drop_last_word(text)))

    def tail(self, text: str) -> str:
        """The end of a longer text, without the line at the cut."""
        return self.text(self._mask.tail(drop_first_line(text)))

    def shorten(self, text: str, limit: int) -> str:
        """At most `limit` characters, and a note of how many more there were."""
        return self.shorten_line(text, limit, {})[0]

    def shorten_line(
        self, message: str, limit: int, fields: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """The same for the message of a log line."""
        kept = message
        if len(message) > limit + OVERLAP_CHARS:
            kept = self._mask.head(drop_last_word(message[: limit + OVERLAP_CHARS]))
        text, redacted = self.line(kept, fields)
        if len(message) > limit:
            text = f"{text[:limit]}… ({len(message) - limit} more characters)"
        return text, redacted

    def shorten_middle(self, text: str, limit: int) -> str:
        """Both ends of a text that is longer than `limit`."""
        half = limit // 2 - 50
        if len(text) <= limit + 2 * OVERLAP_CHARS:
            redacted = self.text(text)
            if len(redacted) <= limit:
                return redacted
            head, tail = redacted[:half], redacted[-half:]
        else:
            head = self.head(text[: half + OVERLAP_CHARS])[:half]
            tail = self.tail(text[-half - OVERLAP_CHARS :])[-half:]
        return f"{head}\n… ({len(text) - 2 * half} characters left out) …\n{tail}"


def drop_last_word(text: str) -> str:
    """Without what follows the last white space, or without `OVERLAP_CHARS` if there is none."""
    tail = text[-OVERLAP_CHARS:]
    return text[: len(text) - len(tail) + max(map(tail.rfind, " \t\r\n")) + 1]


def drop_first_line(text: str) -> str:
    """Without its first line, or word, or `OVERLAP_CHARS`, whichever comes first in this order."""
    head = text[:OVERLAP_CHARS]
    breaks = (*(head.find(end) for end in "\n\r \t"), len(head) - 1)
    return text[next(position for position in breaks if position >= 0) + 1 :] if head else text


def _fault(error: Exception) -> str:
    return f"{type(error).__name__} in redact"


def _spellings(value: str) -> set[str]:
    escaped = json.dumps(value)[1:-1]
    plain = json.dumps(value, ensure_ascii=False)[1:-1]
    encoded = value.encode("utf-8", "surrogatepass")
    lines = [line.strip() for line in value.splitlines()]
    bare = value.removeprefix("whsec_")
    in_base64 = base64.b64encode(encoded).decode().rstrip("=")
    in_python = (repr(value)[1:-1], repr(encoded)[2:-1])
    in_url = quote(encoded, safe="")
    forms = {value, escaped, plain, escaped.replace("/", "\\/"), bare, in_base64, in_url}
    return {*forms, *in_python, *lines}


def _overlap(left: str, right: str) -> int:
    """How many characters at the end of `left` begin `right`, without being all of either."""
    longest = min(len(left), len(right) - 1)
    return next((n for n in range(longest, 0, -1) if left.endswith(right[:n])), 0)
