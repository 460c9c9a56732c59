"""`executor="process"`: handlers in processes that can really be killed."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import process_tasks
from bell import Bell
from perdure import App, Retry, Task
from perdure.core.run.failure import Failure, FailureKind
from perdure.core.run.lifecycle import Status
from perdure.engine.runtime.defaults import Defaults
from perdure.errors import InvalidTask, RunCancelled, RunFailed
from waiting import MAX_WAIT_S

QUICK = Defaults(poll=timedelta(milliseconds=100), cancel_grace=timedelta(milliseconds=300))
ONCE = Retry(max_attempts=1)
AT_ONCE = Retry(max_attempts=3, initial=0)
TESTS = Path(process_tasks.__file__).parent


@pytest_asyncio.fixture
async def app(sqlite_storage_url: str) -> AsyncIterator[App]:
    async with App(sqlite_storage_url, defaults=QUICK) as opened:
        yield opened


def in_process(app: App, function: Callable[..., Any], **settings: Any) -> Task[..., Any]:
    task: Task[..., Any] = app.task(executor="process", **settings)(function)
    return task


async def failure_of(task: Task[..., Any], *arguments: Any) -> Failure:
    run = await task.trigger(*arguments)
    with pytest.raises(RunFailed):
        await run.result(MAX_WAIT_S)
    failure = (await run.get()).failure
    assert failure is not None
    return failure


async def test_a_handler_in_a_process_gets_its_arguments_and_returns(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK)
    add = in_process(app, process_tasks.add)
    async with app, app.worker(concurrency=1):
        assert await (await add.trigger(20, right=22)).result(MAX_WAIT_S) == 42


async def test_a_process_finds_the_command_line_of_its_worker(app: App) -> None:
    task = app.task(executor="process")(process_tasks.arguments)

    async with app.run_all():
        assert await (await task.trigger()).result(MAX_WAIT_S) == sys.argv


async def test_a_process_knows_its_attempt_and_is_used_again(app: App) -> None:
    who = in_process(app, process_tasks.who)
    async with app.worker(concurrency=1):
        runs = [await who.trigger(), await who.trigger()]
        first, second = [await run.result(MAX_WAIT_S) for run in runs]

    assert first["pid"] == second["pid"] != os.getpid()
    assert [first["run_id"], second["run_id"]] == [run.id for run in runs]
    assert (first["attempt"], len(first["key"])) == (1, 32)
    assert first["key"] != second["key"]


async def test_every_busy_slot_has_a_process_of_its_own(app: App, bell: Bell) -> None:
    meet = in_process(app, process_tasks.meet)
    async with app.worker(concurrency=2):
        runs = [await meet.trigger(bell.path), await meet.trigger(bell.path)]
        callers = [await bell.heard(), await bell.heard()]
        for caller in callers:
            caller.let_go()
        pids = {await run.result(MAX_WAIT_S) for run in runs}

    assert pids == {int(caller.word) for caller in callers}
    assert len(pids) == 2


async def test_an_exit_is_a_crash_of_that_attempt_and_the_next_one_succeeds(app: App) -> None:
    exit_once = in_process(app, process_tasks.exit_once, retry=AT_ONCE)
    async with app.worker(concurrency=1):
        run = await exit_once.trigger(3)
        assert await run.result(MAX_WAIT_S) == 2

    first, _ = await app.runs.attempts(run.id)
    assert first.failure is not None
    assert (first.failure.kind, first.failure.type) == (FailureKind.CRASH, "ProcessDied")
    assert "exited with code 3" in first.failure.message


@pytest.mark.parametrize(
    ("function", "signal"),
    [(process_tasks.kill_myself, "SIGKILL"), (process_tasks.segfault, "SIGSEGV")],
)
async def test_a_killed_process_is_a_crash_that_harms_no_neighbour(
    app: App, bell: Bell, function: Callable[..., Any], signal: str
) -> None:
    meet = in_process(app, process_tasks.meet)
    dies = in_process(app, function, retry=ONCE)
    async with app.worker(concurrency=2):
        neighbour = await meet.trigger(bell.path)
        caller = await bell.heard()
        failure = await failure_of(dies)
        caller.let_go()
        assert await neighbour.result(MAX_WAIT_S) == int(caller.word)

    assert failure.kind is FailureKind.CRASH
    assert f"killed by {signal}" in failure.message


async def test_a_process_killed_while_idle_costs_nobody_an_attempt(app: App) -> None:
    who = in_process(app, process_tasks.who, retry=ONCE)
    async with app.worker(concurrency=1):
        first = await (await who.trigger()).result(MAX_WAIT_S)
        os.kill(first["pid"], 9)
        second = await (await who.trigger()).result(MAX_WAIT_S)

    assert second["attempt"] == 1
    assert second["pid"] != first["pid"]


async def test_fail_retry_after_and_release_cross_the_boundary(app: App) -> None:
    refuse = in_process(app, process_tasks.refuse)
    later = in_process(app, process_tasks.later)
    give_back = in_process(app, process_tasks.give_back)
    async with app.worker(concurrency=3):
        failure = await failure_of(refuse)
        assert await (await later.trigger()).result(MAX_WAIT_S) == 2
        released = await give_back.trigger()
        assert await released.result(MAX_WAIT_S) == 2

    assert (failure.type, failure.message, failure.retryable) == ("Fail", "no such account", False)
    assert failure.details == {"account": 7}
    counters = (await released.get()).counters
    assert (counters.releases, counters.failures) == (1, 0)


async def test_what_a_handler_says_is_heard_in_the_worker(
    app: App, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    speak = in_process(app, process_tasks.speak)
    with caplog.at_level(logging.INFO, "perdure.task"):
        async with app.worker(concurrency=1):
            run = await speak.trigger()
            await run.result(MAX_WAIT_S)

    said, progress = [vars(record) for record in caplog.records if record.name.endswith("speak")]
    assert (said["message"], said["shelf"], said["run_id"]) == ("3 boxes", "b", run.id)
    assert (progress["fraction"], progress["progress"]) == (0.5, "half way")
    assert "hello from the process" in capfd.readouterr().out


async def test_results_that_are_not_json_and_exits_are_failures(app: App) -> None:
    unspeakable = in_process(app, process_tasks.unspeakable)
    loud = in_process(app, process_tasks.loud, retry=ONCE)
    async with app.worker(concurrency=2):
        rejected, exited = await asyncio.gather(failure_of(unspeakable), failure_of(loud))

    assert (rejected.kind, rejected.retryable) == (FailureKind.REJECTED, False)
    assert "result: cannot be kept as JSON" in rejected.message
    assert (exited.kind, exited.type, exited.message) == ("error", "SystemExit", "enough")


async def test_a_timeout_lets_the_handler_clean_up(app: App, bell: Bell) -> None:
    tidy = in_process(app, process_tasks.tidy, timeout=0.3, retry=ONCE)
    async with app.worker(concurrency=1):
        run = await tidy.trigger(bell.path)
        words = [(await bell.heard()).word, await bell.word()]
        with pytest.raises(RunFailed, match=r"longer than its timeout of 0\.3 s"):
            await run.result(MAX_WAIT_S)

    assert words == ["waiting", "cleaned up"]
    assert (await run.get()).counters.attempts == 1


async def test_a_cancel_kills_what_will_not_stop_and_all_it_had_started(
    app: App, bell: Bell
) -> None:
    stubborn = in_process(app, process_tasks.stubborn)
    async with app.worker(concurrency=1):
        run = await stubborn.trigger(bell.path)
        callers = [await bell.heard(), await bell.heard()]
        assert {caller.word for caller in callers} == {"stubborn", "beside"}
        await app.runs.cancel(run.id)
        with pytest.raises(RunCancelled):
            await run.result(MAX_WAIT_S)
        async with asyncio.timeout(MAX_WAIT_S):
            for caller in callers:
                await caller.gone()

    assert (await run.get()).status is Status.CANCELLED


async def test_what_a_dead_process_had_forked_dies_with_it(app: App, bell: Bell) -> None:
    forks = in_process(app, process_tasks.fork_and_exit, retry=ONCE)
    async with app.worker(concurrency=1):
        run = await forks.trigger(bell.path)
        callers = {caller.word: caller for caller in [await bell.heard(), await bell.heard()]}
        callers["about to exit"].let_go()
        with pytest.raises(RunFailed, match="exited with code 3"):
            await run.result(MAX_WAIT_S)
        async with asyncio.timeout(MAX_WAIT_S):
            await callers["left behind"].gone()


async def test_a_handler_stopped_in_the_middle_of_a_word_still_says_how_it_ended(
    app: App, bell: Bell, caplog: pytest.LogCaptureFixture
) -> None:
    chatter = in_process(app, process_tasks.chatter)
    with caplog.at_level(logging.INFO, "perdure.task"):
        async with app.worker(concurrency=1):
            for _ in range(10):
                run = await chatter.trigger(bell.path)
                assert await bell.word() == "talking"
                await app.runs.cancel(run.id)
                with pytest.raises(RunCancelled):
                    await run.result(MAX_WAIT_S)
                assert await bell.word() == "cleaned up"
                assert caplog.messages.count("last word") == 1
                caplog.clear()


async def test_a_process_that_nobody_needs_any_more_is_let_go(app: App, bell: Bell) -> None:
    meet = in_process(app, process_tasks.meet)
    passed = 0.0
    host = app.worker(concurrency=2)
    async with host:
        processes = host._handlers._processes
        processes._time = lambda: passed
        runs = [await meet.trigger(bell.path) for _ in range(2)]
        callers = [await bell.heard() for _ in range(2)]
        for caller in callers:
            caller.let_go()
        first, second = [await run.result(MAX_WAIT_S) for run in runs]
        passed += 59.0
        again = await meet.trigger(bell.path)
        (await bell.heard()).let_go()
        used = await again.result(MAX_WAIT_S)
        passed += 2.0
        await asyncio.to_thread(processes.dismiss_idle)

        assert [process.pid for process in processes._idle] == [used]
        [gone] = {first, second} - {used}
        with pytest.raises(ProcessLookupError):
            os.kill(gone, 0)


async def test_processes_die_with_their_worker(tmp_path: Path, bell: Bell) -> None:
    script = tmp_path / "worker.py"
    script.write_text(_SCRIPT.format(guard='if __name__ == "__main__":'))
    process = _start(script, tmp_path, bell)
    try:
        caller = await bell.heard()
        assert int(caller.word) != process.pid
        process.kill()
        async with asyncio.timeout(MAX_WAIT_S):
            await caller.gone()
    finally:
        process.kill()
        process.communicate()


async def test_a_script_without_a_guard_is_told_so(tmp_path: Path, bell: Bell) -> None:
    script = tmp_path / "worker.py"
    script.write_text(_SCRIPT.format(guard="if True:"))
    process = _start(script, tmp_path, bell)
    _, complaints = await asyncio.to_thread(process.communicate)

    assert process.returncode == 1
    assert "InvalidTask" in complaints
    assert 'guard what starts it with `if __name__ == "__main__":`' in complaints


def test_what_another_process_cannot_import_cannot_be_a_process_task() -> None:
    app = App("sqlite:///:memory:")

    def local() -> None: ...

    for function in (local, lambda: None):
        with pytest.raises(InvalidTask, match="at the top level of a module"):
            in_process(app, function, name="local")


_SCRIPT = """
import asyncio, os, sys
from bell import wait_at
from perdure import App

app = App("sqlite:///" + sys.argv[1])

@app.task(executor="process")
def meet(bell: str) -> None:
    wait_at(bell, str(os.getpid()))

async def main():
    async with app, app.worker(concurrency=1):
        await (await meet.trigger(sys.argv[2])).result()

{guard}
    asyncio.run(main())
"""


def _start(script: Path, folder: Path, bell: Bell) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script), str(folder / "runs.db"), bell.path],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stderr=subprocess.PIPE,
        text=True,
    )
