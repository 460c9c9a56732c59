"""Calling the API: in this process, or a real server's on a port of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from perdure import App, Retry
from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators.keys import Keys
from perdure.engine.protocol.scope import Scope
from perdure.errors import RunFailed
from perdure.web.api import LOCAL, Api, ApiOptions
from waiting import MAX_WAIT_S

ADA = Actor(ActorType.OPERATOR, "ada")
ALL = tuple(Scope)
HERE = "http://127.0.0.1:8080"


def shop(url: str, environment: str = "default", **options: Any) -> App:
    """An app with a few tasks."""
    app = App(url, environment=environment, **options)

    @app.task(queue="numbers")
    async def double(number: int, *, password: str = "") -> int:
        return 2 * number

    @app.task(retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def fragile(message: str = "broken") -> None:
        raise ValueError(message)

    return app


async def dead_letter(app: App, **arguments: str) -> str:
    """The id of a run that has just died; the app must be open."""
    async with app.worker(concurrency=1):
        run = await app.tasks["fragile"].trigger(**arguments)
        try:
            await run.result(MAX_WAIT_S)
        except RunFailed:
            return run.id
    raise AssertionError("it was to fail")


async def make_key(app: App, *scopes: str, environment: str | None = None) -> str:
    made = await Keys(app.runtime).create("test", scopes, environment=environment, by=ADA)
    return made.text


@asynccontextmanager
async def calling(
    url: str, options: ApiOptions = LOCAL, key: str | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API in this process."""
    async with Api(App(url), options) as api, client_of(api, key) as client:
        yield client


def client_of(api: Api, key: str | None = None) -> httpx.AsyncClient:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(api), base_url=HERE, headers=headers, timeout=30
    )


class Server:
    """`perdure server` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address

    @property
    def memory(self) -> int:
        """Bytes of it that are in memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("it has ended")


@contextmanager
def serving(
    url: str, directory: Path, *arguments: str, files: int | None = None, **variables: str
) -> Iterator[Server]:
    """A server that is ready; its log is `server.log` there. It may open so many files."""
    command = [sys.executable, "-m", "perdure", "server", "--json", "--port", "0", *arguments]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")} | variables
    limited = [] if files is None else ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash"]
    process = subprocess.Popen(
        [*limited, *command, "--url", url],
        cwd=directory,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = _Log(process, directory / "server.log")
    try:
        yield Server(process, log.address())
    finally:
        process.terminate()
        try:
            process.wait(timeout=MAX_WAIT_S)
        finally:
            process.kill()
            log.join()


class _Log(threading.Thread):
    """Takes down what a server says, all the time: one whose words nobody takes stands still."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._path = path
        self._address: queue.Queue[str] = queue.Queue()
        self.start()

    def address(self) -> str:
        found = self._address.get(timeout=MAX_WAIT_S)
        assert found, self._path.read_text()
        return found

    def run(self) -> None:
        assert self._process.stderr is not None
        with self._path.open("w") as log, self._process.stderr as said:
            for line in said:
                log.write(line)
                log.flush()
                if '"server ready' in line:
                    self._address.put(json.loads(line)["address"])
        self._address.put("")
