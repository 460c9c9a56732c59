"""The index of the documentation lists every page, and marks those that are generated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
INDEX = DOCS / "README.md"
LINKS = dict(re.findall(r"\]\(([^)#]+\.md)\)(°?)", INDEX.read_text(encoding="utf-8")))
PAGES = sorted({*DOCS.glob("*.md"), *DOCS.glob("reference/*.md"), DOCS / "adr/README.md"} - {INDEX})


@pytest.mark.parametrize("page", PAGES, ids=lambda it: str(it.relative_to(DOCS)))
def test_the_index_lists_the_page_and_marks_it_if_it_is_generated(page: Path) -> None:
    mark = LINKS.get(str(page.relative_to(DOCS)))

    assert mark is not None, "add the page to docs/README.md"
    assert (mark == "°") == ("`make docs`" in page.read_text(encoding="utf-8")[:300])
