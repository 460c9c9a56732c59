"""Every test that the documentation names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(?:python )?(tests/[\w/]+\.py)(?:::(\w+))?[^`]*`")


def named_tests() -> list[tuple[str, str, str]]:
    return [
        (page.name, path, name)
        for page in sorted((ROOT / "docs").glob("*.md"))
        for path, name in NAMED.findall(page.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(("page", "path", "name"), named_tests())
def test_a_named_test_exists(page: str, path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
