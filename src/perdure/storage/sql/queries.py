"""Named queries from a `.sql` file.

Each query is introduced by `-- name: …` and may say more in comment lines. Parameters are
written `:name` in every dialect. A query over many rows names its row parameters either as
`:name` too (SQLite runs it once a row) or as the columns of a `jsonb_to_recordset(:rows)`
(PostgreSQL gets all rows as one JSON text). In what every run goes through, they are the one row
of `VALUES (…)`, repeated as often as there are rows (SQLite), or each an array (PostgreSQL); what
stands elsewhere is the same for all rows.
What several queries say alike is a part, introduced by `-- part: …` before them, and spelt `{…}`
where it belongs. What all dialects ask in the same words stands in `common.sql`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import msgspec

_HEADING = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_RECORDSET = re.compile(
    r"jsonb_to_recordset\(:rows(?:::jsonb)?\)\s+AS\s+\w+\s*\((.*?)\)", re.DOTALL
)
_ROW = re.compile(r"VALUES\s*\([^()]*\)")
_COMMENT = re.compile(r"--.*$", re.MULTILINE)


class Query(msgspec.Struct, frozen=True):
    """One named statement; `parameters` in order of first use."""

    name: str
    text: str
    parameters: tuple[str, ...]


def load_dialect(package: str) -> dict[str, Query]:
    """All queries of one dialect by name, with those that all dialects have in common."""
    return load_queries("perdure.storage.sql", "common.sql") | load_queries(package)


def load_queries(package: str, resource: str = "queries.sql") -> dict[str, Query]:
    """All queries of one file, by name."""
    pieces = _HEADING.split(files(package).joinpath(resource).read_text())
    parts: dict[str, str] = {}
    queries: dict[str, Query] = {}
    for kind, name, body in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        text = _with_parts(_COMMENT.sub("", body).strip().rstrip(";"), parts)
        if kind == "part":
            parts[name] = text
        else:
            queries[name] = Query(name, text, _parameters(text))
    return queries


def _with_parts(text: str, parts: dict[str, str]) -> str:
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def _parameters(text: str) -> tuple[str, ...]:
    named = [name for name in PARAMETER.findall(text) if name != "rows"]
    for columns in _RECORDSET.findall(text):
        named.extend(column.split()[0] for column in columns.split(","))
    return tuple(dict.fromkeys(named))


def positional(text: str, style: str) -> str:
    """The text with `:name` parameters respelt, e.g. as `%(name)s`."""
    escaped = text.replace("%", "%%") if "%" in style else text
    return PARAMETER.sub(lambda match: style.replace("name", match.group(1)), escaped)


@cache
def repeated(query: Query, count: int) -> str:
    """The text of a query over one row of `VALUES`, for so many; with `?` for its parameters."""
    before, row, after = _around_row(query)
    marks = f"({', '.join('?' * len(PARAMETER.findall(row)))})"
    rows = f"VALUES {', '.join([marks] * count)}"
    return f"{positional(before, '?')}{rows}{positional(after, '?')}"


@cache
def row_parameters(query: Query) -> slice:
    """Which parameters stand in that row. The others are the same for all rows."""
    before, row, _ = _around_row(query)
    first = len(PARAMETER.findall(before))
    return slice(first, first + len(PARAMETER.findall(row)))


def _around_row(query: Query) -> tuple[str, str, str]:
    [row] = _ROW.findall(query.text)
    before, _, after = query.text.partition(row)
    return before, row, after
