"""The pytest plugin: the fixtures `perdure_kit` and `perdure_app`.

Loaded by every pytest run that finds Perdure installed, so it imports nothing before a test asks.
It has no assertions to explain: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.testing.kit.kit import Kit

MARKER = "perdure_app"
SETTINGS = ("app", "database", "seed", "start")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("perdure_app", "the app under test, as module:attribute")
    parser.addini("perdure_database", "sqlite, postgres, or the URL of a server", default="sqlite")
    parser.addini("perdure_seed", "seed of ids and jitter in tests", default="0")
    parser.addini("perdure_start", "the first instant of every test, in ISO 8601")
    group = parser.getgroup("perdure")
    group.addoption(
        "--perdure-crash-at",
        type=int,
        metavar="NUMBER",
        help="run crash matrices for this boundary only",
    )


def pytest_configure(config: pytest.Config) -> None:
    line = f"{MARKER}(app=, database=, seed=, start=): what the test's perdure_kit shall be made of"
    config.addinivalue_line("markers", line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Not left to the end of the process: those of pytest-xdist end at once."""
    databases = sys.modules.get("perdure.testing.database.databases")
    if databases is not None:
        databases.close_spare_databases()


@pytest.fixture
def perdure_app_source(request: pytest.FixtureRequest) -> App | None:
    """The app under test. Override it, mark the test, or set `perdure_app` in the ini file;
    otherwise each test gets an app of its own."""
    source = _setting(request, "app")
    return _load(source) if isinstance(source, str) and source else source or None


@pytest.fixture
def perdure_database(request: pytest.FixtureRequest) -> str:
    """What the kit runs on: `sqlite`, `postgres`, or the URL of a PostgreSQL server. Override it,
    parametrise it, mark the test, or set `perdure_database` in the ini file."""
    return str(_setting(request, "database"))


@pytest.fixture
def perdure_kit(
    request: pytest.FixtureRequest, perdure_app_source: App | None, perdure_database: str
) -> Iterator[Kit]:
    """The testing kit: the app under test on a private database and on virtual time."""
    from perdure.testing.kit.kit import Kit

    options: dict[str, Any] = {"seed": _seed(request)}
    start = _setting(request, "start")
    if start:
        options["start"] = _instant(start)
    with Kit(
        perdure_app_source,
        database=perdure_database,
        crash_at=request.config.getoption("--perdure-crash-at"),
        replay=f"pytest '{request.node.nodeid}'",
        **options,
    ) as kit:
        yield kit


@pytest.fixture
def perdure_app(perdure_kit: Kit) -> App:
    """The app under test itself, in the hands of the kit."""
    return perdure_kit.app


def _setting(request: pytest.FixtureRequest, name: str) -> Any:
    marker = request.node.get_closest_marker(MARKER)
    if marker is not None:
        _check(marker)
    if marker is not None and name in marker.kwargs:
        return marker.kwargs[name]
    return request.config.getini(f"perdure_{name}")


def _check(marker: pytest.Mark) -> None:
    unknown = [repr(argument) for argument in marker.args]
    unknown += [name for name in marker.kwargs if name not in SETTINGS]
    if unknown:
        given = ", ".join(unknown)
        raise pytest.UsageError(f"{MARKER} takes app=, database=, seed= and start=, not {given}")


def _seed(request: pytest.FixtureRequest) -> int:
    given = _setting(request, "seed")
    try:
        return int(given)
    except ValueError:
        raise pytest.UsageError(f"perdure_seed must be a whole number, not {given!r}") from None


def _instant(given: Any) -> datetime:
    if isinstance(given, datetime):
        return given
    try:
        instant = datetime.fromisoformat(given)
    except ValueError:
        said = "perdure_start must be an instant like 2030-01-01T09:00+01:00"
        raise pytest.UsageError(f"{said}, not {given!r}") from None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _load(location: str) -> App:
    """The app at `module:attribute`."""
    from importlib import import_module

    from perdure.app.app import App

    module, _, attribute = location.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        said = f"perdure_app must name an app as module:attribute, and {location!r} does not"
        raise pytest.UsageError(f"{said}: {error}") from error
    if not isinstance(found, App):
        raise pytest.UsageError(f"perdure_app: {location!r} is a {type(found).__name__}, no App")
    return found
