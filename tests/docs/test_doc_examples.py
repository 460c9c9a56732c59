"""Every Python block in the documentation runs: the blocks of a page in order, in one namespace,
in a directory of their own. Top-level `await` is allowed, as in `python -m asyncio`."""

import ast
import asyncio
import inspect
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from doc_pages import ROOT, blocks, pages
from waiting import MAX_WAIT_S


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_example_of_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A real module, so that type hints and pickles of what the page defines can be resolved.
    module = types.ModuleType("documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    with asyncio.Runner() as runner:
        for line, code in blocks(page):
            _execute(code, page, line, vars(module), runner)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/guide.md"])
def test_what_a_newcomer_copies_runs_as_a_script(page: str, tmp_path: Path) -> None:
    script = tmp_path / "copied.py"
    code = "\n".join(code for _, code in blocks(ROOT / page))
    script.write_text(code, encoding="utf-8")

    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, timeout=MAX_WAIT_S)


def _execute(
    code: str, page: Path, line: int, namespace: dict[str, Any], runner: asyncio.Runner
) -> None:
    padded = "\n" * line + code  # so that a traceback names the line of the page
    compiled = compile(padded, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if not compiled.co_flags & inspect.CO_COROUTINE:
        exec(compiled, namespace)
        return
    runner.run(types.FunctionType(compiled, namespace)())


def test_an_example_may_await_and_keeps_its_names(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}

    with asyncio.Runner() as runner:
        code = "import asyncio\nanswer = await asyncio.sleep(0, 42)\n"
        _execute(code, tmp_path / "page.md", 0, namespace, runner)

    assert namespace["answer"] == 42


def test_a_broken_example_is_found_at_its_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nassert 1 == 2\n```\n", encoding="utf-8")
    ((line, code),) = blocks(page)

    with asyncio.Runner() as runner, pytest.raises(AssertionError) as found:
        _execute(code, page, line, {}, runner)

    assert found.traceback[-1].lineno == 3
