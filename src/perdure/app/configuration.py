"""Where settings come from: flags > `PERDURE_*` > `[tool.perdure]` in pyproject.toml > defaults."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.run.backoff import LONGEST
from perdure.engine.runtime.defaults import BOUNDS, DEFAULTS, Defaults, kind_of
from perdure.engine.runtime.input import did_you_mean
from perdure.errors import InvalidInput
from perdure.telemetry import table

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
OTHER_VARIABLES = frozenset(
    {"PERDURE_API_KEY", "PERDURE_LOG_LEVEL", "PERDURE_POSTGRES_BIN", "PERDURE_TASK"}
    | {"PERDURE_RUN_ID", "PERDURE_ATTEMPT", "PERDURE_FENCE", "PERDURE_IDEMPOTENCY_KEY"}
)
"""What else is read from the surroundings, or found there by a shell task's command."""


class Setting(msgspec.Struct, frozen=True):
    """One setting and who set it: a variable's name, a file, or `default`."""

    name: str
    value: Any
    source: str


class Configuration(msgspec.Struct, frozen=True):
    """What holds, and why."""

    settings: tuple[Setting, ...]
    defaults: Defaults


def configured(environ: Mapping[str, str] | None = None, file: Path = PYPROJECT) -> Configuration:
    """What the surroundings say. Raises InvalidInput, naming the setting and where it is set."""
    variables = os.environ if environ is None else environ
    _say_misspelt(name for name in variables if name.startswith(VARIABLE))
    stated = _table(file)
    names = Defaults.__struct_fields__
    settings = tuple(_setting(name, variables, stated, file) for name in names)
    return Configuration(settings, _together(settings))


def _together(settings: Sequence[Setting]) -> Defaults:
    try:
        return Defaults(**{setting.name: setting.value for setting in settings})
    except InvalidInput as error:
        source = {setting.name: setting.source for setting in settings}[error.field]
        raise InvalidInput(source, f"{error.field} {error.problem}") from error


def _say_misspelt(given: Iterable[str]) -> None:
    """Once each; others may have variables of their own that only begin like ours."""
    known = {VARIABLE + name.upper() for name in Defaults.__struct_fields__} | OTHER_VARIABLES
    plain = [name.removeprefix(VARIABLE) for name in known]
    for name in sorted(set(given) - known - _said_misspelt):
        from difflib import get_close_matches  # only to explain a mistake

        near = get_close_matches(name.removeprefix(VARIABLE), plain, 1, cutoff=0.75)
        if near:
            _said_misspelt.add(name)
            table.VARIABLE_MISSPELT.say(variable=name, meant=VARIABLE + near[0])


_said_misspelt: set[str] = set()


def _setting(
    name: str, variables: Mapping[str, str], stated: Mapping[str, Any], file: Path
) -> Setting:
    variable = VARIABLE + name.upper()
    if variables.get(variable):
        return Setting(name, _value(name, variables[variable], variable), variable)
    if name in stated:
        source = f"[tool.perdure] in {file}"
        return Setting(name, _value(name, stated[name], source), source)
    return Setting(name, getattr(DEFAULTS, name), DEFAULT)


def _value(name: str, given: Any, source: str) -> Any:
    """`given` as the type that the default has; durations are seconds."""
    kind = kind_of(name)
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
    if name in BOUNDS and not _is_within(value, *BOUNDS[name]):
        least, most = BOUNDS[name]
        between = f"{least:g} and {most:g}"
        raise InvalidInput(source, f"{name} must lie between {between}, not {given!r}")
    return value


def _is_within(value: Any, least: float, most: float) -> bool:
    return bool(least <= value <= most)


def _table(file: Path) -> Mapping[str, Any]:
    try:
        changed = file.stat().st_mtime_ns
    except OSError:
        return {}
    stated = _read(file.resolve(), changed)
    for name in sorted(set(stated) - set(Defaults.__struct_fields__)):
        hint = did_you_mean(name, Defaults.__struct_fields__)
        raise InvalidInput(f"[tool.perdure] in {file}", f"there is no setting {name!r}{hint}")
    return stated


@lru_cache(maxsize=8)
def _read(file: Path, changed: int) -> Mapping[str, Any]:
    import tomllib  # most programs have no such file where they run

    try:
        parsed = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(str(file), f"cannot be read: {error}") from error
    stated = parsed.get("tool", {}).get("perdure", {})
    return stated if isinstance(stated, dict) else {}
