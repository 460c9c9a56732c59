"""Runs name the user and host that created them."""

from __future__ import annotations

import getpass
import socket
import sys

import pytest

from perdure import App
from perdure.engine.process.os_user import user_at_host


async def test_a_run_created_without_an_actor_names_user_and_host(storage_url: str) -> None:
    app = App(storage_url)

    @app.task
    async def work() -> None: ...

    async with app:
        run = await app.runs.get((await work.trigger()).id)

    assert run.created_by.id == f"{getpass.getuser()}@{socket.gethostname()}"


def test_user_and_host_are_read_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = App("sqlite:///a.db").actor
    monkeypatch.setenv("LOGNAME", "other")

    assert App("sqlite:///b.db").actor == first


@pytest.mark.parametrize(("name", "expected"), [("box", "box"), ("bad\nname", None)])
def test_a_process_without_a_user_name_has_only_its_host(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: str | None
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(sys.modules, "pwd", None)
    monkeypatch.setattr(socket, "gethostname", lambda: name)

    assert user_at_host.__wrapped__() == expected
