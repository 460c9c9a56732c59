"""Where runs are kept. The only way in: `open_storage`."""

from __future__ import annotations

import os
import re
from typing import Any

from perdure.errors import InvalidInput
from perdure.storage.protocol import Clock, Storage

__all__ = ["Storage", "check_url", "is_remote", "open_storage", "options_of", "shown_url"]

_SQLITE = ("inline", "busy_timeout", "hints", "on_statement")
_POSTGRES = (
    "max_connections",
    "transaction_connections",
    "connect_timeout",
    "answer_timeout",
    "call_timeout",
    "retries",
    "prepare",
    "listen_url",
    "hints",
    "on_statement",
)
_HTTP = ("api_key", "max_connections", "retries", "timeout", "hints", "because")
_OPTIONS = {
    "sqlite": _SQLITE,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "http": _HTTP,
    "https": _HTTP,
}

_KNOWN = "use sqlite:///file.db, postgresql://user@host/database or https://server"


def open_storage(url: str, clock: Clock, **options: Any) -> Storage:
    """The storage behind a URL: `sqlite:///runs.db`, `sqlite:////absolute/runs.db` or
    `postgresql://user@host/database`; or a server that has one, `https://host:port`. Connects
    lazily; `migrate` makes the schema."""
    scheme, _, rest = check_url(url).partition("://")
    if scheme == "sqlite":
        from perdure.storage.sqlite import SqliteStorage

        return SqliteStorage(os.path.expanduser(rest.removeprefix("/")), clock, **options)
    if is_remote(url):
        return _http_storage(url, clock, **options)
    try:
        from perdure.storage.postgres.storage import PostgresStorage
    except ImportError as error:
        advice = "PostgreSQL needs its driver: pip install 'perdure[postgres]'"
        raise InvalidInput("url", f"{advice} ({error})") from error
    return PostgresStorage(url, clock, **options)


def _http_storage(url: str, clock: Clock, **options: Any) -> Storage:
    try:
        from perdure.storage.http.storage import HttpStorage
    except ImportError as error:
        advice = "a server is reached with h11: pip install 'perdure[http]'"
        raise InvalidInput("url", f"{advice} ({error})") from error
    return HttpStorage(url, clock, **options)


def is_remote(url: str) -> bool:
    """Whether a server stands between us and the database."""
    return url.startswith(("http://", "https://"))


def check_url(url: str | os.PathLike[str]) -> str:
    """The URL, also of a file given as a path. Raises InvalidInput if it names no storage."""
    if isinstance(url, os.PathLike):
        return f"sqlite:///{os.fspath(url)}"
    if not isinstance(url, str):
        raise InvalidInput("url", f"must be a text or a path, not {url!r:.80}; {_KNOWN}")
    scheme, _, rest = url.partition("://")
    if scheme not in _OPTIONS:
        raise InvalidInput("url", f"{shown_url(url)!r:.80} names no storage; {_KNOWN}")
    if scheme == "sqlite" and "?" in rest:
        problem = "takes nothing after a question mark; name only the file"
        raise InvalidInput("url", f"{url!r:.80} {problem}")
    return url


def shown_url(url: str) -> str:
    """For messages: who may read them need not know the password."""
    return re.sub(r"(//[^/:]*):[^/]*@", r"\1:***@", url)


def options_of(url: str) -> tuple[str, ...]:
    """The names of what `open_storage` takes besides, for this kind of storage."""
    return _OPTIONS[check_url(url).partition("://")[0]]
