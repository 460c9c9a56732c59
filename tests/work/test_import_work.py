"""Importing Perdure brings in no more than it must: counted modules, not a timed test."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

HEAVY = {
    "asyncio", "click", "concurrent", "email", "http", "logging", "msgspec", "multiprocessing",
    "perdure.engine", "perdure.storage", "psycopg", "psycopg_pool", "rich", "sqlite3", "ssl",
    "starlette", "unittest", "uvicorn",
}  # fmt: skip
"""What takes tens of milliseconds, or is somebody else's."""

DRIVERS = {"psycopg", "psycopg_pool", "sqlite3"}
INTERFACES = {"click", "http", "rich", "starlette", "uvicorn", "unittest", "pydantic"}

SOURCE = Path(perdure.__file__).parent
EMPTY = {
    ".".join(file.parent.relative_to(SOURCE.parent).parts)
    for file in SOURCE.rglob("__init__.py")
    if len(ast.parse(file.read_text()).body) <= 1
}
"""Packages of Perdure that hold modules and nothing else: they cost next to nothing."""

MODULES = "import sys, json; print(json.dumps(sorted(sys.modules)))"
NAMES_ONLY = "import perdure"
AN_APP = "from perdure import App; App('sqlite:///nowhere.db')"
HELP = """
import sys
sys.argv = ["perdure", "--help"]
from perdure.cli.main import main
try:
    main(standalone_mode=False)
except SystemExit:
    pass
"""


@pytest.mark.parametrize(
    ("code", "unwanted", "most"),
    [
        pytest.param(NAMES_ONLY, HEAVY, 15, id="import perdure"),
        pytest.param(AN_APP, DRIVERS | INTERFACES, 211, id="from perdure import App"),
        pytest.param(HELP, HEAVY - {"click"}, 65, id="perdure --help"),
    ],
)
def test_what_is_not_used_is_not_imported(code: str, unwanted: set[str], most: int) -> None:
    modules = _imported_by(code) - _imported_by("pass")

    assert {name for name in unwanted if name in modules} == set()
    assert len(modules - EMPTY) <= most, sorted(modules - EMPTY)


def _imported_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{MODULES}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))
