"""A real `perdure server` process at one address, to be killed and started again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

START_TIMEOUT = 30.0


class ServerProcess:
    """`settings` are `PERDURE_*` variables. Its log goes on from start to start."""

    def __init__(self, url: str, log: Path, **settings: object) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self._url = url
        self._log = log
        self._settings = {f"PERDURE_{name.upper()}": str(v) for name, v in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Returns when it is ready."""
        heard = self._log.stat().st_size if self._log.exists() else 0
        environ: Mapping[str, str] = {**os.environ, **self._settings}
        flags = ["--json", "--url", self._url, "--port", str(self._port), "--require-keys"]
        with self._log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "perdure", "server", *flags],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._is_ready(heard):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _is_ready(self, heard: int) -> bool:
        lines = self._log.read_bytes()[heard:].decode().splitlines()
        said = [json.loads(line)["message"] for line in lines if line.endswith("}")]
        return any(message.startswith("server ready") for message in said)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
