"""From `module:attribute` to an app, and from flags to a URL."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.output import CannotStart, CommandFailed

if TYPE_CHECKING:
    from perdure.engine.app import App

app_argument = click.argument("app_spec", metavar="APP")
url_option = click.option("--url", help="The database, e.g. sqlite:///runs.db.")


def load_app(spec: str) -> App:
    """The app that `module:attribute` names, looked for here first."""
    from perdure.engine.app import App

    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        raise CannotStart(f"APP must be module:attribute, e.g. shop.tasks:app, not {spec!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: object = _import(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise CannotStart(f"{module_name} has no {attribute!r}{_apps_in(module_name, App)}")
        found = getattr(found, name)
    if not isinstance(found, App):
        raise CannotStart(
            f"{spec} is a {type(found).__name__}, not an App{_apps_in(module_name, App)}"
        )
    return found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise CannotStart(f"{name} cannot be imported: {error}") from error
        raise CannotStart(
            f"there is no module {error.name!r} in {os.getcwd()} or on the Python path; "
            "run perdure where it can be imported"
        ) from error


def _apps_in(module_name: str, kind: type) -> str:
    """A hint at what may have been meant."""
    names = [name for name, value in vars(sys.modules[module_name]).items() if type(value) is kind]
    return f"; did you mean {module_name}:{names[0]}?" if names else ""


def database_url(url: str | None) -> str:
    """The flag, or what is configured."""
    from perdure.engine.configuration import configured

    return url or configured().defaults.url


def require_database(url: str) -> None:
    """A command that only reads must not make an empty file."""
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).exists():
        raise CommandFailed(
            f"there is no database {path}; name another with --url, or run `perdure migrate`"
        )
