"""Python code in the documentation, and the examples, pass mypy and pyright, both strict.

pyright is run as `basedpyright`: its wheels bring the checker and Node, so that nothing is fetched
when it is first used. Its mode `strict` is that of pyright.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from doc_pages import ROOT, blocks, pages

TOP_LEVEL_AWAIT = (
    '"await" allowed only within async function',
    'Use of "async" not allowed outside of async function',
    '"await" outside function',
    '"async with" outside async function',
    '"async for" outside async function',
)
"""Messages about `await` outside of a function: pages may do it, as `python -m asyncio` may."""

TYPED_TEST = ROOT / "tests/engine/test_typed.py"
PYRIGHT_SETTINGS = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    # A mistake that only mypy sees is a gap in our types, too.
    "reportUnnecessaryTypeIgnoreComment": True,
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory with a module for each page; a line has the number that it has in the page."""
    for page in pages():
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_").lower()
        (tmp_path / f"{name}.py").write_text(_module_of(page), encoding="utf-8")
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)
    return tmp_path


def _module_of(page: Path) -> str:
    lines: list[str] = []
    for line, block in blocks(page):
        lines += [""] * (line - len(lines)) + block.splitlines()
    return "\n".join(lines) + "\n"


@pytest.mark.timeout(600)
def test_documented_code_passes_pyright_strict(code: Path) -> None:
    shutil.copy(TYPED_TEST, code)

    assert "\n".join(_pyright(code)) == ""


@pytest.mark.timeout(600)
def test_documented_code_passes_mypy_strict(code: Path) -> None:
    assert "\n".join(_mypy(code)) == ""


RELEASES = """
from datetime import datetime

from perdure import Context


async def waits(ctx: Context) -> int:
    await ctx.release(delay=1)


async def waits_until(ctx: Context, time: datetime) -> int:
    await ctx.release(until=time)


async def goes_on(ctx: Context, number: int | None) -> int:
    if number is None:
        await ctx.release(delay=1)
    return number


async def says_nothing(ctx: Context, number: int) -> int:
    if number < 3:
        ctx.release(delay=1)
    return number


def is_not_async(ctx: Context, number: int) -> int:
    if number < 3:
        ctx.release(delay=1)
    return number


def must_narrow(ctx: Context, number: int | None) -> int:
    if number is None:
        ctx.release(delay=1)
        raise AssertionError
    return number
"""
"""Releases that both checkers accept. An awaited one ends the flow."""
PLAIN_RELEASE = """
from perdure import Context


def waits(ctx: Context) -> int:
    ctx.release(delay=1)
"""
WRONG_RELEASE = """
from perdure import Context


async def waits(ctx: Context) -> None:
    await ctx.release(delay=1, till=3)
"""


@pytest.mark.timeout(600)
def test_an_awaited_release_ends_the_flow_for_both_checkers(tmp_path: Path) -> None:
    (tmp_path / "releases.py").write_text(RELEASES, encoding="utf-8")

    assert (_pyright(tmp_path), _mypy(tmp_path)) == ([], [])


@pytest.mark.timeout(600)
def test_a_plain_release_ends_the_flow_for_mypy_alone(tmp_path: Path) -> None:
    """See ADR 45: once pyright can see it, too, the guide shall say so."""
    (tmp_path / "releases.py").write_text(PLAIN_RELEASE, encoding="utf-8")

    [found] = _pyright(tmp_path)

    assert "must return value on all code paths" in found
    assert _mypy(tmp_path) == []


@pytest.mark.timeout(600)
def test_both_checkers_know_the_arguments_of_a_release(tmp_path: Path) -> None:
    (tmp_path / "releases.py").write_text(WRONG_RELEASE, encoding="utf-8")

    found = _pyright(tmp_path)

    assert found
    assert all('No parameter named "till"' in line for line in found)
    assert ["till" in line for line in _mypy(tmp_path)] == [True]


def test_pyright_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = "from perdure import App\n\n\napp = App(3)\n\n\ndef untyped(x):\n    return x\n"
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")

    found = _pyright(tmp_path)

    assert [line.split(" ")[0] for line in found if "reportArgumentType" in line] == ["wrong.py:4"]
    assert any("reportMissingParameterType" in line for line in found)


def _mypy(directory: Path) -> list[str]:
    files = sorted(file.name for file in directory.glob("*.py"))
    options = [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}"]
    checked = _run("mypy", "--no-error-summary", *options, *files, directory=directory)
    lines = [line for line in checked.stdout.splitlines() if ": note:" not in line]
    return _without_top_level_await(lines)


def _pyright(directory: Path) -> list[str]:
    settings = directory / "pyrightconfig.json"
    settings.write_text(json.dumps(PYRIGHT_SETTINGS), encoding="utf-8")
    options = [f"--pythonpath={sys.executable}", "--outputjson"]
    checked = _run("basedpyright", *options, directory=directory)
    report = json.loads(checked.stdout)
    assert report["summary"]["filesAnalyzed"] > 0
    return _without_top_level_await([_line_of(each) for each in report["generalDiagnostics"]])


def _without_top_level_await(lines: list[str]) -> list[str]:
    return [line for line in lines if not any(known in line for known in TOP_LEVEL_AWAIT)]


def _line_of(diagnostic: dict[str, Any]) -> str:
    place = f"{Path(diagnostic['file']).name}:{diagnostic['range']['start']['line'] + 1}"
    return f"{place} {diagnostic['message']} ({diagnostic.get('rule')})"


def _run(module: str, *arguments: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
