"""Forks a process for each call of `perdure`, from one that has imported everything already.

An import of Perdure takes most of the time of a short command. The forked process is a real one:
it has its own directory, environment, output and exit code, and ends as any other does.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

PACKAGES = ("perdure.core", "perdure.storage", "perdure.engine", "perdure.cli")
START_TIMEOUT_S = 60.0


class Call(msgspec.Struct, frozen=True):
    """A command line, and the files that take its output."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]
    out: str
    err: str


class CommandServer:
    """The client's side. One server lives as long as the process that started it."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="perdure-commands-"))
        self._address = str(self._directory / "socket")
        command = [sys.executable, __file__, self._address]
        # The server ends when its input does, however this process ends.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        atexit.register(self.close)

    def call(
        self,
        arguments: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        limit: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raise TimeoutExpired after so many seconds."""
        files = Path(tempfile.mkdtemp(dir=self._directory))
        out, err = files / "out", files / "err"
        call = Call(list(arguments), str(directory), dict(environment), str(out), str(err))
        code = self._code_of(call, limit)
        done = subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())
        shutil.rmtree(files)
        return done

    def _code_of(self, call: Call, limit: float) -> int:
        with self._connect() as connection, connection.makefile() as answers:
            connection.settimeout(limit)
            connection.sendall(msgspec.json.encode(call))
            connection.shutdown(socket.SHUT_WR)
            pid = int(answers.readline())
            try:
                return int(answers.readline())
            except TimeoutError as error:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(call.arguments, limit) from error

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._address)
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                assert time.monotonic() < deadline, "the command server has not started"
                time.sleep(0.02)
            else:
                return connection

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._directory, ignore_errors=True)


@cache
def command_server() -> CommandServer:
    """The server of this process, started when first asked for."""
    return CommandServer()


# The server's side


def serve(address: str) -> Call:
    """Fork a keeper for each connection. Return only in the process that runs a command."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(16)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if os.fork() == 0:
            _end_with_input()
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    return _keep(connection)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getppid(), signal.SIGTERM)
    os._exit(0)


def _keep(connection: socket.socket) -> Call:
    """Fork the command, and tell its process id and then its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text = b""
    while part := connection.recv(65536):
        text += part
    call = msgspec.json.decode(text, type=Call)
    child = os.fork()
    if child == 0:
        return call
    connection.sendall(f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(call: Call) -> None:
    """Take the command's directory, environment, arguments and files."""
    os.chdir(call.directory)
    os.environ.clear()
    os.environ.update(call.environment)
    time.tzset()
    for target, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, call.out, os.O_WRONLY | os.O_CREAT),
        (2, call.err, os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, target)
        os.close(opened)
    sys.argv = call.arguments
    sys.path[0] = str(Path(call.arguments[0]).parent)


def _import_everything() -> None:
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


if __name__ == "__main__":
    from perdure.cli.main import main

    _import_everything()
    gc.freeze()  # or each process would copy all of it
    _become(serve(sys.argv[1]))
    sys.exit(main())
