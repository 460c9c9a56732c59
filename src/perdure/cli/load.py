"""From `module:attribute` to an app, and from flags to a URL."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.output.answer import CannotStart, CommandFailed

if TYPE_CHECKING:
    from perdure.app.app import App

url_option = click.option("--url", help="The database, e.g. sqlite:///runs.db, or a server.")
environment_option = click.option("--environment", help="Whose runs; by default the configured.")


def database_app(url: str | None, environment: str | None, because: str | None = None) -> App:
    """An app without tasks, for commands that need nobody's code. `because`: why somebody orders
    something; beside the database, each order says so itself."""
    from perdure.app.app import App

    chosen = database_url(url)
    require_database(chosen)
    options: dict[str, Any] = {"because": because} if because and is_server(chosen) else {}
    return App(chosen, environment=environment, **options)


async def at_home(app: App, environment: str | None) -> App:
    """The app, at a server for the key's own environment, unless somebody has chosen one."""
    from perdure.app.configuration import DEFAULT, configured

    if not is_server(app.url) or environment is not None:
        return app
    sources = {setting.name: setting.source for setting in configured().settings}
    if sources["environment"] == DEFAULT:
        from perdure.app.connect import open_rest

        async with open_rest(app) as rest:
            app.environment = (await rest.identify()).environment
    return app


def is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def beside_a_database(url: str, command: str) -> str:
    """The URL, if it is a database's. Raises CannotStart."""
    if is_server(url):
        advice = f"run `perdure {command}` where the database is, with its own URL as --url"
        raise CannotStart(f"a server is no database, which {command} needs; {advice}")
    return url


def load_app(spec: str, url: str | None = None) -> App:
    """The app that `module:attribute` names, looked for here first; `url` is another database."""
    from perdure.storage import check_url

    app = _find_app(spec)
    if url is not None:
        app.url = check_url(url)
    return app


def _find_app(spec: str) -> App:
    from perdure.app.app import App

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
    except (Exception, SystemExit) as error:
        raise CannotStart(f"{name} cannot be imported: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """What a module raised, and where in it; without the frames that led there."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    ours = ("<", __file__, importlib.__file__)
    where = [f"  {f.filename}, line {f.lineno}" for f in frames if not f.filename.startswith(ours)]
    return "\n".join(["".join(traceback.format_exception_only(error)).rstrip(), *where])


def _apps_in(module_name: str, kind: type) -> str:
    """A hint at what may have been meant."""
    names = [name for name, value in vars(sys.modules[module_name]).items() if type(value) is kind]
    return f"; did you mean {module_name}:{names[0]}?" if names else ""


def database_url(url: str | None) -> str:
    """The flag, or what is configured."""
    from perdure.app.configuration import configured

    return url or configured().defaults.url


def require_database(url: str) -> None:
    """A command that only reads must not make an empty file."""
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).expanduser().exists():
        raise CommandFailed(
            f"there is no database {path}; name another with --url, or run `perdure migrate`"
        )
