"""Rules about the code itself that no linter knows."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from import_graph import import_cycles, import_graph
from waiting import MAX_WAIT_S

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CORE = [path for path in SOURCES if "core" in path.parts]
MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 40
MOST_MODULES_OF_A_PACKAGE = 18
MOST_MODULES_OF_A_CYCLE = 4

VALUE_MODULES = {
    "__future__",
    "bisect",
    "calendar",
    "collections",
    "dataclasses",
    "datetime",
    "difflib",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "typing",
    "zoneinfo",
    "msgspec",
    "perdure",
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_module_outgrows_its_room(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_no_package_has_more_modules_than_a_reader_can_survey() -> None:
    counts = Counter(path.parent.relative_to(ROOT) for path in SOURCES)

    assert {it: n for it, n in counts.items() if n > MOST_MODULES_OF_A_PACKAGE} == {}


def test_no_contract_between_packages_has_an_exception() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]

    assert {it["name"] for it in settings["contracts"] if it.get("ignore_imports")} == set()


def test_no_import_cycle_is_larger_than_four_modules() -> None:
    cycles = import_cycles(import_graph(ROOT / "src", "perdure"))

    assert [sorted(it) for it in cycles if len(it) > MOST_MODULES_OF_A_CYCLE] == []


def test_a_cycle_through_imports_for_type_checkers_and_in_functions_is_found(
    tmp_path: Path,
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("if TYPE_CHECKING:\n    from shop.b import B\n")
    (package / "b.py").write_text("def make():\n    from shop import c\n")
    (package / "c.py").write_text("import shop.a\n")
    (package / "d.py").write_text("import shop.a\n")

    [cycle] = import_cycles(import_graph(tmp_path, "shop"))

    assert cycle == {"shop.a", "shop.b", "shop.c"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_function_is_longer_than_a_screen(path: Path) -> None:
    long = [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MOST_LINES_OF_A_FUNCTION
    ]

    assert long == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_module_says_what_lives_in_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_imports_value_modules_and_our_errors_only(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")

    assert {name.split(".")[0] for name in imported} <= VALUE_MODULES
    ours = {name for name in imported if name.startswith("perdure")}
    assert all(name.startswith(("perdure.core", "perdure.errors")) for name in ours)


def test_the_life_of_a_run_is_told() -> None:
    story = _told("life_of_a_run.py")

    assert "LeaseLost" in story
    assert "10 events replay to exactly the stored run: succeeded" in story


def test_the_demo_kills_a_worker_and_loses_nothing() -> None:
    story = _told("demo.py")

    assert "is gone (exit -9)" in story
    assert "orders backed up by attempt 2" in story
    assert "hands over and exits with 0" in story
    assert " 0 mismatches" in story
    assert "http://127.0.0.1:" in story


def _told(example: str) -> str:
    """What an example prints; it must end well."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / example],
        capture_output=True,
        text=True,
        check=True,
        timeout=MAX_WAIT_S,
    )
    return done.stdout


def test_test_files_have_names_of_their_own() -> None:
    """Without packages two of a name shadow each other, and pytest stops."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]

    assert sorted(names) == sorted(set(names))
