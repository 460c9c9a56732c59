"""The walk-through of the README, command by command, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from waiting import MAX_WAIT_S
from web_kit import serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SERVER = "perdure server"
ADDRESS = "localhost:8080"
MARK = "@@@ "


def walk() -> list[tuple[str, str]]:
    """Each command of the section, and what it is said to answer."""
    section = README.split("## Over HTTP")[1].split("```console\n")[1].split("```")[0]
    steps = re.split(r"^\$ ", section, flags=re.MULTILINE)[1:]
    found = []
    for step in steps:
        command = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n", step)
        assert command is not None
        found.append((command[0].strip(), step[command.end() :].strip()))
    return found


def test_what_the_readme_shows_is_what_happens(tmp_path: Path) -> None:
    first, *steps = walk()
    hello = README.split("```python\n")[1].split("```")[0]
    (tmp_path / "hello.py").write_text(hello)
    subprocess.run([sys.executable, "hello.py"], cwd=tmp_path, check=True, timeout=MAX_WAIT_S)

    with serving(f"sqlite:///{tmp_path / 'runs.db'}", tmp_path) as server:
        answers = _carried_out([command for command, _ in steps], server.address, tmp_path)

    assert first[0].startswith(SERVER)
    assert len(steps) > 6
    for (command, expected), answer in zip(steps, answers, strict=True):
        pattern = ".*".join(re.escape(piece) for piece in expected.split("…"))
        assert re.fullmatch(pattern, answer, re.DOTALL), f"{command}\n{answer}"


def _carried_out(commands: list[str], address: str, directory: Path) -> list[str]:
    script = "\n".join(f"echo; echo '{MARK}'\n{command}" for command in commands)
    place = address.removeprefix("http://").replace("127.0.0.1", "localhost")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(ADDRESS, place)],
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return [answer.strip() for answer in done.stdout.split(MARK)[1:]]
