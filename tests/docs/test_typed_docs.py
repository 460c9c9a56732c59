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
    files = sorted(file.name for file in code.glob("*.py"))
    options = [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}"]

    checked = _run("mypy", "--no-error-summary", *options, *files, directory=code)

    assert "\n".join(_without_top_level_await(checked.stdout.splitlines())) == ""


def test_pyright_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = "from perdure import App\n\n\napp = App(3)\n\n\ndef untyped(x):\n    return x\n"
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")

    found = _pyright(tmp_path)

    assert [line.split(" ")[0] for line in found if "reportArgumentType" in line] == ["wrong.py:4"]
    assert any("reportMissingParameterType" in line for line in found)


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
