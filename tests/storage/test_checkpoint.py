"""SQLite's log moves into the file only when we say so, and does not grow for ever."""

import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from perdure.errors import StorageUnavailable
from perdure.storage import open_storage
from perdure.storage.contract.storage import Storage
from perdure.storage.sqlite import checkpoint
from perdure.storage.sqlite.checkpoint import has_wal_reset_fault
from perdure.storage.sqlite.connection import Connection
from perdure.storage.sqlite.storage import SqliteStorage
from storage_kit import CLOCK, claim_one, create, new_run, stored, success

BATCH = 20
BOUND = 64 * 2**20
"""Bytes of log that a database may have while nothing reads it for long."""
CHANGES_A_BATCH = 2 * BATCH  # a run and its history


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every connection that is opened while the test runs."""
    seen: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def recorded(*arguments: Any, **options: Any) -> sqlite3.Connection:
        seen.append(connect(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(sqlite3, "connect", recorded)
    return seen


@pytest_asyncio.fixture
async def storage(connections: list[sqlite3.Connection], path: Path) -> AsyncIterator[Storage]:
    opened = open_storage(f"sqlite:///{path}", CLOCK)
    await opened.migrate()
    yield opened
    await opened.close()


def log_size(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def file_bytes(path: Path) -> int:
    return path.stat().st_size


def modified_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def runs_in_file(path: Path) -> int:
    """How many runs the file itself holds, without its log."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        [[count]] = connection.execute("SELECT count(*) FROM perdure_runs").fetchall()
    return int(count)


async def commit_batches(storage: Storage, count: int) -> None:
    for _ in range(count):
        await stored(storage, *(new_run() for _ in range(BATCH)))


async def test_no_connection_checkpoints_by_itself(
    storage: Storage, connections: list[sqlite3.Connection]
) -> None:
    settings = [c.execute("PRAGMA wal_autocheckpoint").fetchone() for c in connections]

    assert settings == [(0,)] * 3  # one writes, one reads, one checkpoints


async def test_after_enough_changes_the_log_is_moved_into_the_file(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHANGES_BETWEEN", 3 * CHANGES_A_BATCH)
    await commit_batches(storage, 3)
    before = runs_in_file(path)

    await commit_batches(storage, 3)

    assert (before, runs_in_file(path)) == (3 * BATCH, 6 * BATCH)


async def test_until_then_the_file_is_left_alone(storage: Storage, path: Path) -> None:
    before = modified_at(path)

    await commit_batches(storage, 3)

    assert modified_at(path) == before


async def test_the_log_stops_growing(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHANGES_BETWEEN", 5 * CHANGES_A_BATCH)
    await commit_batches(storage, 15)
    settled = log_size(path)

    await commit_batches(storage, 60)

    # Later pages differ in number a little, as trees grow; without checkpoints it is five times.
    assert log_size(path) < 1.5 * settled


async def test_without_checkpoints_the_log_would_grow(storage: Storage, path: Path) -> None:
    await commit_batches(storage, 15)
    before = log_size(path)

    await commit_batches(storage, 60)

    assert log_size(path) > 4 * before


async def test_large_runs_do_not_grow_the_log_beyond_its_bound(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few changes, many bytes: counting changes alone would let it grow."""
    for _ in range(100):
        await stored(storage, new_run("x" * 900_000))

    assert log_size(path) <= BOUND


async def test_the_bound_holds_for_processes_together(storage: Storage, path: Path) -> None:
    others = [open_storage(f"sqlite:///{path}", CLOCK) for _ in range(2)]
    for _ in range(40):
        for each in (storage, *others):
            await stored(each, new_run("x" * 900_000))
    size = log_size(path)
    for other in others:
        await other.close()

    assert size <= BOUND


async def test_a_log_that_a_reader_held_is_cut_once_the_reader_ends(
    storage: Storage, path: Path
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM perdure_runs").fetchall()
        for _ in range(90):
            await stored(storage, new_run("x" * 900_000))
        held = log_size(path)
        reader.execute("COMMIT")
    for _ in range(10):
        await stored(storage, new_run("x" * 900_000))

    assert held > BOUND
    assert log_size(path) <= BOUND


async def test_an_idle_writer_moves_the_log_once(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(storage, SqliteStorage)
    monkeypatch.setattr(checkpoint, "IDLE_LOG_BYTES", 0)
    await commit_batches(storage, 3)
    checkpoints: list[int] = []
    move = storage._checkpointer.checkpoint  # type: ignore[union-attr]  # it has a file

    def counted(writer: Connection) -> int:
        checkpoints.append(move(writer))
        return checkpoints[-1]

    monkeypatch.setattr(storage._checkpointer, "checkpoint", counted)
    for _ in range(3):
        storage._writer.when_idle()

    assert checkpoints == [0]
    assert runs_in_file(path) == 3 * BATCH


async def test_a_full_disk_is_recovered_from_without_help(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files stands in for the disk: the log cannot grow any more, but the
    database file still can."""
    monkeypatch.setattr(checkpoint, "LOG_KEPT_BYTES", 2**40)
    with file_size_limit(4 * 2**20):
        outcomes = [await _try_to_store(storage) for _ in range(30)]

    assert outcomes.count(False) in (1, 2)
    assert outcomes[-5:] == [True] * 5


class SmallDisk:
    """What `os.statvfs` says of a disk that holds nothing but the database."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._directory = path.parent

    @property
    def used(self) -> int:
        return sum(file.stat().st_size for file in self._directory.iterdir())

    def statvfs(self, _: object) -> os.statvfs_result:
        block_bytes, free = 4096, max(self.size - self.used, 0)
        counts = (self.size // block_bytes, free // block_bytes, free // block_bytes)
        return os.statvfs_result((block_bytes, block_bytes, *counts, 0, 0, 0, 0, 255))


@pytest.fixture
def small_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    disk = SmallDisk(path, 24 * 2**20)
    monkeypatch.setattr(os, "statvfs", disk.statvfs)
    return disk


@pytest.mark.parametrize("size", [1_000, 100_000])
async def test_a_log_leaves_room_to_be_moved_into_the_file(
    size: int, small_disk: SmallDisk, storage: Storage, path: Path
) -> None:
    """Otherwise a disk may become full of a log that cannot be moved for want of room, and no
    write succeeds any more."""
    run = await create(storage)
    await stored(storage, success(await claim_one(storage)))
    most_used = 0
    while most_used < small_disk.size and await _try_to_store(storage, size):
        most_used = max(most_used, small_disk.used)

    assert most_used < small_disk.size
    assert file_bytes(path) > 0.8 * small_disk.size
    assert await storage.forget_runs([run.id]) == 1
    small_disk.size *= 2
    assert await _try_to_store(storage, size)


async def _try_to_store(storage: Storage, size: int = 100_000) -> bool:
    try:
        await stored(storage, *(new_run("x" * size) for _ in range(max(100_000 // size, 1))))
    except StorageUnavailable:
        return False
    return True


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_reader_in_the_middle_is_not_disturbed(
    storage: Storage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHANGES_BETWEEN", CHANGES_A_BATCH)
    await commit_batches(storage, 1)
    count = "SELECT count(*) FROM perdure_runs"
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute(count).fetchone() == (BATCH,)

        await commit_batches(storage, 4)

        assert reader.execute(count).fetchone() == (BATCH,)
        reader.execute("COMMIT")
        assert reader.execute(count).fetchone() == (5 * BATCH,)


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        ((3, 7, 17), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 44, 9), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_which_versions_need_care(version: tuple[int, int, int], faulty: bool) -> None:
    assert has_wal_reset_fault(version) is faulty


def test_this_python_is_judged_by_its_own_sqlite() -> None:
    assert has_wal_reset_fault() is has_wal_reset_fault(sqlite3.sqlite_version_info)
