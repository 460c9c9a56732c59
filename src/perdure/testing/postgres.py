"""A private PostgreSQL, for tests and for trying things. Not for anything that must last.

It listens on 127.0.0.1 only, on a free port, behind a random password. PostgreSQL refuses to run
as root, so root starts it as `nobody`. A watchdog ends it if its owner is killed:

    owner ──pipe──▶ watchdog      the pipe closes when the owner ends, however it ends;
      └──────────▶ postmaster     then the watchdog stops the postmaster and removes the directory
"""

import atexit
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, LiteralString, NamedTuple, Self
from urllib.parse import quote, urlsplit

from perdure.testing.postgres_binaries import PostgresUnavailable, find_binaries, wheel_binaries

__all__ = [
    "PostgresServer",
    "PostgresUnavailable",
    "PrivatePostgres",
    "find_binaries",
    "postgres_server",
    "shared_server",
    "wheel_binaries",
]

START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0

# A killed postmaster leaves backends that hold its memory and its port for a moment.
_PASSING_TROUBLE = ("shared memory block", "Address already in use", "lock file")

_WATCHDOG = """
read _
kill -QUIT "$1"
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$1" || break; sleep 0.2; done
test -z "$2" || rm -rf "$2"
"""


class PostgresServer:
    """A server on which we may create databases."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._created: set[str] = set()

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, empty or a copy of `template`, and return its URL."""
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template or "template1")
        self._created.add(name)
        return _with_database(self.url, name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and with it the connections to it."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        self._created.discard(name)

    def drop_created_databases(self) -> None:
        for name in sorted(self._created):
            self.drop_database(name)

    def _execute(self, statement: LiteralString, *names: str) -> None:
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url, autocommit=True) as connection:
            identifiers = [sql.Identifier(name) for name in names]
            connection.execute(sql.SQL(statement).format(*identifiers))


class PrivatePostgres(PostgresServer):
    """A server of our own. Use `PrivatePostgres.start()`, best in a `with` statement."""

    def __init__(self, directory: Path, binaries: Path, *, durable: bool, temporary: bool) -> None:
        self.directory = directory
        self.log = directory / "server.log"
        self._binaries = binaries
        self._durable = durable
        self._temporary = temporary
        self._account = _unprivileged_account()
        self._port = _free_port()
        self._password = secrets.token_hex(16)
        self._owner = os.getpid()
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        super().__init__(f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/postgres")

    @classmethod
    def start(
        cls,
        directory: Path | None = None,
        *,
        durable: bool = False,
        binaries: Path | None = None,
    ) -> Self:
        """Make a new cluster and start it.

        A given `directory` must be new or empty, and stays after `stop()`; without one, a temporary
        directory is made and removed. `durable` keeps fsync on: only a power cut can tell.
        """
        found = binaries or find_binaries()
        home = directory or Path(tempfile.mkdtemp(prefix="perdure-pg-"))
        home.mkdir(parents=True, exist_ok=True)
        server = cls(home.resolve(), found, durable=durable, temporary=directory is None)
        atexit.register(server.stop)
        try:
            server._initialise()
            server._boot()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, while it runs."""
        return self._postmaster.pid if self._postmaster else None

    def stop(self) -> None:
        """Stop for good. Connections are closed; a temporary directory is removed."""
        if os.getpid() != self._owner:
            return  # a forked child runs our exit handlers too
        atexit.unregister(self.stop)
        self._end(signal.SIGINT)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def immediate_stop(self) -> None:
        """Stop as in a crash, but tell the clients. The next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL the postmaster. A backend may still finish the statement it is at."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same data and URL, after a clean stop if it still runs."""
        self._end(signal.SIGINT)
        self._boot()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _initialise(self) -> None:
        password_file = self.directory / "password"
        password_file.write_text(self._password)
        if self._account:
            _check_reachable(self.directory.parent, self._account)
            self._binaries = _reachable_binaries(self._binaries, self.directory, self._account)
            _give(self.directory, self._account)
        options = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={password_file}"]
        options += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        process = self._spawn("initdb", "-D", str(self._data), *options)
        if process.wait(START_TIMEOUT) != 0:
            raise PostgresUnavailable(f"initdb failed:\n{self._end_of_log()}")
        password_file.unlink()

    def _boot(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not self._launch(deadline):
            log = self._end_of_log()
            passing = any(trouble in log for trouble in _PASSING_TROUBLE)
            if not passing or time.monotonic() > deadline:
                raise PostgresUnavailable(f"PostgreSQL did not start:\n{log}")
            time.sleep(0.1)

    def _launch(self, deadline: float) -> bool:
        """Start a postmaster; whether it became ready rather than exit."""
        self._postmaster = self._spawn("postgres", "-D", str(self._data), *self._settings())
        self._watchdog = self._watch(self._postmaster.pid)
        while self._postmaster.poll() is None and time.monotonic() < deadline:
            if self._ready():
                return True
            time.sleep(0.01)
        self._end(signal.SIGQUIT)
        return False

    def _ready(self) -> bool:
        """Read what `pg_ctl` reads: the first line names the process, the eighth its state."""
        with suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False

    def _settings(self) -> list[str]:
        # Never synchronous_commit=off: a killed server would forget what it had confirmed.
        safe = "on" if self._durable else "off"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": "",
            "max_connections": "300",
            "fsync": safe,
            "full_page_writes": safe,
            "timezone": "UTC",
        }
        return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

    def _end(self, how: signal.Signals) -> None:
        if self._watchdog:
            _dismiss(self._watchdog)
        if self._postmaster and self._postmaster.poll() is None:
            self._postmaster.send_signal(how)
            _await_end(self._postmaster)
        self._watchdog = self._postmaster = None

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [str(self._binaries / program), *arguments]
            return _spawn(command, log, self.directory, self._account)

    def _watch(self, pid: int) -> subprocess.Popen[bytes]:
        remove = str(self.directory) if self._temporary else ""
        return subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(pid), remove],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _end_of_log(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """The server at PERDURE_TEST_POSTGRES_URL, or a private one for as long as this lasts."""
    url = os.environ.get("PERDURE_TEST_POSTGRES_URL")
    if not url:
        with PrivatePostgres.start() as private:
            yield private
        return
    server = PostgresServer(url)
    try:
        yield server
    finally:
        server.drop_created_databases()


_shared: dict[str | None, PostgresServer] = {}


def shared_server(url: str | None = None) -> PostgresServer:
    """The server at `url`, else at PERDURE_TEST_POSTGRES_URL, else a private one that all callers
    in this process share; it ends with the process, and what was created on the others is dropped.
    Raises PostgresUnavailable."""
    url = url or os.environ.get("PERDURE_TEST_POSTGRES_URL") or None
    if url not in _shared:
        _shared[url] = PrivatePostgres.start() if url is None else PostgresServer(url)
        if url is not None:
            atexit.register(_shared[url].drop_created_databases)
    return _shared[url]


class _Account(NamedTuple):
    user: int
    group: int


def _unprivileged_account() -> _Account | None:
    """Whom to run as, when we are root and PostgreSQL would refuse."""
    if sys.platform == "win32":
        raise PostgresUnavailable("A private PostgreSQL needs a POSIX system, such as WSL.")
    if os.geteuid() != 0:
        return None
    import pwd  # not on Windows

    nobody = pwd.getpwnam("nobody")
    return _Account(nobody.pw_uid, nobody.pw_gid)


def _reachable_binaries(binaries: Path, directory: Path, account: _Account) -> Path:
    """`binaries`, or a copy: a venv below /root is closed to everybody but root."""
    postgres = (binaries / "postgres").resolve()
    if _barrier(postgres, account) is None:
        return postgres.parent
    prefix = postgres.parent.parent
    package = directory / "software" / prefix.parent.name
    shutil.copytree(prefix, package / prefix.name, symlinks=True)
    libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
    if libraries.is_dir():  # where wheels keep shared libraries, found relative to the binary
        shutil.copytree(libraries, package.with_name(libraries.name), symlinks=True)
    return package / prefix.name / "bin"


def _check_reachable(directory: Path, account: _Account) -> None:
    if barrier := _barrier(directory, account):
        raise PostgresUnavailable(
            f"PostgreSQL does not run as root, and `nobody` cannot enter {barrier}. "
            f"Choose a directory elsewhere, or none for a temporary one."
        )


def _barrier(path: Path, account: _Account) -> Path | None:
    """The outermost part of `path` that `account` may not enter or execute, if any."""
    for part in (*reversed(path.parents), path):
        status = part.stat()
        shift = 6 if status.st_uid == account.user else 3 if status.st_gid == account.group else 0
        if not status.st_mode >> shift & 0o1:
            return part
    return None


def _give(directory: Path, account: _Account) -> None:
    os.chown(directory, *account)
    for path in directory.rglob("*"):
        os.chown(path, *account, follow_symlinks=False)


def _spawn(
    command: list[str], log: IO[bytes], directory: Path, account: _Account | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=directory,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        start_new_session=True,  # Ctrl-C is for the owner, who then stops the server
        user=account.user if account else None,
        group=account.group if account else None,
        extra_groups=[] if account else None,
    )


def _dismiss(watchdog: subprocess.Popen[bytes]) -> None:
    watchdog.kill()
    watchdog.communicate()


def _await_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _with_database(url: str, name: str) -> str:
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{quote(name, safe='')}{query}"
