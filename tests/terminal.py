"""A command on a pseudo-terminal, as somebody who sits there sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from waiting import MAX_WAIT_S

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """Standard input, output and error of a process that begins when the block is entered."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: dict[str, str],
        columns: int = 100,
        lines: int = 30,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**env, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines)},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self._seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    @property
    def raw(self) -> str:
        """The same with colours and the like."""
        return self._seen

    @property
    def text(self) -> str:
        """All that was shown so far, without colours and the like."""
        return _ESCAPES.sub("", self._seen).replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, words: str) -> str:
        """Until these words were shown."""
        deadline = time.monotonic() + MAX_WAIT_S
        while words not in self.text:
            assert self._read(deadline), f"{words!r} is not in:\n{self.text}"
        return self.text

    def end(self) -> int:
        """Its exit code, once it has ended and all is read."""
        deadline = time.monotonic() + MAX_WAIT_S
        while self._read(deadline):
            pass
        return self.process.wait(timeout=MAX_WAIT_S)

    def _read(self, deadline: float) -> bool:
        """Whether there was more."""
        ready, _, _ = select.select([self._ours], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return False
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # the other end is closed
            return False
        self._seen += found.decode(errors="replace")
        return bool(found)
