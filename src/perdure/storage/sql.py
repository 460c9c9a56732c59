"""Named queries from a `.sql` file.

Each query is introduced by `-- name: …` and may say more in comment lines. Parameters are
written `:name` in every dialect. A query over many rows names its row parameters either as
`:name` too (SQLite runs it once a row) or as the columns of a `jsonb_to_recordset(:rows)`
(PostgreSQL gets all rows as one JSON text).
"""

from __future__ import annotations

import re
from importlib.resources import files

import msgspec

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_RECORDSET = re.compile(
    r"jsonb_to_recordset\(:rows(?:::jsonb)?\)\s+AS\s+\w+\s*\((.*?)\)", re.DOTALL
)
_COMMENT = re.compile(r"--.*$", re.MULTILINE)


class Query(msgspec.Struct, frozen=True):
    """One named statement; `parameters` in order of first use."""

    name: str
    text: str
    parameters: tuple[str, ...]


def load_queries(package: str, resource: str = "queries.sql") -> dict[str, Query]:
    """All queries of one dialect, by name."""
    parts = _NAME.split(files(package).joinpath(resource).read_text())
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name: _query(name, body) for name, body in pairs}


def _query(name: str, body: str) -> Query:
    text = _COMMENT.sub("", body).strip().rstrip(";")
    return Query(name, text, _parameters(text))


def _parameters(text: str) -> tuple[str, ...]:
    named = [name for name in PARAMETER.findall(text) if name != "rows"]
    for columns in _RECORDSET.findall(text):
        named.extend(column.split()[0] for column in columns.split(","))
    return tuple(dict.fromkeys(named))


def positional(text: str, style: str) -> str:
    """The text with `:name` parameters respelt, e.g. as `%(name)s`."""
    escaped = text.replace("%", "%%") if "%" in style else text
    return PARAMETER.sub(lambda match: style.replace("name", match.group(1)), escaped)
