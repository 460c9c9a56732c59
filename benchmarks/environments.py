"""An environment for every peer, made when first asked for and kept under `.bench/`.

Versions are pinned, so that a result can be repeated. What cannot be had is no failure of the
benchmark: `Unavailable` says why, and the peer is left out by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = Path(os.environ.get("PERDURE_BENCH_HOME") or ROOT / ".bench").absolute()
"""Environments are many minutes' work and can be shared by checkouts. They know their own path, so
the directory is named, never moved."""

LEAST_NODE = 22
INSTALL_TIMEOUT = 900

Say = Callable[[str], None]


class Unavailable(Exception):
    """Something a peer needs is not on this machine and cannot be installed."""


@dataclass(frozen=True, slots=True)
class Ours:
    """The interpreter that runs the benchmark, with the Perdure it has."""

    def command(self, program: str, say: Say) -> list[str]:
        return [sys.executable, "-m", f"benchmarks.peers.{program}"]

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}

    def version(self) -> str:
        """The commit, where that can be known."""
        git = shutil.which("git")
        if git is None:
            return "of this checkout"
        command = [git, "describe", "--always", "--dirty"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() or "of this checkout"


@dataclass(frozen=True, slots=True)
class Python:
    """A virtual environment with one peer. The first requirement is the peer itself."""

    name: str
    requirements: tuple[str, ...]

    @property
    def directory(self) -> Path:
        return HOME / "python" / self.name

    @property
    def interpreter(self) -> Path:
        return self.directory / "bin" / "python"

    def command(self, program: str, say: Say) -> list[str]:
        wanted = "\n".join(self.requirements)
        if not _is_ready(self.directory, wanted):
            say(f"installing {', '.join(self.requirements)}")
            _make_venv(self.directory)
            _install(_pip(self.interpreter, *self.requirements), self.directory)
            _mark_ready(self.directory, wanted)
        return [str(self.interpreter), "-m", f"benchmarks.peers.{program}"]

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT)}

    def version(self) -> str:
        return self.requirements[0].partition("==")[2]


@dataclass(frozen=True, slots=True)
class Node:
    """A directory of npm packages. The first requirement is the peer itself."""

    name: str
    requirements: tuple[str, ...]

    @property
    def directory(self) -> Path:
        return HOME / "node" / self.name

    def command(self, program: str, say: Say) -> list[str]:
        node = find_node(say)
        wanted = "\n".join(self.requirements)
        if not _is_ready(self.directory, wanted):
            say(f"installing {', '.join(self.requirements)}")
            _npm_install(self.directory, *self.requirements)
            _mark_ready(self.directory, wanted)
        return [node, str(ROOT / "benchmarks" / "peers" / program)]

    def variables(self) -> dict[str, str]:
        return {"BENCH_PACKAGES": str(self.directory)}

    def version(self) -> str:
        return self.requirements[0].rpartition("@")[2]


Environment = Ours | Python | Node


def find_node(say: Say) -> str:
    """A Node that is new enough: the system's, or one that npm brings."""
    own = HOME / "node" / "runtime"
    brought = own / "node_modules" / "node" / "bin" / "node"
    for candidate in (os.environ.get("BENCH_NODE"), shutil.which("node"), str(brought)):
        if candidate and _node_version(candidate) >= LEAST_NODE:
            return candidate
    say(f"installing Node {LEAST_NODE} through npm")
    _npm_install(own, f"node@{LEAST_NODE}")
    if _node_version(str(brought)) < LEAST_NODE:
        raise Unavailable(f"needs Node {LEAST_NODE} or newer, and npm's `node` brought none")
    return str(brought)


def _node_version(node: str) -> int:
    try:
        done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    major = done.stdout.strip().removeprefix("v").partition(".")[0]
    return int(major) if major.isdigit() else 0


def find_redis() -> str:
    server = shutil.which("redis-server")
    if server is None:
        raise Unavailable("needs redis-server, which is not on the PATH")
    return server


def _npm_install(directory: Path, *packages: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("needs npm, which is not on the PATH")
    directory.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(directory), *packages]
    _install(command, directory)


def _make_venv(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    # Debian without python3-venv cannot put pip into a venv, so ours installs into it.
    command = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(directory)]
    _install(command, directory)


def _pip(interpreter: Path, *requirements: str) -> list[str]:
    # pip believes that whatever lies beside itself is installed in the other place too.
    quiet = ["--disable-pip-version-check", "--no-input", "--quiet", "--ignore-installed"]
    command = [sys.executable, "-m", "pip", "--python", str(interpreter), "install"]
    return [*command, *quiet, *requirements]


def _install(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the installation took more than {INSTALL_TIMEOUT} s") from error
    if done.returncode != 0:
        log = directory / "install.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout + done.stderr)
        raise Unavailable(f"the installation failed; all of it: {log}")


def _is_ready(directory: Path, wanted: str) -> bool:
    stamp = directory / "ready"
    return stamp.exists() and stamp.read_text() == wanted


def _mark_ready(directory: Path, wanted: str) -> None:
    (directory / "ready").write_text(wanted)
