"""How a database would run our queries, told by its EXPLAIN, past the adapter."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg

from perdure.storage.sql.queries import load_dialect

SQLITE = load_dialect("perdure.storage.sqlite")
POSTGRES = load_dialect("perdure.storage.postgres")

PARTIAL = {
    "perdure_runs_claimable",
    "perdure_runs_attention",
    "perdure_runs_leased",
    "perdure_runs_key_leased",
    "perdure_runs_slots",
    "perdure_runs_gated",
    "perdure_runs_by_key",
    "perdure_runs_reserved",
    "perdure_limits_fair",
    "perdure_buckets_waiting",
}
"""Indexes that hold live runs only: to read the whole of one is no full scan."""

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_SCAN = re.compile(r"^SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?$")
_ALIASES = {"runs", "history", "keys", "run_tags", "schedules", "skipped_spans"}
_TABLES = {*_ALIASES, *(f"perdure_{alias}" for alias in _ALIASES)}

Node = dict[str, Any]


def sqlite_plan(path: str, name: str) -> list[str]:
    """One line for each step of the plan."""
    text = _text(SQLITE[name].text, SQLITE["where_cursor"].text)
    with closing(sqlite3.connect(path)) as connection:
        for clock in ("now", "schedule_now"):
            connection.create_function(clock, 0, lambda: 0, deterministic=True)
        unset = dict.fromkeys(_PARAMETER.findall(text))
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", unset)]


def sqlite_full_scans(plan: list[str]) -> list[str]:
    """The steps that read a whole table, or the whole of an index that is no small one."""
    scans = [(line, match) for line in plan if (match := _SCAN.match(line))]
    return [
        line
        for line, match in scans
        if (match[2] is not None and match[2] not in PARTIAL)
        or (match[2] is None and match[1] in _TABLES)
    ]


def postgres_plan(url: str, name: str) -> list[Node]:
    """Every node of the plan that is made once and kept, as the adapter would have it."""
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"${numbers.setdefault(match[1], len(numbers) + 1)}"

    text = _text(POSTGRES[name].text, POSTGRES["where_cursor"].text)
    prepare = f"PREPARE plan AS {_PARAMETER.sub(numbered, text)}"
    with psycopg.connect(url) as connection:
        limits = POSTGRES["limit_transaction"].text
        connection.execute(limits.replace(":statement_timeout", "'30s'").encode())
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        connection.execute(prepare.encode())
        values = f"({', '.join(['NULL'] * len(numbers))})" if numbers else ""
        explained = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE plan{values}".encode())
        [[[answer]]] = explained.fetchall()
    return list(descendants(answer["Plan"]))


def postgres_full_scans(plan: list[Node]) -> list[str]:
    """The nodes that read a whole table, or join whole tables."""
    return [
        f"{node['Node Type']} {node.get('Index Name') or node.get('Relation Name', '')}"
        for node in plan
        if node["Node Type"] in ("Hash Join", "Merge Join")
        or (node.get("Relation Name") in _TABLES and node["Node Type"] == "Seq Scan")
        or _reads_whole_index(node)
    ]


def postgres_indexes(plan: list[Node]) -> set[str]:
    return {node["Index Name"] for node in plan if "Index Name" in node}


def _reads_whole_index(node: Node) -> bool:
    index = node.get("Index Name")
    ordered = "Index Cond" in node or index in PARTIAL or index == "perdure_limits_pkey"
    return index is not None and not ordered


def descendants(node: Node) -> Iterator[Node]:
    """A node, and all below it."""
    yield node
    for child in node.get("Plans", ()):
        yield from descendants(child)


def _text(text: str, condition: str) -> str:
    return text.replace("{conditions}", condition)
