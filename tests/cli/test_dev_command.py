"""`perdure dev`: everything in one process, restarted when the source changes."""

from __future__ import annotations

import asyncio
import os
import py_compile
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from command import Shell
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system

APP = """
import time
from perdure import App, every

app = App()
FACTOR = 2

@app.task
async def times(number: int) -> int:
    return FACTOR * number

@app.task
def block() -> None:
    time.sleep(600)

@app.task(executor="process")
def times_elsewhere(number: int) -> int:
    return FACTOR * number

@app.schedule(every(1))
@app.task
async def tick() -> None: ...
"""


class Development:
    """A `perdure dev` on an app of its own, and what it says."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._source = shell.directory / "growing.py"
        self._process: subprocess.Popen[bytes] | None = None
        self.write(APP)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = ("dev", "growing:app", "--port", "0", *arguments)
        self._process = self.shell.start(*command, log="dev.log")
        return self._process

    def write(self, source: str) -> None:
        self._source.write_text(source)

    def change_unnoticeably(self, old: str, new: str) -> None:
        """Keep length and time, and leave bytecode of the old source that looks current."""
        py_compile.compile(str(self._source), doraise=True)
        source, stat = self._source.read_text(), self._source.stat()
        replacement = self._source.with_suffix(".new")
        replacement.write_text(source.replace(old, new))
        os.utime(replacement, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert replacement.stat().st_size == stat.st_size
        replacement.replace(self._source)

    def change(self, old: str, new: str) -> None:
        source = self._source.read_text()
        assert old in source
        self.write(source.replace(old, new))

    @property
    def said(self) -> str:
        return (self.shell.directory / "dev.log").read_text()

    @property
    def addresses(self) -> list[str]:
        return re.findall(r"growing:app is at (http://[\d.:]+);", self.said)

    async def ready(self, times: int = 1) -> str:
        """Its address, once it has begun so many times."""
        await self.until(lambda: len(self.addresses) >= times and "worker ready" in self.said)
        return self.addresses[-1]

    async def until(self, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                while not holds():  # noqa: ASYNC110  # another process has no event to wait for
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(self.said) from None

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def development(tmp_path: Path) -> Iterator[Development]:
    made = Development(Shell(tmp_path))
    yield made
    made.end()


async def result_of(address: str, task: str, **payload: Any) -> Any:
    """What a run returns, all over HTTP."""
    async with httpx.AsyncClient(base_url=address, timeout=MAX_WAIT_S) as client:
        body = {"task": task, "payload": payload}
        run_id = (await client.post("/v1/runs", json=body)).json()["id"]
    return (await run_in(address, run_id, "succeeded"))["result"]


async def run_in(address: str, run_id: str, status: str) -> Any:
    """A run, once it is in this status."""
    return await answered(address, f"/v1/runs/{run_id}", lambda run: run["status"] == status)


async def answered(address: str, path: str, holds: Callable[[Any], Any]) -> Any:
    """What is there, once it is as it should be."""
    async with httpx.AsyncClient(base_url=address) as client, asyncio.timeout(MAX_WAIT_S):
        while not holds(found := (await client.get(path)).json()):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
        return found


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, MAX_WAIT_S)


async def test_a_change_of_the_source_holds_a_moment_later(development: Development) -> None:
    process = development.start()
    address = await development.ready()
    before = await result_of(address, "times", number=21)

    development.change("FACTOR = 2", "FACTOR = 10")
    again = await development.ready(times=2)
    after = await result_of(again, "times", number=21)

    assert (before, after) == (42, 210)
    assert again == address
    assert address.startswith("http://127.0.0.1:")
    assert "growing.py has changed; restarting" in development.said
    process.send_signal(signal.SIGINT)
    assert await ended(process) == 0


async def test_a_change_of_equal_length_and_time_holds_also_in_worker_processes(
    development: Development,
) -> None:
    development.start()
    address = await development.ready()
    results = []

    for life, factor in enumerate((3, 4, 5), 2):
        development.change_unnoticeably(f"FACTOR = {factor - 1}", f"FACTOR = {factor}")
        await development.ready(times=life)
        results.append(await result_of(address, "times", number=10))
        results.append(await result_of(address, "times_elsewhere", number=10))

    assert results == [30, 30, 40, 40, 50, 50]


async def test_bytecode_from_before_the_start_is_not_executed(development: Development) -> None:
    development.change_unnoticeably("FACTOR = 2", "FACTOR = 7")

    development.start("--no-reload")
    address = await development.ready()

    assert await result_of(address, "times", number=1) == 7
    assert await result_of(address, "times_elsewhere", number=1) == 7


async def test_a_missing_module_is_waited_for(development: Development, tmp_path: Path) -> None:
    development.start()
    await development.ready()

    development.change("FACTOR = 2", "from factors import FACTOR")
    await development.until(lambda: "waiting for another change" in development.said)
    (tmp_path / "factors.py").write_text("FACTOR = 6")
    address = await development.ready(times=2)

    assert await result_of(address, "times", number=2) == 12


async def test_what_is_scheduled_runs(development: Development) -> None:
    development.start()
    address = await development.ready()

    found = "/v1/runs?task=tick&status=succeeded"
    assert await answered(address, found, lambda page: page["items"])


async def test_broken_source_is_told_and_mended_source_goes_on(development: Development) -> None:
    development.start()
    await development.ready()

    development.change("FACTOR = 2", "FACTOR = (")
    await development.until(lambda: "waiting for another change" in development.said)
    development.change("FACTOR = (", "FACTOR = 3")
    address = await development.ready(times=2)

    assert "SyntaxError" in development.said
    assert await result_of(address, "times", number=2) == 6


async def test_a_handler_that_does_not_end_holds_up_no_change(development: Development) -> None:
    development.start("--drain", "0.1")
    address = await development.ready()
    async with httpx.AsyncClient(base_url=address) as client:
        run_id = (await client.post("/v1/runs", json={"task": "block"})).json()["id"]
    await run_in(address, run_id, "running")

    development.change("time.sleep(600)", "return")

    again = await development.ready(times=2)
    run = await run_in(again, run_id, "succeeded")
    assert run["counters"]["failures"] == 0


async def test_without_reload_the_source_may_change(development: Development) -> None:
    development.start("--no-reload")
    address = await development.ready()

    development.change("FACTOR = 2", "FACTOR = 5")

    assert await result_of(address, "times", number=1) == 2
    assert "has changed" not in development.said


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("growing:nothing",), "growing has no 'nothing'; did you mean growing:app?"),
        (("absent:app",), "there is no module 'absent'"),
        (("growing:app", "--host", "0.0.0.0"), "can be reached from elsewhere"),
        (("growing:app", "--url", "http://127.0.0.1:1"), "is a server, and dev is one itself"),
    ],
)
def test_what_cannot_begin_says_what_to_do(
    development: Development, tmp_path: Path, arguments: tuple[str, ...], advice: str
) -> None:
    answer = Shell(tmp_path).perdure("dev", *arguments, "--port", "0")

    assert answer.code == 2
    assert advice in answer.err
    assert "Traceback" not in answer.err


def test_without_watchfiles_it_says_what_to_install(development: Development) -> None:
    code = "import sys; sys.modules['watchfiles'] = None; from perdure.cli.main import main; main()"
    shell = development.shell

    done = subprocess.run(
        [sys.executable, "-c", code, "dev", "growing:app", "--port", "0"],
        env=shell.environ(),
        cwd=shell.directory,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
    )

    assert done.returncode == 2
    assert "pip install 'perdure[server]', or use --no-reload" in done.stderr
    assert "Traceback" not in done.stderr
