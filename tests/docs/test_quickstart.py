"""The quickstart, command by command, with the answers that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import MAX_WAIT_S
from web_kit import serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
HELLO = PAGE.split("```python\n")[1].split("```")[0]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n")
ON_THE_DATABASE = ("2. Trigger a run", "3. Look at it from a shell", "4. Run a worker of its own")
SERVER = "perdure server"
ADDRESS = "localhost:8080"
MARK = "@@@ "
PREAMBLE = "set -euo pipefail; exec 2>&1; trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n"
"""A command of the page that fails ends the script, which leaves no process behind."""


def commands(title: str) -> list[tuple[str, str]]:
    """Return each command of a section of the page, and the answer that the page shows."""
    section = PAGE.split(f"\n## {title}\n")[1].partition("\n## ")[0]
    steps = re.split(r"^\$ ", "".join(CONSOLE.findall(section)), flags=re.MULTILINE)[1:]
    found = [(COMMAND.match(step), step) for step in steps]
    return [
        (command[0].strip(), step[command.end() :].strip())
        for command, step in found
        if command is not None
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hello.py").write_text(HELLO, encoding="utf-8")
    return tmp_path


def test_the_commands_about_runs_and_workers_answer_as_shown(folder: Path) -> None:
    steps = [step for title in ON_THE_DATABASE for step in commands(title)]

    answers = execute([command for command, _ in steps], ADDRESS, folder)

    assert len(steps) > 10
    compare(steps, answers)


def test_the_commands_about_the_server_answer_as_shown(folder: Path) -> None:
    first, *steps = commands("5. Over HTTP")
    before = [command for title in ON_THE_DATABASE for command, _ in commands(title)]
    execute(before, ADDRESS, folder)

    with serving(f"sqlite:///{folder / 'runs.db'}", folder) as server:
        answers = execute([command for command, _ in steps], server.address, folder)

    assert first[0].startswith(SERVER)
    assert len(steps) > 6
    compare(steps, answers)


def compare(steps: list[tuple[str, str]], answers: list[str]) -> None:
    """Compare answers with the page, where `…` stands for any text."""
    for (command, expected), answer in zip(steps, answers, strict=True):
        pattern = ".*".join(re.escape(piece) for piece in expected.split("…"))
        assert re.fullmatch(pattern, answer, re.DOTALL), f"{command}\n{answer}"


def execute(lines: list[str], address: str, folder: Path) -> list[str]:
    """Execute the lines in one shell and return what each printed."""
    script = PREAMBLE + "\n".join(f"echo; echo '{MARK}'\n{line}" for line in lines)
    place = address.removeprefix("http://").replace("127.0.0.1", "localhost")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script.replace(ADDRESS, place)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
    )
    assert done.returncode == 0, done.stdout
    return [answer.strip() for answer in done.stdout.split(MARK)[1:]]
