"""The `perdure` executable, as a shell would call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_server import command_server

PERDURE = [str(Path(sys.executable).with_name("perdure"))]

SHOP = """
from perdure import App, Retry

app = App()
number = 7

@app.task
async def double(number: int) -> int:
    return 2 * number

@app.task(queue="other")
async def elsewhere() -> str:
    return "done"

@app.task
async def wait(seconds: float) -> str:
    import asyncio
    await asyncio.sleep(seconds)
    return "waited"
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of what it said."""
        return json.loads(self.out.splitlines()[-1])


class Shell:
    """A directory with an app in `shop.py` and a database in `runs.db`."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self.directory = directory
        self.url = url or f"sqlite:///{directory / 'runs.db'}"
        (directory / "shop.py").write_text(SHOP)

    def environ(self, **variables: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        return {**kept, "PERDURE_URL": self.url, **variables}

    def perdure(self, *arguments: str, **variables: str) -> Answer:
        command = [*PERDURE, *arguments]
        done = command_server().call(command, self.directory, self.environ(**variables), 60)
        return Answer(done.returncode, done.stdout, done.stderr)

    def start(
        self, *arguments: str, log: str = "worker.log", **variables: str
    ) -> subprocess.Popen[bytes]:
        with (self.directory / log).open("wb") as file:
            return subprocess.Popen(
                [*PERDURE, *arguments],
                cwd=self.directory,
                env=self.environ(**variables),
                stdout=file,
                stderr=file,
            )

    def log_lines(self, log: str = "worker.log") -> list[dict[str, Any]]:
        text = (self.directory / log).read_text()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
