"""Pages name runs, rows and processes by nouns, not as persons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRITTEN_BY_HAND = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
UNCLEAR = re.compile(r"\b(whoever|somebody|nobody|told|so many)\b", re.IGNORECASE)


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=lambda it: it.name)
def test_a_page_has_none_of_the_unclear_words(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if UNCLEAR.search(line)] == []
