"""Shells finish our words: a real bash, with the script that we print."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio

from command import PERDURE, Shell
from perdure import App, every, secret
from situations import a_worker
from terminal import Terminal
from waiting import MAX_WAIT_S

SCRIPT = """
source <(perdure completion bash)
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_perdure_completion perdure
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest_asyncio.fixture
async def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    app = App(made.url)

    @app.task(queue="numbers")
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def digest() -> None: ...

    async with app:
        await app.queues.pause("nights", "they are dark", create=True)
        await app.schedules.create("nightly", every(60), "digest")
        await app.webhooks.create("billing", "https://example.com/", signing_secret=secret("X"))
        await a_worker(app, "worker_1")
        await double.options(delay=60).trigger(1)
    return made


def environ(shell: Shell) -> dict[str, str]:
    path = f"{Path(PERDURE[0]).parent}:{os.environ['PATH']}"
    return shell.environ(PATH=path, PERDURE_COMPLETION_TIMEOUT="60")


def finished(shell: Shell, *words: str, **variables: str) -> list[str]:
    """What bash offers for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in ("perdure", *words))
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT.format(words=quoted)],
        cwd=shell.directory,
        env={**environ(shell), **variables},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("que",), ["queues"]),
        (("runs", "res"), ["reschedule", "reset-idempotency-key", "resume"]),
        (("runs", "cancel", "--dry"), ["--dry-run"]),
        (("completion", "z"), ["zsh"]),
        (("trigger", ""), ["digest", "double"]),
        (("queues", "pause", "n"), ["nights", "numbers"]),
        (("schedules", "show", "n"), ["nightly"]),
        (("webhooks", "show", ""), ["billing"]),
        (("workers", "drain", "worker"), ["worker_1"]),
        (("runs", "list", "--status", "dead"), ["dead_lettered"]),
        (("runs", "list", "--task", "do"), ["double"]),
        (("runs", "cancel", "--queue", "num"), ["numbers"]),
    ],
)
def test_words_are_finished(shell: Shell, words: tuple[str, ...], offered: list[str]) -> None:
    assert sorted(finished(shell, *words)) == offered


def test_the_latest_runs_are_offered(shell: Shell) -> None:
    [run_id] = finished(shell, "why", "run_")

    assert shell.perdure("why", run_id).code == 0


@pytest.mark.parametrize("url", ["sqlite:///nowhere.db", "postgresql://127.0.0.1:1/x", "nonsense"])
def test_whatever_is_wrong_nothing_is_offered_and_nothing_said(shell: Shell, url: str) -> None:
    assert finished(shell, "trigger", "", PERDURE_URL=url) == []
    assert not (shell.directory / "nowhere.db").exists()


def test_somebody_who_types_gets_the_rest_of_the_word(shell: Shell) -> None:
    command = ["bash", "--norc", "-i"]

    with Terminal(command, cwd=shell.directory, env=environ(shell)) as terminal:
        terminal.type("source <(perdure completion bash); echo rea''dy\n")
        terminal.wait_for("ready")
        terminal.type("perdure queues pause num\t--reason counting\n")
        terminal.wait_for("perdure queues pause numbers --reason counting")
        terminal.wait_for("paused")
        terminal.type("exit\n")
        terminal.end()


@pytest.mark.parametrize("kind", ["zsh", "fish"])
def test_other_shells_have_scripts_of_their_own(shell: Shell, kind: str) -> None:
    script = shell.perdure("completion", kind)
    data = shell.perdure("completion", kind, "--json").json

    assert (script.code, data["shell"]) == (0, kind)
    assert f"_PERDURE_COMPLETE={kind}_complete" in script.out
    assert data["script"].strip() == script.out.strip()


def test_an_unknown_shell_is_explained(shell: Shell) -> None:
    answer = shell.perdure("completion", "csh")

    assert answer.code == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in answer.err
