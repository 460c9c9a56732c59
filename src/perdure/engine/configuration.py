"""Where settings come from: flags > `PERDURE_*` > `[tool.perdure]` in pyproject.toml > defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.retry import LONGEST
from perdure.engine.defaults import DEFAULTS, Defaults
from perdure.engine.door import did_you_mean
from perdure.errors import InvalidInput

DEFAULT = "default"
VARIABLE = "PERDURE_"
PYPROJECT = Path("pyproject.toml")


_WANTED = {
    timedelta: "a number of seconds",
    int: "a whole number",
    float: "a number",
    str: "a text",
}
_TAKES: dict[type, Any] = {
    timedelta: float | int | str,
    int: int | str,
    float: float | int | str,
    str: str,
}
_BOUNDS: dict[str, tuple[Any, Any]] = {
    "backoff_factor": (1, 1000),
    "backoff_jitter": (0, 1),
}


class Setting(msgspec.Struct, frozen=True):
    """One setting and who set it: a variable's name, a file, or `default`."""

    name: str
    value: Any
    source: str


class Configuration(msgspec.Struct, frozen=True):
    """What holds, and why."""

    settings: tuple[Setting, ...]

    @property
    def defaults(self) -> Defaults:
        return Defaults(**{setting.name: setting.value for setting in self.settings})


def configured(environ: Mapping[str, str] | None = None, file: Path = PYPROJECT) -> Configuration:
    """What the surroundings say. Raises InvalidInput, naming the setting and where it is set."""
    variables = os.environ if environ is None else environ
    table = _table(file)
    return Configuration(
        tuple(_setting(name, variables, table, file) for name in Defaults.__struct_fields__)
    )


def _setting(
    name: str, variables: Mapping[str, str], table: Mapping[str, Any], file: Path
) -> Setting:
    variable = VARIABLE + name.upper()
    if variables.get(variable):
        return Setting(name, _value(name, variables[variable], variable), variable)
    if name in table:
        source = f"[tool.perdure] in {file}"
        return Setting(name, _value(name, table[name], source), source)
    return Setting(name, getattr(DEFAULTS, name), DEFAULT)


def _value(name: str, given: Any, source: str) -> Any:
    """`given` as the type that the default has; durations are seconds."""
    kind = type(getattr(DEFAULTS, name))
    try:
        if not isinstance(given, _TAKES[kind]) or isinstance(given, bool):
            raise ValueError
        value = timedelta(seconds=float(given)) if kind is timedelta else kind(given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(source, f"{name} must be {_WANTED[kind]}, not {given!r}") from None
    if kind in (int, timedelta) and value <= kind(0):
        raise InvalidInput(source, f"{name} must be more than nothing, not {given!r}")
    if kind is timedelta and value > LONGEST:
        longest = int(LONGEST.total_seconds())
        raise InvalidInput(source, f"{name} must be {longest} seconds at most, not {given!r}")
    least, most = _BOUNDS.get(name, (value, value))
    if not least <= value <= most:
        raise InvalidInput(source, f"{name} must lie between {least} and {most}, not {given!r}")
    return value


def _table(file: Path) -> Mapping[str, Any]:
    try:
        changed = file.stat().st_mtime_ns
    except OSError:
        return {}
    table = _read(file.resolve(), changed)
    for name in sorted(set(table) - set(Defaults.__struct_fields__)):
        hint = did_you_mean(name, Defaults.__struct_fields__)
        raise InvalidInput(f"[tool.perdure] in {file}", f"there is no setting {name!r}{hint}")
    return table


@lru_cache(maxsize=8)
def _read(file: Path, changed: int) -> Mapping[str, Any]:
    import tomllib  # most programs have no such file where they run

    try:
        parsed = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(str(file), f"cannot be read: {error}") from error
    table = parsed.get("tool", {}).get("perdure", {})
    return table if isinstance(table, dict) else {}
