"""Which runs somebody wants to see: the words of a list, checked."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, TypedDict

from perdure.core.alias import resolve_status
from perdure.core.effects import DeadLetterStatus
from perdure.core.failure import FailureKind
from perdure.engine.door import choice, count, only_known, text
from perdure.errors import InvalidInput
from perdure.storage.oversight import LetterFilter
from perdure.storage.protocol import RunFilter

MOST_ON_A_PAGE = 1000
_STORABLE = re.compile(r"[^\x00\ud800-\udfff]*")


class RunFilters(TypedDict, total=False):
    """What is not given does not matter. `text` looks in task, id and outcome; a task may be given
    by its name or as itself; `tags` is another way to say `tag`, {"team": "red"}."""

    environment: str
    task: Any
    tags: dict[str, str] | None
    queue: str | None
    tag: tuple[str, str] | None
    batch_id: str | None
    schedule_id: str | None
    parent_id: str | None
    created_after: datetime | None
    created_before: datetime | None
    failure_kind: str | None
    fingerprint: str | None
    text: str | None


class LetterFilters(TypedDict, total=False):
    """Of dead letters."""

    task: str | None
    queue: str | None
    failure_kind: str | None
    fingerprint: str | None


def make_filter(environment: str, status: str | None, filters: RunFilters) -> RunFilter:
    """Raises InvalidInput for a filter that there is not, or a value that it cannot have."""
    only_known(filters, RunFilters.__annotations__, "filter of runs")
    _plainly(filters)
    for name, value in filters.items():
        if value is None:
            continue
        if name == "tag":
            _check_tag(value)
        elif not name.startswith("created_"):  # storage says what is wrong with an instant
            _searchable(value, name)
    filters.setdefault("environment", environment)
    wanted = None if status is None else resolve_status(text(status, "status"))
    plain: dict[str, Any] = {**filters}
    return RunFilter(status=wanted, **plain)


def _plainly(filters: Any) -> None:
    """A task by its name, a tag by its name and value; a kind of failure that there is."""
    if isinstance(named := getattr(filters.get("task"), "name", None), str):
        filters["task"] = named
    if filters.get("failure_kind") is not None:
        filters["failure_kind"] = choice(filters["failure_kind"], FailureKind, "failure_kind")
    tags = filters.pop("tags", None)
    if tags:
        if not isinstance(tags, dict) or len(tags) > 1 or filters.get("tag") is not None:
            problem = f"one tag can be looked for, e.g. {{'team': 'red'}}, not {tags!r:.80}"
            raise InvalidInput("tags", problem)
        [filters["tag"]] = tags.items()


def make_letter_filter(
    environment: str, status: str | None, filters: LetterFilters
) -> LetterFilter:
    """Raises InvalidInput, as above."""
    only_known(filters, LetterFilters.__annotations__, "filter of dead letters")
    for name, value in filters.items():
        if value is not None:
            _searchable(value, name)
    wanted = None if status is None else choice(status, DeadLetterStatus, "status")
    return LetterFilter(environment=environment, status=wanted, **filters)


def page_limit(limit: int) -> int:
    """Whoever wants more turns pages."""
    if count(limit, "limit") > MOST_ON_A_PAGE:
        problem = f"must be at most {MOST_ON_A_PAGE}, not {limit}; go on with the page's cursor"
        raise InvalidInput("limit", problem)
    return limit


def _searchable(value: object, name: str) -> None:
    """What is nowhere stored cannot be asked for either: not every database takes the question."""
    if not _STORABLE.fullmatch(text(value, name)):
        raise InvalidInput(name, f"must not hold NUL or lone surrogates, but is {value!r:.80}")


def _check_tag(tag: object) -> None:
    match tag:
        case (str(key), str(value)):
            _searchable(key, "tag")
            _searchable(value, "tag")
        case _:
            raise InvalidInput("tag", f"must be a pair, e.g. ('team', 'red'), not {tag!r:.80}")
