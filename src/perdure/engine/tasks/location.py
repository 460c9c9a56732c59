"""Where another process finds a handler: its module and its name in it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from perdure.errors import InvalidTask

SCRIPT = "__perdure_main__"
"""What a child calls the parent's script, so that its `__main__` guard stays shut."""

_GUARD = re.compile(r"""__name__\s*==\s*["']__main__["']|["']__main__["']\s*==\s*__name__""")


class Location(msgspec.Struct, frozen=True):
    """`path` is the script's, if the module is one and cannot be imported by name."""

    module: str
    qualname: str
    path: str | None = None

    def __str__(self) -> str:
        return f"{self.path or self.module}:{self.qualname}"


def locate(function: Callable[..., Any]) -> Location:
    """Where a worker process would find `function`. Raises InvalidTask if nowhere."""
    qualname = function.__qualname__
    if sys.platform == "win32":
        raise InvalidTask("executor", "worker processes need signals and process groups: use Linux")
    if "<" in qualname:  # <locals>, <lambda>
        raise InvalidTask(
            "executor",
            f"a worker process cannot import {qualname}: define it with `def` at the top level "
            "of a module, or use executor='thread'",
        )
    if function.__module__ != "__main__":
        return Location(function.__module__, qualname)
    return _in_script(qualname)


def find(location: Location) -> Any:
    """What stands there: a function, or the task made of it. Raises InvalidTask."""
    try:
        found: Any = _module(location)
        for name in location.qualname.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:
        problem = f"cannot import {location}: {type(error).__name__}: {error}"
        raise InvalidTask("executor", problem) from error
    if getattr(found, "__qualname__", None) != location.qualname:
        raise InvalidTask("executor", f"{location} is something else now: {found!r}")
    return found


def _in_script(qualname: str) -> Location:
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m package.module
        return Location(main.__spec__.name, qualname)
    path = inspect.getsourcefile(main) if hasattr(main, "__file__") else None
    if path is None or not Path(path).is_file():
        raise InvalidTask(
            "executor",
            f"a worker process cannot import {qualname} from an interactive session: put it into "
            "a module, or use executor='thread'",
        )
    if not _GUARD.search(Path(path).read_text(encoding="utf-8", errors="replace")):
        raise InvalidTask(
            "executor",
            f"worker processes import {path} to find {qualname}, and would run the whole script: "
            'guard what starts it with `if __name__ == "__main__":`',
        )
    return Location(SCRIPT, qualname, str(Path(path).resolve()))


def _module(location: Location) -> ModuleType:
    if location.module in sys.modules or location.path is None:
        return importlib.import_module(location.module)
    spec = importlib.util.spec_from_file_location(location.module, location.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{location.path} is not Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[location.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[location.module]
        raise
    return module
