"""Real `perdure worker` processes, to be killed, paused and told to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
APP = "torture_app:app"
START_TIMEOUT = 30.0


class WorkerProcess:
    """One `perdure worker`, its log beside it."""

    def __init__(self, log: Path, environ: Mapping[str, str], *arguments: str) -> None:
        self.log = log
        self.killed_at: datetime | None = None
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "perdure", "worker", APP, "--json", *arguments],
                cwd=HERE,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def worker_id(self) -> str | None:
        """Known once it is ready."""
        for line in self.lines():
            if line["message"] == "worker ready":
                return str(line["worker_id"])
        return None

    def lines(self) -> Iterator[dict[str, Any]]:
        """Its log so far, without a line it is still writing."""
        for line in self.log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def said(self, pattern: str) -> bool:
        return any(re.fullmatch(pattern, line["message"]) for line in self.lines())

    def wait_until_ready(self) -> Self:
        deadline = time.monotonic() + START_TIMEOUT
        while self.worker_id is None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.killed_at = datetime.now(UTC)
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.process.terminate()

    def bury(self) -> None:
        if self.process.poll() is None:
            self.go_on()
            self.process.kill()
        self.process.wait()


class Fleet:
    """Workers on one database, all gone at the end."""

    def __init__(self, directory: Path, url: str, **settings: object) -> None:
        self.all: list[WorkerProcess] = []
        self._directory = directory
        self.environ = {"PERDURE_URL": url}
        self.environ |= {f"PERDURE_{name.upper()}": str(v) for name, v in settings.items()}

    def start(self, *arguments: str) -> WorkerProcess:
        log = self._directory / f"worker-{len(self.all)}.log"
        worker = WorkerProcess(log, self.environ, *arguments)
        self.all.append(worker)
        return worker

    def audit(self) -> dict[str, Any]:
        """The last line of `perdure audit --json`."""
        command = [sys.executable, "-m", "perdure", "audit", "--json"]
        environ = {**os.environ, **self.environ}
        done = subprocess.run(command, env=environ, cwd=HERE, capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, done.stderr
        if lines[-1]["mismatches"] or done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
        totals: dict[str, Any] = lines[-1]
        return totals

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.all:
            worker.bury()
