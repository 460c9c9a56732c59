"""The page on testing is a file of tests, and all of them pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> str:
    """What pytest says about the page, with the plugins it speaks of."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_page="\n\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8"))))
    plugins = ("-p", "perdure.testing.plugin", "-p", "pytest_asyncio.plugin", "-W", "error")
    options = ("--strict-markers", "-o", "asyncio_default_fixture_loop_scope=function", "-rP")
    return pytester.runpytest_subprocess(*plugins, *options).stdout.str()


def test_every_test_on_the_page_passes_and_says_what_the_page_says(page: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    summary = page.splitlines()[-1]
    [report] = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    # Where the file lies is the reader's business.
    lines = [line for line in report.splitlines() if "tests/test_shop.py" not in line]

    assert re.search(r"= \d+ passed in ", summary)
    assert int(re.findall(r"(\d+) passed", summary)[0]) > text.count("def test_")
    assert [line for line in lines if line not in page] == []
