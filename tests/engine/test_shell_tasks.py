"""`app.shell_task`: a command for each attempt, how it ends, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bell import Bell
from commands import command
from perdure import App, Retry, RunHandle, Task
from perdure.core.run.attempts import Attempt
from perdure.core.run.failure import Failure, FailureKind
from perdure.core.run.lifecycle import Status
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.secret import secret
from perdure.engine.targets.output_capture import Capture, Lines
from perdure.engine.tasks import catalogue
from perdure.engine.tasks.options import Executor
from perdure.engine.tasks.target import ShellTarget
from perdure.errors import RunCancelled, RunFailed
from perdure.telemetry.redactor import Mask
from waiting import MAX_WAIT_S

QUICK = Defaults(poll=timedelta(milliseconds=100), cancel_grace=timedelta(milliseconds=300))
ONCE = Retry(max_attempts=1)
CANARY = "canary-91be\n44c0/7d"


@pytest_asyncio.fixture
async def app(sqlite_storage_url: str) -> AsyncIterator[App]:
    async with App(sqlite_storage_url, defaults=QUICK) as opened:
        yield opened


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


async def ended(app: App, task: Task[..., Any], **payload: Any) -> RunHandle[Any]:
    """A run of it, once it has ended, however it has."""
    async with app.worker(concurrency=1):
        run = await task.trigger(**payload)
        await app.results.ended(run.id)
    return run


async def result_of(app: App, task: Task[..., Any], **payload: Any) -> Any:
    return await (await ended(app, task, **payload)).result(MAX_WAIT_S)


async def failure_of(app: App, task: Task[..., Any]) -> Failure:
    run = await ended(app, task)
    with pytest.raises(RunFailed):
        await run.result(MAX_WAIT_S)
    failure = (await run.get()).failure
    assert failure is not None
    return failure


async def last_attempt(app: App, run_id: str) -> Attempt:
    return (await app.runs.attempts(run_id))[-1]


async def output_of(app: App, run_id: str) -> dict[str, Any]:
    output = (await last_attempt(app, run_id)).output
    assert output is not None
    return output


def is_there(pid: int) -> bool:
    """Also a dead one that nobody has buried."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children_of(pid: str) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def pids_of(bell: Bell, most: int) -> list[int]:
    return [int((await bell.heard()).word) for _ in range(most)]


# What a command finds


async def test_a_command_reads_its_payload_and_writes_its_result(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK)
    code = "import json, sys; print(json.load(sys.stdin)['number'] * 2)"
    double = app.shell_task("double", argv=python(code), stdout="json")
    async with app, app.worker(concurrency=1):
        assert await (await double.trigger(number=21)).result(MAX_WAIT_S) == 42


async def test_there_is_no_shell(app: App, tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:])"
    arguments = ["$(touch it)", "; touch it", "*", "a b", "-c"]
    show = app.shell_task("show", argv=python(code, *arguments), cwd=tmp_path)

    assert await result_of(app, show) == str(arguments)
    assert "it" not in os.listdir(tmp_path)


async def test_the_environment_is_small_and_says_which_attempt_it_is(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "not yours")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    show = app.shell_task("show", argv=python(code), env={"COLOUR": "red"}, stdout="json")
    run = await ended(app, show)

    found = await run.result(MAX_WAIT_S)
    allowed = {"COLOUR", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "TZ"}
    ours = {name: value for name, value in found.items() if name.startswith("PERDURE_")}
    assert set(found) - set(ours) - {"USER", "PWD"} <= allowed
    assert found["COLOUR"] == "red"
    assert ours.pop("PERDURE_IDEMPOTENCY_KEY")
    assert ours == {
        "PERDURE_RUN_ID": run.id,
        "PERDURE_TASK": "show",
        "PERDURE_ATTEMPT": "1",
        "PERDURE_FENCE": "1",
    }


async def test_a_command_is_the_head_of_its_own_session(app: App) -> None:
    code = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())"

    assert await result_of(app, app.shell_task("show", argv=python(code))) == "True"


async def test_a_payload_that_nobody_reads_is_no_trouble(app: App) -> None:
    deaf = app.shell_task("deaf", argv=["true"])

    assert await result_of(app, deaf, much="x" * 900_000) == ""


# How it ends


async def test_zero_is_success_and_the_attempt_shows_what_was_seen(app: App) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    run = await ended(app, app.shell_task("speak", argv=python(code)))

    assert await run.result(MAX_WAIT_S) == "out"
    attempt = await last_attempt(app, run.id)
    assert attempt.output == {
        "exit_code": 0,
        "signal": None,
        "stdout": "out\n",
        "stdout_bytes": 4,
        "stdout_truncated": False,
        "stderr": "err\n",
        "stderr_bytes": 4,
        "stderr_truncated": False,
    }
    assert attempt.execution_trace is not None
    assert attempt.execution_trace["executor"] == "shell"
    assert {"start_command_ms", "command_ms", "total_ms"} <= set(attempt.execution_trace)


@pytest.mark.parametrize("code", [1, 3, 75, 255])
async def test_another_exit_code_is_tried_again(app: App, code: int) -> None:
    retry = Retry(max_attempts=2, initial=0)
    fails = app.shell_task("fails", argv=["sh", "-c", f"exit {code}"], permanent=[64], retry=retry)
    run = await ended(app, fails)

    attempts = await app.runs.attempts(run.id)
    failure = (await run.get()).failure
    assert failure is not None
    assert len(attempts) == 2
    assert (failure.type, failure.message) == (f"Exit{code}", f"sh ended with exit code {code}")
    assert (failure.details, failure.traceback) == ({"exit_code": code}, None)


async def test_an_exit_code_that_is_said_to_be_permanent_is(app: App) -> None:
    fails = app.shell_task("fails", argv=["sh", "-c", "echo no >&2; exit 64"], permanent=[64, 65])
    run = await ended(app, fails)

    record = await run.get()
    assert record.failure is not None
    assert (record.status, record.failure.retryable) == (Status.FAILED, False)
    assert record.counters.attempts == 1
    output = await output_of(app, run.id)
    assert (output["exit_code"], output["stderr"]) == (64, "no\n")


async def test_a_signal_is_named(app: App) -> None:
    kills = app.shell_task("kills", argv=["sh", "-c", "kill -SEGV $$"], retry=ONCE)
    failure = await failure_of(app, kills)

    assert (failure.type, failure.message) == ("Killed", "sh was killed by SIGSEGV (signal 11)")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"argv": ["no-such-program"]}, "no-such-program: No such file or directory"),
        ({"argv": ["/etc/passwd"]}, "/etc/passwd: Permission denied"),
        ({"argv": ["true"], "cwd": "/no/such/place"}, "/no/such/place: No such file"),
    ],
)
async def test_what_cannot_be_started_is_said(app: App, target: Any, says: str) -> None:
    failure = await failure_of(app, app.shell_task("broken", retry=ONCE, **target))

    assert (failure.type, failure.retryable) == ("CannotStart", True)
    assert says in failure.message


@pytest.mark.parametrize("said", ["no json", "NaN", ""])
async def test_standard_output_that_should_be_json_and_is_not_fails_for_good(
    app: App, said: str
) -> None:
    task = app.shell_task("speak", argv=["printf", "%s", said], stdout="json")
    failure = await failure_of(app, task)

    assert (failure.type, failure.retryable) == ("StdoutNotJson", False)
    assert "standard output" in failure.message


# What is kept


async def test_much_output_is_read_and_its_ends_are_kept(app: App) -> None:
    code = "print('begin'); print('x' * 5_000_000); print('end')"
    task = app.shell_task("speak", argv=python(code), output_limit=100, truncate=True)
    run = await ended(app, task)

    output = await output_of(app, run.id)
    assert (output["stdout_bytes"], output["stdout_truncated"]) == (5_000_011, True)
    assert output["stdout"].startswith("begin\nxxx")
    assert output["stdout"].endswith("xxx\nend\n")
    assert "(4999911 bytes left out)" in output["stdout"]
    assert await run.result(MAX_WAIT_S) == {"truncated": True, "text": output["stdout"]}


@pytest.mark.parametrize("stdout", ["text", "json"])
async def test_output_longer_than_its_limit_is_a_failure_of_its_own_type(
    app: App, stdout: str
) -> None:
    argv = ["printf", "%s", '"' + "x" * 200 + '"']
    failure = await failure_of(
        app, app.shell_task("speak", argv=argv, output_limit=100, stdout=stdout)
    )

    assert (failure.type, failure.retryable) == ("OutputTooLarge", False)
    assert "202 bytes, more than output_limit, 100" in failure.message


@pytest.mark.parametrize("count", [200_000, 300_000])
async def test_output_that_is_too_long_as_json_is_a_failure_or_keeps_its_ends(
    app: App, count: int
) -> None:
    """Each of these characters takes six bytes of JSON; the second output is over both limits."""
    argv = python(f"print('begin' + chr(1) * {count} + 'end')")
    limit = 256 * 1024
    failure = await failure_of(app, app.shell_task("fail", argv=argv, output_limit=limit))
    cut = app.shell_task("cut", argv=argv, output_limit=limit, truncate=True)
    result = await result_of(app, cut)

    assert (failure.kind, failure.type) == (FailureKind.ERROR, "OutputTooLarge")
    assert not failure.retryable
    assert result["truncated"] is True
    assert result["text"].startswith("begin\x01")
    assert result["text"].endswith("\x01end\n")


@pytest.mark.parametrize("truncate", [True, False])
async def test_a_json_value_longer_than_the_result_limit_is_too_long_too(
    sqlite_storage_url: str, truncate: bool
) -> None:
    defaults = Defaults(poll=timedelta(milliseconds=100), result_limit=1000)
    argv = python("print([1] * 2000)")
    async with App(sqlite_storage_url, defaults=defaults) as app:
        task = app.shell_task("speak", argv=argv, stdout="json", truncate=truncate)
        if truncate:
            result = await result_of(app, task)
            assert result["truncated"] is True
            assert result["text"].startswith("[1, 1")
        else:
            assert (await failure_of(app, task)).type == "OutputTooLarge"


def test_a_capture_keeps_all_up_to_its_limit_and_both_ends_beyond() -> None:
    capture = Capture(11)
    for byte in b"0123456789a":
        capture.add(bytes([byte]))
    assert (capture.text(Mask([])), capture.is_truncated) == ("0123456789a", False)

    capture.add(b"bcdefghij")
    assert capture.text(Mask([])) == "012345\n… (9 bytes left out) …\nfghij"
    assert (capture.size, capture.is_truncated) == (20, True)


def test_lines_are_cut_where_they_end_or_become_too_long() -> None:
    said: list[str] = []
    lines = Lines(said.append, Mask([]))
    for part in (b"on", b"e\r\ntwo\n\n", b"x" * 9000, b"\nlast"):
        lines.add(part)
    lines.end()

    assert said == ["one", "two", "x" * 8192, "last"]


async def test_standard_error_is_the_runs_log_as_it_comes(app: App, bell: Bell) -> None:
    code = f"""if True:
        import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from bell import wait_at
        print('half way', file=sys.stderr, flush=True)
        wait_at({bell.path!r})
    """
    task = app.shell_task("slow", argv=python(code))
    async with app.worker(concurrency=1):
        run = await task.trigger()
        async with asyncio.timeout(MAX_WAIT_S):
            async for line in app.runs.follow(run.id):
                assert line.message == "half way"
                break
        (await bell.heard()).let_go()
        await run.result(MAX_WAIT_S)

    [line] = await app.runs.logs(run.id)
    assert (line.message, line.attempt) == ("half way", 1)


# Nothing is left


async def test_a_polite_command_has_its_last_word_when_its_time_is_up(app: App, bell: Bell) -> None:
    task = app.shell_task("polite", argv=command("polite", bell.path), timeout=1, retry=ONCE)
    async with app.worker(concurrency=1):
        run = await task.trigger()
        [pid] = await pids_of(bell, 1)
        await app.results.ended(run.id)

    failure = (await run.get()).failure
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT
    assert (await output_of(app, run.id))["stdout"] == "bye\n"
    assert not is_there(pid)


async def test_after_a_timeout_the_whole_family_is_gone(app: App, bell: Bell) -> None:
    task = app.shell_task("family", argv=command("family", bell.path), timeout=2, retry=ONCE)
    async with app.worker(concurrency=1):
        run = await task.trigger()
        pids = await pids_of(bell, 3)
        await app.results.ended(run.id)
        assert [pid for pid in pids if is_there(pid)] == []

    failure = (await run.get()).failure
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT
    assert (await output_of(app, run.id))["signal"] == signal.SIGKILL


async def test_after_a_cancel_the_whole_family_is_gone(app: App, bell: Bell) -> None:
    task = app.shell_task("family", argv=command("family", bell.path))
    async with app.worker(concurrency=1):
        run = await task.trigger()
        pids = await pids_of(bell, 3)
        await app.runs.cancel(run.id)
        with pytest.raises(RunCancelled):
            await run.result(MAX_WAIT_S)
        assert [pid for pid in pids if is_there(pid)] == []


async def test_what_a_command_leaves_behind_ends_with_it(app: App, bell: Bell) -> None:
    task = app.shell_task("careless", argv=command("careless", bell.path))
    async with app.worker(concurrency=1):
        run = await task.trigger()
        callers = [await bell.heard() for _ in range(3)]
        pids = [int(caller.word) for caller in callers if caller.word != "leaving"]
        for caller in callers:
            if caller.word == "leaving":
                caller.let_go()
        assert await run.result(MAX_WAIT_S) == "done"
        assert [pid for pid in pids if is_there(pid)] == []


async def test_a_worker_that_leaves_takes_its_commands_along(app: App, bell: Bell) -> None:
    task = app.shell_task("family", argv=command("family", bell.path))
    async with app.worker(concurrency=1, drain=0):
        run = await task.trigger()
        callers = [await bell.heard() for _ in range(3)]
    async with asyncio.timeout(MAX_WAIT_S):
        for caller in callers:
            await caller.gone()

    record = await run.get()
    assert (record.status, record.counters.failures) == (Status.RELEASED, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
async def test_without_its_keeper_a_command_ends(app: App, bell: Bell) -> None:
    task = app.shell_task("prolific", argv=command("prolific", bell.path), retry=ONCE)
    async with app.worker(concurrency=1):
        run = await task.trigger()
        keeper = await bell.heard()
        waiting = await bell.heard()
        async with asyncio.timeout(MAX_WAIT_S):
            while len(children_of(keeper.word)) > 1:  # noqa: ASYNC110  # it buries the orphans
                await asyncio.sleep(0)
        os.kill(int(keeper.word), signal.SIGKILL)
        await asyncio.wait_for(waiting.gone(), MAX_WAIT_S)
        await app.results.ended(run.id)

    failure = (await run.get()).failure
    assert failure is not None
    assert (failure.kind, failure.type) == (FailureKind.CRASH, "KeeperDied")


ATTACKS = ["kill the keeper", "kill the guard", "kill the keeper's group", "stop the keeper"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_command_that_attacks_its_keeper_leaves_nothing_behind(
    app: App, bell: Bell, attack: str
) -> None:
    task = app.shell_task("assassin", argv=command("assassin", bell.path), retry=ONCE)
    async with app.worker(concurrency=1):
        run = await task.trigger()
        callers = {caller.word: caller for caller in [await bell.heard(), await bell.heard()]}
        callers.pop("assassin").answer(attack)
        [outsider] = callers
        async with asyncio.timeout(MAX_WAIT_S):
            await app.results.ended(run.id)
        assert not is_there(int(outsider))

    failure = (await run.get()).failure
    assert failure is not None
    assert (failure.kind, failure.type) == (FailureKind.CRASH, "KeeperDied")


# Secrets


def all_bytes_in(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir() if path.is_file())


async def test_a_secret_is_in_the_commands_environment_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BACKUP_KEY", CANARY)
    app = App(f"sqlite:///{tmp_path / 'runs.db'}", defaults=QUICK)
    code = """if True:
        import json, os, sys
        key = os.environ['KEY']
        print(json.dumps({'length': len(key), 'key': key}))
        print('the key is', key, file=sys.stderr)
        sys.exit(len(sys.stdin.read()) > 2)
    """
    env = {"KEY": secret("BACKUP_KEY")}
    leak = app.shell_task("leak", argv=python(code), env=env, stdout="json", retry=ONCE)
    with caplog.at_level("DEBUG"):
        async with app:
            result = await result_of(app, leak)
            failed = await ended(app, leak, fail=True)
            lines = [line.message for line in await app.runs.logs(failed.id)]

    assert result == {"length": len(CANARY), "key": "[redacted]"}
    assert lines == ["the key is [redacted]", "[redacted]"]
    stored = all_bytes_in(tmp_path)
    assert b"BACKUP_KEY" in stored  # the reference
    for said in (CANARY, json.dumps(CANARY)[1:-1], *CANARY.splitlines()):
        assert said.encode() not in stored
        assert said not in caplog.text


async def test_what_looks_like_a_password_is_kept_in_the_result_only(app: App) -> None:
    run = await ended(app, app.shell_task("speak", argv=["echo", "password=hunter2"]))

    assert await run.result(MAX_WAIT_S) == "password=hunter2"
    assert (await output_of(app, run.id))["stdout"] == "password=[redacted]\n"


async def test_a_filter_that_breaks_hides_all_of_the_output(sqlite_storage_url: str) -> None:
    def broken(message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        raise ValueError

    app = App(sqlite_storage_url, defaults=QUICK, redact=broken)
    async with app:
        run = await ended(app, app.shell_task("speak", argv=["echo", "hi"]))

        assert await run.result(MAX_WAIT_S) == "hi"
        assert await output_of(app, run.id) == {"left_out": "ValueError in redact"}


async def test_a_million_lines_do_not_fill_the_log(app: App) -> None:
    argv = ["sh", "-c", "seq 1 100000 >&2"]
    run = await ended(app, app.shell_task("noisy", argv=argv))

    lines = await app.runs.logs(run.id)
    assert lines[-1].message == "that is enough for a log; how it ends is in the output"
    assert (await output_of(app, run.id))["stderr"].endswith("\n100000\n")


async def test_a_secret_that_is_not_there_is_said_by_name(app: App) -> None:
    task = app.shell_task("locked", argv=["true"], env={"A": secret("NOT_SET")}, retry=ONCE)
    failure = await failure_of(app, task)

    assert (failure.type, failure.retryable) == ("SecretNotUsable", True)
    assert "NOT_SET" in failure.message


async def test_the_catalogue_knows_the_command(sqlite_storage_url: str) -> None:
    app = App(sqlite_storage_url, defaults=QUICK)
    app.shell_task("backup", argv=["pg_dump", "shop"], env={"PGPASSWORD": secret("PG")})
    async with app:
        entry = await catalogue.find_task(app.storage, app.environment, "backup")

    assert entry.executor is Executor.SHELL
    assert entry.target == ShellTarget(argv=("pg_dump", "shop"), env={"PGPASSWORD": secret("PG")})
    assert entry.policy.timeout == timedelta(seconds=300)
