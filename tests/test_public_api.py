"""What users can import, with its kinds and signatures, is what `public_api.txt` says."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).with_name("public_api.txt")
MODULES = ("perdure", "perdure.errors", "perdure.testing")

CHANGED = """The public API differs from tests/public_api.txt:
{difference}
If that is meant: list the change in CHANGELOG.md, and run
    .venv/bin/python tests/test_public_api.py"""

_MODULE = re.compile(r"(?<![\w./])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
_QUOTED_TYPE = re.compile(r"(: |-> )'([^']*)'")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def test_the_public_api_is_the_one_on_record() -> None:
    recorded, found = SNAPSHOT.read_text().splitlines(), list(describe_api())

    difference = "\n".join(difflib.unified_diff(recorded, found, "recorded", "found", "", "", 0))
    assert recorded == found, CHANGED.format(difference=difference)


def describe_api() -> Iterator[str]:
    for module in MODULES:
        exported = import_module(module)
        yield f"# {module}"
        for name in sorted(exported.__all__):
            yield from describe(name, getattr(exported, name))


def describe(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        kind = "function" if callable(value) else type(value).__name__
        yield f"{kind} {name}{signature_of(value)}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__)
    yield f"class {name}({bases}){signature_of(value) if has_own_constructor(value) else ''}"
    for member in sorted(public_members(value)):
        yield f"    {describe_member(member, inspect.getattr_static(value, member))}"


def has_own_constructor(kind: type) -> bool:
    """Return whether a constructor is ours: those of Python differ from version to version."""
    makers = (vars(it).get(name) for it in kind.__mro__ for name in ("__init__", "__new__"))
    made = next((it for it in makers if it is not None), None)
    return is_ours(made) or hasattr(kind, "__struct_fields__")


def public_members(kind: type) -> set[str]:
    ours = [it for it in kind.__mro__ if is_ours(it)]
    return {name for it in ours for name in [*vars(it), *fields_of(it)] if name[0] != "_"}


def fields_of(kind: type) -> list[str]:
    """Return what a class declares without a value, which static lookup does not find."""
    return [name for name in vars(kind).get("__annotations__", {}) if hasattr(kind, name)]


def is_ours(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").startswith("perdure")


def describe_member(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"property {name}{returned(value.fget)}"
    if isinstance(value, classmethod | staticmethod):
        return f"{type(value).__name__} {name}{signature_of(value.__func__)}"
    if inspect.isfunction(value):
        kind = "async method" if inspect.iscoroutinefunction(value) else "method"
        return f"{kind} {name}{signature_of(value)}"
    return f"attribute {name}"


def returned(getter: Any) -> str:
    return signature_of(getter).partition(")")[2]


def signature_of(value: Any) -> str:
    """Return a signature without the modules of its types, which are no part of the API."""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    return _MODULE.sub("", _QUOTED_TYPE.sub(r"\1\2", _ADDRESS.sub("", text)))


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join([*describe_api(), ""]))
