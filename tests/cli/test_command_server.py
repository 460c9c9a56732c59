"""Commands that tests fork from a process with all imports are as real as any other."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from command import PERDURE, Shell
from command_server import CommandServer


def test_a_call_has_its_own_directory_environment_output_and_exit_code(shell: Shell) -> None:
    migrated = shell.perdure("migrate", PERDURE_URL="sqlite:///here.db")
    refused = shell.perdure("no-such-command")

    assert (migrated.code, migrated.err) == (0, "")
    assert (shell.directory / "here.db").exists()
    assert (refused.code, refused.out) == (2, "")
    assert "no-such-command" in refused.err


def test_a_call_that_does_not_end_is_killed(shell: Shell) -> None:
    shell.perdure("migrate")
    server = CommandServer()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            server.call([*PERDURE, "scheduler"], shell.directory, shell.environ(), 2.0)
    finally:
        server.close()


def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = "import os, command_server as it; print(it.command_server()._process.pid, flush=True)"
    code += "; os._exit(0)"
    tests = str(Path(__file__).parent.parent)
    started = subprocess.run(
        [sys.executable, "-c", code], cwd=tests, capture_output=True, text=True, check=True
    )

    while Path(f"/proc/{started.stdout.strip()}").exists():
        time.sleep(0.02)
