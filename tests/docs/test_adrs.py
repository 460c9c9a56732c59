"""Every decision record has a title that can be searched, a status, and a line in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "adr"
INDEX = FOLDER / "README.md"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
HEAD = re.compile(r"# (\d+)\. (.+)\n\nStatus: (.+?)\. Area: ([\w ]+)\.\n\n")
REFERENCE = r"\[ADR \d+\]\((\d{4}-[a-z0-9-]+\.md)\)"
STATUS = re.compile(rf"Accepted|Accepted, amended by {REFERENCE}|Superseded by {REFERENCE}")


def head_of(record: Path) -> tuple[str, str, str, str]:
    """Return number, title, status and area of a decision record."""
    found = HEAD.match(record.read_text(encoding="utf-8"))
    assert found is not None, f"{record.name} does not begin with a title and a status"
    number, title, status, area = found.groups()
    return number, title, status, area


@pytest.mark.parametrize("record", RECORDS, ids=lambda it: it.name[:4])
def test_a_record_has_a_title_that_names_its_file_and_a_known_status(record: Path) -> None:
    number, title, status, _ = head_of(record)
    words = re.sub(r"[^a-z0-9]+", "-", title.lower().replace("'", ""))

    assert record.name == f"{int(number):04d}-{words}.md"
    assert STATUS.fullmatch(status)


@pytest.mark.parametrize("record", RECORDS, ids=lambda it: it.name[:4])
def test_a_record_that_was_replaced_is_named_by_the_one_that_replaced_it(record: Path) -> None:
    *_, status, _ = head_of(record)
    for successor in re.findall(r"Superseded by \[.+?\]\((.+?)\)", status):
        assert f"]({record.name})" in (FOLDER / successor).read_text(encoding="utf-8")


@pytest.mark.parametrize("record", RECORDS, ids=lambda it: it.name[:4])
def test_the_index_has_the_title_and_the_status_of_a_record(record: Path) -> None:
    number, title, status, area = head_of(record)
    _, _, section = INDEX.read_text(encoding="utf-8").partition(f"\n## {area}\n")
    rows = section.partition("\n## ")[0].splitlines()

    struck = f"~~[{title}]({record.name})~~"
    name = struck if status.startswith("Superseded") else f"[{title}]({record.name})"
    assert f"| {number} | {name} | {status} |" in rows
