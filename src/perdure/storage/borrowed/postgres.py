"""What all drivers of PostgreSQL have in common: where the tables are, and how to spell queries."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import msgspec

from perdure.errors import InvalidInput
from perdure.storage.borrowed.connection import Borrowed, Home
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.wakeups import pack
from perdure.storage.postgres.dialect import CHANNEL, MOST_BYTES, PostgresDialect, columns
from perdure.storage.sql.migrations import check_version, load_migrations
from perdure.storage.sql.queries import PARAMETER, Query, load_dialect, positional
from perdure.storage.sql.statements import Bulk, Many, Operation, Statement, Step, trip

Spelt = tuple[str, Any]
Spell = Callable[[str, dict[str, Any]], Spelt]

_checked: set[tuple[str, str | None]] = set()


class PostgresBorrowed(Borrowed):
    """Statements name our schema, since the caller's search path may lead elsewhere."""

    def __init__(self, spell: Spell) -> None:
        self._spell = spell
        self.schema: str | None = None

    def home(self, url: str, clock: Clock) -> Home:
        if not url.startswith("postgres"):
            problem = f"it leads to PostgreSQL, but the app's runs are kept in {url}"
            raise InvalidInput("connection", problem)
        return PostgresHome(self, url)

    def find_schema(self) -> Operation[datetime]:
        """From here on statements name it; the time there. Raises InvalidInput."""
        [found] = yield trip(Step("find_home"))
        self.schema, now = _only_one(found)
        moment = PostgresHome.dialect.moment(now)
        assert moment is not None
        return moment

    def statement(self, step: Statement) -> Spelt:
        if isinstance(step, Bulk):
            parameters: dict[str, Any] = columns(_queries()[step.query], step.rows)
        elif isinstance(step, Many):
            parameters = {"rows": msgspec.json.encode(step.rows).decode()}
        else:
            parameters = step.parameters
        return self._spell(_qualified(step.query, self.schema), parameters)


class PostgresHome(Home):
    dialect = PostgresDialect()

    def __init__(self, borrowed: PostgresBorrowed, url: str) -> None:
        self._borrowed = borrowed
        self._url = url

    def arrive(self) -> Operation[datetime]:
        now = yield from self._borrowed.find_schema()
        place = self._url, self._borrowed.schema
        if place not in _checked:
            [[[version]]] = yield trip(Step("read_version"))
            check_version(load_migrations("perdure.storage.postgres"), version)
            _checked.add(place)
        return now

    def tell(self, topics: frozenset[str]) -> Operation[None]:
        for part in pack(topics, MOST_BYTES):
            yield trip(Step("notify", {"channel": CHANNEL, "part": part.decode()}))


def _only_one(found: list[tuple[Any, ...]]) -> tuple[str, datetime]:
    """The schema that the search path finds, or the only one there is."""
    visible = [row for row in found if row[2]]
    if not found:
        problem = "its database has no tables of Perdure"
        advice = "connect to the app's database, or run `perdure migrate` on this one"
        raise InvalidInput("connection", f"{problem}; {advice}")
    if not visible and len(found) > 1:
        names = ", ".join(row[0] for row in found)
        problem = f"Perdure's tables are in several schemas ({names}), none on its search path"
        raise InvalidInput("connection", f"{problem}; put one of them on it")
    schema, now = (visible or found)[0][:2]
    return schema, now


@cache
def _queries() -> dict[str, Query]:
    return load_dialect("perdure.storage.postgres")


@cache
def _tables() -> re.Pattern[str]:
    scripts = "".join(migration.sql for migration in load_migrations("perdure.storage.postgres"))
    names = {"perdure_schema", *re.findall(r"CREATE TABLE (\w+)", scripts)}
    return re.compile(rf"\b(FROM|JOIN|INTO|UPDATE)\s+({'|'.join(sorted(names))})\b")


@cache
def _qualified(query: str, schema: str | None) -> str:
    text = _queries()[query].text
    if schema is None:
        return text
    quoted = '"' + schema.replace('"', '""') + '"'
    return _tables().sub(lambda match: f"{match[1]} {quoted}.{match[2]}", text)


def by_name(text: str, parameters: dict[str, Any]) -> Spelt:
    """`%(name)s`, for psycopg and psycopg2."""
    return positional(text, "%(name)s"), parameters


def by_number(text: str, parameters: dict[str, Any]) -> Spelt:
    """`$1`, for asyncpg. All of our parameters here are texts; said so, since a caller may have
    taught the driver to make JSON of whatever is meant for a JSON parameter."""
    names = list(parameters)
    spelt = PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}::text", text)
    return spelt, tuple(parameters.values())
