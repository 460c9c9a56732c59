"""A process with a reloader executes every change, however soon it follows and of equal length."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

RELOADED = """
from perdure.cli.development.reload import Reloader
from perdure.engine.tasks.source_loader import ignore_bytecode

reloader = Reloader(ignore_bytecode(), print)
reloader.start()
import changing
print("loaded", changing.NUMBER, flush=True)
reloader.wait()
reloader.restart()
"""
IMPORTING = """
from perdure.engine.tasks.source_loader import ignore_bytecode

ignore_bytecode()
import changing, library
print(changing.NUMBER, library.NUMBER)
"""
MODIFIED_NS = 2_000_000_000 * 10**9
"""The time of every version: equal even in nanoseconds."""


def write_version(source: Path, number: int) -> None:
    """Replace the source as editors do, by a file of equal length and time."""
    new = source.with_suffix(".new")
    new.write_text(f"NUMBER = {number}")
    os.utime(new, ns=(MODIFIED_NS, MODIFIED_NS))
    new.replace(source)


def overwrite_version(source: Path, number: int) -> None:
    """Write to the file itself."""
    write_version(source.with_suffix(".other"), number)
    source.write_bytes(source.with_suffix(".other").read_bytes())
    os.utime(source, ns=(MODIFIED_NS, MODIFIED_NS))


@contextmanager
def running(directory: Path, script: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    (directory / "script.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=directory,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def loaded_numbers(process: subprocess.Popen[str]) -> Iterator[int]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("loaded"):
            yield int(line.split()[1])


@pytest.mark.timeout(300)
def test_a_hundred_changes_of_equal_length_and_time_are_all_executed(tmp_path: Path) -> None:
    source = tmp_path / "changing.py"
    write_version(source, 100)
    executed = []

    with running(tmp_path, RELOADED) as process:
        for number, loaded in zip(range(101, 202), loaded_numbers(process), strict=False):
            executed.append(loaded)
            py_compile.compile(str(source), doraise=True)
            (write_version if number % 2 else overwrite_version)(source, number)

    assert executed == list(range(100, 201))


def test_changes_are_executed_where_the_system_reports_none(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    source = elsewhere / "changing.py"
    write_version(source, 100)
    # Polls are so rare that only the comparison every second can see a change.
    variables = {"WATCHFILES_FORCE_POLLING": "true", "WATCHFILES_POLL_DELAY_MS": "1000000"}
    executed = []

    with running(tmp_path, RELOADED, PYTHONPATH=str(elsewhere), **variables) as process:
        for number, loaded in zip(range(101, 105), loaded_numbers(process), strict=False):
            executed.append(loaded)
            write_version(source, number)

    assert executed == [100, 101, 102, 103]


def test_a_source_that_changes_itself_while_it_is_loaded_is_loaded_again(tmp_path: Path) -> None:
    source = tmp_path / "changing.py"
    source.write_text("from pathlib import Path\nPath(__file__).write_text('NUMBER = 2')\nNUMBER=1")

    with running(tmp_path, RELOADED) as process:
        executed = [next(loaded_numbers(process)), next(loaded_numbers(process))]

    assert executed == [1, 2]


def test_only_installed_packages_use_bytecode(tmp_path: Path) -> None:
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    sources = (tmp_path / "changing.py", libraries / "library.py")
    for source in sources:
        write_version(source, 100)
        py_compile.compile(str(source), doraise=True)
        write_version(source, 200)

    with running(tmp_path, IMPORTING, PYTHONPATH=str(libraries)) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == ["200", "100"]


def test_own_sources_leave_no_bytecode_behind(tmp_path: Path) -> None:
    write_version(tmp_path / "changing.py", 100)
    write_version(tmp_path / "library.py", 100)

    with running(tmp_path, IMPORTING) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == ["100", "100"]

    assert not (tmp_path / "__pycache__").exists()
