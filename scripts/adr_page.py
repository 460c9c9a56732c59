"""The index of decision records, made from the first lines of each."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from scripts.reference_pages import page, table

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "adr"
HEAD = re.compile(r"# (\d+)\. (.+)\n\nStatus: (.+?)\. Area: ([\w ]+)\.\n")

ABOUT = """\
Each page states one decision: what made it necessary, what was decided, and what it costs. A
decision that a later one replaced stays here, struck through, with a link to its successor. Some
numbers are not used. How to write one:
[Contributing](../../CONTRIBUTING.md#how-a-change-is-made). The result of all decisions:
[Architecture](../architecture.md)."""


class Record(NamedTuple):
    number: int
    title: str
    status: str
    area: str
    file_name: str


def adr_index() -> str:
    records = sorted(map(read_record, FOLDER.glob("[0-9]*.md")), key=lambda it: (it.area, it))
    parts = [ABOUT]
    for area, found in groupby(records, lambda it: it.area):
        parts += [f"## {area}", table(("number", "decision", "status"), map(_row, found))]
    return page("Decisions: why it is built this way", *parts)


def read_record(path: Path) -> Record:
    head = HEAD.match(path.read_text(encoding="utf-8"))
    if head is None:
        raise SystemExit(f"{path}: begin with '# N. Title' and 'Status: …. Area: ….'")
    number, title, status, area = head.groups()
    return Record(int(number), title, status, area, path.name)


def _row(record: Record) -> tuple[str, ...]:
    link = f"[{record.title}]({record.file_name})"
    is_superseded = record.status.startswith("Superseded")
    return str(record.number), f"~~{link}~~" if is_superseded else link, record.status
