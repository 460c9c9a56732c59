"""Filters of runs and dead letters: one parser for Python, flags and query parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from perdure.core.filter_terms import parse_instant, parse_tag
from perdure.core.run.effects import DeadLetterStatus
from perdure.core.run.failure import FailureKind
from perdure.core.seed_terms import StatusFilter, parse_statuses
from perdure.engine.runtime.input import choice, count, only_known, text
from perdure.errors import InvalidInput
from perdure.storage.contract.inspection import LetterFilter
from perdure.storage.contract.runs import RunFilter

MOST_ON_A_PAGE = 1000
_INSTANTS = ("created_after", "created_before", "finished_after", "finished_before")

Statuses = str | Sequence[str]
"""A status, several separated by commas, or a list of them."""
When = datetime | timedelta | str
"""An instant, or how long ago."""


class RunFilters(TypedDict, total=False):
    """Which runs; a filter that is not given does not matter. `text` looks in task, id and outcome.
    A task may be given by its name or as itself. `tag` is ("team", "red") or "team=red", `tags` is
    {"team": "red"}. Instants are datetimes, ISO texts, or lengths of time ("1h", a timedelta): so
    long ago. `since` is another name of `created_after`."""

    task: Any
    tags: dict[str, str] | None
    queue: str | None
    tag: tuple[str, str] | str | None
    batch_id: str | None
    schedule_id: str | None
    parent_id: str | None
    since: When | None
    created_after: When | None
    created_before: When | None
    finished_after: When | None
    finished_before: When | None
    failure_kind: str | None
    fingerprint: str | None
    text: str | None


class LetterFilters(TypedDict, total=False):
    """Of dead letters."""

    task: str | None
    queue: str | None
    failure_kind: str | None
    fingerprint: str | None


def make_filter(environment: str, words: Mapping[str, Any], now: datetime) -> RunFilter:
    """Return the filter that the words name, from whichever interface they come. Raise InvalidInput
    for a filter that does not exist, or a value that it cannot have."""
    fields = plain_words(words, now)
    for name in ("status", "failure_kind"):
        if name in fields:
            fields[name] = _CHOICES[name](fields[name])
    return RunFilter(environment=environment, **fields)


def plain_words(words: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the words of a filter in the form that means the same at any time and on any server:
    instants instead of lengths of time, a task's name instead of the task. Raise InvalidInput."""
    only_known(words, ("status", *RunFilters.__annotations__), "filter of runs")
    given = {name: value for name, value in words.items() if value is not None and value != {}}
    _rename(given, "since", "created_after", lambda since: parse_instant(since, "since", now))
    _rename(given, "tags", "tag", _only_tag)
    return {name: _plain(value, name, now) for name, value in given.items()}


def _rename(given: dict[str, Any], name: str, to: str, read: Callable[[Any], Any]) -> None:
    """Replace a filter by the one that it is another name of."""
    if name not in given:
        return
    if to in given:
        raise InvalidInput(name, f"is another way to say {to}; give one of them")
    given[to] = read(given.pop(name))


def _only_tag(tags: Any) -> Any:
    if not isinstance(tags, dict) or len(tags) != 1:
        problem = f"one tag can be looked for, e.g. {{'team': 'red'}}, not {tags!r:.80}"
        raise InvalidInput("tags", problem)
    return next(iter(tags.items()))


def _plain(value: Any, name: str, now: datetime) -> Any:
    if name in _INSTANTS:
        return parse_instant(value, name, now)
    if name == "tag":
        key, wanted = parse_tag(value, name)
        return text(key, name), text(wanted, name)
    if name == "status" and isinstance(value, list | tuple):
        value = ",".join(text(word, name) for word in value)
    if name == "task" and isinstance(named := getattr(value, "name", None), str):
        value = named
    return text(value, name)


def _statuses(value: str) -> StatusFilter:
    return parse_statuses(text(value, "status").split(","))


_CHOICES: dict[str, Callable[[str], Any]] = {
    "status": _statuses,
    "failure_kind": lambda kind: choice(kind, FailureKind, "failure_kind"),
}


def make_letter_filter(
    environment: str, status: str | None, filters: LetterFilters
) -> LetterFilter:
    """Raises InvalidInput, as above."""
    only_known(filters, LetterFilters.__annotations__, "filter of dead letters")
    for name, value in filters.items():
        if value is not None:
            text(value, name)
    wanted = None if status is None else choice(status, DeadLetterStatus, "status")
    return LetterFilter(environment=environment, status=wanted, **filters)


def page_limit(limit: int) -> int:
    """Whoever wants more turns pages."""
    if count(limit, "limit") > MOST_ON_A_PAGE:
        problem = f"must be at most {MOST_ON_A_PAGE}, not {limit}; go on with the page's cursor"
        raise InvalidInput("limit", problem)
    return limit
