"""Store runs in a database. Enter by `open_storage`, or by `open_server` for a server's API."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, StorageRefused
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.storage import Storage

__all__ = [
    "Storage",
    "check_url",
    "is_remote",
    "open_server",
    "open_storage",
    "options_of",
    "refuse_server",
    "shown_url",
]

if TYPE_CHECKING:
    from perdure.storage.contract.server import ServerClient

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
    `postgresql://user@host/database`. Connects lazily; `migrate` makes the schema. Raises
    StorageRefused for a server's address, which `open_server` takes. `inline` is for simulators
    and the testing kit: everything happens on the caller's thread."""
    scheme, _, rest = check_url(url).partition("://")
    if scheme == "sqlite":
        from perdure.storage.sqlite import SqliteStorage

        return SqliteStorage(os.path.expanduser(rest.removeprefix("/")), clock, **options)
    if is_remote(url):
        raise StorageRefused(f"a server's address is no database: {url!r:.80}")
    try:
        from perdure.storage.postgres.storage import PostgresStorage
    except ImportError as error:
        advice = "PostgreSQL needs its driver: pip install 'perdure[postgres]'"
        raise InvalidInput("url", f"{advice} ({error})") from error
    if options.get("inline"):
        from perdure.storage.postgres.inline import InlineStorage

        return InlineStorage(url, clock)
    return PostgresStorage(url, clock, **options)


def open_server(url: str, clock: Clock, **options: Any) -> ServerClient:
    """A connection to the server at `url`, `https://host:port`. Connects lazily."""
    try:
        from perdure.storage.http.client import open_client
    except ImportError as error:
        raise _missing_h11(error) from error
    return open_client(url, clock, **options)


def _missing_h11(error: ImportError) -> InvalidInput:
    advice = "a server is reached with h11: pip install 'perdure[http]'"
    return InvalidInput("url", f"{advice} ({error})")


def is_remote(url: str) -> bool:
    """Whether a server stands between us and the database."""
    return url.startswith(("http://", "https://"))


def refuse_server(url: str) -> None:
    """Raises InvalidInput for a server's address, where something needs the database."""
    if is_remote(url):
        problem = f"{shown_url(url)!r:.80} is a server's, which looks after its database by itself"
        raise InvalidInput("url", f"{problem}; do this beside the database, with its own URL")


def check_url(url: str | os.PathLike[str]) -> str:
    """The URL, also of a file given as a path. Raises InvalidInput if it names no storage."""
    if isinstance(url, os.PathLike):
        return f"sqlite:///{os.fspath(url)}"
    if not isinstance(url, str):
        raise InvalidInput("url", f"must be a text or a path, not {url!r:.80}; {_KNOWN}")
    scheme, _, rest = url.partition("://")
    if scheme not in _OPTIONS:
        raise InvalidInput("url", f"{shown_url(url)!r:.80} names no storage; {_KNOWN}")
    if scheme in ("postgresql", "postgres") and not _has_encoded_password(rest):
        advice = "write @ as %40, / as %2F, ? as %3F, # as %23 and : as %3A in it"
        raise InvalidInput("url", f"{shown_url(url)!r:.80}: the password must be encoded; {advice}")
    if scheme == "sqlite" and not rest.startswith("/"):
        problem = f"needs a third slash before the file: sqlite:///{rest}"
        raise InvalidInput("url", f"{url!r:.80} {problem}")
    if scheme == "sqlite" and "?" in rest:
        problem = "takes nothing after a question mark; name only the file"
        raise InvalidInput("url", f"{url!r:.80} {problem}")
    return url


def _has_encoded_password(rest: str) -> bool:
    """Return False if a part of the password would be read as a host, a port or a database: the
    driver would print it in its errors."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    credentials, at, _ = authority.rpartition("@")
    if at:
        after = re.split(r"[?&][^=@]*=", rest[len(authority) :])[0]  # values may contain an @
        return "@" not in credentials and "@" not in after
    looks_like_port = re.search(r":\d*$", authority) or ":" not in authority
    return bool(looks_like_port) or "@" not in rest


def shown_url(url: str) -> str:
    """For messages: who may read them need not know the password."""
    return re.sub(r"(//[^/:@]*):.*@", r"\1:***@", url)


def options_of(url: str) -> tuple[str, ...]:
    """The names of what `open_storage` takes besides, for this kind of storage."""
    return _OPTIONS[check_url(url).partition("://")[0]]
