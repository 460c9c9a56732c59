"""Every manifest in the documentation is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure import Manifest
from perdure.cli.commands.manifests import DIFFERS

PAGE = Path(__file__).parents[2] / "docs" / "manifests.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: str(text).split("\n", 1)[0])
def test_a_manifest_of_the_page_is_read(text: str) -> None:
    assert Manifest.parse(text, PAGE.name).schedules


def test_the_page_has_some_and_says_how_a_dry_run_ends() -> None:
    assert len(BLOCKS) >= 3
    assert f"| {DIFFERS} | a dry run found something to do |" in PAGE.read_text("utf-8")
