"""Who may read what a SQLite database leaves on disk."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perdure import App
from perdure.core.explain.health import Code
from perdure.storage.sqlite.wakeups import SocketHints
from web_kit import shop


@pytest.fixture(params=[0o000, 0o022, 0o077])
def any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in directory.iterdir()}


@pytest.mark.usefixtures("any_umask")
async def test_a_new_database_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with shop(f"sqlite:///{tmp_path / 'runs.db'}") as app:
        await app.tasks["double"].trigger(1)
        found = modes(tmp_path)

    assert found == dict.fromkeys(("runs.db", "runs.db-wal", "runs.db-shm"), 0o600)


@pytest.mark.usefixtures("any_umask")
async def test_a_database_behind_a_link_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "here" / "runs.db")
    async with shop(f"sqlite:///{link}"):
        assert modes(tmp_path / "here")["runs.db"] == 0o600


async def test_an_existing_file_keeps_its_mode_and_the_doctor_warns(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    path.chmod(0o640)
    async with App(f"sqlite:///{path}") as app:
        assert modes(tmp_path)["runs.db"] == 0o640
        codes = [finding.code for finding in (await app.doctor()).findings]
        assert Code.READABLE_BY_OTHERS in codes

        path.chmod(0o600)
        for name in ("runs.db-wal", "runs.db-shm"):
            (tmp_path / name).chmod(0o600)
        codes = [finding.code for finding in (await app.doctor()).findings]
        assert Code.READABLE_BY_OTHERS not in codes


@pytest.mark.usefixtures("any_umask")
async def test_sockets_for_hints_are_for_their_owner_alone(tmp_path: Path) -> None:
    hints, heard = SocketHints("runs.db", tmp_path), asyncio.Event()
    listening = asyncio.create_task(hints.listen(lambda topics: heard.set()))
    await heard.wait()
    found = modes(tmp_path)
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening

    assert list(found.values()) == [0o600]
