"""`perdure worker --targets`: without anybody's code; and what is left when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from bell import Bell
from command import Shell
from commands import command
from perdure import App
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system


async def test_a_worker_of_the_catalogue_needs_no_app_and_its_death_ends_its_commands(
    shell: Shell, tmp_path: Path
) -> None:
    app = App(shell.url)
    greet = app.shell_task("greet", argv=["echo", "hello"])
    async with Bell(tmp_path / "bell") as bell, app:
        family = app.shell_task("family", argv=command("family", bell.path))
        async with app.twin():  # tells the catalogue of the second one
            pass
        process = shell.start("worker", "--targets", "http,shell", "--json")
        try:
            assert await (await greet.trigger()).result(MAX_WAIT_S) == "hello"
            await family.trigger()
            callers = [await bell.heard() for _ in range(3)]
            os.kill(process.pid, signal.SIGKILL)
            async with asyncio.timeout(MAX_WAIT_S):
                for caller in callers:
                    await caller.gone()
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--targets http"),
        (["--targets", "https"], "targets: must be one of"),
        (["--targets", ","], "name at least one kind of target"),
        (["shop:app", "--environment", "x"], "Leave out --environment"),
    ],
)
def test_what_makes_no_sense_is_said(shell: Shell, arguments: list[str], says: str) -> None:
    shell.perdure("migrate")

    answer = shell.perdure("worker", *arguments)

    assert answer.code != 0
    assert says in answer.err
