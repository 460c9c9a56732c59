"""The README is short, and its table claims no number that was not measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
MEASURED = {
    "Drain, PostgreSQL, 1 worker (jobs/s)": ("PostgreSQL", "Drain, one worker process"),
    "Drain, PostgreSQL, 2 workers (jobs/s)": ("PostgreSQL", "Drain, two worker processes"),
    "Drain, SQLite (jobs/s)": ("SQLite", "Drain, one worker process"),
    "Trigger to start, PostgreSQL, p50": ("PostgreSQL", "Asked → started in another process, p50"),
}
"""The rows of the README that have numbers: the database, and the column of the benchmarks."""

NAMES = {"DBOS Transact": "DBOS"}
"""The README's names of peers where the benchmarks have another one."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def readme_row(name: str) -> dict[str, str]:
    """Return the cells of a row of the README's table by the name of the peer."""
    (head,) = (line for line in README.splitlines() if line.startswith("| | Perdure"))
    (row,) = (line for line in README.splitlines() if line.startswith(f"| {name} |"))
    return dict(zip(cells(head)[1:], cells(row)[1:], strict=True))


def measured(contender: str, column: str) -> str | None:
    """Return what the benchmarks have in a column for a contender, without the spread."""
    for head in re.findall(r"^\|  \| .*\n(?:\|.*\n)+", BENCHMARKS, re.MULTILINE):
        names, _, *rows = head.splitlines()
        positions = [at for at, name in enumerate(cells(names)) if name.startswith(column)]
        for row in rows:
            if positions and cells(row)[0] == contender:
                return cells(row)[positions[0]].partition(" ±")[0]
    return None


def test_the_readme_has_at_most_120_lines_and_about_twenty_of_code() -> None:
    code = README.split("```python\n")[1].split("```")[0]

    assert len(README.splitlines()) <= 120
    assert len(code.splitlines()) <= 25


@pytest.mark.parametrize("row", MEASURED)
def test_every_number_of_the_table_stands_in_the_benchmarks(row: str) -> None:
    database, column = MEASURED[row]
    claimed = {peer: number for peer, number in readme_row(row).items() if number}

    found = {peer: measured(f"{NAMES.get(peer, peer)}, {database}", column) for peer in claimed}

    assert claimed == found
    assert "Perdure" in claimed
