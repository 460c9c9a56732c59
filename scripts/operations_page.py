"""The reference page of operations: what each is called in Python, in a shell and over HTTP."""

from __future__ import annotations

from operations import OPERATIONS, names_of
from scripts.reference_pages import page, table

ABOUT = """\
Python, the command line and the HTTP API offer the same operations. Where one of them lacks an
operation, the last column says why. `tests/test_operations.py` compares this table with the
methods, commands and routes that exist."""


def operations() -> str:
    rows = [
        (it.name, *(_code(cell) for cell in (it.python, it.shell, it.http)), it.reason)
        for it in OPERATIONS
    ]
    columns = ("operation", "Python", "`perdure …`", "HTTP", "why not everywhere")
    return page("Operations", ABOUT, table(columns, rows))


def _code(cell: str) -> str:
    return ", ".join(f"`{name}`" for name in names_of(cell))
