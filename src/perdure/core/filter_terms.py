"""The values of a filter's terms, read from text: `1h`, `2030-01-31T09:00`, `team=red`.

Flags, query parameters and Python arguments have the same terms, and all of them are read here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from perdure.core.json_text import in_utc
from perdure.errors import InvalidInput

_DURATION = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(text: str) -> timedelta | None:
    """Return the length of time that `90d`, `12h`, `30m` or `5s` names. None: it names none."""
    found = _DURATION.fullmatch(text)
    return None if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})


def parse_instant(value: object, field: str, now: datetime) -> datetime:
    """Return the instant that a term names, in UTC. A length of time means so long before `now`;
    text without an offset is in UTC. Raise InvalidInput."""
    if isinstance(value, str):
        length = parse_duration(value)
        value = _parse_iso(value, field) if length is None else length
    if isinstance(value, timedelta):
        try:
            value = now - value
        except OverflowError:
            raise InvalidInput(field, "lies before the calendar begins") from None
    if not isinstance(value, datetime):
        problem = f"must be an instant or a length of time, e.g. '1h', not {value!r:.80}"
        raise InvalidInput(field, problem)
    return in_utc(value, field)


def _parse_iso(text: str, field: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        problem = f"must be like 2030-01-31T09:00:00Z, or 1h for an hour ago, not {text!r:.80}"
        raise InvalidInput(field, problem) from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def parse_tag(value: object, field: str) -> tuple[str, str]:
    """Return the key and the value of a tag, given as `team=red` or as a pair."""
    match value:
        case (str(key), str(wanted)):
            return key, wanted
        case str() if value.find("=") > 0:
            key, _, wanted = value.partition("=")
            return key, wanted
    problem = f"must be KEY=VALUE or a pair, e.g. ('team', 'red'), not {value!r:.80}"
    raise InvalidInput(field, problem)
